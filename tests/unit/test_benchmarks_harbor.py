"""benchmarks/harbor from the user's side: what is missing or broken is said once, and the other tasks go on."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
SAMPLES = ROOT / "tests" / "data" / "harbor"


def run(pytester: pytest.Pytester, *options: str) -> tuple[pytest.RunResult, dict[str, Any]]:
    """The result, and the rows by task."""
    runs = Path(tempfile.mkdtemp(dir=pytester.path))
    result = pytester.runpytest_subprocess(
        str(ROOT / "benchmarks" / "harbor"), f"--hermes-run-dir={runs}", "--hermes-retries=0", *options
    )
    rows = [json.loads(line) for path in runs.glob("*/rollouts-*.jsonl") for line in path.read_text().splitlines()]
    return result, {row["task_id"]: row for row in rows}


def make_task(
    folder: Path, *, toml: str = "", dockerfile: str = "FROM ubuntu:24.04\nWORKDIR /app\n", test: str
) -> None:
    for part in ("environment", "tests", "solution"):
        (folder / part).mkdir(parents=True)
    (folder / "task.toml").write_text(toml)
    (folder / "instruction.md").write_text("Create /app/done.\n")
    (folder / "environment" / "Dockerfile").write_text(dockerfile)
    (folder / "tests" / "test.sh").write_text(test)
    (folder / "solution" / "solve.sh").write_text("touch /app/done\n")


def test_without_a_directory_it_says_what_to_give(pytester: pytest.Pytester) -> None:
    result, rows = run(pytester, "--hermes-agent=oracle")
    assert result.ret != 0 and rows == {}
    text = result.stdout.str() + result.stderr.str()
    assert text.count("benchmark harbor: no tasks given. Use --hermes-tasks DIR") == 1
    assert "Traceback" not in text


def test_missing_directory_is_one_clear_line(pytester: pytest.Pytester) -> None:
    result, rows = run(pytester, "--hermes-agent=oracle", f"--hermes-tasks={SAMPLES.with_name('harbr')}")
    assert result.ret != 0 and rows == {}
    text = result.stdout.str() + result.stderr.str()
    assert "there is no such directory of tasks. Did you mean 'harbor'?" in text
    assert "Traceback" not in text


def test_marks_and_exact_names_choose_tasks(pytester: pytest.Pytester) -> None:
    result, rows = run(
        pytester, f"--hermes-tasks={SAMPLES}", "--hermes-agent=oracle", "--collect-only", "-q", "-m", "difficulty_easy"
    )
    assert result.ret == 0 and rows == {}
    names = [line.partition("[")[2].rstrip("]") for line in result.outlines if "test_task[" in line]
    assert sorted(names) == ["fix-git", "orders-report", "selfsigned-cert", "slow-verifier"]
    result, _ = run(pytester, f"--hermes-tasks={SAMPLES}", "--hermes-agent=oracle", "--hermes-task=fix-gti")
    assert "has no task 'fix-gti'. Did you mean 'fix-git'?" in result.stdout.str() + result.stderr.str()


@pytest.mark.requires("docker", "sample-images")
def test_broken_tasks_do_not_stop_the_others(pytester: pytest.Pytester) -> None:
    folder = pytester.path / "tasks"
    grade = "[ -e /app/done ] && echo 1 >/logs/verifier/reward.txt"
    make_task(folder / "fine", test=grade)
    make_task(folder / "broken-toml", toml="[agent\n", test=grade)
    make_task(folder / "two-steps", toml="[[steps]]\nname = 'a'\n", test=grade)
    make_task(
        folder / "no-image",
        dockerfile="FROM ubuntu:24.04\nRUN echo before && echo no such thing >&2 && exit 9\n",
        test=grade,
    )
    make_task(folder / "not-a-number", test="echo graded; echo NaN >/logs/verifier/reward.txt")
    result, rows = run(
        pytester,
        f"--hermes-tasks={folder}",
        "--hermes-sandbox=docker",
        "--hermes-agent=oracle",
        "--hermes-concurrency=5",
    )
    found = {name: (row["outcome"], row["cause"]) for name, row in rows.items()}
    assert found == {
        "fine": ("passed", None),
        "broken-toml": ("invalid", "task_broken"),
        "two-steps": ("invalid", "task_broken"),
        "no-image": ("invalid", "image"),
        "not-a-number": ("failed", "reward_unreadable"),
    }
    assert result.ret == 1
    errors = {name: row["error"] for name, row in rows.items()}
    assert "broken-toml/task.toml is not TOML" in errors["broken-toml"] and "line 1" in errors["broken-toml"]
    assert errors["two-steps"] == "task two-steps: field steps is not supported (tasks of several steps)"
    assert "no such thing" in errors["no-image"]
    assert "the reward is nan, not a number in [0, 1]" in errors["not-a-number"]
    assert rows["not-a-number"]["verifier"]["output"] == "graded\n"
