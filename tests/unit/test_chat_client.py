"""The chat client over real loopback HTTP: what it sends, what it makes of answers, and every error row."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from pytest_hermes import errors
from pytest_hermes.errors import ConfigurationError, ContextOverflow
from pytest_hermes.models.answers import usage
from pytest_hermes.models.chat import ChatClient
from pytest_hermes.models.conversation import Transcript
from pytest_hermes.models.endpoint import Endpoint, resolve
from pytest_hermes.models.openai_sdk import OpenAISDKClient
from pytest_hermes.models.pricing import Price, cost_of, read_prices
from pytest_hermes.models.protocol import Sampling, Usage
from pytest_hermes.models.registry import make_model
from pytest_hermes.models.retry import RetryPolicy
from pytest_hermes.models.scripted_server import ScriptedServer

KEY = "sk-secret-0123456789"
DONE = {"choices": [{"message": {"role": "assistant", "content": "done"}, "finish_reason": "stop"}]}
TALK = Transcript([{"role": "user", "content": "hi"}])
CLIENTS = [ChatClient, OpenAISDKClient]


class Waits:
    """A sleep that only remembers how long it was asked to wait; jitter always takes its upper bound."""

    def __init__(self, now: float = 0.0) -> None:
        self.seconds: list[float] = []
        self.now = now

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)

    def policy(self, max_retries: int = 4) -> RetryPolicy:
        return RetryPolicy(max_retries, sleep=self.sleep, uniform=lambda low, high: high, now=lambda: self.now)


class Replies:
    """A server that gives the listed replies one after the other (the last one for ever) and keeps the requests."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.listings = 0
        self.url = ""

    async def serve(self, request: web.Request) -> web.Response:
        if request.path.endswith("/models"):
            self.listings += 1
            return web.json_response({"data": [{"id": name} for name in ("qwen3-32b", "qwen3-8b", "llama-3.1-8b")]})
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        status, body, headers = (*reply, {})[:3] if isinstance(reply, tuple) else (200, reply, {})
        if isinstance(body, str):
            return web.Response(status=status, text=body, headers=headers)
        return web.json_response(body, status=status, headers=headers)


@contextlib.asynccontextmanager
async def serving(*replies: Any) -> AsyncIterator[Replies]:
    double = Replies(*replies)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", double.serve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    double.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield double
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def client_of(kind: Any, url: str, waits: Waits, **options: Any) -> AsyncIterator[Any]:
    client = kind(url, options.pop("model", "qwen3-8b"), KEY, retry=waits.policy(options.pop("retries", 4)), **options)
    try:
        yield client
    finally:
        await client.aclose()


async def ask(kind: Any, *replies: Any, **options: Any) -> tuple[Any, Replies, Waits]:
    """One call against the replies: (completion or error, server, waits)."""
    waits = Waits()
    async with serving(*replies) as server, client_of(kind, server.url, waits, **options) as client:
        try:
            return await client.complete(TALK), server, waits
        except errors.HermesError as error:
            return error, server, waits


# -- requests --------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", CLIENTS)
async def test_a_request_holds_what_is_set_and_nothing_else(kind: Any) -> None:
    tools = [{"type": "function", "function": {"name": "ls", "parameters": {}}}]
    full = Sampling(0.5, 100, {"top_p": 0.9, "provider": {"order": ["x"]}})
    async with serving(DONE) as server, client_of(kind, server.url, Waits()) as client:
        await client.complete(TALK)
        await client.complete(Transcript([{"role": "user", "content": "ä\ud83d"}]), tools=tools, sampling=full)
    assert server.bodies[0] == {"model": "qwen3-8b", "messages": [{"role": "user", "content": "hi"}]}
    assert server.bodies[1].pop("messages") == [{"role": "user", "content": "ä?"}]
    assert server.bodies[1] == {
            "model": "qwen3-8b", "tools": tools, "temperature": 0.5, "max_tokens": 100, "top_p": 0.9,
            "provider": {"order": ["x"]},
        }  # fmt: skip
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"


@pytest.mark.asyncio
async def test_the_callers_messages_are_not_touched_and_other_conversations_are_taken() -> None:
    class Plain:
        def __init__(self) -> None:
            self.messages = [{"role": "user", "content": "hi"}]

    given = Plain()
    async with serving(DONE) as server, client_of(ChatClient, server.url, Waits()) as client:
        await client.complete(given)
    assert given.messages == [{"role": "user", "content": "hi"}] == server.bodies[0]["messages"]


