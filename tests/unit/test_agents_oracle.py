"""The oracle and nop agents in a real local sandbox."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_hermes.agents.nop import NopAgent
from pytest_hermes.agents.oracle import OracleAgent
from pytest_hermes.agents.protocol import AgentContext
from pytest_hermes.errors import AgentError
from pytest_hermes.models.protocol import Sampling
from pytest_hermes.sandbox.labels import Owner
from pytest_hermes.sandbox.local import LocalProvider
from pytest_hermes.sandbox.protocol import Sandbox, SandboxRequest
from pytest_hermes.task import InlineFiles, Script, Task
from pytest_hermes.tools.toolbox import Toolbox

NO_TOOLS = cast(Toolbox, None)


@contextlib.asynccontextmanager
async def sandbox_for(task: Task, root: Path) -> AsyncIterator[Sandbox]:
    provider = LocalProvider(confine="off", root=root)
    try:
        labels = Owner.here(run="test").labels()
        sandbox = await provider.create(SandboxRequest(task.sandbox, labels, task.id, 600.0, 60.0))
        try:
            yield sandbox
        finally:
            await sandbox.close()
    finally:
        await provider.aclose()


def context(task: Task, sandbox: Sandbox) -> AgentContext:
    return AgentContext(task, sandbox, None, Sampling(), None, 30, 60.0)


def solved_by(script: str, **files: str) -> Task:
    return Task(
        "t", "Do it.", solution=Script(InlineFiles({"run/solve.sh": script, **files}), "run/solve.sh", {"WHO": "me"})
    )


@pytest.mark.asyncio
async def test_the_solution_runs_in_the_workdir_with_its_files_and_environment(tmp_path: Path) -> None:
    script = 'cat "$SOLUTION_DIR/data.txt" > out.txt; pwd; echo "$WHO"; echo problem >&2'
    task = solved_by(script, **{"data.txt": "42\n"})
    async with sandbox_for(task, tmp_path) as sandbox:
        result = await OracleAgent(context(task, sandbox)).run(task.prompt, NO_TOOLS)
        assert await sandbox.read_file(f"{sandbox.workdir}/out.txt") == b"42\n"
        workdir = sandbox.workdir
    user, note, answer = result.messages
    assert user == {"role": "user", "content": "Do it."}
    assert note["tool_calls"][0]["id"] == answer["tool_call_id"]
    assert answer["content"] == f"{workdir}\nme\n[stderr]\nproblem\n[exit code 0]"
    assert (result.stop_reason, result.finished_naturally, result.turns_used) == ("finished", True, 1)
    assert result.metadata == {"oracle_exit_code": 0}


@pytest.mark.asyncio
async def test_a_failing_solution_is_recorded_and_left_to_the_verifier(tmp_path: Path) -> None:
    task = solved_by("echo partly; exit 7")
    async with sandbox_for(task, tmp_path) as sandbox:
        result = await OracleAgent(context(task, sandbox)).run(task.prompt, NO_TOOLS)
    assert result.metadata == {"oracle_exit_code": 7} and result.stop_reason == "finished"
    assert result.messages[-1]["content"] == "partly\n[exit code 7]"


@pytest.mark.asyncio
async def test_a_task_without_a_solution_says_so(tmp_path: Path) -> None:
    task = Task("lost-cause", "Do it.")
    async with sandbox_for(task, tmp_path) as sandbox:
        agent = OracleAgent(context(task, sandbox))
        with pytest.raises(AgentError, match="task 'lost-cause' has no solution: the oracle agent cannot run it"):
            await agent.run(task.prompt, NO_TOOLS)
        assert [message["role"] for message in agent.partial_result().messages] == ["user"]


@pytest.mark.asyncio
async def test_nop_does_nothing() -> None:
    result = await NopAgent().run("Do it.", NO_TOOLS)
    expected: list[dict[str, Any]] = [{"role": "user", "content": "Do it."}]
    assert (result.messages, result.turns_used, result.stop_reason) == (expected, 0, "finished")
