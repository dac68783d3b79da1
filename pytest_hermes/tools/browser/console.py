"""What the pages of a rollout wrote to the console, and their uncaught errors: the latest ones, cut to a size."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, ConsoleMessage, Page, WebError

MAX_KEPT = 200
TEXT_CHARS = 2_000
FLOOD_MESSAGES = 3_000
FLOOD_CHARS = 5_000_000


class Console:
    """Listens until the pages have written more than anyone reads; `rearm` listens again. Lives on the loop."""

    def __init__(self, context: BrowserContext, notes: list[str], silence: Callable[[Page], None]) -> None:
        self.messages: deque[dict[str, Any]] = deque(maxlen=MAX_KEPT)
        self.errors: deque[dict[str, Any]] = deque(maxlen=MAX_KEPT)
        self._context = context
        self._notes = notes
        self._silence = silence
        self._listens = False
        self._heard = 0
        self._heard_chars = 0
        context.on("weberror", self._error)
        self.rearm()

    def rearm(self) -> None:
        self._heard = self._heard_chars = 0
        if not self._listens:
            self._listens = True
            self._context.on("console", self._message)

    def clear(self) -> None:
        self.messages.clear()
        self.errors.clear()

    def _message(self, message: ConsoleMessage) -> None:
        text = message.text
        self._heard += 1
        self._heard_chars += len(text)
        if self._heard > FLOOD_MESSAGES or self._heard_chars > FLOOD_CHARS:
            if self._listens:  # every message costs the engine's loop time, so a flood is cut off at its source
                self._listens = False
                self._context.remove_listener("console", self._message)
                if message.page is not None:
                    self._silence(message.page)
                self._notes.append(
                    f"The page writes to the console without end: after {self._heard} messages no more are collected "
                    "until the next browser_navigate."
                )
            return
        kind = "warn" if message.type == "warning" else message.type
        self.messages.append({"type": kind, "text": text[:TEXT_CHARS], "source": "console"})

    def _error(self, error: WebError) -> None:
        self.errors.append({"message": str(error.error)[:TEXT_CHARS], "source": "exception"})