@pytest.mark.asyncio
async def test_one_connection_serves_consecutive_calls() -> None:
    ports = set()

    async def answer(request: web.Request) -> web.Response:
        ports.add(request.transport.get_extra_info("peername")[1])
        return web.json_response(DONE)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with client_of(ChatClient, f"http://127.0.0.1:{runner.addresses[0][1]}/v1", Waits()) as client:
        for _ in range(5):
            await client.complete(TALK)
        await client.at(client.endpoint.base_url).complete(TALK)
    await runner.cleanup()
    assert len(ports) == 1


@pytest.mark.asyncio
async def test_a_model_that_wants_max_completion_tokens_gets_them() -> None:
    said = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    refused = (400, {"error": {"message": said, "code": "unsupported_parameter", "param": "max_tokens"}})
    waits = Waits()
    async with serving(refused, DONE) as server, client_of(ChatClient, server.url, waits) as client:
        for _ in range(2):
            await client.complete(TALK, sampling=Sampling(max_tokens=7))
    limits = [{key: body[key] for key in body if "max" in key} for body in server.bodies]
    assert limits == [{"max_tokens": 7}, {"max_completion_tokens": 7}, {"max_completion_tokens": 7}]


WINDOW = (
    "This model's maximum context length is 32768 tokens. However, you requested 33425 tokens (1425 in the messages,"
    " 32000 in the completion). Please reduce the length of the messages or completion."
)
NEWER_WINDOW = (
    "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is 32768 tokens"
    " and your request has 1425 input tokens (32000 > 32768 - 1425)."
)
ANTHROPIC_WINDOW = "input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000, decrease input length"
FULL = (
    "This model's maximum context length is 32768 tokens. However, you requested 64700 tokens (32700 in the messages,"
    " 32000 in the completion)."
)


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize(
    ("said", "limits"),
    [
        (WINDOW, [32000, 8192, 8192]),
        (NEWER_WINDOW, [32000, 8192, 8192]),
        (ANTHROPIC_WINDOW, [32000, 10000, 32000]),
        ("max_tokens is too large: 32000. This model supports at most 16384 completion tokens.", [32000, 16384, 16384]),
    ],
    ids=["vllm", "newer vllm", "anthropic", "openai"],
)
async def test_an_answer_that_has_no_room_is_asked_for_shorter(kind, said, limits) -> None:
    """A conversation that fits is no overflow; later calls begin with what is known."""
    refused = (400, {"error": {"message": said, "code": 400, "type": "BadRequestError"}})
    waits = Waits()
    async with serving(refused, DONE) as server, client_of(kind, server.url, waits) as client:
        for _ in range(2):
            await client.complete(TALK, sampling=Sampling(max_tokens=32000))
    assert [body["max_tokens"] for body in server.bodies] == limits
    assert waits.seconds == [0.0] or not any(waits.seconds)


@pytest.mark.asyncio
async def test_a_conversation_that_leaves_no_room_for_an_answer_is_an_overflow() -> None:
    refused = (400, {"error": {"message": FULL}})
    waits = Waits()
    async with serving(refused, DONE) as server, client_of(ChatClient, server.url, waits) as client:
        with pytest.raises(ContextOverflow):
            await client.complete(TALK, sampling=Sampling(max_tokens=32000))
    assert len(server.bodies) == 1


@pytest.mark.asyncio
async def test_a_model_that_takes_no_temperature_gets_none() -> None:
    said = "Unsupported value: 'temperature' does not support 0.0 with this model. Only the default (1) is supported."
    refused = (400, {"error": {"message": said, "code": "unsupported_value", "param": "temperature"}})
    async with serving(refused, DONE) as server, client_of(ChatClient, server.url, Waits()) as client:
        for _ in range(2):
            await client.complete(TALK, sampling=Sampling(temperature=0.0, max_tokens=9))
    assert [body.get("temperature") for body in server.bodies] == [0.0, None, None]
    assert all(body["max_tokens"] == 9 for body in server.bodies)


@pytest.mark.asyncio
async def test_calls_that_are_refused_at_the_same_time_all_get_what_the_first_one_learned() -> None:
    """The refusals of four calls arrive together: only the first of them teaches something."""
    arrived = asyncio.Barrier(4)

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        if "temperature" not in body:
            return web.json_response(DONE)
        await arrived.wait()
        return web.json_response({"error": {"message": "temperature is not supported by this model"}}, status=400)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with client_of(ChatClient, f"http://127.0.0.1:{runner.addresses[0][1]}/v1", Waits()) as client:
        calls = (client.complete(TALK, sampling=Sampling(temperature=0.0)) for _ in range(4))
        assert len(await asyncio.gather(*calls)) == 4
    await runner.cleanup()


