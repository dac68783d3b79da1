"""What each browser tool does to the current tab of the rollout's `BrowserSession`, and its result.

Every function raises ToolFailure for what cannot be done.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from pytest_hermes.errors import HermesError
from pytest_hermes.tools.browser import cdp as devtools
from pytest_hermes.tools.browser import snapshot as snapshots
from pytest_hermes.tools.browser.address import checked_address
from pytest_hermes.tools.browser.evaluation import evaluate
from pytest_hermes.tools.browser.session import BrowserSession
from pytest_hermes.tools.browser.shared import VIEWPORT_PX
from pytest_hermes.tools.browser.tab import SETTLE_TIMEOUT_S, Tab
from pytest_hermes.tools.tool import Result, ToolFailure
from pytest_hermes.tools.workspace import Workspace

if TYPE_CHECKING:
    from playwright.async_api import ElementHandle

MARGIN_S = 3.0
"""Playwright's own time-outs are shorter than ours by this much: its messages say more."""
SNAPSHOT_TIMEOUT_S = 20.0
LOAD_TIMEOUT_S = 3.0
SCROLL_PX = 500
MAX_IMAGES = 200
MAX_CDP_TIMEOUT_S = 300.0
MAX_RESULT_CHARS = 1_000_000
KEYS = {"ctrl": "Control", "return": "Enter", "esc": "Escape", "del": "Delete", "cmd": "Meta", "up": "ArrowUp",
        "down": "ArrowDown", "left": "ArrowLeft", "right": "ArrowRight", "spacebar": "Space"}  # fmt: skip

Arguments = Mapping[str, Any]


async def navigate(session: BrowserSession, workspace: Workspace, arguments: Arguments) -> Result:
    settings = workspace.settings
    url = await checked_address(arguments["url"], allow_private=settings.allow_private_urls)
    if session.dialogs.pending:
        await session.fresh_tab()
        session.notes.append("The page before was closed with its open dialog.")
    else:
        await session.tab()
    if session.console is not None:
        session.console.rearm()
    done = await session.act(
        f"browser_navigate {url[:200]}",
        lambda tab: _go(session, tab, url, settings.browser_timeout_s),
        settings.browser_timeout_s + LOAD_TIMEOUT_S + MARGIN_S,
    )
    result: Result = {"success": True, "url": (await session.tab()).page.url, "title": ""}
    if done.is_interrupted:
        return result
    if done.value is not None:
        result["status"] = done.value
    return result | await _shown(session, full=False)


async def _go(session: BrowserSession, tab: Tab, url: str, timeout_s: float) -> int | None:
    """Open `url`; its HTTP status. Raises ToolFailure when nothing of it arrives."""
    from playwright.async_api import Error
    from playwright.async_api import TimeoutError as PlaywrightTimeout

    started = time.monotonic()
    cdp = await tab.cdp()
    try:
        response = await tab.page.goto(url, wait_until="commit", timeout=timeout_s * 1000)
    except PlaywrightTimeout:
        await cdp.send("Page.stopLoading")
        raise ToolFailure(f"{url[:500]}: no answer within {timeout_s:g} s.") from None
    except Error as error:
        await tab.loaded(LOAD_TIMEOUT_S)  # the browser's own error page comes, and would interrupt what is next
        if session.passage is not None and session.passage.refused:
            reason = session.passage.refused.pop()
            raise ToolFailure(f"{url[:500]}: {reason}") from None
        if "Download is starting" in str(error):
            raise ToolFailure(f"{url[:500]} is a download, not a page; downloads are refused here.") from None
        raise
    if not await tab.loaded(max(0.0, timeout_s - (time.monotonic() - started))):
        if not await tab.answers():
            raise TimeoutError(f"not loaded within {timeout_s:g} s")
        session.notes.append(
            f"The page had not loaded within {timeout_s:g} s; this is what has arrived. A script that kept it busy was "
            "stopped."
        )
        return response.status if response else None
    try:
        await tab.page.wait_for_load_state("load", timeout=LOAD_TIMEOUT_S * 1000)
    except PlaywrightTimeout:
        pass  # pictures and the like are still coming
    return response.status if response else None


