"""The agent loop against the scripted server, through the real client, with a small toolbox of its own."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_hermes.agents.loop import EMPTY_ANSWER, INTERRUPTED, NUDGE, HermesAgentLoop
from pytest_hermes.agents.result import AgentResult
from pytest_hermes.agents.rounds import REMOVED
from pytest_hermes.errors import (
    AgentTimeout,
    ConfigurationError,
    ContextOverflow,
    ModelAnswerInvalid,
    ModelError,
    ModelUnavailable,
    SandboxLost,
)
from pytest_hermes.models.chat import ChatClient
from pytest_hermes.models.pricing import Price, cost_of
from pytest_hermes.models.protocol import Usage
from pytest_hermes.models.retry import RetryPolicy
from pytest_hermes.models.scripted_server import ScriptedServer


def schema(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


class Desk:
    """A toolbox over plain functions: `say` answers its text, `wait` meets a partner, `fail` and `lost` go wrong."""

    def __init__(self, parallel: bool = True) -> None:
        self.schemas = [schema(name) for name in ("say", "wait", "fail", "lost", "hang", "count")]
        self.names = frozenset(each["function"]["name"] for each in self.schemas)
        self.calls: list[Any] = []
        self.parallel = parallel
        self.met = asyncio.Barrier(2)
        self.fitted: list[list[tuple[str, str, str]]] = []
        self.hanging = asyncio.Event()
        self.counted = 0

    async def call(self, name: str, arguments: str | Mapping[str, Any] | None, *, call_id: str | None = None) -> str:
        self.calls.append((name, arguments, call_id))
        if name not in self.names:
            return json.dumps({"error": f"Unknown tool '{name}'. Available tools: {sorted(self.names)}"})
        try:
            values = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
        except ValueError as error:
            return json.dumps({"error": f"Invalid JSON in tool arguments: {error}."})
        if not isinstance(values, dict):
            return json.dumps({"error": "arguments must be an object"})
        match name:
            case "wait":
                await self.met.wait()
            case "fail":
                return json.dumps({"error": "it broke", "exit_code": 1})
            case "lost":
                raise SandboxLost("the container is gone")
            case "hang":
                self.hanging.set()
                await asyncio.Event().wait()
            case "count":
                self.counted += 1
                return json.dumps({"count": self.counted})
        return json.dumps({"output": values.get("text", name), "error": None})

    def parallel_safe(self, names: Sequence[str]) -> bool:
        return self.parallel

    async def fit_turn(self, results: list[tuple[str, str, str]]) -> list[str]:
        self.fitted.append(results)
        return [text[:2000] for _, _, text in results]

    async def aclose(self) -> None:
        return None


async def no_sleep(_seconds: float) -> None:
    return None


@contextlib.asynccontextmanager
async def playing(script: Any, **options: Any) -> AsyncIterator[tuple[ChatClient, ScriptedServer]]:
    async with ScriptedServer(keep_requests=True) as server:
        server.add("k", script)
        client = ChatClient(server.url("k"), "scripted", "x", retry=RetryPolicy(2, sleep=no_sleep), **options)
        try:
            yield client, server
        finally:
            await client.aclose()


async def play(
    script: Any, desk: Desk | None = None, prompt: Any = "do it", client_options: Any = (), **options: Any
) -> AgentResult:
    async with playing(script, **dict(client_options)) as (client, _):
        return await HermesAgentLoop(client, **options).run(prompt, desk or Desk())


def roles(result: AgentResult) -> list[str]:
    return [message["role"] for message in result.messages]


def tool_results(result: AgentResult) -> list[Any]:
    return [json.loads(message["content"]) for message in result.messages if message["role"] == "tool"]


# -- the usual course ------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_calls_then_an_answer() -> None:
    script = [
        {"tool": "say", "arguments": {"text": "hello"}, "reasoning": "let me say it", "content": "Saying."},
        {"content": "Said.", "usage": {"prompt_tokens": 50, "completion_tokens": 5, "cost": 0.25}},
    ]
    desk = Desk()
    result = await play(script, desk, system_prompt="Be brief.")
    assert result.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "do it"},
        {
            "role": "assistant",
            "content": "Saying.",
            "reasoning_content": "let me say it",
            "tool_calls": [
                {"id": "call_t0_0", "type": "function", "function": {"name": "say", "arguments": '{"text": "hello"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_t0_0", "content": '{"output": "hello", "error": null}'},
        {"role": "assistant", "content": "Said."},
    ]
    assert (result.stop_reason, result.finished_naturally, result.turns_used, result.error) == (
        "finished",
        True,
        2,
        None,
    )
    assert result.reasoning_per_turn == ["let me say it", None]
    assert result.tool_errors == []
    assert [turn.finish_reason for turn in result.turns] == ["tool_calls", "stop"]
    assert all(turn.model_s > 0 for turn in result.turns) and result.turns[0].tools_s > 0
    assert result.usage == result.turns[0].usage.plus(result.turns[1].usage)
    assert result.turns[1].usage == Usage(50, 5, cost_usd=0.25)
    assert result.tool_schemas == desk.schemas


@pytest.mark.asyncio
async def test_a_message_list_is_never_changed_and_its_system_message_stands() -> None:
    given = [{"role": "system", "content": "mine"}, {"role": "user", "content": "go"}]
    before = copy.deepcopy(given)
    result = await play([{"tool": "say"}, {"content": "ok"}], prompt=given, system_prompt="other")
    assert given == before
    assert result.messages[:2] == before and len(result.messages) == 5


@pytest.mark.asyncio
async def test_what_is_sent_is_what_was_asked_for() -> None:
    async with playing([{"content": "ok", "repeat": True}]) as (client, server):
        await HermesAgentLoop(client, temperature=0.3, max_tokens=9, extra_body={"top_k": 5}).run("x", Desk())
        asked = server.requests["k"]
        assert (asked["temperature"], asked["max_tokens"], asked["top_k"]) == (0.3, 9, 5)
        assert [tool["function"]["name"] for tool in asked["tools"]] == ["say", "wait", "fail", "lost", "hang", "count"]
        await HermesAgentLoop(client, temperature=None).run("x")
        assert server.requests["k"].keys() == {"model", "messages"}


@pytest.mark.asyncio
async def test_retries_are_recorded() -> None:
    result = await play([{"status": 429, "headers": {"Retry-After": "0"}}, {"status": 500}, {"content": "ok"}])
    assert [turn.retries for turn in result.turns] == [2]
    assert result.stop_reason == "finished"


@pytest.mark.asyncio
async def test_cost_is_the_endpoints_word_else_by_price_else_unknown() -> None:
    tokens = {"prompt_tokens": 1_000_000, "completion_tokens": 500_000}
    script = [{"tool": "say", "usage": tokens}, {"content": "ok", "usage": {**tokens, "cost": 0.25}}]
    result = await play(script, client_options={"prices": {"scripted": Price(prompt=1.0, completion=4.0)}})
    assert [turn.usage.cost_usd for turn in result.turns] == [3.0, 0.25]
    assert result.usage.cost_usd == 3.25
    assert (await play([{"content": "ok", "usage": tokens}])).usage.cost_usd == 0.0  # the scripted model's price
    assert cost_of("some/unknown-model", Usage(1_000_000, 500_000)) is None


@pytest.mark.asyncio
async def test_max_turns() -> None:
    result = await play([{"tool": "count", "repeat": True}], max_turns=3)
    assert (result.stop_reason, result.finished_naturally, result.turns_used) == ("max_turns", False, 3)
    assert roles(result) == ["user", *["assistant", "tool"] * 3]


# -- tool calls ------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("turn", "error"),
    [
        ({"tool": "say", "arguments": '{"text": '}, "Invalid JSON in tool arguments"),
        ({"tool": "say", "arguments": "[1]"}, "arguments must be an object"),
        ({"tool": "shout"}, "Unknown tool 'shout'. Available tools: ['count'"),
        ({"tool": "fail", "arguments": {"text": "x" * 999}}, "it broke"),
    ],
)
async def test_mistakes_are_answered_and_recorded(turn: dict[str, Any], error: str) -> None:
    result = await play([turn, {"content": "ok"}])
    assert result.stop_reason == "finished"
    assert error in tool_results(result)[0]["error"]
    (recorded,) = result.tool_errors
    assert (recorded.turn, recorded.tool_name) == (1, turn["tool"])
    assert error in recorded.error and len(recorded.arguments) <= 200 and 0 < len(recorded.tool_result) <= 500


@pytest.mark.asyncio
@pytest.mark.parametrize("arguments", ["", None])
async def test_no_arguments_mean_none(arguments: str | None) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "say", "arguments": arguments}}
    result = await play([{"message": {"content": None, "tool_calls": [call]}}, {"content": "ok"}])
    assert tool_results(result) == [{"output": "say", "error": None}]
    assert result.messages[1]["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.asyncio
async def test_ids_are_repaired_when_missing_or_used_before() -> None:
    def call(call_id: Any) -> dict[str, Any]:
        return {"id": call_id, "function": {"name": "say", "arguments": "{}"}}

    script = [
        {"message": {"content": None, "tool_calls": [call("a"), call("a"), call(None)]}},
        {"message": {"content": None, "tool_calls": [call("a"), {"name": "say", "arguments": {"text": "top"}}]}},
        {"content": "ok"},
    ]
    result = await play(script)  # the server refuses duplicates and calls without an answer
    ids = [call["id"] for message in result.messages for call in message.get("tool_calls", ())]
    assert ids[0] == "a" and len(set(ids)) == 5 and all(len(each) == 13 for each in ids[1:])
    assert [message["tool_call_id"] for message in result.messages if message["role"] == "tool"] == ids
    assert tool_results(result)[-1]["output"] == "top"


@pytest.mark.asyncio
async def test_parallel_calls_run_together_where_the_toolbox_allows_and_keep_their_order() -> None:
    calls = [{"tool": "wait"}, {"tool": "say", "arguments": {"text": "quick"}}, {"tool": "wait"}]
    desk = Desk()
    result = await asyncio.wait_for(play([{"tools": calls}, {"content": "ok"}], desk), 20)
    assert [each["output"] for each in tool_results(result)] == ["wait", "quick", "wait"]
    assert [name for _, name, _ in desk.fitted[0]] == ["wait", "say", "wait"]


@pytest.mark.asyncio
@pytest.mark.parametrize(("allowed", "wanted"), [(False, True), (True, False)])
async def test_calls_run_one_by_one_otherwise(allowed: bool, wanted: bool) -> None:
    desk = Desk(parallel=allowed)
    script = [{"tools": [{"tool": "hang"}, {"tool": "say"}]}, {"content": "ok"}]
    async with playing(script) as (client, _):
        task = asyncio.create_task(HermesAgentLoop(client, parallel_tool_calls=wanted).run("x", desk))
        await desk.hanging.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        assert [name for name, *_ in desk.calls] == ["hang"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.asyncio
async def test_names_may_be_narrowed() -> None:
    result = await play(
        [{"tool": "say"}, {"content": "ok"}], tool_schemas=[schema("count")], valid_tool_names={"count"}
    )
    assert tool_results(result) == [{"error": "Unknown tool 'say'. Available tools: ['count']"}]
    assert result.tool_schemas == [schema("count")]


@pytest.mark.asyncio
async def test_schemas_without_a_toolbox_are_a_mistake() -> None:
    async with playing([{"content": "ok"}]) as (client, server):
        with pytest.raises(ConfigurationError, match="no toolbox"):
            await HermesAgentLoop(client, tool_schemas=[schema("say")]).run("x")
        assert server.stats["k"] == 0


# -- reasoning and odd answers ---------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "why"},
        {"reasoning": "why"},
        {"reasoning_content": "", "reasoning": "why"},
        {
            "reasoning_details": [
                {"type": "reasoning.encrypted", "data": "x"},
                {"type": "reasoning.text", "text": "why"},
            ]
        },
    ],
)
async def test_reasoning_is_found_kept_apart_and_sent_back(fields: dict[str, Any]) -> None:
    call = {"id": "c", "function": {"name": "say", "arguments": "{}"}}
    script = [{"message": {"content": "text", "tool_calls": [call], **fields}}, {"content": "ok"}]
    async with playing(script) as (client, server):
        result = await HermesAgentLoop(client).run("x", Desk())
        sent = server.requests["k"]["messages"][1]
    assert result.reasoning_per_turn == ["why", None]
    assert (sent["content"], sent["reasoning_content"]) == ("text", "why")
    assert sent.get("reasoning_details") == fields.get("reasoning_details")
    assert "reasoning_content" not in result.messages[-1]


@pytest.mark.asyncio
async def test_an_answer_cut_at_the_limit_is_no_natural_end() -> None:
    result = await play([{"content": "and then", "finish_reason": "length"}])
    assert (result.stop_reason, result.finished_naturally) == ("length", False)
    result = await play([{"reasoning": "so long", "content": "", "finish_reason": "length"}])
    assert (result.stop_reason, result.turns_used) == ("length", 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("empty", ["", None, "  \n"])
async def test_an_empty_answer_is_asked_about_once(empty: str | None) -> None:
    script = [{"content": empty}, {"tool": "say"}, {"content": empty}, {"content": empty}]
    async with playing(script) as (client, server):
        result = await HermesAgentLoop(client).run("x", Desk())
        sent = server.requests["k"]["messages"]
    assert roles(result) == ["user", "assistant", "user", "assistant", "tool", "assistant", "user", "assistant"]
    assert result.messages[1] == {"role": "assistant", "content": empty}
    assert (sent[1]["content"], sent[2]["content"]) == (EMPTY_ANSWER, NUDGE)
    assert (result.stop_reason, result.finished_naturally, result.turns_used) == ("finished", True, 4)


@pytest.mark.asyncio
async def test_a_refusal_is_an_answer() -> None:
    result = await play([{"message": {"content": None, "refusal": "I will not."}}])
    assert (result.stop_reason, result.turns_used) == ("finished", 1)
    assert result.messages[-1] == {"role": "assistant", "content": None, "refusal": "I will not."}


@pytest.mark.asyncio
async def test_a_parser_finds_calls_in_text() -> None:
    class Parser:
        def parse(self, raw: str, tools: Any = None) -> tuple[str | None, Any]:
            assert tools[0]["function"]["name"] == "say"
            if not raw.startswith("CALL "):
                return raw, None
            return None, [SimpleNamespace(id="p1", function=SimpleNamespace(name="say", arguments=raw[5:]))]

    result = await play([{"content": 'CALL {"text": "hi"}'}, {"content": "ok"}], tool_call_parser=Parser())
    assert tool_results(result) == [{"output": "hi", "error": None}]
    assert result.messages[1]["content"] is None and result.messages[-1]["content"] == "ok"


GOOD = '<tool_call>{"name": "say", "arguments": {"text": "hi"}}</tool_call>'
BAD = '<tool_call>{"name": "say", "arguments": {"text": hi}}</tool_call>'


@pytest.mark.asyncio
async def test_calls_left_in_the_text_are_run() -> None:
    result = await play([{"content": f"I say it. {GOOD}"}, {"content": "ok"}], tool_call_parser="auto")
    assert tool_results(result) == [{"output": "hi", "error": None}]
    message = result.messages[1]
    assert message["content"] == "I say it." and message["tool_calls"][0]["function"]["name"] == "say"
    assert (result.turns_used, result.finished_naturally, result.tool_errors) == (2, True, [])


@pytest.mark.asyncio
async def test_a_call_that_cannot_be_read_is_answered_and_recorded() -> None:
    result = await play([{"content": BAD}, {"content": GOOD}, {"content": "ok"}], tool_call_parser="hermes")
    assert roles(result) == ["user", "assistant", "user", "assistant", "tool", "assistant"]
    assert result.messages[1]["content"] == BAD
    assert result.messages[2]["content"].startswith("Your tool call could not be read, so nothing was run: its JSON")
    (error,) = result.tool_errors
    assert (error.turn, error.tool_name, error.arguments) == (1, "", BAD) and error.error.startswith(
        "not read: its JSON"
    )
    assert result.finished_naturally


@pytest.mark.asyncio
async def test_one_bad_call_among_good_ones_is_told_with_the_results() -> None:
    result = await play([{"content": BAD + GOOD}, {"content": "ok"}], tool_call_parser="auto")
    (told,) = tool_results(result)
    assert told["output"] == "hi" and "could not be read: its JSON" in told["notice"]
    assert len(result.tool_errors) == 1


@pytest.mark.asyncio
async def test_a_call_that_is_cut_off_is_not_run_and_the_model_is_told() -> None:
    cut = {"content": GOOD[:48], "finish_reason": "length"}
    result = await play([cut, {"content": "ok"}], tool_call_parser="auto")
    assert "ends at the token limit of a tool call" in result.messages[2]["content"]
    assert result.stop_reason == "finished" and not tool_results(result)


@pytest.mark.asyncio
async def test_calls_that_can_never_be_read_end_the_run() -> None:
    result = await play([{"content": BAD, "repeat": True}], tool_call_parser="auto")
    assert (result.stop_reason, result.turns_used) == ("loop", 5)


@pytest.mark.asyncio
@pytest.mark.parametrize("parser", [None, "none"])
async def test_without_a_parser_text_is_text(parser: str | None) -> None:
    result = await play([{"content": GOOD}], tool_call_parser=parser)
    assert (result.stop_reason, result.messages[-1]["content"]) == ("finished", GOOD)


# -- loops, long histories, deadlines, failures ----------------------------------------------------


@pytest.mark.asyncio
async def test_identical_calls_with_identical_results_are_noticed_then_stopped() -> None:
    result = await play([{"tool": "say", "repeat": True}], max_turns=30)
    assert (result.stop_reason, result.finished_naturally, result.turns_used) == ("loop", False, 5)
    notices = [each.get("notice") for each in tool_results(result)]
    assert [bool(notice) for notice in notices] == [False, False, True, False, False]
    assert notices[2].startswith("3 turns in a row made the same call")
    assert (await play([{"tool": "count", "repeat": True}], max_turns=12)).stop_reason == "max_turns"
    assert (await play([{"tool": "say", "repeat": True}], max_turns=12, loop_limit=0)).stop_reason == "max_turns"


@pytest.mark.asyncio
async def test_old_rounds_are_left_out_of_what_is_sent_in_blocks_and_kept_in_the_result() -> None:
    sizes: list[int] = []
    texts: list[str] = []

    def player(request: Mapping[str, Any]) -> Mapping[str, Any]:
        sizes.append(sum(message["role"] == "assistant" for message in request["messages"]))
        texts.append(request["messages"][1]["content"])
        return {"content": "ok"} if len(sizes) == 10 else {"tool": "count"}

    result = await play(player, history_keep_rounds=2, system_prompt="sys")
    assert sizes == [0, 1, 2, 3, 2, 3, 2, 3, 2, 3]
    assert set(texts[:4]) == {"do it"} and set(texts[4:]) == {f"do it\n\n{REMOVED}"}
    assert roles(result) == ["system", "user", *["assistant", "tool"] * 9, "assistant"]
    assert result.messages[1]["content"] == "do it"


OVERFLOW = {"error": {"message": "too long", "code": "context_length_exceeded", "type": "invalid_request_error"}}


@pytest.mark.asyncio
async def test_an_overflow_ends_the_run_with_all_of_it_kept() -> None:
    async with playing([{"tool": "say"}, {"status": 400, "body": OVERFLOW, "times": 99}]) as (client, _):
        loop = HermesAgentLoop(client)
        with pytest.raises(ContextOverflow, match="too long"):
            await loop.run("x", Desk())
    result = loop.partial_result()
    assert (result.stop_reason, result.turns_used, roles(result)) == (
        "context_overflow",
        1,
        ["user", "assistant", "tool"],
    )
    assert "too long" in (result.error or "")


@pytest.mark.asyncio
async def test_an_overflow_shortens_what_is_sent_where_rounds_may_go() -> None:
    fault = {"status": 400, "body": OVERFLOW}
    sizes: list[int] = []
    script = [*[{"tool": "count"}] * 6, fault, fault, {"content": "ok"}]
    async with playing(script) as (client, server):
        result = await HermesAgentLoop(client, history_keep_rounds=20).run("x", Desk())
        sizes = [message["role"] for message in server.requests["k"]["messages"]].count("assistant")
    assert (result.stop_reason, sizes) == ("finished", 1)
    assert roles(result).count("assistant") == 7


@pytest.mark.asyncio
async def test_a_deadline_ends_a_model_call_as_the_agents_time_not_the_endpoints_fault() -> None:
    class Late(Desk):
        async def call(self, *arguments: Any, **options: Any) -> str:
            loop.deadline_s = 0.2  # what is left is spent in the second model call
            return await super().call(*arguments, **options)

    async with playing([{"tool": "say"}, {"fault": "hang", "times": 9}]) as (client, _):
        loop = HermesAgentLoop(client, deadline_s=600)
        with pytest.raises(AgentTimeout, match=r"0.2 s"):
            await loop.run("x", Late())
    result = loop.partial_result()
    assert (result.stop_reason, result.turns_used) == ("timeout", 1)


@pytest.mark.asyncio
async def test_cancelled_in_a_tool_leaves_a_whole_conversation() -> None:
    desk = Desk()
    async with playing([{"tools": [{"tool": "say"}, {"tool": "hang"}]}]) as (client, _):
        loop = HermesAgentLoop(client)
        task = asyncio.create_task(loop.run("x", desk))
        await desk.hanging.wait()
        assert loop.partial_result().turns_used == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    result = loop.partial_result()
    assert roles(result) == ["user", "assistant", "tool", "tool"]
    assert tool_results(result) == [{"output": "say", "error": None}, json.loads(INTERRUPTED)]
    assert result.stop_reason == "error"


@pytest.mark.asyncio
@pytest.mark.parametrize("parallel", [True, False])
async def test_a_lost_sandbox_comes_out_as_it_is(parallel: bool) -> None:
    async with playing([{"tools": [{"tool": "say"}, {"tool": "lost"}]}]) as (client, _):
        loop = HermesAgentLoop(client, parallel_tool_calls=parallel)
        with pytest.raises(SandboxLost, match="the container is gone"):
            await loop.run("x", Desk())
    assert loop.partial_result().error == "SandboxLost: the container is gone"


@pytest.mark.asyncio
async def test_a_model_that_is_down_comes_out_as_it_is_with_what_was_done() -> None:
    async with playing([{"tool": "say"}, {"status": 503, "times": 99}]) as (client, _):
        loop = HermesAgentLoop(client)
        with pytest.raises(ModelUnavailable, match="after 3 attempts"):
            await loop.run("x", Desk())
    result = loop.partial_result()
    assert (result.stop_reason, result.turns_used) == ("error", 1)
    assert (result.error or "").startswith("ModelUnavailable: ")


# -- servers of hermes environments ----------------------------------------------------------------


class Server:
    """What hermes environments pass as `server`: answers as objects, dicts or exceptions, one a call."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.kwargs: list[dict[str, Any]] = []

    async def chat_completion(self, **kwargs: Any) -> Any:
        self.kwargs.append(copy.deepcopy(kwargs))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def get_state(self) -> dict[str, Any]:
        return {"nodes": [1]}


