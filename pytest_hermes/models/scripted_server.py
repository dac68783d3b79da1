"""A loopback OpenAI-compatible HTTP server that answers from scripts: a real server, only the model is missing.

Each script has its own base URL, `http://127.0.0.1:PORT/s/<key>/v1`. Answers depend on the conversation alone (how many
assistant messages it has), so any number of rollouts may use one script at once; only faults are counted. Requests that
a strict endpoint would refuse (tool calls without answers, unknown roles, unknown model) are refused here too.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import json
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from pytest_hermes.errors import ConfigurationError
from pytest_hermes.models.conversation import encode
from pytest_hermes.models.script import Player, Script, Turn, compile_script, message_of

MODEL = "scripted"
DEFAULT_KEY = "default"
_OWN_ID = re.compile(r"call_t(\d+)_\d+")


@dataclasses.dataclass(frozen=True)
class _Refused(Exception):
    status: int
    message: str
    code: str
    kind: str = "invalid_request_error"


class ScriptedServer:
    """Serves scripts; start, `add(key, script)`, give `url(key)` to a client, stop.

    `models` are the names it knows. `stats` counts chat requests per key, faults included; with
    `keep_requests`, `requests` holds the last request body of every key.
    """

    def __init__(
        self,
        *,
        models: Sequence[str] = (MODEL,),
        host: str = "127.0.0.1",
        port: int = 0,
        keep_requests: bool = False,
    ) -> None:
        self.models = tuple(models)
        self.stats: collections.Counter[str] = collections.Counter()
        self.requests: dict[str, dict[str, Any]] = {}
        self._host, self._port = host, port
        self._keep_requests = keep_requests
        self._scripts: dict[str, list[Turn] | Player] = {}
        self._fired: collections.Counter[tuple[str, int, int]] = collections.Counter()
        self._runner: web.AppRunner | None = None

    async def start(self) -> ScriptedServer:
        """Listen; a port of 0 takes a free one. Returns itself."""
        app = web.Application(client_max_size=256 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            await self.stop()
            raise ConfigurationError(f"cannot listen on {self._host}:{self._port}: {error.strerror}") from error
        self._port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        """Close the server and its connections. Idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def __aenter__(self) -> ScriptedServer:
        return await self.start()

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    @property
    def port(self) -> int:
        return self._port

    def add(self, key: str, script: Script) -> None:
        """Serve `script` under `key`, replacing what was there. Raises ConfigurationError for a broken script."""
        self._scripts[key] = script if callable(script) else compile_script(script, source=f"script {key!r}")

    def url(self, key: str = DEFAULT_KEY) -> str:
        """The base URL of a script."""
        return f"http://{self._host}:{self._port}/s/{urllib.parse.quote(key, safe='')}/v1"

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        parts = request.rel_url.raw_path.strip("/").split("/")
        key = DEFAULT_KEY
        if len(parts) > 1 and parts[0] == "s":
            key, parts = urllib.parse.unquote(parts[1]), parts[2:]
        try:
            match (request.method, parts):
                case ("GET", ["v1", "models"]):
                    data = [{"id": name, "object": "model", "owned_by": "pytest-hermes"} for name in self.models]
                    return _json(200, {"object": "list", "data": data})
                case ("POST", ["v1", "chat", "completions"]):
                    return await self._chat(request, key)
            raise _Refused(404, f"no route {request.method} {request.path}", "not_found")
        except _Refused as refused:
            error = {"message": refused.message, "type": refused.kind, "param": None, "code": refused.code}
            return _json(refused.status, {"error": error})

    async def _chat(self, request: web.Request, key: str) -> web.StreamResponse:
        self.stats[key] += 1
        body = await request.read()
        asked = self._checked(body)
        if self._keep_requests:
            self.requests[key] = asked
        script = self._scripts.get(key)
        if script is None:
            raise _Refused(404, f"no script {key!r} on this server", "script_not_found")
        index = turn_index(asked["messages"])
        if callable(script):
            turn = Turn(script(asked))
        elif index < len(script):
            turn = script[index]
        elif script and script[-1].answer is not None and script[-1].answer.get("repeat"):
            turn = Turn(script[-1].answer)
        else:
            told = f"script {key!r} has {len(script)} turns; the conversation asks for turn {index + 1}"
            raise _Refused(400, told, "script_over")
        for number, fault in enumerate(turn.faults):
            place = (key, index, number)
            if self._fired[place] < fault.get("times", 1):
                self._fired[place] += 1
                return await self._fail(request, fault)
        if turn.answer is None:
            raise _Refused(400, f"script {key!r} ends with a fault that is used up", "script_over")
        await asyncio.sleep(turn.answer.get("delay_s", 0))
        return _json(200, self._answer(turn.answer, index, body))

    def _checked(self, body: bytes) -> dict[str, Any]:
        try:
            asked = json.loads(body)
        except ValueError as error:
            raise _Refused(400, f"the request body is not JSON: {error}", "invalid_json") from error
        if not isinstance(asked, dict) or not isinstance(asked.get("messages"), list) or not asked["messages"]:
            raise _Refused(400, "messages: a non-empty list is required", "invalid_messages")
        if asked.get("stream"):
            raise _Refused(400, "stream: this server answers in one piece only", "unsupported_parameter")
        model = asked.get("model")
        if model not in self.models:
            raise _Refused(404, f"The model `{model}` does not exist.", "model_not_found")
        check_messages(asked["messages"])
        return asked

    def _answer(self, turn: Mapping[str, Any], index: int, body: bytes) -> dict[str, Any]:
        message, finish_reason = message_of(turn, index)
        prompt, answered = len(body) // 4, len(encode(message)) // 4
        usage = {"prompt_tokens": prompt, "completion_tokens": answered, "total_tokens": prompt + answered}
        return {
            "id": f"chatcmpl-{index}",
            "object": "chat.completion",
            "created": 0,
            "model": self.models[0],
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
            "usage": {**usage, **turn.get("usage", {})},
        }

    async def _fail(self, request: web.Request, fault: Mapping[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(fault.get("delay_s", 0))
        if "status" in fault:
            status = int(fault["status"])
            told = {"message": f"scripted HTTP {status}", "type": "scripted", "code": None}
            body = fault.get("body", {"error": told})
            headers = {str(name): str(value) for name, value in fault.get("headers", {}).items()}
            if isinstance(body, str):
                return web.Response(status=status, text=body, headers=headers)
            return _json(status, body, headers)
        match fault["fault"]:
            case "garbage":
                return web.Response(text="<html>this is not JSON</html>", content_type="text/html")
            case "empty":
                return _json(200, {"object": "chat.completion", "choices": []})
            case "hang":
                await asyncio.sleep(3600)
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "4096"})
        if fault["fault"] == "truncate":
            await response.prepare(request)
            await response.write(b'{"object": "chat.completion", "choices": [{"mess')
        if request.transport is not None:
            request.transport.close()
        return response


