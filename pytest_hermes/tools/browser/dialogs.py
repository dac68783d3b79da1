"""JavaScript dialogs of a rollout: each waits for the agent's answer, but not for long, so no page hangs."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

from pytest_hermes.tools.tool import ToolFailure

if TYPE_CHECKING:
    from playwright.async_api import Dialog, Page

MESSAGE_CHARS = 2_000


@dataclasses.dataclass(frozen=True)
class OpenDialog:
    id: str
    dialog: Dialog
    timer: asyncio.TimerHandle

    def shown(self) -> dict[str, Any]:
        found = {"id": self.id, "type": self.dialog.type, "message": self.dialog.message[:MESSAGE_CHARS]}
        if self.dialog.type == "prompt":
            found["default_prompt"] = self.dialog.default_value[:MESSAGE_CHARS]
        return found


class Dialogs:
    """`pending` are open, the oldest first; `opened` is set while there are any. Lives on the engine's loop.

    A dialog that nobody answers within `wait_s` seconds is dismissed, and `notes` says so.
    """

    def __init__(self, wait_s: float, notes: list[str]) -> None:
        self.wait_s = wait_s
        self.pending: dict[str, OpenDialog] = {}
        self.opened = asyncio.Event()
        self._notes = notes
        self._count = 0
        self._closing: set[asyncio.Task[None]] = set()

    def open(self, dialog: Dialog) -> None:
        self._count += 1
        name = f"d{self._count}"
        timer = asyncio.get_running_loop().call_later(self.wait_s, self._expire, name)
        self.pending[name] = OpenDialog(name, dialog, timer)
        self.opened.set()

    def shown(self) -> list[dict[str, Any]]:
        return [one.shown() for one in self.pending.values()]

    async def answer(self, accept: bool, text: str | None, name: str | None) -> dict[str, Any]:
        """Answer the dialog `name`, or the only one; what it was. Raises ToolFailure."""
        if not self.pending:
            raise ToolFailure("No dialog is open; there is nothing to answer.")
        if name is None and len(self.pending) > 1:
            raise ToolFailure(f"{len(self.pending)} dialogs are open: give dialog_id.", pending_dialogs=self.shown())
        chosen = name or next(iter(self.pending))
        if chosen not in self.pending:
            raise ToolFailure(f"No open dialog has the id {chosen[:80]!r}.", pending_dialogs=self.shown())
        one = self._forget(chosen)
        if accept:
            await one.dialog.accept(text or "" if one.dialog.type == "prompt" else None)
        else:
            await one.dialog.dismiss()
        return one.shown()

    def drop(self, page: Page | None = None) -> None:
        """Forget those of a page, or all: what is closed takes its dialogs along."""
        for name, one in list(self.pending.items()):
            if page is None or one.dialog.page in (page, None):
                self._forget(name)

    def _forget(self, name: str) -> OpenDialog:
        one = self.pending.pop(name)
        one.timer.cancel()
        if not self.pending:
            self.opened.clear()
        return one

    def _expire(self, name: str) -> None:
        one = self._forget(name)
        self._notes.append(
            f"Nobody answered the {one.dialog.type} dialog {one.dialog.message[:200]!r} within {self.wait_s:g} s: "
            "it was dismissed."
        )
        task = asyncio.get_running_loop().create_task(_dismiss(one.dialog))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _dismiss(dialog: Dialog) -> None:
    from playwright.async_api import Error

    try:
        await dialog.dismiss()
    except Error:
        pass  # its page was closed meanwhile