async def _shown(session: BrowserSession, *, full: bool) -> Result:
    """The keys `url`, `title`, `snapshot` and `element_count` of the current page."""
    done = await session.act(
        "browser_snapshot",
        lambda tab: snapshots.take(tab.frame, session.references, full=full),
        min(SNAPSHOT_TIMEOUT_S, session.settings.browser_timeout_s + MARGIN_S),
    )
    page = (await session.tab()).page
    if done.value is None:
        return {"url": page.url, "title": ""}
    taken = done.value
    if taken.note:
        session.notes.append(taken.note)
    return {"url": page.url, "title": taken.title, "snapshot": taken.text, "element_count": len(taken.refs)}


async def snapshot(session: BrowserSession, workspace: Workspace, arguments: Arguments) -> Result:
    if session.dialogs.pending:
        page = (await session.tab()).page
        return {"success": True, "url": page.url, "snapshot": "(the page waits for its dialog)", "element_count": 0}
    return {"success": True} | await _shown(session, full=arguments["full"])


async def _acted(session: BrowserSession, what: str, work: Callable[[Tab], Awaitable[Result]]) -> Result:
    """`work` done and the page settled; its result, with `url` where that has changed."""

    async def settled(tab: Tab) -> Result:
        await tab.cdp()
        before, windows = tab.page.url, tab.windows
        session.forget_arrivals()
        done = await work(tab)
        if not await tab.settle():
            session.notes.append("The page is still loading.")
        if tab.windows > windows:
            await session.follow()
        return done if tab.page.url == before else {**done, "url": tab.page.url}

    done = await session.act(what, settled, session.action_s + SETTLE_TIMEOUT_S + MARGIN_S)
    return done.value if done.value is not None else {}


async def _element(session: BrowserSession, arguments: Arguments) -> tuple[str, snapshots.Ref, ElementHandle]:
    """As `References.element`; raises ToolFailure also for an element that chooses a file."""
    name, ref, element = await session.references.element(arguments["ref"])
    if ref.kind == "file":
        raise ToolFailure(f"{name} chooses a file to upload; files cannot be uploaded here.")
    return name, ref, element


async def click(session: BrowserSession, workspace: Workspace, arguments: Arguments) -> Result:
    shown = {}

    async def work(tab: Tab) -> Result:
        shown["clicked"], ref, element = await _element(session, arguments)
        if ref.kind == "option":
            await _choose_option(session, ref)
        else:
            await element.click(timeout=session.action_s * 1000)
        return {}

    done = await _acted(session, f"browser_click {arguments['ref']}", work)
    return {"success": True, **shown, **done}


async def _choose_option(session: BrowserSession, ref: snapshots.Ref) -> None:
    found = await snapshots.ask(ref.frame, f"index;{ref.token};{ref.id}")
    select = await ref.frame.query_selector(f"{snapshots.ENGINE}=select;{ref.token};{ref.id}")
    if select is None or found["index"] < 0:
        raise ToolFailure("The option is not on the page any more. Call browser_snapshot.")
    await select.select_option(index=found["index"], timeout=session.action_s * 1000)


async def type_text(session: BrowserSession, workspace: Workspace, arguments: Arguments) -> Result:
    text = arguments["text"]
    shown = {}

    async def work(tab: Tab) -> Result:
        from playwright.async_api import Error

        shown["element"], ref, element = await _element(session, arguments)
        if ref.kind == "select":
            await _choose(element, text)
            return {}
        try:
            await element.fill(text, timeout=session.action_s * 1000)
        except Error as error:
            if "not an <input>" not in str(error):
                raise
            raise ToolFailure(
                f"{shown['element']} ({ref.label[:80]}) takes no text. Give the reference of a text field, or click it "
                "and use browser_press."
            ) from None
        return {}

    done = await _acted(session, f"browser_type {arguments['ref']}", work)
    return {"success": True, "typed": text, **shown, **done}


async def _choose(select: Any, text: str) -> None:
    from playwright.async_api import Error

    try:
        await select.select_option(label=text, timeout=1000)
    except Error:
        options = await select.evaluate("e => [...e.options].slice(0, 100).map(o => [o.label, o.value])")
        if text not in [value for _, value in options]:
            labels = ", ".join(repr(str(label)[:80]) for label, _ in options[:30])
            raise ToolFailure(f"There is no option {text[:80]!r}. Options: {labels}.") from None
        await select.select_option(value=text, timeout=1000)


