"""The scripted model: scripts, the loopback server's strictness, faults, and playing files stand-alone."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pytest_hermes.errors import ConfigurationError, ModelNotFound, ModelRejected
from pytest_hermes.models.chat import ChatClient
from pytest_hermes.models.conversation import Transcript
from pytest_hermes.models.registry import is_scripted, make_model, model_for_task
from pytest_hermes.models.retry import RetryPolicy
from pytest_hermes.models.script import compile_script, read_script_file
from pytest_hermes.models.scripted import ScriptedModel
from pytest_hermes.models.scripted_server import ScriptedServer
from pytest_hermes.task import Task

USER = {"role": "user", "content": "hi"}


async def post(url: str, messages: list[dict[str, Any]], **fields: Any) -> tuple[int, dict[str, Any]]:
    body = {"model": "scripted", "messages": messages, **fields}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/chat/completions", json=body) as response:
        return response.status, await response.json()


@pytest.mark.asyncio
async def test_turns_are_chosen_by_the_conversation_so_rollouts_do_not_disturb_each_other() -> None:
    script = [
        {"tool": "terminal", "arguments": {"command": "ls"}, "content": "look"},
        {"tools": [{"tool": "a"}, {"tool": "b", "arguments": "{broken"}], "reasoning": "hm"},
        {"content": "done", "usage": {"prompt_tokens": 7, "cost": 0.5}, "finish_reason": "length"},
    ]
    async with ScriptedServer() as server:
        server.add("x/y z", script)
        url = server.url("x/y z")

        async def play() -> list[dict[str, Any]]:
            messages, answers = [USER], []
            for _ in script:
                status, answer = await post(url, messages)
                assert status == 200, answer
                message = answer["choices"][0]["message"]
                answers.append(answer)
                messages = [*messages, message]
                for call in message.get("tool_calls", ()):
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": "{}"})
            return answers

        first, second = await asyncio.gather(play(), play())
        assert first == second
        assert server.stats == {"x/y z": 6}
    one, two, three = (answer["choices"][0] for answer in first)
    assert one["message"]["content"] == "look" and one["finish_reason"] == "tool_calls"
    assert one["message"]["tool_calls"] == [
        {"id": "call_t0_0", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "ls"}'}}
    ]
    assert two["message"]["reasoning_content"] == "hm"
    assert [call["function"]["arguments"] for call in two["message"]["tool_calls"]] == ["{}", "{broken"]
    assert three == {"index": 0, "message": {"role": "assistant", "content": "done"}, "finish_reason": "length"}
    assert first[2]["usage"]["prompt_tokens"] == 7 and first[2]["usage"]["cost"] == 0.5
    assert first[0]["usage"]["prompt_tokens"] > 0


@pytest.mark.asyncio
async def test_the_turn_is_known_when_old_rounds_are_gone() -> None:
    async with ScriptedServer() as server:
        server.add("k", [{"tool": "t"}, {"tool": "t"}, {"content": "third"}, {"content": "fourth"}])
        call = {"id": "call_t1_0", "type": "function", "function": {"name": "t", "arguments": "{}"}}
        left = [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_t1_0", "content": "{}"},
        ]
        assert (await post(server.url("k"), left))[1]["choices"][0]["message"]["content"] == "third"
        more = [*left, {"role": "assistant", "content": "third"}, USER]
        assert (await post(server.url("k"), more))[1]["choices"][0]["message"]["content"] == "fourth"


@pytest.mark.asyncio
async def test_the_last_turn_may_repeat_and_a_used_up_script_says_so() -> None:
    async with ScriptedServer() as server:
        server.add("loop", [{"tool": "t"}, {"content": "again", "repeat": True}])
        server.add("short", [{"content": "once"}])
        spoken = [USER, *[{"role": "assistant", "content": "x"}, USER] * 5]
        assert (await post(server.url("loop"), spoken))[1]["choices"][0]["message"]["content"] == "again"
        status, body = await post(server.url("short"), spoken)
        assert status == 400 and "has 1 turns; the conversation asks for turn 6" in body["error"]["message"]


@pytest.mark.asyncio
async def test_a_function_may_play() -> None:
    async with ScriptedServer() as server:
        server.add("echo", lambda request: {"content": request["messages"][-1]["content"].upper()})
        assert (await post(server.url("echo"), [USER]))[1]["choices"][0]["message"]["content"] == "HI"


@pytest.mark.asyncio
async def test_faults_come_before_their_turn_as_often_as_they_say() -> None:
    script = [
        {"status": 429, "headers": {"Retry-After": "0"}, "times": 2},
        {"status": 500, "body": "plain text"},
        {"content": "ok"},
    ]
    async with ScriptedServer() as server:
        server.add("k", script)
        client = ChatClient(server.url("k"), "scripted", "x", retry=RetryPolicy(sleep=_at_once))
        answer = await client.complete(Transcript([USER]))
        assert (answer.message["content"], answer.retries) == ("ok", 3)
        assert (await client.complete(Transcript([USER]))).retries == 0
        await client.aclose()
        assert server.stats["k"] == 5


CALL = {"id": "c1", "type": "function", "function": {"name": "t", "arguments": "{}"}}
BROKEN = [
    ([{"role": "robot", "content": "x"}], "is not a role"),
    ([USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}], "tool calls without an answer: c1"),
    ([USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, USER], "tool calls without an answer: c1"),
    ([USER, {"role": "tool", "tool_call_id": "c9", "content": "x"}], "answers no preceding tool call"),
    ([USER, {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]}], "ids must be unique"),
    ([USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {}}]}], "function form"),
    ([], "non-empty list"),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("messages", "says"), BROKEN)
async def test_what_a_strict_endpoint_refuses_is_refused(messages: list[dict[str, Any]], says: str) -> None:
    async with ScriptedServer() as server:
        server.add("k", [{"content": "x", "repeat": True}])
        status, body = await post(server.url("k"), messages)
    assert status == 400 and says in body["error"]["message"]


@pytest.mark.asyncio
async def test_models_are_listed_and_others_unknown() -> None:
    async with ScriptedServer(models=("scripted", "tiny")) as server:
        server.add("k", [{"content": "x"}])
        client = ChatClient(server.url("k"), "scriptd", "x")
        assert await client.models() == ["scripted", "tiny"]
        with pytest.raises(ModelNotFound, match=r"does not know the model 'scriptd'.*Close to it there: scripted\."):
            await client.complete(Transcript([USER]))
        await client.aclose()
        status, body = await post(server.url("k"), [USER], stream=True)
        assert status == 400 and "in one piece" in body["error"]["message"]
        assert (await post(server.url("other"), [USER]))[0] == 404


# -- scripts and files -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ([{"contnt": "x"}], r"script, turn 1: unknown key 'contnt'; did you mean 'content'\?"),
        ([{"content": "x"}, {"fault": "explode"}], "turn 2: unknown fault 'explode'; known: disconnect"),
        ([{"arguments": {}}], "turn 1: nothing to answer"),
        (["done"], "turn 1: expected a mapping"),
    ],
)
def test_a_broken_script_names_its_turn(script: list[Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        compile_script(script)


@pytest.mark.parametrize("name", ["s.yaml", "s.json"])
def test_a_script_file_has_a_script_per_task_and_a_default(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    value = {
        "default": [{"content": "d"}],
        "tasks": {"fix-git": [{"tool": "terminal", "arguments": {"command": "ls"}}]},
    }
    path.write_text(json.dumps(value))  # JSON is YAML
    file = read_script_file(path)
    assert file.script_for("fix-git")[0]["tool"] == "terminal"
    assert file.script_for("other") == [{"content": "d"}]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("default: [", "is not readable"),
        ("task: {}", "expected `default"),
        ("tasks: {a: done}", "script of 'a' is not a list"),
        ("default: [{contnt: x}]", "default, turn 1: unknown key 'contnt'"),
        (None, "No such file"),
    ],
)
def test_a_broken_script_file_is_named(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "s.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=says) as caught:
        make_model(f"scripted:{path}")
    assert str(path) in str(caught.value)


@pytest.mark.asyncio
async def test_each_task_plays_its_own_script(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("default: [{content: from default}]\ntasks: {b: [{content: from file}]}\n")
    by_hook = {"c": [{"content": "from hook"}]}
    model = make_model(f"scripted:{path}", script_for=lambda task: by_hook.get(task.id))
    tasks = [Task("a", "p", data={"script": [{"content": "from task"}]}), *(Task(name, "p") for name in "bcd")]
    answers = [await model_for_task(model, task).complete(Transcript([USER])) for task in tasks]
    assert [answer.message["content"] for answer in answers] == ["from task", "from file", "from hook", "from default"]
    assert (await model.complete(Transcript([USER]))).message["content"] == "from default"
    assert isinstance(model, ScriptedModel) and model.server.stats == {"a": 1, "b": 1, "c": 1, "d": 1, "default": 1}
    await model.aclose()
    await model.aclose()


def test_a_task_without_a_script_is_told_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match=r"task 'a' brings no script.*--model=scripted:FILE"):
        model_for_task(make_model("scripted"), Task("a", "p"))
    assert is_scripted("scripted:x.yaml") and not is_scripted("scripted-7b") and not is_scripted(None)


@pytest.mark.asyncio
async def test_a_port_that_is_taken_is_named() -> None:
    async with ScriptedServer() as server:
        with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{server.port}"):
            await ScriptedServer(port=server.port).start()


@pytest.mark.asyncio
async def test_served_stand_alone_for_any_client(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("tasks: {greet: [{content: hello}]}\n")
    command = [sys.executable, "-m", "pytest_hermes.models.scripted", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = await asyncio.to_thread(process.stdout.readline)
            found = re.fullmatch(r"greet: (http://127\.0\.0\.1:\d+/s/greet/v1)\n", line)
            assert found, line
            client = ChatClient(found[1], "scripted", "x")
            assert (await client.complete(Transcript([USER]))).message["content"] == "hello"
            with pytest.raises(ModelRejected, match="has 1 turns"):
                await client.complete(Transcript([USER, {"role": "assistant", "content": "hello"}, USER]))
            await client.aclose()
        finally:
            process.terminate()


async def _at_once(_seconds: float) -> None:
    return None
