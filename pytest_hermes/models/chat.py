"""The default chat client: OpenAI-compatible `/chat/completions` over one kept aiohttp session per event loop.

It costs about 0.2 ms of CPU a call, whatever the length of the conversation (`conversation.py` keeps it encoded),
where the openai SDK's typed call costs 2 to 25 ms. Errors are those of `failures.py`, retries those of `retry.py`. The
API key goes into the Authorization header and nowhere else.
"""

from __future__ import annotations

import asyncio
import copy
import difflib
import ssl as ssl_module
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from pytest_hermes.errors import ModelAnswerInvalid, ModelNotFound, ModelRejected, ModelUnavailable
from pytest_hermes.models import failures
from pytest_hermes.models.answers import completion, decode
from pytest_hermes.models.conversation import Transcript
from pytest_hermes.models.endpoint import Endpoint, resolve
from pytest_hermes.models.failures import AttemptFailed
from pytest_hermes.models.pricing import Price, priced
from pytest_hermes.models.protocol import Completion, Conversation, Sampling
from pytest_hermes.models.retry import RetryPolicy, retry_after_s

CONNECTIONS = 1000
"""Connections of one session: more than any run has in flight, fewer than the usual limit of open files."""
CONNECT_S = 30.0
LISTING_TIMEOUT = aiohttp.ClientTimeout(total=15.0)