# -- answers ---------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        ({}, Usage()),
        ({"prompt_tokens": 10, "completion_tokens": 2}, Usage(10, 2)),
        (
            {
                "prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8},
                "completion_tokens_details": {"reasoning_tokens": 3}, "cost": 0.25,
            },
            Usage(10, 4, 8, 3, 0.25),
        ),
        ({"prompt_tokens": 10, "completion_tokens": 2, "prompt_cache_hit_tokens": 6}, Usage(10, 2, 6)),
        (
            {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 1},
            Usage(9, 2, 5),
        ),
        ({"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": None}, Usage(1, 1)),
    ],
)  # fmt: skip
async def test_usage_in_every_spelling(kind: Any, wire: dict[str, Any], expected: Usage) -> None:
    answer, _, _ = await ask(kind, {**DONE, "usage": wire, "model": "qwen3-8b-q4"})
    assert answer.usage == expected
    assert (answer.message, answer.finish_reason) == ({"role": "assistant", "content": "done"}, "stop")
    assert answer.model == "qwen3-8b-q4"
    assert answer.latency_s > 0


def test_cost_is_reported_then_listed_then_unknown_and_never_zero() -> None:
    usage = Usage(1_000_000, 100_000, 400_000)
    assert cost_of("gpt-5", usage) == pytest.approx(0.6 * 1.25 + 0.4 * 0.125 + 0.1 * 10)
    assert cost_of("openai/gpt-5-2025-08-07", usage) == cost_of("gpt-5", usage)
    assert cost_of("anthropic/claude-sonnet-4.5", usage) == cost_of("claude-sonnet-4-5", usage)
    assert cost_of("gpt-5", Usage(1, 1, cost_usd=0.5)) == 0.5
    assert cost_of("my-own-model", usage) is None
    assert cost_of("gpt-5", Usage()) is None
    assert cost_of("my-own-model", usage, read_prices({"my-own-model": {"prompt": 1, "completion": 2}})) == 1.2
    assert cost_of("gpt-5", usage, {"gpt-5": Price(0.0, 10.0)}) == pytest.approx(1.0)
    with pytest.raises(ConfigurationError, match=r"openai\.prices\.x: expected USD per million tokens"):
        read_prices({"x": {"promt": 1}})


# -- errors, without retries -----------------------------------------------------------------------


