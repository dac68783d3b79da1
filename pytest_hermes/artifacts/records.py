"""Rows of a run: how a rollout becomes a line of `rollouts-<worker>.jsonl`, and how lines are read back.

`docs/records.md` lists the fields. The last line per (benchmark, node id, task digest, attempt) wins: a rollout whose
test body judged differently from the verifier is written twice.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_hermes.artifacts.run_directory import FORMAT_VERSION
from pytest_hermes.errors import ConfigurationError

if TYPE_CHECKING:
    from pytest_hermes.rollout import Rollout


def row_of(rollout: Rollout, run_id: str, worker: str) -> dict[str, Any]:
    """A finished rollout as a row: plain JSON values."""
    trajectory, verdict, task = rollout.trajectory, rollout.verdict, rollout.task
    return {
        "format": FORMAT_VERSION,
        "run_id": run_id,
        "worker": worker,
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


def read_rows(run: Path) -> list[dict[str, Any]]:
    """All rows of a run, the last line of each attempt, in the order in which attempts first appear by shard.

    A torn last line (killed process) is passed over. Raises ConfigurationError for a directory that is not a run and
    for rows of a newer format.
    """
    if not (run / "run.json").is_file():
        raise ConfigurationError(f"{run}: not a run directory (it has no run.json)")
    latest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in _lines(run):
        if row.get("format", 0) > FORMAT_VERSION:
            raise ConfigurationError(
                f"{run}: written in format {row['format']}, this version reads up to {FORMAT_VERSION}. "
                "Install a newer pytest-hermes"
            )
        latest[row["benchmark"], row["node_id"], row["task_digest"], row["attempt"]] = row
    return list(latest.values())


def _lines(run: Path) -> Iterator[dict[str, Any]]:
    for shard in sorted(run.glob("rollouts-*.jsonl")):
        with shard.open("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    try:
                        yield json.loads(line)
                    except ValueError as error:
                        raise ConfigurationError(f"{shard}: a line is not JSON ({error})") from error
