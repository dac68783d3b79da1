"""terminal_test: every task can be solved, is not solved by doing nothing, and lazy answers do not pass."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.terminal_test.catalog import load
from benchmarks.terminal_test.repository import lost_commit
from benchmarks.terminal_test.verify import verify
from pytest_hermes.agents.result import AgentResult
from pytest_hermes.benchmark import Verdict, Verification
from pytest_hermes.config import Settings
from pytest_hermes.sandbox.local import LocalProvider
from pytest_hermes.sandbox.protocol import SandboxRequest
from pytest_hermes.task import Task

ROOT = Path(__file__).parent.parent.parent
TASKS = {task.id: task for task in load()}


def judged(task: Task, work: str, root: Path) -> Verdict:
    """The verdict after a command in a fresh local sandbox."""

    async def scenario() -> Verdict:
        provider = LocalProvider(root=root)
        try:
            sandbox = await provider.create(SandboxRequest(task.sandbox, {}, task.id, 600.0, 60.0))
            if task.files is not None:
                await sandbox.upload_tar(task.files.tar(), sandbox.workdir)
            await sandbox.exec(work, timeout_s=60.0)
            return await verify(Verification(task, sandbox, None, AgentResult([]), 60.0, Settings()))  # type: ignore[arg-type]
        finally:
            await provider.aclose()

    return asyncio.run(scenario())


def test_tasks_are_complete_and_always_the_same() -> None:
    assert len(TASKS) >= 16
    assert {"greeting", "count-to-five", "sum", "product"} <= set(TASKS)
    assert {task.difficulty for task in TASKS.values()} == {"easy", "medium", "hard"}
    tools = {turn.get("tool") for task in TASKS.values() for turn in task.data["script"]}
    assert {"terminal", "write_file", "read_file", "patch"} <= tools
    for task in TASKS.values():
        assert task.solution is not None and (task.tests is not None or "expect" in task.data)
        assert len(task.data["script"]) <= 10 and "content" in task.data["script"][-1]
    assert {task.id: task.digest for task in load()} == {task.id: task.digest for task in TASKS.values()}


@pytest.mark.parametrize("name", TASKS)
def test_doing_nothing_does_not_pass(name: str, tmp_path: Path) -> None:
    assert judged(TASKS[name], "true", tmp_path).reward < 0.5


@pytest.mark.parametrize("name", TASKS)
def test_the_solution_passes(name: str, tmp_path: Path) -> None:
    task = TASKS[name]
    assert task.solution is not None
    script = task.solution.files.files["solve.sh"]  # type: ignore[attr-defined]
    verdict = judged(task, script, tmp_path)
    assert verdict.reward == 1.0, verdict.output


LAZY = {
    "greeting, with words around it": ("greeting", "echo 'Sure! Hello from Hermes Agent.' >~/greeting.txt", 0.5),
    "greeting, a directory": ("greeting", "mkdir ~/greeting.txt", 0.0),
    "count, on one line": ("count-to-five", "echo 1 2 3 4 5 >~/count.txt", 0.0),
    "input changed to fit": ("csv-report", "echo region,orders,total | tee ~/sales.csv >~/report.csv", 0.0),
    "calculator by eval": ("calculator", "echo 'import sys; print(eval(sys.argv[1]))' >~/calc.py", None),
    "order without cycles": (
        "build-order",
        "echo 'import sys; print(*sorted({word.strip(\":\") for word in sys.stdin.read().split()}), sep=chr(10))'"
        " >~/order.py",
        None,
    ),
    "bump without a lock": (
        "counter-race",
        'printf \'#!/bin/bash\\nn=$(cat "$1" 2>/dev/null || echo 0); sleep 0.01; echo $((n+1)) | tee "$1"\\n\' >~/bump',
        None,
    ),
    "chapter without history": (
        "git-lost-commit",
        "cd ~/notes && rm -rf .git && git init -qb main && git add -A &&"
        " git -c user.name=A -c user.email=a commit -qm x",
        None,
    ),
    "server that answers a constant": (
        "sum-server",
        "cd ~ && mkdir web && echo 5 >web/total &&"
        " (setsid python3 -u -m http.server -d web 0 >log 2>&1 & echo $! >server.pid);"
        " until grep -q port log; do sleep 0.05; done; sed 's/.*port \\([0-9]*\\).*/\\1/;q' log >server.port",
        None,
    ),
}


@pytest.mark.parametrize("case", LAZY)
def test_lazy_answers_do_not_pass(case: str, tmp_path: Path) -> None:
    name, work, reward = LAZY[case]
    verdict = judged(TASKS[name], work, tmp_path)
    assert verdict.reward < 1.0, verdict.output
    if reward is not None:
        assert verdict.reward == reward


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_the_given_repository_is_sound(tmp_path: Path) -> None:
    files, tip = lost_commit()
    for name, content in files.files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(tmp_path / "notes"), *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    assert git("rev-parse", "HEAD") == tip
    git("fsck", "--strict", "--full")
    assert git("log", "--format=%s", "main").splitlines() == ["Second edition; the hill", "Start"]
    assert "Write the harbour chapter" in git("reflog")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--model=scripted"], id="scripted"),
        pytest.param(["--hermes-agent=oracle"], id="oracle", marks=pytest.mark.slow),
    ],
)
def test_all_tasks_pass_by_command(pytester: pytest.Pytester, options: list[str]) -> None:
    result = pytester.runpytest_subprocess(
        str(ROOT / "benchmarks" / "terminal_test"), *options, f"--hermes-run-dir={pytester.path / 'runs'}", "-q"
    )
    result.assert_outcomes(passed=len(TASKS))
    result.stdout.fnmatch_lines([f"*{len(TASKS)} rollouts: {len(TASKS)} passed, 0 failed, 0 invalid*"])