def error_body(message: str, code: Any = None, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": code}}


REFUSALS = [
    (401, error_body(f"Incorrect API key provided: {KEY}", "invalid_api_key"), errors.ModelUnauthorized, "API key"),
    (403, error_body("not allowed here"), errors.ModelUnauthorized, "not allowed here"),
    (404, error_body("The model `qwen3-8b` does not exist.", "model_not_found"), errors.ModelNotFound, "qwen3-8b"),
    (404, {"object": "error", "message": "The model `qwen3-8b` does not exist.", "type": "NotFoundError", "code": 404},
     errors.ModelNotFound, "qwen3-8b"),
    (404, error_body('model "qwen3-8b" not found, try pulling it first'), errors.ModelNotFound, "pulling"),
    (400, error_body("qwen3-8b is not a valid model ID", 400), errors.ModelNotFound, "Close to it there"),
    (404, "404 page not found", errors.ModelRejected, "most end in /v1"),
    (400, error_body("temperature must be at most 2"), errors.ModelRejected, "temperature must be at most 2"),
    (400, {"detail": [{"loc": ["body"], "msg": "field required"}]}, errors.ModelRejected, "field required"),
    (402, error_body("Insufficient credits"), errors.ModelRejected, "Insufficient credits"),
    (422, "nonsense", errors.ModelRejected, "nonsense"),
    (302, "", errors.ModelRejected, "redirects"),
    (429, error_body("You exceeded your current quota", "insufficient_quota"), errors.ModelRateLimited, "quota"),
]  # fmt: skip


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize(("status", "body", "error_type", "says"), REFUSALS)
async def test_a_refusal_is_named_and_not_asked_again(
    kind: Any, status: int, body: Any, error_type: type, says: str
) -> None:
    error, server, waits = await ask(kind, (status, body))
    assert type(error) is error_type
    assert server.url in str(error)
    assert KEY not in str(error) and KEY not in repr(error)
    assert says in str(error)
    assert (error.status, error.attempts, waits.seconds, len(server.bodies)) == (status, 1, [], 1)


@pytest.mark.asyncio
async def test_an_unknown_model_names_the_close_ones() -> None:
    unknown = (404, error_body("The model `qwen3` does not exist.", "model_not_found"))
    error, server, _ = await ask(ChatClient, unknown, model="qwen3")
    assert "does not know the model 'qwen3'" in str(error)
    assert "Close to it there: qwen3-8b, qwen3-32b." in str(error)
    assert server.listings == 1


OVERFLOWS = [
    (400, error_body("This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 "
                     "tokens. Please reduce the length of the messages.", "context_length_exceeded")),
    (400, error_body("Your input exceeds the context window of this model.", "context_length_exceeded")),
    (400, {"object": "error", "message": "'max_tokens' is too large: 2000. This model's maximum context length is 4096 "
           "tokens and your request has 2104 input tokens", "type": "BadRequestError", "code": 400}),
    (400, {"object": "error", "message": "The input (9000 tokens) is longer than the model's context length (8192).",
           "code": 400}),
    (400, error_body("This endpoint's maximum context length is 8192 tokens. However, you requested about 9000 tokens "
                     "(8500 of text input, 500 in the output).", 400)),
    (400, error_body("Provider returned error", 400)
     | {"error": {"message": "Provider returned error", "code": 400,
                  "metadata": {"raw": '{"error":{"message":"prompt is too long: 213462 tokens > 200000 maximum"}}'}}}),
    (400, {"type": "error", "error": {"type": "invalid_request_error",
                                      "message": "prompt is too long: 213462 tokens > 200000 maximum"}}),
    (400, [{"error": {"code": 400, "message": "The input token count (1196265) exceeds the maximum number of tokens "
                      "allowed (1048575).", "status": "INVALID_ARGUMENT"}}]),
    (400, {"error": {"code": 400, "message": "request (9000 tokens) exceeds the available context size (4096 tokens), "
                     "try increasing it", "type": "exceed_context_size_error"}}),
    (500, {"error": {"code": 500, "message": "the request exceeds the available context size. try increasing the "
                     "context size or enable context shift", "type": "server_error"}}),
    (413, error_body("Please reduce the length of the messages or completion.", "context_length_exceeded")),
    (200, {"error": {"message": "This endpoint's maximum context length is 8192 tokens.", "code": 400}}),
]  # fmt: skip


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize(("status", "body"), OVERFLOWS)
async def test_an_overflow_is_known_by_code_or_text(kind: Any, status: int, body: Any) -> None:
    error, server, _ = await ask(kind, (status, body))
    assert type(error) is errors.ContextOverflow
    assert len(server.bodies) == 1


# -- retries ---------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("status", [408, 409, 425, 500, 502, 503, 529])
async def test_what_may_pass_is_tried_again_then_unavailable(kind: Any, status: int) -> None:
    answer, _, waits = await ask(kind, (status, error_body("try later")), (status, "down"), DONE)
    assert answer.retries == 2
    assert waits.seconds == [1.0, 2.0]
    error, server, waits = await ask(kind, (status, error_body("try later")))
    assert type(error) is errors.ModelUnavailable
    assert "try later" in str(error) and "after 5 attempts" in str(error)
    assert (error.status, error.attempts, len(server.bodies)) == (status, 5, 5)
    assert waits.seconds == [1.0, 2.0, 4.0, 8.0]


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", CLIENTS)
async def test_a_rate_limit_waits_as_long_as_it_is_told(kind: Any) -> None:
    limited = error_body("slow down", "rate_limit_exceeded")
    in_20_s = email.utils.formatdate(20, usegmt=True)
    answer, _, waits = await ask(
        kind,
        (429, limited, {"Retry-After": "7"}),
        (429, limited, {"Retry-After": in_20_s}),
        (503, limited, {"retry-after-ms": "300"}),
        (429, limited),
        DONE,
    )
    assert answer.retries == 4
    assert waits.seconds == [8.0, 21.0, 0.6, 32.0]


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize(("status", "error_type"), [(429, errors.ModelRateLimited), (503, errors.ModelUnavailable)])
async def test_a_wait_that_is_too_long_fails_at_once(kind: Any, status: int, error_type: type) -> None:
    error, server, waits = await ask(kind, (status, error_body("no"), {"Retry-After": "3600"}))
    assert type(error) is error_type
    assert "asks to wait 3600 s, and a call waits 60 s at most" in str(error)
    assert (waits.seconds, len(server.bodies)) == ([], 1)


@pytest.mark.asyncio
async def test_the_endpoints_own_word_on_retrying_is_kept() -> None:
    error, server, _ = await ask(ChatClient, (500, error_body("broken"), {"x-should-retry": "false"}))
    assert (type(error), len(server.bodies)) == (errors.ModelUnavailable, 1)
    answer, _, _ = await ask(ChatClient, (400, error_body("odd"), {"x-should-retry": "true"}), DONE)
    assert answer.retries == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", CLIENTS)
async def test_an_error_inside_a_200_counts_as_its_code(kind: Any) -> None:
    inside = {"error": {"message": "upstream limit", "code": 429}}
    choice = {"choices": [{"error": {"message": "upstream broke", "code": 502}, "message": {"content": ""}}]}
    answer, _, _ = await ask(kind, inside, choice, DONE)
    assert answer.retries == 2
    error, _, _ = await ask(kind, {"error": {"message": "bad key", "code": 401}})
    assert (type(error), error.status) == (errors.ModelUnauthorized, 401)


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize(
    "body", [{"choices": []}, {"object": "x"}, [1], "<html>", "", {"choices": [{"message": None}]}]
)
async def test_an_answer_that_is_no_completion_is_asked_for_again(kind: Any, body: Any) -> None:
    answer, _, _ = await ask(kind, (200, body, {}), DONE)
    assert answer.retries == 1
    error, server, _ = await ask(kind, (200, body, {}))
    assert type(error) is errors.ModelAnswerInvalid
    assert server.url in str(error) and "after 5 attempts" in str(error)


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("fault", ["disconnect", "truncate", "garbage", "empty"])
async def test_broken_connections_and_bodies_are_tried_again(kind: Any, fault: str) -> None:
    async with ScriptedServer() as server:
        server.add("once", [{"fault": fault}, {"content": "done"}])
        server.add("always", [{"fault": fault, "times": 99}])
        async with client_of(kind, server.url("once"), Waits(), model="scripted") as client:
            assert (await client.complete(TALK)).retries == 1
        async with client_of(kind, server.url("always"), Waits(), model="scripted", retries=2) as client:
            broken = errors.ModelAnswerInvalid if fault in ("garbage", "empty") else errors.ModelUnavailable
            with pytest.raises(broken, match=r"after 3 attempts"):
                await client.complete(TALK)
        assert server.stats == {"once": 2, "always": 3}


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", CLIENTS)
async def test_a_server_that_is_down_is_named(kind: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    async with client_of(kind, url, Waits()) as client:
        with pytest.raises(errors.ModelUnavailable) as caught:
            await client.complete(TALK)
    assert url in str(caught.value) and "\n" not in str(caught.value) and KEY not in str(caught.value)
    assert "cannot connect" in str(caught.value) and "after 5 attempts" in str(caught.value)


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", CLIENTS)
async def test_an_attempt_and_a_call_have_their_time(kind: Any) -> None:
    async with ScriptedServer() as server:
        server.add("slow", [{"fault": "hang", "times": 99}])
        async with client_of(kind, server.url("slow"), Waits(), model="scripted", timeout_s=0.05, retries=1) as client:
            with pytest.raises(errors.ModelUnavailable, match=r"nothing within 0.05 s.*after 2 attempts"):
                await client.complete(TALK)
        async with client_of(kind, server.url("slow"), Waits(), model="scripted") as client:
            with pytest.raises(errors.ModelUnavailable, match=r"no answer from http://127.0.0.1:\d+/s/slow/v1 within"):
                await client.complete(TALK, timeout_s=0.05)


# -- where and with which key ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "key", "environ", "expected"),
    [
        (None, None, {"OPENAI_API_KEY": "a"}, Endpoint("https://api.openai.com/v1", "a")),
        (None, None, {"OPENROUTER_API_KEY": "r"}, Endpoint("https://openrouter.ai/api/v1", "r")),
        (None, None, {"OPENROUTER_API_KEY": "r", "OPENAI_API_KEY": "a"}, Endpoint("https://api.openai.com/v1", "a")),
        (None, None, {"OPENAI_BASE_URL": "http://box:8000/v1/"}, Endpoint("http://box:8000/v1", None)),
        ("https://openrouter.ai/api/v1", None, {"OPENROUTER_API_KEY": "r", "OPENAI_API_KEY": "a"},
         Endpoint("https://openrouter.ai/api/v1", "r")),
        ("http://box/v1", None, {"OPENROUTER_API_KEY": "r", "OPENAI_API_KEY": "a"}, Endpoint("http://box/v1", "a")),
        ("http://box/v1", "given", {"OPENAI_API_KEY": "a"}, Endpoint("http://box/v1", "given")),
    ],
)  # fmt: skip
def test_endpoint_and_key_come_from_the_argument_then_the_environment(
    url: str | None, key: str | None, environ: dict[str, str], expected: Endpoint
) -> None:
    assert resolve(url, key, environ=environ) == expected
    assert "Endpoint(base_url=" in repr(expected) and "api_key" not in repr(expected)


def test_what_cannot_work_is_said_before_a_request() -> None:
    with pytest.raises(ConfigurationError, match="set OPENAI_API_KEY"):
        resolve(environ={})
    with pytest.raises(ConfigurationError, match="set OPENROUTER_API_KEY"):
        resolve("https://openrouter.ai/api/v1", environ={})
    with pytest.raises(ConfigurationError, match="not an http"):
        resolve("localhost:8000", environ={})
    with pytest.raises(ConfigurationError, match="white space") as caught:
        resolve("http://box/v1", "secret\n", environ={})
    assert "secret" not in str(caught.value)


def test_urls_are_shown_without_passwords_and_keep_their_query() -> None:
    endpoint = resolve("http://me:pass@box:81/base?api-version=3", environ={})
    assert endpoint.url("chat/completions") == "http://me:pass@box:81/base/chat/completions?api-version=3"
    assert endpoint.shown == "http://box:81/base"


def test_a_proxy_is_taken_from_the_environment_but_never_for_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "inside.example")
    assert Endpoint("https://api.openai.com/v1").proxy() == "http://proxy:3128"
    assert Endpoint("https://inside.example/v1").proxy() is None
    assert Endpoint("http://127.0.0.1:8000/v1").proxy() is None
    assert Endpoint("http://localhost:8000/v1").proxy() is None


