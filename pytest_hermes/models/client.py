"""What every HTTP chat client does the same way: the request, retries, errors, prices. A subclass only sends.

Errors are those of `failures.py`, retries those of `retry.py`. The API key goes into the Authorization header and
nowhere else: messages that echo it are cleaned.
"""

from __future__ import annotations

import abc
import asyncio
import dataclasses
import difflib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_hermes.errors import (
    ContextOverflow,
    HermesError,
    ModelAnswerInvalid,
    ModelNotFound,
    ModelRejected,
    ModelUnavailable,
)
from pytest_hermes.models import failures
from pytest_hermes.models.answers import completion, decode
from pytest_hermes.models.concessions import Concessions
from pytest_hermes.models.conversation import Transcript
from pytest_hermes.models.endpoint import Endpoint
from pytest_hermes.models.failures import AttemptFailed
from pytest_hermes.models.pricing import Price, priced
from pytest_hermes.models.protocol import Completion, Conversation, Sampling
from pytest_hermes.models.retry import RetryPolicy, retry_after_s

LISTING_S = 15.0
"""How long a list of model names is waited for."""


@dataclasses.dataclass(frozen=True)
class Response:
    """An HTTP answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpChatModel(abc.ABC):
    """A `ChatModel` at an OpenAI-compatible endpoint.

    `timeout_s` bounds one attempt; `complete(timeout_s=...)` bounds the whole call with its retries. `retry` replaces
    the whole policy, `max_retries` only its count. Where the endpoint reports no cost, `prices` and then the built-in
    table give it (`pricing.py`).
    """

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        *,
        timeout_s: float,
        max_retries: int,
        prices: Mapping[str, Price] | None,
        retry: RetryPolicy | None,
    ) -> None:
        self.name = model
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._retry = retry or RetryPolicy(max_retries=max_retries)
        self._prices = prices
        self._concessions = Concessions()

    @abc.abstractmethod
    async def _send(self, path: str, payload: bytes | None) -> Response:
        """POST a JSON payload to a path below the base URL, or GET it. AttemptFailed when there is no answer."""

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Close the connections of the running loop."""

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
        room: int | None = None

        async def attempt() -> Completion:
            nonlocal room
            sent = self._concessions.fields(sampling, room=room)
            try:
                return await self._attempt(transcript.payload({"model": self.name, **sent}, tools))
            except AttemptFailed as failed:
                if isinstance(failed.error, ModelRejected | ContextOverflow):
                    room = self._concessions.learn(failed.error, sampling) or room
                    # Compared with what was sent: another call may have learned the same meanwhile.
                    if self._concessions.fields(sampling, room=room) != sent:
                        failed.retry, failed.after_s = True, 0.0
                raise

        try:
            async with asyncio.timeout(timeout_s):
                answer, retries = await self._retry.run(attempt)
        except TimeoutError as error:
            raise ModelUnavailable(f"no answer from {self.endpoint.shown} within {timeout_s:g} s") from error
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
            async with asyncio.timeout(LISTING_S):
                response = await self._send("models", None)
        except TimeoutError as error:
            raise ModelUnavailable(f"no answer from {self.endpoint.shown} within {LISTING_S:g} s") from error
        except AttemptFailed as failed:
            raise failed.error from failed
        if response.status != 200:
            raise self._refusal(response.status, response.body, response.headers).error
        data = decode(response.body).get("data")
        return [str(item["id"]) for item in data if isinstance(item, dict) and "id" in item] if data else []

    async def _attempt(self, payload: bytes) -> Completion:
        began = time.perf_counter()
        response = await self._send("chat/completions", payload)
        latency_s = time.perf_counter() - began
        if response.status != 200:
            raise self._refusal(response.status, response.body, response.headers)
        try:
            answer = decode(response.body)
            if inside := failures.error_inside(answer):
                raise self._refusal(*inside, response.headers)
            return completion(answer, latency_s=latency_s)
        except ModelAnswerInvalid as error:
            raise failures.invalid(error, where=self.endpoint.shown) from error

    def _refusal(self, status: int, body: bytes | Mapping[str, Any], headers: Mapping[str, str]) -> AttemptFailed:
        said = {"true": True, "false": False}.get(headers.get("x-should-retry", ""))
        failed = failures.refusal(status, body, where=self.endpoint.shown, model=self.name, should_retry=said)
        failed.after_s = retry_after_s(headers, self._retry.now())
        failed.error.args = (self.endpoint.hide(str(failed.error)),)
        return failed

    async def _suggestion(self) -> str:
        try:
            known = await self.models()
        except HermesError:
            return ""  # the error that is about to be raised says what matters
        close = difflib.get_close_matches(self.name, known, 5, 0.4)
        close += [name for name in known if self.name and self.name in name and name not in close]
        if close:
            return f"Close to it there: {', '.join(close[:5])}."
        return f"It offers: {', '.join(known[:5])}{', ...' if len(known) > 5 else ''}." if known else ""