def turn_index(messages: Sequence[Mapping[str, Any]]) -> int:
    """Which turn of its script a conversation asks for: the number of assistant messages it has.

    A conversation whose old rounds were dropped has fewer than it had; the ids of this server's own calls say which
    turn the last of them was.
    """
    later = 0
    for message in reversed(messages):
        if message.get("role") != "assistant":
            continue
        calls = message.get("tool_calls") or [{}]
        if found := _OWN_ID.fullmatch(str(calls[0].get("id"))):
            return int(found[1]) + 1 + later
        later += 1
    return later


def check_messages(messages: Sequence[Any]) -> None:
    """Refuse what strict endpoints refuse: unknown roles, calls without an answer each, answers without a call."""
    open_calls: dict[str, str] = {}
    for number, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("system", "developer", "user", "assistant", "tool"):
            raise _Refused(400, f"messages[{number}].role: {role!r} is not a role", "invalid_messages")
        if role == "tool":
            if open_calls.pop(str(message.get("tool_call_id")), None) is None:
                raise _Refused(400, f"messages[{number}]: answers no preceding tool call", "invalid_messages")
            if not isinstance(message.get("content"), str | list):
                raise _Refused(400, f"messages[{number}].content: a string is required", "invalid_messages")
            continue
        if open_calls:
            missing = ", ".join(open_calls)
            raise _Refused(400, f"messages[{number}]: tool calls without an answer: {missing}", "invalid_messages")
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            if call.get("type") != "function" or not isinstance(function.get("arguments"), str):
                raise _Refused(400, f"messages[{number}].tool_calls: not in the function form", "invalid_messages")
            if call.get("id") in open_calls or not call.get("id"):
                raise _Refused(400, f"messages[{number}].tool_calls: ids must be unique", "invalid_messages")
            open_calls[call["id"]] = function.get("name", "")
    if open_calls:
        raise _Refused(400, f"tool calls without an answer: {', '.join(open_calls)}", "invalid_messages")


def _json(status: int, value: Any, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=encode(value), status=status, content_type="application/json", headers=headers)