def as_namespace(content: str | None, calls: list[Any] | None = None, **message: Any) -> SimpleNamespace:
    reply = SimpleNamespace(role="assistant", content=content, tool_calls=calls, **message)
    return SimpleNamespace(choices=[SimpleNamespace(message=reply, finish_reason="stop")], usage=None)


def as_sdk(content: str | None, calls: list[Any] | None = None, **message: Any) -> Any:
    from openai.types.chat import ChatCompletion

    reply = {"role": "assistant", "content": content, "tool_calls": calls, **message}
    choice = {"index": 0, "message": reply, "finish_reason": "stop"}
    return ChatCompletion.model_validate(
        {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    )


@pytest.mark.asyncio
@pytest.mark.parametrize("make", [as_namespace, as_sdk])
async def test_a_chat_completion_server_is_a_model(make: Callable[..., Any]) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "say", "arguments": '{"text": "yo"}'}}
    server = Server(make(None, [call], reasoning_content="why"), make("ok"))
    desk = Desk()
    names = set(desk.names)
    loop = HermesAgentLoop(server, desk.schemas, names, 7, "task-1", 0.2, 64, {"a": 1}, None, toolbox=desk)
    result = await loop.run([{"role": "user", "content": "go"}])
    assert (result.turns_used, result.finished_naturally, result.managed_state) == (2, True, {"nodes": [1]})
    assert result.reasoning_per_turn == ["why", None] and result.usage == Usage()
    first = server.kwargs[0]
    assert first == {
        "messages": [{"role": "user", "content": "go"}], "n": 1, "tools": desk.schemas, "temperature": 0.2,
        "max_tokens": 64, "extra_body": {"a": 1},
    }  # fmt: skip
    assert [message["role"] for message in server.kwargs[1]["messages"]] == ["user", "assistant", "tool"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("answer", "error_type", "says"),
    [
        (None, ModelAnswerInvalid, "answered nothing"),
        (SimpleNamespace(choices=[]), ModelAnswerInvalid, "no choices"),
        (RuntimeError("This model's maximum context length is 10 tokens"), ContextOverflow, "maximum context length"),
        (RuntimeError("kaputt"), ModelError, "raised RuntimeError: kaputt"),
        (TimeoutError(), ModelUnavailable, "no answer"),
    ],
)
async def test_a_chat_completion_servers_failures_are_named(answer: Any, error_type: type, says: str) -> None:
    loop = HermesAgentLoop(Server(answer))
    with pytest.raises(error_type, match=says):
        await loop.run("x")
    assert roles(loop.partial_result()) == ["user"]


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(TypeError, match="neither complete"):
        HermesAgentLoop(object())
