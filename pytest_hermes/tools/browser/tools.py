"""The twelve browser tools: names and parameters of hermes-agent over `actions`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pytest_hermes.tools.browser import actions
from pytest_hermes.tools.browser.actions import Arguments
from pytest_hermes.tools.browser.executable import why_unavailable
from pytest_hermes.tools.browser.session import BrowserSession
from pytest_hermes.tools.tool import Result, Schema, Tool, ToolFailure, boolean, object_schema, string
from pytest_hermes.tools.workspace import Workspace

Run = Callable[[BrowserSession, Workspace, Arguments], Awaitable[Result]]


def _tool(name: str, description: str, parameters: Schema, run: Run, accepts: Schema | None = None) -> Tool:
    async def call(workspace: Workspace, arguments: Arguments) -> Result:
        try:
            session = BrowserSession.of(workspace)
        except ToolFailure as failure:
            failure.details = {"success": False, **failure.details}
            raise
        async with session.lock:
            try:
                return session.report(await run(session, workspace, arguments))
            except ToolFailure as failure:
                failure.details = {"success": False, **session.report(failure.details)}
                raise

    return Tool(name, description, parameters, call, accepts, unavailable=why_unavailable)


_REF = string("Element reference from the latest snapshot, e.g. @e5")

NAVIGATE = _tool(
    "browser_navigate",
    "Open a URL in the browser. Returns its title and a compact snapshot with element references (@e1, ...). Call it "
    "before the other browser tools. For plain text or API endpoints prefer the terminal.",
    object_schema(["url"], url=string("The address, e.g. https://example.com")),
    actions.navigate,
)
SNAPSHOT = _tool(
    "browser_snapshot",
    "The current page as text: roles, names, values, states, and references (@e1, ...) of what can be clicked or typed "
    "into. full=true: long texts whole, link targets, every element with a reference.",
    object_schema([], full=boolean("Everything instead of the compact view")),
    actions.snapshot,
)
CLICK = _tool(
    "browser_click", "Click an element of the latest snapshot. A click on an option selects it.",
    object_schema(["ref"], ref=_REF), actions.click,
)  # fmt: skip
TYPE = _tool(
    "browser_type",
    "Put text into a field, replacing what it holds; in a select box, choose the option with that label.",
    object_schema(["ref", "text"], ref=_REF, text=string("The text")),
    actions.type_text,
)
SCROLL = _tool(
    "browser_scroll", f"Scroll the page by {actions.SCROLL_PX} pixels.",
    object_schema(["direction"], direction=string("up or down", enum=["up", "down"])), actions.scroll,
)  # fmt: skip
BACK = _tool("browser_back", "Go back to the page before.", object_schema([]), actions.back)
PRESS = _tool(
    "browser_press", "Press a key or a combination where the focus is.",
    object_schema(["key"], key=string("e.g. Enter, Tab, Escape, ArrowDown, Control+a")), actions.press,
)  # fmt: skip
GET_IMAGES = _tool(
    "browser_get_images",
    "The images of the page: address, alternative text, size.",
    object_schema([]),
    actions.get_images,
)
VISION = _tool(
    "browser_vision",
    "Take a screenshot, store it in the sandbox and ask a vision model about it, where one is configured.",
    object_schema(
        ["question"],
        question=string("What you want to know about the picture"),
        annotate=boolean("Draw the element references (@e1, ...) into the picture"),
    ),
    actions.vision,
)
CONSOLE = _tool(
    "browser_console",
    "Console messages and uncaught errors of the page; with expression, evaluate JavaScript in the page instead and "
    "return its value (await works).",
    object_schema(
        [], clear=boolean("Forget the messages after reading"), expression=string("JavaScript, e.g. document.title")
    ),
    actions.console,
)
_CDP_ARGUMENTS: dict[str, Schema] = {
    "method": string("e.g. Runtime.evaluate, DOM.getDocument, Target.getTargets"),
    "params": {
        "type": "object",
        "description": "Parameters of the method",
        "properties": {},
        "additionalProperties": True,
    },
    "target_id": string("Another tab, by its id of Target.getTargets"),
    "frame_id": string("A frame of another site, by its id"),
    "timeout": {
        "type": "number",
        "description": f"Seconds to wait, {actions.MAX_CDP_TIMEOUT_S:g} at most",
        "default": 30,
    },
}
CDP = _tool(
    "browser_cdp",
    "Send a DevTools protocol command to the page, for what the other tools cannot do.",
    object_schema(["method"], **_CDP_ARGUMENTS),
    actions.cdp,
    accepts=object_schema(["method"], **{**_CDP_ARGUMENTS, "params": {"type": "object"}}),  # as they are
)
DIALOG = _tool(
    "browser_dialog",
    "Answer an open dialog (alert, confirm, prompt, beforeunload), listed as pending_dialogs in results.",
    object_schema(
        ["action"],
        action=string("accept or dismiss", enum=["accept", "dismiss"]),
        prompt_text=string("Answer to a prompt"),
        dialog_id=string("Which dialog, if several are open"),
    ),
    actions.dialog,
)
