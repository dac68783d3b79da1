"""A conversation kept encoded: every message becomes JSON bytes once, so a turn costs only its new messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytest_hermes.models.protocol import Conversation, Message

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def encode(value: Any) -> bytes:
    """Compact JSON. A lone surrogate, which UTF-8 cannot carry and servers refuse, becomes `?`."""
    return _ENCODER.encode(value).encode("utf-8", "replace")


class Transcript:
    """A growing list of messages with their encoded form (implements `Conversation`).

    A message is encoded when it is appended and must not change afterwards. The list it was made from is never
    touched: `messages` is the transcript's own list of shallow copies.
    """

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._messages: list[Message] = []
        self._encoded: list[bytes] = []
        self._tools: Sequence[Mapping[str, Any]] | None = None
        self._tools_encoded = b""
        self.messages: Sequence[Message] = self._messages
        for message in messages:
            self.append(message)

    @classmethod
    def of(cls, conversation: Conversation) -> Transcript:
        """The conversation itself if it is a transcript, else a transcript of its messages."""
        return conversation if isinstance(conversation, Transcript) else cls(conversation.messages)

    def append(self, message: Message) -> None:
        """Add a message; it is encoded here and never again."""
        self._messages.append(dict(message))
        self._encoded.append(encode(message))

    def payload(self, fields: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] = ()) -> bytes:
        """A request body: `fields` (one at least), `messages`, and `tools` where there are any.

        Tool schemas are encoded once for as long as the same sequence object is passed.
        """
        parts = [encode(fields)[:-1], b',"messages":[', b",".join(self._encoded), b"]"]
        if tools:
            if tools is not self._tools:
                self._tools, self._tools_encoded = tools, encode(list(tools))
            parts += [b',"tools":', self._tools_encoded]
        parts.append(b"}")
        return b"".join(parts)
