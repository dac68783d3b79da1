"""One page of a rollout with its DevTools session: is it loading, does it answer, is it gone?"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, Frame, Page

ATTACH_TIMEOUT_S = 10.0
PROBE_TIMEOUT_S = 5.0
SETTLE_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 10.0
TWO_FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"

SILENCE = "for (const name of Object.keys(console)) console[name] = () => {}"


class Tab:
    """`gone` is set when the page crashed or was closed; `ready` while its document is parsed and nothing replaces it.

    The DevTools session is opened with the page, as none can be opened to a page that hangs, and is kept: ids that
    `browser_cdp` hands out stay valid.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.gone = asyncio.Event()
        self.ready = asyncio.Event()
        self.ready.set()
        self.has_crashed = False
        self.windows = 0
        """How many windows this page has asked for."""
        self._cdp: CDPSession | None = None
        self._attaching = asyncio.Lock()
        self._main_frame: str | None = None
        page.on("crash", self._crash)
        page.on("close", lambda _: self.gone.set())

    async def cdp(self) -> CDPSession:
        """The kept DevTools session. Raises Playwright's errors, and TimeoutError for a page that hangs."""
        async with self._attaching, asyncio.timeout(ATTACH_TIMEOUT_S):
            if self._cdp is None:
                session = await self.page.context.new_cdp_session(self.page)
                tree = await session.send("Page.getFrameTree")
                self._main_frame = tree["frameTree"]["frame"]["id"]
                for event in ("frameRequestedNavigation", "frameStartedNavigating"):
                    session.on(f"Page.{event}", self._leaving)
                session.on("Page.windowOpen", self._opens)
                for event in ("domContentEventFired", "frameStoppedLoading"):
                    session.on(f"Page.{event}", self._arrived)
                await session.send("Page.enable")
                self._cdp = session
        return self._cdp

    async def attach(self) -> None:
        """Open the DevTools session early; a page that cannot take one is found out when it is used."""
        from playwright.async_api import Error

        try:
            await self.cdp()
        except (Error, TimeoutError):
            pass

    def _leaving(self, event: dict[str, Any]) -> None:
        is_within = event.get("navigationType") in ("sameDocument", "historySameDocument")
        elsewhere = event.get("disposition", "currentTab") != "currentTab"
        if event.get("frameId") == self._main_frame and not is_within and not elsewhere:
            self.ready.clear()

    def _arrived(self, event: dict[str, Any]) -> None:
        if event.get("frameId", self._main_frame) == self._main_frame:
            self.ready.set()

    def _opens(self, _: dict[str, Any]) -> None:
        self.windows += 1

    def _crash(self, _: Page) -> None:
        self.has_crashed = True
        self.gone.set()

    @property
    def frame(self) -> Frame:
        return self.page.main_frame

    async def settle(self) -> bool:
        """Let the page react to what was done to it, a navigation included. False if it is still loading."""
        from playwright.async_api import Error

        cdp = await self.cdp()
        try:
            await cdp.send("Runtime.evaluate", {"expression": TWO_FRAMES, "awaitPromise": True})
        except Error:
            pass  # the document was replaced while we waited: that is the reaction
        return await self.loaded(SETTLE_TIMEOUT_S)

    async def loaded(self, timeout_s: float) -> bool:
        """Wait until the document is there. False if it is not within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.ready.wait()
        except TimeoutError:
            return False
        return True

    async def answers(self) -> bool:
        """Does the page still run scripts? One that keeps the page busy is stopped for that."""
        from playwright.async_api import Error

        if self.gone.is_set():
            return False
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                cdp = await self.cdp()
                await cdp.send("Runtime.evaluate", {"expression": "1"})
                return True
        except (Error, TimeoutError):
            pass
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                cdp = await self.cdp()
                await cdp.send("Runtime.terminateExecution")
                with contextlib.suppress(Error):  # where no script ran, this one is what gets stopped
                    await cdp.send("Runtime.evaluate", {"expression": "0"})
                await cdp.send("Runtime.evaluate", {"expression": "1"})
        except (Error, TimeoutError):
            return False
        return True

    async def silence(self) -> None:
        """Let the page's console do nothing any more."""
        from playwright.async_api import Error

        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                await (await self.cdp()).send("Runtime.evaluate", {"expression": SILENCE})
        except (Error, TimeoutError):
            pass  # it went away, or does nothing but write: its time-outs bound what that costs

    async def close(self) -> None:
        from playwright.async_api import Error

        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.page.close()
        except (Error, TimeoutError):
            pass  # its context takes it along
