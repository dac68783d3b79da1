"""The agent loop with the real toolbox in a real local sandbox: what a scripted model does is done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_hermes.agents.loop import HermesAgentLoop
from pytest_hermes.models.scripted import ScriptedModel
from pytest_hermes.sandbox.labels import Owner
from pytest_hermes.sandbox.local import LocalProvider
from pytest_hermes.sandbox.protocol import SandboxRequest
from pytest_hermes.task import SandboxSpec, Task
from pytest_hermes.tools.toolbox import Toolbox


@pytest.mark.asyncio
async def test_a_scripted_model_works_in_a_sandbox(tmp_path: Path) -> None:
    script = [
        {"tool": "terminal", "arguments": {"command": "mkdir -p work && cd work && export NAME=hermes"}},
        {"tool": "terminal", "arguments": {"command": "echo $NAME > name.txt; pwd"}},
        {"tool": "terminal", "arguments": '{"command": '},
        {"tool": "terminall", "arguments": {}},
        {"tools": [{"tool": "read_file", "arguments": {"path": "name.txt"}},
                   {"tool": "search_files", "arguments": {"pattern": "herm"}}]},
        {"content": "done"},
    ]  # fmt: skip
    task = Task("t", "Write the name.", data={"script": script})
    provider, model = LocalProvider(confine="off", root=tmp_path), ScriptedModel()
    request = SandboxRequest(SandboxSpec(), Owner.here(run="test").labels(), "t", 600.0, 60.0)
    sandbox = await provider.create(request)
    toolbox = Toolbox(sandbox, ["terminal", "file"])
    try:
        result = await HermesAgentLoop(model.for_task(task)).run(task.prompt, toolbox)
        assert await sandbox.read_file(f"{sandbox.workdir}/work/name.txt") == b"hermes\n"
    finally:
        await toolbox.aclose()
        await sandbox.close()
        await provider.aclose()
        await model.aclose()
    assert (result.stop_reason, result.turns_used) == ("finished", 6)
    answers = [json.loads(message["content"]) for message in result.messages if message["role"] == "tool"]
    assert answers[1]["output"].strip().endswith("/work") and answers[1]["exit_code"] == 0
    assert "hermes" in answers[4]["content"]
    assert [error.tool_name for error in result.tool_errors] == ["terminal", "terminall"]
    assert len(toolbox.calls) == 6
