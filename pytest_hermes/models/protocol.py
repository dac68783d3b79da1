"""The model seam: what the agent loop asks of a chat endpoint, and what it gets back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Message = dict[str, Any]
"""One chat message in the OpenAI wire form."""


@dataclasses.dataclass(frozen=True)
class Usage:
    """Tokens of one call, or summed over calls. None: the endpoint did not say (never counted as 0)."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_usd: float | None = None

    def plus(self, other: Usage) -> Usage:
        """The sum, field by field; a field is None only if it is None on both sides."""

        def add(a: Any, b: Any) -> Any:
            return b if a is None else a if b is None else a + b

        return Usage(
            add(self.prompt_tokens, other.prompt_tokens),
            add(self.completion_tokens, other.completion_tokens),
            add(self.cached_tokens, other.cached_tokens),
            add(self.reasoning_tokens, other.reasoning_tokens),
            add(self.cost_usd, other.cost_usd),
        )


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Sampling parameters, sent only where set."""

    temperature: float | None = None
    max_tokens: int | None = None
    extra_body: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Completion:
    """One answer. `message` is the assistant message as the wire had it (a plain dict)."""

    message: Message
    finish_reason: str | None
    usage: Usage
    latency_s: float
    """From the first byte sent to the whole answer read, of the call that succeeded."""
    retries: int = 0
    model: str | None = None
    """The name the endpoint reports."""


class Conversation(Protocol):
    """A growing message list that a client may keep encoded, so that a turn costs only its new messages."""

    messages: Sequence[Message]


class ChatModel(Protocol):
    """A chat endpoint. Lives on the engine's loop; safe for concurrent calls."""

    name: str

    async def complete(
        self,
        conversation: Conversation,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        sampling: Sampling = Sampling(),
        timeout_s: float | None = None,
    ) -> Completion:
        """One completion. Retries what may pass (429, 5xx, connection errors) with jittered back-off, honours
        `Retry-After`, then raises a ModelError type; ContextOverflow when the conversation is too long."""
        ...

    async def aclose(self) -> None: ...
