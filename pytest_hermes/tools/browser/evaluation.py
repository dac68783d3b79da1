"""JavaScript of the agent, evaluated in the page as in a browser's console: `await` works, promises are waited for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pytest_hermes.tools.tool import ToolFailure

if TYPE_CHECKING:
    from playwright.async_api import CDPSession

GROUP = "hermes-console"
MESSAGE_CHARS = 2_000
DESCRIBED = frozenset(("node", "proxy", "weakmap", "weakset", "generator"))
"""Objects that have no value to send; their description is the answer."""


async def evaluate(cdp: CDPSession, expression: str, timeout_s: float) -> dict[str, Any]:
    """The DevTools `RemoteObject` of the value, with `value` where it can be sent as JSON.

    Raises ToolFailure for what the expression throws and for one that computes longer than `timeout_s`, Playwright's
    errors for a page that is gone. A promise that never settles is the caller's to end.
    """
    from playwright.async_api import Error

    started = time.monotonic()
    try:
        found = await cdp.send(
            "Runtime.evaluate",
            {
                "expression": expression,
                "replMode": True,
                "awaitPromise": True,
                "userGesture": True,
                "allowUnsafeEvalBlockedByCSP": True,
                "timeout": timeout_s * 1000,
                "objectGroup": GROUP,
            },
        )
        if _value(found).get("subtype") == "promise":
            found = await cdp.send("Runtime.awaitPromise", {"promiseObjectId": _value(found)["objectId"]})
        value = _value(found)
        if value["type"] == "object" and "objectId" in value and value.get("subtype") not in DESCRIBED:
            value = await _copied(cdp, value)
        await cdp.send("Runtime.releaseObjectGroup", {"objectGroup": GROUP})
    except Error as error:
        if "Internal error" in str(error) and time.monotonic() - started >= timeout_s:
            raise ToolFailure(f"The expression ran for {timeout_s:g} s and was stopped.") from None
        raise
    return value


def _value(answer: dict[str, Any]) -> dict[str, Any]:
    if (problem := answer.get("exceptionDetails")) is not None:
        thrown = problem.get("exception", {})
        message = str(thrown.get("description") or thrown.get("value") or problem.get("text"))
        raise ToolFailure(f"The expression threw: {message[:MESSAGE_CHARS]}")
    value: dict[str, Any] = answer["result"]
    return value


async def _copied(cdp: CDPSession, value: dict[str, Any]) -> dict[str, Any]:
    """The object with its JSON value, or as it was where it has none (it is too deep or holds itself)."""
    from playwright.async_api import Error

    request = {"objectId": value["objectId"], "functionDeclaration": "function() { return this }"}
    try:
        copy = await cdp.send("Runtime.callFunctionOn", {**request, "returnByValue": True})
    except Error as error:
        if "reference chain" not in str(error):
            raise
        return value
    return {**value, "value": copy["result"].get("value")}
