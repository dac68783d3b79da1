"""Reading a run back without holding its conversations: what the numbers need of all rows, and whole rows one by one.

A large run's rows are hundreds of megabytes, nearly all of it messages. `locate` keeps the rest of each row and where
its line is; `whole_rows` reads the lines again, one at a time.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pytest_hermes.artifacts.records import Place, rows_with_places
from pytest_hermes.errors import ConfigurationError

HEAVY = ("messages", "tools", "turn_records", "prompt", "traceback", "tool_errors", "agent_metadata", "error")
"""Fields of a row that its numbers do not need and that may be large."""


@dataclasses.dataclass(frozen=True)
class LocatedRow:
    """A row without its `HEAVY` fields and its verifier's output, and the place of its line."""

    numbers: dict[str, Any]
    place: Place


def read_manifest(run: Path) -> dict[str, Any]:
    """`run.json`. Raises ConfigurationError for a directory that is not a run."""
    try:
        text = (run / "run.json").read_text()
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigurationError(f"{run}: not a run directory (it has no run.json)") from None
    try:
        manifest: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{run / 'run.json'}: not JSON ({error})") from error
    return manifest


def locate(run: Path) -> list[LocatedRow]:
    """The last line of each attempt, in the order in which the rollouts started. Raises as `rows_with_places`."""
    latest: dict[tuple[Any, ...], LocatedRow] = {}
    for place, row in rows_with_places(run):
        key = (row["benchmark"], row["node_id"], row["task_digest"], row["attempt"])
        latest[key] = LocatedRow(_numbers(row), place)
    return sorted(latest.values(), key=lambda located: located.numbers.get("started") or 0.0)


def whole_rows(located: Iterable[LocatedRow]) -> Iterator[dict[str, Any]]:
    """The rows with all their fields, read as they are asked for."""
    for row in located:
        yield row.place.read()


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    for field in HEAVY:
        row.pop(field, None)
    if row.get("verifier"):
        row["verifier"].pop("output", None)
    return row
