"""The one browser process of an event loop: started for its first user, closed with its last one.

Every rollout is a user and gets a context of its own: cookies, storage and cache apart from all others, nothing on
disk, and its own credentials for the `GuardedProxy`. A browser that has died or hangs, or whose driver (Playwright's
node process) does, is replaced when the next context is made, or when a rollout that gets no page has it examined.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import signal
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_hermes.sandbox.proctable import SESSION_VARIABLE, environs, kill_sessions, read_stat
from pytest_hermes.tools.browser.executable import find_browser
from pytest_hermes.tools.browser.proxy import GuardedProxy, Passage
from pytest_hermes.tools.browser.snapshot import ENGINE, page_script
from pytest_hermes.tools.tool import ToolFailure

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Playwright

START_TIMEOUT_S = 90.0
CONTEXT_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 15.0
DRIVER_TIMEOUT_S = 5.0
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
        self.places = asyncio.Semaphore(max(MIN_PLACES, PLACES_PER_CORE * (os.cpu_count() or 1)))
        """Held while a page is acted upon: more pages at work than cores would only run into their time-outs."""
        self.generation = 0
        """Counts the browsers; contexts of an earlier one are gone, whether or not Playwright could say so."""
        self._executable = executable
        self._lock = asyncio.Lock()
        self._users = 0
        self._parts = _Parts()
        self._endings: set[asyncio.Task[None]] = set()

    @property
    def proxy(self) -> GuardedProxy:
        """What the contexts of the present browser go through."""
        return self._parts.proxy

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

    async def examine(self, generation: int) -> None:
        """End browser `generation` if it gives no page to anybody: a rollout has waited for one in vain.

        The pages of that rollout may be to blame, or a busy machine; so a context of nobody's is tried, alone, and a
        browser that gives it a page is kept. Raises ToolFailure if no browser can be started.
        """
        from playwright.async_api import Error

        async with self._lock:
            if self.generation != generation:
                return  # somebody else who waited has had it replaced
            try:
                context, passage = await self._new_context(allow_private=False)
                try:
                    async with asyncio.timeout(CONTEXT_TIMEOUT_S):
                        await context.new_page()
                        await context.close()
                finally:
                    self.proxy.dismiss(passage)
            except (Error, TimeoutError):
                await self._stop()

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
        if self._parts.browser is not None and self._parts.browser.is_connected():
            return self._parts.browser
        from playwright.async_api import Error

        if self._parts.browser is not None:
            await self._stop()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                return await self._parts.start(self._executable)
        except (Error, OSError, TimeoutError) as error:
            await self._stop()
            reason = str(error).strip()[:600] or f"it took longer than {START_TIMEOUT_S:g} s"
            raise ToolFailure(f"The browser could not be started: {reason}") from error
        except BaseException:
            await self._stop()
            raise

    async def _close_if_unused(self) -> None:
        async with self._lock:
            if not self._users:
                await self._stop()
                await asyncio.gather(*self._endings)

    async def _stop(self) -> None:
        """Have no browser any more. The old one ends even if the caller, a rollout, is cancelled meanwhile."""
        self.generation += 1
        parts, self._parts = self._parts, _Parts()
        ending = asyncio.create_task(parts.end())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        await asyncio.shield(ending)


@dataclasses.dataclass
class _Parts:
    """What makes up one browser, as far as it has been started."""

    proxy: GuardedProxy = dataclasses.field(default_factory=GuardedProxy)
    folder: str | None = None
    playwright: Playwright | None = None
    browser: Browser | None = None
    processes: _Processes | None = None

    async def start(self, executable: str | None) -> Browser:
        """Start them all. Raises Playwright's errors and OSError; `end` ends what there is by then."""
        from playwright.async_api import async_playwright

        await self.proxy.start()
        self.folder = await asyncio.to_thread(_temporary_folder)
        self.playwright = await async_playwright().start()
        await self.playwright.selectors.register(ENGINE, page_script(), content_script=True)
        self.browser = await self.playwright.chromium.launch(
            executable_path=find_browser(executable),
            headless=True,
            chromium_sandbox=os.geteuid() != 0,
            args=list(ARGUMENTS),
            ignore_default_args=["--disable-popup-blocking"],  # a tab for a click, not a hundred
            env=_environment(self.folder),
            proxy={"server": self.proxy.url},  # what belongs to no rollout has no credentials and is refused
        )
        self.processes = await asyncio.to_thread(_Processes, self.folder)
        return self.browser

    async def end(self) -> None:
        """End them all, by force where they do not end when they are told to."""
        closing = asyncio.create_task(self._close())
        await asyncio.wait([closing], timeout=CLOSE_TIMEOUT_S + DRIVER_TIMEOUT_S)
        if self.processes is not None:
            self.processes.kill_driver()
        await asyncio.wait([closing], timeout=DRIVER_TIMEOUT_S)
        await self.proxy.aclose()
        for folder in (self.folder, self.processes.profile if self.processes else None):
            if folder is not None:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        if not closing.cancel():
            closing.result()

    async def _close(self) -> None:
        from playwright.async_api import Error

        if self.browser is not None:
            with contextlib.suppress(Error, TimeoutError):  # dead already, or dying, or it hangs
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self.browser.close()
        if self.folder is not None:
            await asyncio.to_thread(kill_sessions, {self.folder.encode()})
        if self.playwright is not None:
            with contextlib.suppress(Error):
                await self.playwright.stop()  # cleans up after the browser, unless the driver hangs itself


class _Processes:
    """The driver of the browser that carries a `HERMES_SESSION`, and its profile, which a killed driver leaves behind.

    Playwright tells neither. The driver is the parent of the browser and a child of ours; both are unknown where there
    is no /proc. A pidfd means this driver, even when it has ended and its number is another's.
    """

    def __init__(self, session: str) -> None:
        self.profile: str | None = None
        self._driver: int | None = None
        needle = b"\0" + f"{SESSION_VARIABLE}={session}".encode() + b"\0"
        marked = [stat for pid, environ in environs().items() if needle in environ and (stat := read_stat(pid))]
        for stat in marked:
            above = read_stat(stat.parent)
            if above is not None and above.parent == os.getpid():
                with contextlib.suppress(OSError):  # either has just ended
                    self.profile = _profile(stat.pid)
                    self._driver = os.pidfd_open(above.pid)

    def kill_driver(self) -> None:
        """Kill the driver, unless it has ended. Idempotent."""
        driver, self._driver = self._driver, None
        if driver is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(driver, signal.SIGKILL)
            os.close(driver)


def _profile(browser_pid: int) -> str | None:
    """The profile directory that Playwright made for a browser. Raises OSError."""
    for argument in Path(f"/proc/{browser_pid}/cmdline").read_bytes().split(b"\0"):
        name, _, value = os.fsdecode(argument).partition("=")
        if name == "--user-data-dir" and Path(value).name.startswith("playwright_"):
            return value
    return None


def _temporary_folder() -> str:
    """A directory for Chromium's sockets, which a killed one leaves behind; their paths must fit into 107 bytes."""
    place = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="hermes-browser-", dir=place if len(place) <= MAX_TMPDIR_CHARS else "/tmp")


def _environment(folder: str) -> dict[str, str | float | bool]:
    """What Chromium sees: keys of models are none of a page's business, and HOME is where nothing can be left."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return {**kept, "HOME": os.devnull, "TMPDIR": folder, SESSION_VARIABLE: folder}