async def scroll(session: BrowserSession, workspace: Workspace, arguments: Arguments) -> Result:
    direction = arguments["direction"]
    pixels = SCROLL_PX if direction == "down" else -SCROLL_PX
    done = await session.act(
        "browser_scroll", lambda tab: snapshots.ask(tab.frame, f"scroll;{pixels}"), session.action_s
    )
    result: Result = {"success": True, "scrolled": direction}
    if done.value is not None:
        result["position"] = f"{done.value['top']} of {done.value['most']} px"
    return result


async def back(session: BrowserSession, workspace: Workspace, arguments: Arguments) -> Result:
    timeout_s = workspace.settings.browser_timeout_s

    async def work(tab: Tab) -> bool:
        cdp = await tab.cdp()
        history = await cdp.send("Page.getNavigationHistory")
        if history["currentIndex"] == 0:
            raise ToolFailure("There is no page to go back to: this is the first one of its tab.")
        await tab.page.go_back(wait_until="commit", timeout=timeout_s * 1000)
        await tab.settle()
        return True

    await session.act("browser_back", work, timeout_s + SETTLE_TIMEOUT_S + MARGIN_S)
    page = (await session.tab()).page
    return {"success": True, "url": page.url}


async def press(session: BrowserSession, workspace: Workspace, arguments: Arguments) -> Result:
    key = arguments["key"]
    parts = [KEYS.get(part.lower(), part) for part in key.split("+")] if len(key) > 1 else [key]

    async def work(tab: Tab) -> Result:
        from playwright.async_api import Error

        try:
            await tab.page.keyboard.press("+".join(parts))
        except Error as error:
            if "Unknown key" not in str(error):
                raise
            raise ToolFailure(f"{key[:80]!r} is no key. Keys are Enter, Tab, ArrowDown, a, Control+a, ...") from None
        return {}

    done = await _acted(session, f"browser_press {key[:40]}", work)
    return {"success": True, "pressed": key, **done}


async def get_images(session: BrowserSession, workspace: Workspace, arguments: Arguments) -> Result:
    async def work(tab: Tab) -> list[Any]:
        found: list[Any] = []
        for frame in tab.page.frames[: snapshots.MAX_FRAMES]:
            if len(found) < MAX_IMAGES:
                found += await snapshots.ask(frame, f"images;{MAX_IMAGES - len(found)}")
        return found

    done = await session.act("browser_get_images", work, SNAPSHOT_TIMEOUT_S)
    images = done.value or []
    return {"success": True, "images": images, "count": len(images)}


async def vision(session: BrowserSession, workspace: Workspace, arguments: Arguments) -> Result:
    annotate = arguments["annotate"]

    async def work(tab: Tab) -> tuple[bytes, list[dict[str, str]]]:
        if not annotate:
            return await tab.page.screenshot(timeout=SNAPSHOT_TIMEOUT_S * 1000), []
        taken = await snapshots.take(tab.frame, session.references, full=False)
        frames = session.references.of_frames(taken.refs)
        try:
            for frame, pairs in frames.items():
                await snapshots.ask(frame, f"label;{json.dumps(pairs, separators=(',', ':'))}")
            image = await tab.page.screenshot(timeout=SNAPSHOT_TIMEOUT_S * 1000)
        finally:
            for frame in frames:
                await snapshots.ask(frame, "unlabel")
        labels = [{"ref": f"@e{number}", "element": session.references.label(number)} for number in taken.refs]
        return image, labels

    done = await session.act("browser_vision", work, SNAPSHOT_TIMEOUT_S + MARGIN_S)
    if done.value is None:
        return {"success": True, "analysis": "A dialog opened before the screenshot was taken."}
    image, labels = done.value
    session.screenshots += 1
    path = await workspace.keep(f"hermes-browser/screenshot-{session.screenshots}.png", image)
    result: Result = {"success": True, "screenshot_path": path, "bytes": len(image)}
    result |= dict(zip(("width", "height"), VIEWPORT_PX, strict=True))
    if workspace.settings.describe_image is not None:
        try:
            result["analysis"] = await workspace.settings.describe_image(image, arguments["question"])
        except HermesError as error:  # the picture is there all the same
            result["analysis"] = f"The question is not answered: {error}. The screenshot is {path} in the sandbox."
    else:
        result["analysis"] = (
            f"No vision model is configured, so nobody has looked at the picture: the question is not answered. The "
            f"screenshot ({VIEWPORT_PX[0]}x{VIEWPORT_PX[1]} px, PNG, {len(image)} bytes) is {path} in the sandbox. "
            "browser_snapshot describes the page in words."
        )
    return result | ({"annotations": labels} if annotate else {})