def test_make_model_by_name_and_client() -> None:
    assert isinstance(make_model("m", base_url="http://127.0.0.1:1/v1"), ChatClient)
    assert isinstance(make_model("m", base_url="http://127.0.0.1:1/v1", client="openai"), OpenAISDKClient)
    with pytest.raises(ConfigurationError, match="unknown client; known: aiohttp, openai"):
        make_model("m", base_url="http://127.0.0.1:1/v1", client="httpx")
    with pytest.raises(ConfigurationError, match="no model named"):
        make_model("")


def test_importing_the_registry_imports_no_client() -> None:
    import subprocess
    import sys

    code = (
        "import sys, pytest_hermes.models.registry, pytest_hermes.agents.registry;"
        "print([m for m in ('aiohttp', 'openai', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_client_may_be_used_on_one_loop_after_another() -> None:
    async def once(client: ChatClient, url_of: list[str]) -> str:
        async with serving(DONE) as server:
            answer = await client.at(server.url).complete(TALK)
            await client.aclose()
            return str(answer.message["content"])

    client = ChatClient("http://127.0.0.1:1/v1", "m", KEY)
    assert [asyncio.run(once(client, [])) for _ in range(2)] == ["done", "done"]


def test_a_transcript_encodes_a_message_once_and_joins() -> None:
    message = {"role": "user", "content": "a"}
    transcript = Transcript([message])
    message["content"] = "changed afterwards"
    tools = [{"type": "function", "function": {"name": "f"}}]
    first = transcript.payload({"model": "m"}, tools)
    transcript.append({"role": "assistant", "content": None})
    assert json.loads(first) == {"model": "m", "messages": [{"role": "user", "content": "a"}], "tools": tools}
    assert json.loads(transcript.payload({"model": "m"}))["messages"][1] == {"role": "assistant", "content": None}
    assert json.loads(transcript.payload({"model": "m"}, [])).keys() == {"model", "messages"}


@pytest.mark.parametrize("wrong", [float("nan"), -1, 1e300, "12", True, None, [3]])
def test_numbers_that_cannot_be_counts_were_not_said(wrong: Any) -> None:
    assert usage({"prompt_tokens": wrong, "completion_tokens": 5, "cost": wrong}) == Usage(None, 5)
