"""The history of a run: all of it for the record, and what of it is sent to the model."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_hermes.models.conversation import Transcript
from pytest_hermes.models.protocol import Message

REMOVED = "[Earlier turns of this conversation were removed to save space. The task above still holds.]"


class History:
    """Messages of a run, append-only, and the transcript that is sent.

    A round is an assistant message with what follows it up to the next one. With `keep_rounds`, the messages before the
    first round stay and, as soon as twice `keep_rounds` have gathered, all rounds but the last `keep_rounds` are left
    out of what is sent: whole rounds, in blocks, so that the sent prefix stays the same for `keep_rounds` turns.
    """

    def __init__(self, messages: Sequence[Message], keep_rounds: int | None = None) -> None:
        self.messages: list[Message] = [dict(message) for message in messages]
        self._transcript = Transcript(self.messages)
        self._head = len(self.messages)
        self._keep = keep_rounds
        self._rounds: list[int] = []
        """Positions in the sent transcript at which its rounds begin."""

    def append(self, message: Message, *, sent: Message | None = None) -> None:
        """Add a message; `sent`, where given, is what the model sees instead."""
        if message.get("role") == "assistant":
            self._rounds.append(len(self._transcript.messages))
        self.messages.append(message)
        self._transcript.append(sent or message)

    def sent(self) -> Transcript:
        """What to send now."""
        if self._keep is not None and len(self._rounds) >= max(2 * self._keep, 2):
            self._drop(self._keep)
        return self._transcript

    def shorten(self) -> bool:
        """After an overflow: keep half as many rounds from here on. False when there is nothing more to leave out."""
        if self._keep is None or len(self._rounds) < 2:
            return False
        self._keep = max(1, min(self._keep, len(self._rounds)) // 2)
        self._drop(self._keep)
        return True

    def _drop(self, keep: int) -> None:
        """Leave out all rounds but the last `keep`, and say so in the message before them."""
        first = self._rounds[-max(1, keep)]
        head = self.messages[: self._head]
        if head:
            head[-1] = _with_note(head[-1])
        self._rounds = [position - first + self._head for position in self._rounds if position >= first]
        self._transcript = Transcript([*head, *self._transcript.messages[first:]])


def _with_note(message: Message) -> Message:
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [*content, {"type": "text", "text": REMOVED}]}
    return {**message, "content": f"{content or ''}\n\n{REMOVED}"}