async def console(session: BrowserSession, workspace: Workspace, arguments: Arguments) -> Result:
    if "expression" in arguments:
        return await _evaluate(session, arguments["expression"], workspace.settings.browser_timeout_s)
    console = session.console
    messages = list(console.messages) if console else []
    errors = list(console.errors) if console else []
    if console is not None and arguments["clear"]:
        console.clear()
    return {
        "success": True, "console_messages": messages, "js_errors": errors, "total_messages": len(messages),
        "total_errors": len(errors),
    }  # fmt: skip


async def _evaluate(session: BrowserSession, expression: str, timeout_s: float) -> Result:
    async def work(tab: Tab) -> Result:
        return await evaluate(await tab.cdp(), expression, timeout_s)

    done = await session.act("browser_console", work, timeout_s + MARGIN_S)
    if done.value is None:
        return {"success": True, "result": None, "result_type": "undefined"}
    result = done.value.get("value", done.value.get("unserializableValue", done.value.get("description")))
    if isinstance(result, str) and len(result) > MAX_RESULT_CHARS:
        session.notes.append(f"The result has {len(result)} characters; the first {MAX_RESULT_CHARS} are shown.")
        result = result[:MAX_RESULT_CHARS]
    return {"success": True, "result": result, "result_type": done.value.get("subtype", done.value["type"])}


async def cdp(session: BrowserSession, workspace: Workspace, arguments: Arguments) -> Result:
    method, params = arguments["method"], dict(arguments.get("params") or {})
    devtools.check(method)
    devtools.check_depth(params)
    await session.tab()
    if method == "Page.navigate":
        params["url"] = await checked_address(
            str(params.get("url", "")), allow_private=workspace.settings.allow_private_urls
        )
    timeout_s = min(max(float(arguments["timeout"]), 1.0), MAX_CDP_TIMEOUT_S)

    async def work(tab: Tab) -> Result:
        if method == "Target.getTargets":
            return {"targetInfos": [await _target(one) for one in session.tabs]}
        target = await _chosen(session, tab, arguments)
        return dict(await target.send(method, params))

    done = await session.act(f"browser_cdp {method}", work, timeout_s)
    return {"success": True, "method": method, "result": done.value if done.value is not None else {}}


async def _target(tab: Tab) -> Result:
    cdp = await tab.cdp()
    return devtools.shown_target((await cdp.send("Target.getTargetInfo"))["targetInfo"])


async def _chosen(session: BrowserSession, tab: Tab, arguments: Arguments) -> Any:
    """The DevTools session that `target_id` or `frame_id` means. Raises ToolFailure."""
    from playwright.async_api import Error

    if wanted := arguments.get("target_id"):
        for one in session.tabs:
            if (await _target(one))["targetId"] == wanted:
                return await one.cdp()
        raise ToolFailure(f"browser_cdp: no target {wanted[:80]!r}. Target.getTargets lists yours.")
    if wanted := arguments.get("frame_id"):
        for frame in tab.page.frames[1 : snapshots.MAX_FRAMES]:
            try:
                inner = await tab.page.context.new_cdp_session(frame)
            except Error:
                continue  # it shares its parent's process and has no session of its own
            if (await inner.send("Target.getTargetInfo"))["targetInfo"]["targetId"] == wanted:
                return inner
            await inner.detach()
        raise ToolFailure(
            f"browser_cdp: frame {wanted[:80]!r} has no target of its own. Frames of the page's own site are reached "
            "from the page, through contentDocument."
        )
    return await tab.cdp()


async def dialog(session: BrowserSession, workspace: Workspace, arguments: Arguments) -> Result:
    from playwright.async_api import Error

    action = arguments["action"]
    try:
        async with asyncio.timeout(session.action_s):
            found = await session.dialogs.answer(
                action == "accept", arguments.get("prompt_text"), arguments.get("dialog_id")
            )
    except (Error, TimeoutError):
        raise ToolFailure("The dialog is gone: its page was closed or has gone on.") from None
    await session.resume()
    return {"success": True, "action": action, "dialog": found}
