"""Rows of a run: how a rollout becomes a line of `rollouts-<worker>.jsonl`, and how lines and rollouts are read back.

`docs/records.md` lists the fields. The last line per (benchmark, node id, task digest, attempt) wins: a rollout whose
test body judged differently from the verifier is written twice.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_hermes.artifacts.run_directory import FORMAT_VERSION, RunDirectory
from pytest_hermes.errors import ConfigurationError

if TYPE_CHECKING:
    from pytest_hermes.rollout import Rollout
    from pytest_hermes.task import Task


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a row's line is."""

    shard: Path
    offset: int

    def read(self) -> dict[str, Any]:
        """The row, read again."""
        with self.shard.open("rb") as lines:
            lines.seek(self.offset)
            row: dict[str, Any] = json.loads(lines.readline())
        return row


def row_of(rollout: Rollout, run_id: str, worker: str) -> dict[str, Any]:
    """A finished rollout as a row: plain JSON values."""
    trajectory, verdict, task = rollout.trajectory, rollout.verdict, rollout.task
    return {
        "format": FORMAT_VERSION,
        "run_id": run_id,
        "worker": worker,
        "resumed_from": rollout.resumed_from,
        "benchmark": rollout.benchmark,
        "node_id": rollout.node_id,
        "task_id": task.id,
        "task_digest": task.digest,
        "attempt": rollout.attempt,
        "outcome": rollout.outcome,
        "cause": rollout.cause,
        "error": rollout.error,
        "reward": rollout.reward,
        "pass_threshold": rollout.pass_threshold,
        "components": verdict.components if verdict else {},
        "details": verdict.details if verdict else {},
        "verdict_passed": verdict.passed if verdict else None,
        "difficulty": task.difficulty,
        "category": task.category,
        "tags": list(task.tags),
        "agent": rollout.agent,
        "model": rollout.model,
        "toolsets": rollout.toolsets,
        "sandbox": rollout.sandbox,
        "started": rollout.started,
        "finished": rollout.finished,
        "clocks": dataclasses.asdict(rollout.clocks),
        "tries": rollout.tries,
        "turns": trajectory.turns_used,
        "stop_reason": trajectory.stop_reason,
        "finished_naturally": trajectory.finished_naturally,
        "usage": dataclasses.asdict(trajectory.usage),
        "verifier": rollout.verifier,
        "prompt": task.prompt,
        "messages": trajectory.messages,
        "tools": trajectory.tool_schemas,
        "turn_records": [{**vars(turn), "usage": vars(turn.usage)} for turn in trajectory.turns],
        "tool_errors": [dataclasses.asdict(error) for error in trajectory.tool_errors],
        "agent_error": trajectory.error,
        "traceback": rollout.traceback,
        "agent_metadata": trajectory.metadata,
    }


def rollout_of(row: dict[str, Any], task: Task) -> Rollout:
    """The rollout that a row was made of; `task` is the one that its digest names. The inverse of `row_of`.

    What rows do not hold is not there: the verifier's output is its tail, `managed_state` is None.
    """
    from pytest_hermes.agents.result import AgentResult, ToolError, TurnRecord
    from pytest_hermes.benchmark import Verdict
    from pytest_hermes.models.protocol import Usage
    from pytest_hermes.rollout import Clocks, Rollout

    verifier = row["verifier"] or {}
    verdict = None
    details, passed = row.get("details") or {}, row.get("verdict_passed")  # rows of earlier versions have none
    if "exit_code" in verifier or row["components"]:
        verdict = Verdict(
            reward=row["reward"] or 0.0,
            components=dict(row["components"]),
            output=verifier.get("output") or "",
            exit_code=verifier.get("exit_code"),
            evidence=list(verifier.get("evidence") or ()),
            details=dict(details),
            passed=passed,
        )
    answers = [message for message in row["messages"] if message.get("role") == "assistant"]
    trajectory = AgentResult(
        messages=row["messages"],
        turns_used=row["turns"],
        finished_naturally=row["finished_naturally"],
        reasoning_per_turn=[message.get("reasoning_content") for message in answers],
        tool_errors=[ToolError(**error) for error in row["tool_errors"]],
        stop_reason=row["stop_reason"],
        usage=Usage(**row["usage"]),
        turns=[TurnRecord(**{**turn, "usage": Usage(**turn["usage"])}) for turn in row["turn_records"]],
        tool_schemas=row["tools"],
        error=row["agent_error"],
        metadata=row["agent_metadata"],
    )
    return Rollout(
        benchmark=row["benchmark"],
        task=task,
        attempt=row["attempt"],
        node_id=row["node_id"],
        pass_threshold=row["pass_threshold"],
        agent=row["agent"],
        model=row["model"],
        outcome=row["outcome"],
        cause=row["cause"],
        error=row["error"],
        reward=row["reward"],
        verdict=verdict,
        verifier=row["verifier"],
        trajectory=trajectory,
        toolsets=row["toolsets"],
        sandbox=row["sandbox"],
        clocks=Clocks(**row["clocks"]),
        started=row["started"],
        finished=row["finished"],
        tries=row["tries"],
        traceback=row["traceback"],
        resumed_from=row.get("resumed_from"),
    )