class ChatClient:
    """A `ChatModel` at an OpenAI-compatible endpoint (OpenAI, OpenRouter, vLLM, SGLang, llama.cpp, Ollama, ...).

    `timeout_s` bounds one attempt; `complete(timeout_s=...)` bounds the whole call with its retries. `base_url` and
    `api_key` default to the environment (`endpoint.resolve`). `ssl` is what aiohttp takes: True, False (no
    verification) or an SSLContext. `retry` replaces the whole policy, `max_retries` only its count.
    """

    def __init__(
        self,
        base_url: str | None = None,
        model: str = "",
        api_key: str | None = None,
        *,
        timeout_s: float = 600.0,
        max_retries: int = 4,
        default_headers: Mapping[str, str] | None = None,
        ssl: ssl_module.SSLContext | bool = True,
        prices: Mapping[str, Price] | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.name = model
        self.endpoint: Endpoint = resolve(base_url, api_key)
        self._url = self.endpoint.url("chat/completions")
        self._proxy = self.endpoint.proxy()
        self._timeout_s = timeout_s
        self._retry = retry or RetryPolicy(max_retries=max_retries)
        self._ssl = ssl
        self._prices = prices
        self._max_tokens_field = "max_tokens"
        self._headers = {"Content-Type": "application/json", "User-Agent": "pytest-hermes"}
        if self.endpoint.api_key and "@" not in self.endpoint.base_url:
            self._headers["Authorization"] = f"Bearer {self.endpoint.api_key}"
        self._headers.update(default_headers or {})
        self._sessions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = (
            weakref.WeakKeyDictionary()
        )

    def at(self, base_url: str) -> ChatClient:
        """This client at another base URL, with the same key and settings, sharing its connections."""
        other = copy.copy(self)
        other.endpoint = resolve(base_url, self.endpoint.api_key)
        other._url, other._proxy = other.endpoint.url("chat/completions"), other.endpoint.proxy()
        return other

    async def complete(
        self,
        conversation: Conversation,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        sampling: Sampling = Sampling(),
        timeout_s: float | None = None,
    ) -> Completion:
        """See `ChatModel.complete`. ModelUnavailable too when `timeout_s` runs out during the call or its retries."""
        transcript = Transcript.of(conversation)

        async def attempt() -> Completion:
            return await self._attempt(transcript.payload(self._fields(sampling), tools))

        try:
            async with asyncio.timeout(timeout_s):
                answer, retries = await self._retry.run(attempt)
        except TimeoutError as error:
            raise ModelUnavailable(f"no answer from {self.endpoint.shown} within {timeout_s:.0f} s") from error
        except ModelNotFound as error:
            if suggestion := await self._suggestion():
                error.args = (f"{error} {suggestion}",)
            raise
        answer.message.setdefault("role", "assistant")
        usage = priced(self.name, answer.usage, self._prices)
        return Completion(answer.message, answer.finish_reason, usage, answer.latency_s, retries, answer.model)

    async def models(self) -> list[str]:
        """The names that the endpoint lists at `/models`. Raises a ModelError type."""
        try:
            async with self._session().get(
                self.endpoint.url("models"), headers=self._headers, proxy=self._proxy, timeout=LISTING_TIMEOUT
            ) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ModelUnavailable(f"no answer from {self.endpoint.shown}: {_reason(error)}") from error
        if response.status != 200:
            raise failures.refusal(response.status, body, where=self.endpoint.shown, model=self.name).error
        data = decode(body).get("data")
        return [str(item["id"]) for item in data if isinstance(item, dict) and "id" in item] if data else []

    async def aclose(self) -> None:
        """Close the connections of the running loop."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None:
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS, ttl_dns_cache=300, ssl=self._ssl),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=CONNECT_S),
            )
            self._sessions[loop] = session
        return session

    def _fields(self, sampling: Sampling) -> dict[str, Any]:
        fields: dict[str, Any] = {"model": self.name}
        if sampling.temperature is not None:
            fields["temperature"] = sampling.temperature
        if sampling.max_tokens is not None:
            fields[self._max_tokens_field] = sampling.max_tokens
        fields.update(sampling.extra_body)
        return fields

    async def _attempt(self, payload: bytes) -> Completion:
        where, began = self.endpoint.shown, time.perf_counter()
        try:
            async with self._session().post(
                self._url, data=payload, headers=self._headers, proxy=self._proxy, allow_redirects=False
            ) as response:
                body = await response.read()
        except aiohttp.ClientConnectorCertificateError as error:
            raise failures.unreachable(f"its certificate is not trusted: {error}", where=where, retry=False) from error
        except aiohttp.ConnectionTimeoutError as error:
            raise failures.unreachable(f"cannot connect within {CONNECT_S:.0f} s", where=where) from error
        except TimeoutError as error:
            raise failures.unreachable(f"nothing within {self._timeout_s:.0f} s", where=where) from error
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise failures.unreachable("the base URL is not valid", where=where, retry=False) from error
        except (aiohttp.ClientError, OSError) as error:
            raise failures.unreachable(_reason(error), where=where) from error
        latency_s = time.perf_counter() - began
        if response.status != 200:
            raise self._refusal(response.status, body, response.headers)
        try:
            answer = decode(body)
            if inside := failures.error_inside(answer):
                raise self._refusal(*inside, response.headers)
            return completion(answer, latency_s=latency_s)
        except ModelAnswerInvalid as error:
            raise failures.invalid(error, where=where) from error

    def _refusal(self, status: int, body: bytes | Mapping[str, Any], headers: Mapping[str, str]) -> AttemptFailed:
        said = {"true": True, "false": False}.get(headers.get("x-should-retry", ""))
        failed = failures.refusal(status, body, where=self.endpoint.shown, model=self.name, should_retry=said)
        failed.after_s = retry_after_s(headers, self._retry.now())
        failed.error.args = (self.endpoint.hide(str(failed.error)),)
        if (
            isinstance(failed.error, ModelRejected)
            and self._max_tokens_field == "max_tokens"
            and "max_completion_tokens" in str(failed.error)
        ):
            # OpenAI's reasoning models take the same limit under another name only; all later calls use it.
            self._max_tokens_field = "max_completion_tokens"
            failed.retry, failed.after_s = True, 0.0
        return failed

    async def _suggestion(self) -> str:
        try:
            known = await self.models()
        except (ModelUnavailable, ModelRejected, ModelAnswerInvalid):
            return ""
        close = difflib.get_close_matches(self.name, known, 5, 0.4)
        close += [name for name in known if self.name and self.name in name and name not in close]
        if close:
            return f"Close to it there: {', '.join(close[:5])}."
        return f"It offers: {', '.join(known[:5])}{', ...' if len(known) > 5 else ''}." if known else ""


def _reason(error: BaseException) -> str:
    """Why a connection failed, in a few words."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect ({error.os_error.strerror or error.os_error}). Is it running, is the URL right?"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the answer broke off"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "it closed the connection without an answer"
    return f"{type(error).__name__}: {error}"
