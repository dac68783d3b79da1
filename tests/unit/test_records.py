"""Rows and rollouts: one is read back from the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_hermes.agents.result import AgentResult, ToolError, TurnRecord
from pytest_hermes.artifacts.records import read_rows, rollout_of, row_heads, row_of
from pytest_hermes.benchmark import Verdict
from pytest_hermes.config import SECTIONS
from pytest_hermes.models.protocol import Usage
from pytest_hermes.rollout import Clocks, Rollout
from pytest_hermes.task import Task

TASK = Task(id="t", prompt="do it", difficulty="easy", category="x", tags=("a",))


def rollout(**changes: object) -> Rollout:
    trajectory = AgentResult(
        messages=[
            {"role": "user", "content": "do it"},
            {"role": "assistant", "content": "done", "reasoning_content": "hm"},
        ],
        turns_used=1,
        finished_naturally=True,
        reasoning_per_turn=["hm"],
        tool_errors=[ToolError(1, "terminal", "{}", "no")],
        usage=Usage(10, 2, None, None, 0.1),
        turns=[TurnRecord(1, 0.5, 0.25, 1, "stop", Usage(10, 2))],
        tool_schemas=[{"type": "function", "function": {"name": "terminal"}}],
        metadata={"k": [1]},
    )
    given = {
        "outcome": "failed",
        "cause": "reward_below_threshold",
        "reward": 0.5,
        "verdict": Verdict(0.5, {"style": 0.25}, "out", 1, ["a sign"]),
        "verifier": {"runs": 1, "load": 0.5, "output": "out", "exit_code": 1, "evidence": ["a sign"]},
        "sandbox": {"backend": "local", "id": "i", "image": None},
        "toolsets": {"sets": ["terminal"], "distribution": None, "left_out": {}},
        "clocks": Clocks(0.0, 1.0, 2.0, 3.0, 4.0),
        "started": 100.5,
        "finished": 110.25,
        "tries": [{"cause": "sandbox_start", "error": "no room", "clocks": {}}],
    }
    made = Rollout("bench", TASK, 2, "test_x.py::test[t:2]", 1.0, "hermes", "m", trajectory=trajectory)
    for name, value in (given | changes).items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"verdict": None, "verifier": None, "reward": None, "outcome": "invalid", "cause": "cancelled"},
        {
            "verdict": None,
            "verifier": {"runs": 2, "load": 1.0, "output": "x"},
            "reward": 0.0,
            "cause": "verifier_timeout",
        },
        {"resumed_from": "another", "traceback": "Traceback", "error": "KeyError: 'x'"},
    ],
    ids=["whole", "cancelled", "without a verdict", "a replay"],
)
def test_a_rollout_comes_back_from_its_row(changes):
    made = rollout(**changes)
    row = json.loads(json.dumps(row_of(made, "r", "main")))
    back = rollout_of(row, TASK)
    assert back == made
    assert back.explain() == made.explain()
    assert row_of(back, "r", "main") == row


def test_heads_of_rows_are_those_of_whole_rows(tmp_path: Path):
    (tmp_path / "run.json").write_text("{}")
    tricky = rollout(error='say ,"prompt": twice', sandbox={"id": "i", "prompt": "no", "backend": "local"})
    rows = [row_of(tricky, "r", "main"), {**row_of(rollout(), "r", "main"), "attempt": 3}]
    lines = [json.dumps(row, separators=(",", ":")) + "\n" for row in rows]
    (tmp_path / "rollouts-main.jsonl").write_text("".join(lines) + lines[0][:-40] + "\n" + lines[0][:50])
    heads = [head for _, head in row_heads(tmp_path)]
    assert [{name: row[name] for name in head} for head, row in zip(heads, read_rows(tmp_path), strict=True)] == heads
    assert all({"node_id", "task_digest", "outcome", "cause", "started"} <= head.keys() for head in heads)
    assert [place.read()["attempt"] for place, _ in row_heads(tmp_path)] == [2, 3]


MAY_CHANGE = {
    *("terminal_lifetime", "tool_pool_size", "provision_timeout", "build_timeout", "teardown_timeout"),
    *("dataset_name", "dataset_revision", "dataset_split", "prompt_field", "task_filter", "skip_tasks", "tasks_dir"),
    *("attempts", "retries", "retry_backoff", "concurrency", "verify_concurrency", "max_invalid", "sandbox_starts"),
    *("artifacts_max_mb", "use_wandb", "wandb_name", "tokenizer_name", "data_dir_to_save_evals"),
    *("presets", "seeds", "db_dir", "yc_bench_bin", "yc_fast_path"),
    *("base_url", "api_key", "server_type", "health_check", "client", "timeout", "num_retries", "prices"),
}


def test_settings_that_a_resumed_run_may_change():
    """Where tasks come from may change: their digests are compared. A new setting must be thought about here."""
    fields = [field for kind in SECTIONS.values() for field in kind.__dataclass_fields__.values()]
    assert {field.name for field in fields if not field.metadata.get("changes_results", True)} == MAY_CHANGE
