"""Which DevTools methods an agent may call: those that act on its own page. `check` says why another one is refused.

A browser's DevTools reach further than a page: other rollouts' pages, files of this machine, contexts without the
proxy. So only domains of the page are open, without the methods that read files, and addresses are held to the policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_hermes.tools.tool import ToolFailure

DOMAINS = frozenset(
    (
        *("Accessibility", "Animation", "CSS", "DOM", "DOMDebugger", "DOMSnapshot", "DOMStorage", "Emulation"),
        *("Input", "LayerTree", "Log", "Network", "Overlay", "Page", "Performance", "Runtime"),
    )
)
ALSO = frozenset(("Target.getTargets", "Target.getTargetInfo", "Browser.getVersion"))
MAX_DEPTH = 100
"""Chromium gives up at 300 levels, in silence."""
REFUSED: Mapping[str, str] = {
    "DOM.setFileInputFiles": "it reads files of the machine that runs the browser",
    "Input.dispatchDragEvent": "it can drop files of the machine that runs the browser",
    "Input.setInterceptDrags": "it belongs to Input.dispatchDragEvent",
    "Network.loadNetworkResource": "it reads what no page may; use Runtime.evaluate with fetch",
    "Network.setRequestInterception": "requests are not to be held up; use Page.setDocumentContent or Runtime.evaluate",
    "Page.setDownloadBehavior": "downloads are refused here",
    "Page.handleJavaScriptDialog": "use browser_dialog",
    "Page.setInterceptFileChooserDialog": "files cannot be chosen here",
    "Page.crash": "it ends the page",
    "Page.close": "it ends the page",
    "Runtime.terminateExecution": "it is done when an action takes too long",
}


def check(method: str) -> None:
    """Raises ToolFailure for a method that is not open."""
    if method in REFUSED:
        raise ToolFailure(f"browser_cdp: {method} is refused: {REFUSED[method]}.")
    domain, dot, name = method.partition(".")
    if not dot or not name.isalnum():
        raise ToolFailure(f"browser_cdp: {method[:80]!r} is no DevTools method; they look like Runtime.evaluate.")
    if domain not in DOMAINS and method not in ALSO:
        raise ToolFailure(
            f"browser_cdp: {method} is refused: it reaches beyond this page. Open are {', '.join(sorted(ALSO))} and "
            f"the domains {', '.join(sorted(DOMAINS))}."
        )


def check_depth(params: Mapping[str, Any]) -> None:
    """Raises ToolFailure for parameters that the browser would pass over without an answer."""
    level: list[Any] = [params]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
        level = [inner for inner in level if isinstance(inner, dict | list)]
        if not level:
            return
    raise ToolFailure(f"browser_cdp: params are nested deeper than {MAX_DEPTH} levels. Make them flatter.")


def shown_target(info: Mapping[str, Any]) -> dict[str, Any]:
    """What an agent may know of a target."""
    return {
        "targetId": info["targetId"], "type": info["type"], "title": info["title"], "url": info["url"],
        "attached": info["attached"],
    }  # fmt: skip
