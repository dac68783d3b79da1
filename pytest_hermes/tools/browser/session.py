"""A rollout's browser: its tabs, dialogs, console and references, and `act`, which no page can make wait for ever.

The newest tab is the current one. Whatever a page does (endless scripts, dialogs, a crash), `act` returns or raises
ToolFailure within its time, and afterwards there is a tab that works.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pytest_hermes.tools.browser.console import Console
from pytest_hermes.tools.browser.dialogs import Dialogs
from pytest_hermes.tools.browser.executable import why_unavailable
from pytest_hermes.tools.browser.proxy import Passage
from pytest_hermes.tools.browser.shared import SharedBrowser
from pytest_hermes.tools.browser.snapshot import DOCUMENT_GONE, References
from pytest_hermes.tools.browser.tab import Tab
from pytest_hermes.tools.tool import Result, ToolFailure

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Dialog, Download, Page

    from pytest_hermes.tools.toolbox import ToolSettings
    from pytest_hermes.tools.workspace import Workspace

MAX_TABS = 8
MAX_NOTES = 20
ACTION_TIMEOUT_S = 10.0
RESUME_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 15.0
OPEN_TIMEOUT_S = 30.0
FOLLOW_TIMEOUT_S = 5.0
CLOSED = "has been closed"
"""Playwright says this of what was closed, and of everything once its driver has ended."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Done(Generic[T]):
    """What an action gave, or `value` None because a dialog opened meanwhile and the page now waits for its answer."""

    value: T | None
    is_interrupted: bool = False