def append_rollout(run: RunDirectory, rollout: Rollout, secrets: tuple[str, ...]) -> None:
    """Append the rollout's row and note where it is. Raises ConfigurationError if it cannot be written."""
    try:
        run.append(row_of(rollout, run.run_id, run.worker), secrets)
    except OSError as error:
        raise ConfigurationError(
            f"{rollout.task.id}: {rollout.outcome}, but its row could not be written to {run.shard} "
            f"({error.strerror}). Free space, or choose another place with --hermes-run-dir"
        ) from error
    rollout.record = str(run.shard)


def read_rows(run: Path) -> list[dict[str, Any]]:
    """All rows of a run, the last line of each attempt, in the order in which attempts first appear by shard.

    A torn last line (killed process) is passed over. Raises ConfigurationError for a directory that is not a run and
    for rows of a newer format.
    """
    if not (run / "run.json").is_file():
        raise ConfigurationError(f"{run}: not a run directory (it has no run.json)")
    latest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for _, row in rows_with_places(run):
        latest[row["benchmark"], row["node_id"], row["task_digest"], row["attempt"]] = row
    return list(latest.values())


def rows_with_places(run: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Every whole line of a run and where it is, one at a time, in the order in which they were written by shard.

    What follows a shard's last whole row (a torn line, zeros after a power failure) is passed over. Raises
    ConfigurationError for a broken line between whole ones and for rows of a newer format.
    """
    return _placed(run, json.loads)


def row_heads(run: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """As `rows_with_places`, with at least the fields before `prompt`; damage inside of a conversation is not seen."""
    return _placed(run, _head)


def _head(line: bytes) -> Any:
    """A third of the time of reading the whole line."""
    cut = line.find(b',"prompt":')
    if cut >= 0 and line.endswith(b"}\n"):
        try:
            return json.loads(line[:cut] + b"}")
        except ValueError:
            pass  # a key of something inside
    return json.loads(line)


def _placed(run: Path, parse: Callable[[bytes], Any]) -> Iterator[tuple[Place, dict[str, Any]]]:
    for shard in sorted(run.glob("rollouts-*.jsonl")):
        offset, broken = 0, None
        with shard.open("rb") as lines:
            for line in lines:
                place, offset = Place(shard, offset), offset + len(line)
                if not line.endswith(b"\n"):
                    continue
                try:
                    row = parse(line)
                except ValueError as error:
                    broken = error
                    continue
                if broken is not None:
                    raise ConfigurationError(f"{shard}: a line is not JSON ({broken})") from broken
                refuse_newer(run, row)
                yield place, row


def refuse_newer(run: Path, found: dict[str, Any]) -> None:
    """Raise ConfigurationError for a row or manifest in a format that this version cannot read."""
    if found.get("format", 0) > FORMAT_VERSION:
        raise ConfigurationError(
            f"{run}: written in format {found['format']}, this version reads up to {FORMAT_VERSION}. "
            "Install a newer pytest-hermes"
        )
