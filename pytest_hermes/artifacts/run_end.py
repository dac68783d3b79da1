"""How far a run came: whether it reached its end, what it selected and has no result of, and how to go on.

Counted are tasks, as `run.json` lists them: it does not hold the number of items.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pytest_hermes.artifacts.run_directory import is_alive
from pytest_hermes.artifacts.run_reader import LocatedRow
from pytest_hermes.artifacts.summary import NOT_COUNTED

SUMMARY_FILE = "summary.json"
State = Literal["finished", "stopped early", "going on", "not finished"]
"""`not finished`: no process works on it, and it wrote no summary."""


@dataclasses.dataclass(frozen=True)
class RunEnd:
    """How a run ended. A result is a row of a rollout that was neither cancelled nor unused."""

    state: State
    run: str
    resumed_from: str | None
    tasks: int
    """That were selected and not skipped."""
    without_result: int
    """Tasks that have no result."""
    with_fewer_attempts: int
    """Tasks that have a result, but fewer than `attempts`."""
    attempts: int
    """The most that a benchmark of the run asked for per task."""

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def headline(self) -> str | None:
        """What sets the run apart from one that reached its end; None if nothing does."""
        missing = self._missing
        if self.state == "finished" or (self.state == "stopped early" and not missing):
            return None
        states = {
            "going on": "still going on",
            "not finished": f"not finished (no {SUMMARY_FILE}: it was killed, or pytest printed no summary)",
        }
        return states.get(self.state, self.state) + (f"; {missing}" if missing else "")

    @property
    def advice(self) -> str | None:
        """How to go on with it; None if there is nothing to go on with."""
        if self.state in ("finished", "going on") or not self._missing:
            return None
        return f"go on with: --hermes-resume {self.run}"

    @property
    def _missing(self) -> str:
        parts = []
        if self.without_result:
            parts.append(f"{self.without_result} of {_tasks(self.tasks)} {_have(self.without_result)} no result")
        if self.with_fewer_attempts:
            number = self.with_fewer_attempts
            parts.append(f"{_tasks(number)} {_have(number)} fewer than {self.attempts} attempts")
        return ", ".join(parts)


def end_of(
    run: Path, located: Iterable[LocatedRow], manifest: Mapping[str, Any], *, stopped_early: bool | None = None
) -> RunEnd:
    """How a run ended; `stopped_early` is said by the run itself, before it writes its summary."""
    done: dict[tuple[str, str], set[int]] = collections.defaultdict(set)
    for row in located:
        if row.numbers["cause"] not in NOT_COUNTED:
            done[row.numbers["benchmark"], row.numbers["task_id"]].add(row.numbers["attempt"])
    settings, skipped = manifest.get("settings") or {}, list(manifest.get("skipped") or ())
    wanted = {name: int((of.get("env") or {}).get("attempts") or 1) for name, of in settings.items()}
    selected = [
        (benchmark, task)
        for benchmark, origin in (manifest.get("datasets") or {}).items()
        for task in origin.get("tasks") or ()
        if done.get((benchmark, task)) or not any(_is_of(node, task) for node in skipped)
    ]
    counts = {place: len(done.get(place, ())) for place in selected}
    origin = manifest.get("resumed_from")
    return RunEnd(
        state=_state(run) if stopped_early is None else "stopped early" if stopped_early else "finished",
        run=run.name,
        resumed_from=Path(origin).name if origin else None,
        tasks=len(selected),
        without_result=sum(1 for count in counts.values() if not count),
        with_fewer_attempts=sum(1 for (name, _), count in counts.items() if 0 < count < wanted.get(name, 1)),
        attempts=max(wanted.values(), default=1),
    )


def _state(run: Path) -> State:
    try:
        written = json.loads((run / SUMMARY_FILE).read_bytes())
    except (OSError, ValueError):
        return "going on" if is_alive(run) else "not finished"
    early = isinstance(written, dict) and (written.get("end") or {}).get("state") == "stopped early"
    return "stopped early" if early else "finished"


def _is_of(node: str, task: str) -> bool:
    """Whether a node id is one of the task: `test_task[fix-git:2-fast]`, or of a test that is a task: `test_own[2]`."""
    test, bracket, parameters = node.partition("[")
    parameters = parameters.removesuffix("]")
    if not bracket or parameters.isdecimal():
        return test.rpartition("::")[2] == task
    name = task.encode("unicode_escape").decode()  # as pytest writes ids
    return parameters == name or parameters.startswith((f"{name}:", f"{name}-"))


def _tasks(count: int) -> str:
    return f"{count} {'task' if count == 1 else 'tasks'}"


def _have(count: int) -> str:
    return "has" if count == 1 else "have"