class BrowserSession:
    """See the module docstring. One per rollout (`of`), closed with its state; `lock` keeps its calls one at a time."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.notes: list[str] = []
        self.references = References()
        self.console: Console | None = None
        self.dialogs = Dialogs(0.0, self.notes)
        self.passage: Passage | None = None
        self.settings: ToolSettings
        self.screenshots = 0
        self._shared: SharedBrowser | None = None
        self._context: BrowserContext | None = None
        self._generation = 0
        self._tabs: list[Tab] = []
        self._arrived = asyncio.Event()
        self._suspended: asyncio.Task[Any] | None = None
        self._errands: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    @staticmethod
    def of(workspace: Workspace) -> BrowserSession:
        """The rollout's session, with the settings of this workspace. Raises ToolFailure where no browser works."""
        session = workspace.state.part(BrowserSession)
        session.settings = workspace.settings
        session.dialogs.wait_s = workspace.settings.browser_dialog_timeout_s
        if session._context is None and (reason := why_unavailable(workspace.settings)):
            raise ToolFailure(f"There is no browser here: {reason}")
        return session

    @property
    def action_s(self) -> float:
        """Seconds that a click and the like may take."""
        return min(ACTION_TIMEOUT_S, self.settings.browser_timeout_s)

    # -- acting --------------------------------------------------------------------------------------

    async def act(self, what: str, work: Callable[[Tab], Coroutine[Any, Any, T]], timeout_s: float) -> Done[T]:
        """Do `work` on the current tab, for `timeout_s` at most from when it has its place.

        Raises ToolFailure, which says how the page is now.
        """
        if self.dialogs.pending:
            raise ToolFailure(f"{what}: the page waits for an answer to a dialog. Use browser_dialog first.")
        async with self._joined().places:
            tab = await self.tab()
            self._reap()
            task = asyncio.create_task(work(tab))
            task.add_done_callback(_retrieved)
            interruptions = [asyncio.create_task(event.wait()) for event in (self.dialogs.opened, tab.gone)]
            try:
                await asyncio.wait([task, *interruptions], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if not task.done() and self.dialogs.pending and not tab.gone.is_set():
                    self._suspended = task  # goes on once the dialog is answered
                    return Done(None, is_interrupted=True)
                if not task.done() and tab.gone.is_set():
                    await asyncio.wait([task], timeout=RESUME_TIMEOUT_S)  # a closed page ends what was done to it
                if not task.done():
                    raise await self._overdue(what, timeout_s, tab)
                return Done(await self._result(task, what, tab))
            finally:
                for waiter in interruptions:
                    waiter.cancel()
                if not task.done() and task is not self._suspended:
                    task.cancel()

    async def _result(self, task: asyncio.Task[T], what: str, tab: Tab) -> T:
        from playwright.async_api import Error
        from playwright.async_api import TimeoutError as PlaywrightTimeout

        try:
            return await task
        except (PlaywrightTimeout, TimeoutError) as error:
            state = await self.recovered(tab)
            raise ToolFailure(f"{what}: {_first_lines(error) or 'it took too long'}. {state}") from error
        except Error as error:
            if self._is_closed:
                raise ToolFailure(f"{what}: the browser was closed, the rollout is over.") from error
            if CLOSED in str(error) and not await tab.answers() and not tab.gone.is_set():
                self._drop()  # nothing told of a closed page: the driver itself has ended
            if tab.has_crashed:
                raise _crash(what) from error
            if tab.gone.is_set() and not self._living():
                raise ToolFailure(f"{what}: the page was closed. Navigate again.") from error
            said = _first_lines(error)
            if any(sign in said for sign in DOCUMENT_GONE):
                raise ToolFailure(
                    f"{what}: it is not on the page any more: the page has changed. Call browser_snapshot again."
                ) from error
            raise ToolFailure(f"{what}: {said}") from error

    async def _overdue(self, what: str, timeout_s: float, tab: Tab) -> ToolFailure:
        if tab.has_crashed:
            return _crash(what)
        return ToolFailure(f"{what}: not done within {timeout_s:g} s. {await self.recovered(tab)}")

    async def recovered(self, tab: Tab) -> str:
        """See to it that the current tab answers, and say what became of the page."""
        if await tab.answers():
            return "The page still answers; a script that kept it busy was stopped."
        if not tab.has_crashed:
            self._discard(tab)
        return "The page does not answer any more and was closed; an empty tab takes its place. Navigate again."

    async def resume(self) -> None:
        """Wait for what a dialog had interrupted, as far as it ends now."""
        task = self._suspended
        if task is None:
            return
        waiter = asyncio.create_task(self.dialogs.opened.wait())
        try:
            await asyncio.wait([task, waiter], timeout=RESUME_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
        if task.done():
            self._reap()

    def _reap(self) -> None:
        """Have done with what a dialog had interrupted."""
        task, self._suspended = self._suspended, None
        if task is None or task.cancel() or task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._note(f"What the dialog had interrupted ended with: {_first_lines(error)}")

    def report(self, result: Result) -> Result:
        """`result` with what happened beside it: notes and open dialogs."""
        if self.dialogs.pending:
            result["pending_dialogs"] = self.dialogs.shown()
        if self.passage is not None and self.passage.refused:
            refused = list(dict.fromkeys(self.passage.refused))
            self.passage.refused.clear()
            self.notes.extend(f"Blocked request. {reason}" for reason in refused[:5])
        if self.notes:
            result["notes"] = self.notes[:MAX_NOTES]
            del self.notes[:]
        return result

    def forget_arrivals(self) -> None:
        """Let `follow` wait for a tab that comes from now on."""
        self._arrived.clear()

    async def follow(self) -> None:
        """Wait for the tab that a page has asked for and for its document, but not for long: it may be blocked."""
        from playwright.async_api import Error

        try:
            async with asyncio.timeout(FOLLOW_TIMEOUT_S):
                await self._arrived.wait()
                await self._living()[-1].page.wait_for_load_state("domcontentloaded")
        except (Error, TimeoutError, IndexError):
            pass  # none came, or it takes its time: the next snapshot shows what there is

    # -- tabs ----------------------------------------------------------------------------------------

    async def tab(self) -> Tab:
        """The current tab; a new one (in a new context, of a new browser) where the old one is gone."""
        from playwright.async_api import Error

        if self._context is not None and self._joined().generation != self._generation:
            self._drop()
        try:
            await self._ensure_tab()
        except (Error, TimeoutError):  # the browser or its driver has died or hangs, or this context alone is busy
            self._drop()
            await self._joined().examine(self._generation)
            try:
                await self._ensure_tab()
            except (Error, TimeoutError) as error:
                self._drop()
                raise ToolFailure(f"The browser gave no new tab: {_first_lines(error) or 'it is busy'}.") from error
        if not self._living():
            raise ToolFailure("The browser closed its new tab at once. Try again.")
        return self._living()[-1]

    async def _ensure_tab(self) -> None:
        """Have a tab. Raises Error or TimeoutError where the context gives none, ToolFailure where there is none."""
        if self._context is None:
            await self._open()
        assert self._context is not None
        if not self._living():
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                self._adopt(await self._context.new_page())

    async def fresh_tab(self) -> Tab:
        """An empty tab in place of the current one, whose dialogs hold it."""
        for tab in self._living()[-1:]:
            self._discard(tab)
        return await self.tab()

    @property
    def tabs(self) -> list[Tab]:
        """The living tabs, the current one last."""
        return list(self._living())

    def _living(self) -> list[Tab]:
        self._tabs = [tab for tab in self._tabs if not tab.gone.is_set()]
        return self._tabs

    def _joined(self) -> SharedBrowser:
        if self._is_closed:
            raise ToolFailure("The browser was closed: the rollout is over.")
        if self._shared is None:
            self._shared = SharedBrowser.of_loop(self.settings.browser_executable)
            self._shared.enter()
        return self._shared

    async def _open(self) -> None:
        context, self.passage = await self._joined().context(
            self.passage, allow_private=self.settings.allow_private_urls
        )
        self._context, self._generation = context, self._joined().generation
        self.references = References()
        self.console = Console(context, self.notes, self._silence)
        context.on("page", self._adopt)
        context.on("dialog", self._dialog)
        context.on("close", lambda _: self._lost(context))

    def _adopt(self, page: Page) -> None:
        if any(tab.page is page for tab in self._tabs):
            return
        self._arrived.set()
        if len(self._living()) >= MAX_TABS:
            self._note(f"A new tab was closed at once: {MAX_TABS} tabs are open.")
            self._errand(Tab(page).close())
            return
        tab = Tab(page)
        page.on("download", self._download)
        if self._tabs:
            self._note("A new tab was opened; it is the current one now, the older ones are behind it.")
            self._errand(tab.attach())
        page.on("close", lambda _: self._closed(tab))
        page.on("crash", lambda _: self._crashed(tab))
        self._tabs.append(tab)

    def _closed(self, tab: Tab) -> None:
        self.dialogs.drop(tab.page)
        if tab in self._tabs and not self._is_closed and self._living():
            self._note("The current tab was closed; the one before it is the current one now.")

    def _crashed(self, tab: Tab) -> None:
        self.dialogs.drop(tab.page)
        self._note(f"The page {tab.page.url[:200]} crashed; an empty tab takes its place.")
        self._errand(tab.close())

    def _discard(self, tab: Tab) -> None:
        """Give up a tab; closing it may take a while."""
        self.dialogs.drop(tab.page)
        tab.gone.set()
        self._errand(tab.close())

    def _dialog(self, dialog: Dialog) -> None:
        self.dialogs.open(dialog)

    def _download(self, download: Download) -> None:
        self._note(f"A download was refused: {download.suggested_filename[:200]!r} from {download.url[:500]}")

    def _lost(self, context: BrowserContext) -> None:
        if self._context is context and not self._is_closed:
            self._note("The browser ended unexpectedly; a new one is started when it is needed. Navigate again.")
            self.dialogs.drop()
            self._context = None
            for tab in self._tabs:
                tab.gone.set()

    def _drop(self) -> None:
        """Give up the context, which does not work any more; one that a living browser still holds is closed."""
        if (context := self._context) is not None:
            self._lost(context)
            self._errand(_close(context))

    def _silence(self, page: Page) -> None:
        for tab in self._tabs:
            if tab.page is page:
                self._errand(tab.silence())

    def _note(self, text: str) -> None:
        if len(self.notes) < MAX_NOTES and text not in self.notes:
            self.notes.append(text)

    def _errand(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def aclose(self) -> None:
        """Close the context, and the browser if nobody else uses it. Idempotent."""
        self._is_closed = True
        self.dialogs.drop()
        context, self._context = self._context, None
        shared, self._shared = self._shared, None
        try:
            if context is not None:
                await _close(context)
        finally:
            if self._suspended is not None:
                self._suspended.cancel()
            await asyncio.gather(*self._errands, *filter(None, [self._suspended]), return_exceptions=True)
            if shared is not None:
                if self.passage is not None:
                    shared.proxy.dismiss(self.passage)
                await shared.leave()


async def _close(context: BrowserContext) -> None:
    from playwright.async_api import Error

    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await context.close()
    except (Error, TimeoutError):
        pass  # its browser is gone, or goes with its last user


def _crash(what: str) -> ToolFailure:
    return ToolFailure(f"{what}: the page crashed. An empty tab takes its place; navigate again.")


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Nobody may be left to ask how it ended."""
    if not task.cancelled():
        task.exception()


def _first_lines(error: BaseException) -> str:
    """Playwright's message without its call log."""
    text = str(error).split("\nCall log:")[0].strip()
    return text.removeprefix("Error: ")[:600]
