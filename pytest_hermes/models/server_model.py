"""Anything with `async chat_completion(**kwargs)` as a `ChatModel`: Atropos servers, mocks of hermes environments.

Retries and time-outs are the server's own; errors that carry an HTTP status or a known text become those of
`pytest_hermes.errors`, others a ModelError with the original as its cause.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from pytest_hermes.errors import ContextOverflow, HermesError, ModelAnswerInvalid, ModelError, ModelUnavailable
from pytest_hermes.models import failures
from pytest_hermes.models.answers import completion
from pytest_hermes.models.protocol import ChatModel, Completion, Conversation, Sampling


@runtime_checkable
class ChatServer(Protocol):
    """What hermes environments call a server."""

    async def chat_completion(self, **kwargs: Any) -> Any:
        """An OpenAI chat completion: an object with attributes, or a dict."""
        ...


class ServerModel:
    """A `ChatModel` over a chat server. Calls carry `messages`, `n=1` and whatever else is set."""

    def __init__(self, server: ChatServer, name: str = "server") -> None:
        self.server = server
        self.name = name

    async def complete(
        self,
        conversation: Conversation,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        sampling: Sampling = Sampling(),
        timeout_s: float | None = None,
    ) -> Completion:
        """See `ChatModel.complete`; nothing is tried again here."""
        kwargs: dict[str, Any] = {"messages": [dict(message) for message in conversation.messages], "n": 1}
        if tools:
            kwargs["tools"] = list(tools)
        if sampling.temperature is not None:
            kwargs["temperature"] = sampling.temperature
        if sampling.max_tokens is not None:
            kwargs["max_tokens"] = sampling.max_tokens
        if sampling.extra_body:
            kwargs["extra_body"] = dict(sampling.extra_body)
        began = time.perf_counter()
        try:
            async with asyncio.timeout(timeout_s) as clock:
                answer = await self.server.chat_completion(**kwargs)
        except HermesError:
            raise
        except TimeoutError as error:
            limit = f"within {timeout_s:.0f} s" if clock.expired() else "in time"
            raise ModelUnavailable(f"no answer from {self._shown} {limit}") from error
        except Exception as error:
            raise self._named(error) from error
        if answer is None:
            raise ModelAnswerInvalid(f"{self._shown} answered nothing")
        return completion(plain(answer), latency_s=time.perf_counter() - began)

    async def aclose(self) -> None:
        """Nothing: the server belongs to who made it."""

    @property
    def _shown(self) -> str:
        return f"the chat server ({type(self.server).__name__})"

    def _named(self, error: Exception) -> HermesError:
        status, text = getattr(error, "status_code", None), str(error)
        if isinstance(status, int):
            return failures.refusal(status, text, where=self._shown, model=self.name).error
        if failures.OVERFLOW.search(text):
            return ContextOverflow(f"the conversation does not fit the model's context window: {text[:300]}")
        return ModelError(f"{self._shown} raised {type(error).__name__}: {text[:300]}")


def as_model(server: ChatModel | ChatServer) -> ChatModel:
    """`server` itself if it is a `ChatModel`, else the adapter around it."""
    if hasattr(server, "complete"):
        return cast(ChatModel, server)
    if isinstance(server, ChatServer):
        return ServerModel(server)
    raise TypeError(f"{server!r} is no chat model: it has neither complete() nor chat_completion()")


def plain(value: Any) -> Any:
    """A completion as plain dicts and lists, whatever it is made of: SDK models, simple namespaces, dicts."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        dumped = dump(exclude_none=True)
        return dumped if isinstance(dumped, dict) else plain(vars(value))
    if hasattr(value, "__dict__") and not callable(value):
        return {key: plain(item) for key, item in vars(value).items() if not key.startswith("_")}
    return value
