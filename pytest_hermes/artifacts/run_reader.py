"""Reading a run back without holding its conversations: what the numbers need of all rows, and whole rows one by one.

A large run's rows are hundreds of megabytes, nearly all of it messages. `locate` keeps the rest of each row and where
its line is; `whole_rows` reads the lines again, one at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pytest_hermes.artifacts.run_directory import FORMAT_VERSION
from pytest_hermes.errors import ConfigurationError

HEAVY = ("messages", "tools", "turn_records", "prompt", "traceback", "tool_errors", "agent_metadata", "error")
"""Fields of a row that its numbers do not need and that may be large."""


@dataclasses.dataclass(frozen=True)
class LocatedRow:
    """A row without its `HEAVY` fields and its verifier's output, and the place of its line."""

    numbers: dict[str, Any]
    shard: Path
    offset: int
    length: int


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
    """The last line of each attempt, in the order in which the rollouts started.

    What follows a shard's last whole row (a torn line, zeros after a power failure) is passed over. Raises
    ConfigurationError for a broken line between whole ones and for rows of a newer format.
    """
    latest: dict[tuple[Any, ...], LocatedRow] = {}
    for shard in sorted(run.glob("rollouts-*.jsonl")):
        offset, broken = 0, None
        with shard.open("rb") as lines:
            for line in lines:
                try:
                    row = json.loads(line) if line.endswith(b"\n") else None
                except ValueError as error:
                    row, broken = None, error
                if row is not None:
                    if broken is not None:
                        raise ConfigurationError(f"{shard}: a line is not JSON ({broken})") from broken
                    _refuse_newer(run, row)
                    key = (row["benchmark"], row["node_id"], row["task_digest"], row["attempt"])
                    latest[key] = LocatedRow(_numbers(row), shard, offset, len(line))
                offset += len(line)
    return sorted(latest.values(), key=lambda located: located.numbers.get("started") or 0.0)


def whole_rows(located: Iterable[LocatedRow]) -> Iterator[dict[str, Any]]:
    """The rows with all their fields, read as they are asked for."""
    with contextlib.ExitStack() as stack:
        shards: dict[Path, BinaryIO] = {}
        for place in located:
            if (shard := shards.get(place.shard)) is None:
                shard = shards[place.shard] = stack.enter_context(place.shard.open("rb"))
            shard.seek(place.offset)
            row: dict[str, Any] = json.loads(shard.read(place.length))
            yield row


def _refuse_newer(run: Path, row: dict[str, Any]) -> None:
    if row.get("format", 0) > FORMAT_VERSION:
        raise ConfigurationError(
            f"{run}: written in format {row['format']}, this version reads up to {FORMAT_VERSION}. "
            "Install a newer pytest-hermes"
        )


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    for field in HEAVY:
        row.pop(field, None)
    if row.get("verifier"):
        row["verifier"].pop("output", None)
    return row
