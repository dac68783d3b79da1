"""The one browser process of an event loop: started for its first user, closed with its last one.

Every rollout is a user and gets a context of its own: cookies, storage and cache apart from all others, nothing on
disk, and its own credentials for the `GuardedProxy`. A browser that has died is replaced when the next context is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import weakref
from typing import TYPE_CHECKING

from pytest_hermes.sandbox.proctable import SESSION_VARIABLE, kill_sessions
from pytest_hermes.tools.browser.executable import find_browser
from pytest_hermes.tools.browser.proxy import GuardedProxy, Passage
from pytest_hermes.tools.browser.snapshot import ENGINE, page_script
from pytest_hermes.tools.tool import ToolFailure

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Playwright

START_TIMEOUT_S = 90.0
CONTEXT_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 15.0
MAX_TMPDIR_CHARS = 40
MIN_PLACES = 8
PLACES_PER_CORE = 2
VIEWPORT_PX = (1280, 720)
ARGUMENTS = (
    "--disable-dev-shm-usage",  # /dev/shm of a container has 64 MB
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",  # no name is resolved but by the proxy
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",  # no UDP past the proxy
    "--autofill-server-url=https://autofill.invalid/",  # asked about every form otherwise; the proxy drops .invalid
    "--disable-quic",
    "--dns-prefetch-disable",
    "--no-pings",
    "--disable-domain-reliability",
    "--disable-client-side-phishing-detection",
    "--disable-gpu",
    "--js-flags=--max-old-space-size=512",  # a page that fills its heap crashes alone
)
KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "FONTCONFIG_PATH")

_SHARED: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, SharedBrowser]] = weakref.WeakKeyDictionary()


class SharedBrowser:
    """See the module docstring. Lives on one loop; `of_loop` finds it."""

    def __init__(self, executable: str | None) -> None:
        self.proxy = GuardedProxy()
        self.places = asyncio.Semaphore(max(MIN_PLACES, PLACES_PER_CORE * (os.cpu_count() or 1)))
        """Held while a page is acted upon: more pages at work than cores would only run into their time-outs."""
        self.generation = 0
        """Counts the browsers; contexts of an earlier one are gone, whether or not Playwright could say so."""
        self._executable = executable
        self._lock = asyncio.Lock()
        self._users = 0
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._folder: str | None = None

    @staticmethod
    def of_loop(executable: str | None) -> SharedBrowser:
        browsers = _SHARED.setdefault(asyncio.get_running_loop(), {})
        return browsers.setdefault(executable or "", SharedBrowser(executable))

    def enter(self) -> None:
        """Become a user; `leave` ends that."""
        self._users += 1

    async def leave(self) -> None:
        """No longer be a user; the last one closes the browser, whatever happens to the caller meanwhile."""
        self._users -= 1
        if not self._users:
            await asyncio.shield(asyncio.create_task(self._close_if_unused()))

    async def context(self, former: Passage | None, *, allow_private: bool) -> tuple[BrowserContext, Passage]:
        """A new context and its passage through the proxy, in place of the `former` one.

        Raises ToolFailure if no browser can be started, or a new one does not answer either.
        """
        from playwright.async_api import Error

        if former is not None:
            self.proxy.dismiss(former)
        async with self._lock:
            try:
                return await self._new_context(allow_private)
            except (Error, TimeoutError):
                await self._stop()  # the driver or the browser died or stopped unnoticed: this is where it shows
            try:
                return await self._new_context(allow_private)
            except (Error, TimeoutError) as error:
                await self._stop()
                reason = str(error).strip()[:600] or f"no answer within {CONTEXT_TIMEOUT_S:g} s"
                raise ToolFailure(f"The browser was started twice and cannot be used: {reason}") from error

    async def _new_context(self, allow_private: bool) -> tuple[BrowserContext, Passage]:
        browser = await self._running()
        passage = self.proxy.admit(allow_private=allow_private)
        width, height = VIEWPORT_PX
        try:
            async with asyncio.timeout(CONTEXT_TIMEOUT_S):
                context = await browser.new_context(
                    accept_downloads=False,
                    service_workers="block",
                    viewport={"width": width, "height": height},
                    locale="en-US",
                    proxy={"server": self.proxy.url, "username": passage.name, "password": passage.password},
                )
        except BaseException:
            self.proxy.dismiss(passage)
            raise
        return context, passage

    async def _running(self) -> Browser:
        if self._browser is not None and self._browser.is_connected():
            return self._browser
        from playwright.async_api import Error, async_playwright

        await self._stop()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self.proxy.start()
                self._folder = await asyncio.to_thread(_temporary_folder)
                self._playwright = await async_playwright().start()
                await self._playwright.selectors.register(ENGINE, page_script(), content_script=True)
                self._browser = await self._playwright.chromium.launch(
                    executable_path=find_browser(self._executable),
                    headless=True,
                    chromium_sandbox=os.geteuid() != 0,
                    args=list(ARGUMENTS),
                    ignore_default_args=["--disable-popup-blocking"],  # a tab for a click, not a hundred
                    env=_environment(self._folder),
                    proxy={"server": self.proxy.url},  # what belongs to no rollout has no credentials and is refused
                )
        except (Error, OSError, TimeoutError) as error:
            await self._stop()
            reason = str(error).strip()[:600] or f"it took longer than {START_TIMEOUT_S:g} s"
            raise ToolFailure(f"The browser could not be started: {reason}") from error
        except BaseException:
            await self._stop()
            raise
        return self._browser

    async def _close_if_unused(self) -> None:
        async with self._lock:
            if not self._users:
                await self._stop()

    async def _stop(self) -> None:
        from playwright.async_api import Error

        self.generation += 1
        browser, self._browser = self._browser, None
        playwright, self._playwright = self._playwright, None
        with contextlib.suppress(Error, TimeoutError):  # dead already, or dying
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                if browser is not None:
                    await browser.close()
        with contextlib.suppress(Error, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                if playwright is not None:
                    await playwright.stop()
        await self.proxy.aclose()
        self.proxy = GuardedProxy()
        folder, self._folder = self._folder, None
        if folder is not None:
            await asyncio.to_thread(_remove, folder)


def _temporary_folder() -> str:
    """A directory for Chromium's sockets, which a killed one leaves behind; their paths must fit into 107 bytes."""
    place = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="hermes-browser-", dir=place if len(place) <= MAX_TMPDIR_CHARS else "/tmp")


def _remove(folder: str) -> None:
    """Remove the directory of a browser, and the browser itself where it does not obey its driver (it was stopped)."""
    kill_sessions({folder.encode()})
    shutil.rmtree(folder, ignore_errors=True)


def _environment(folder: str) -> dict[str, str | float | bool]:
    """What Chromium sees: keys of models are none of a page's business, and HOME is where nothing can be left."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return {**kept, "HOME": os.devnull, "TMPDIR": folder, SESSION_VARIABLE: folder}
