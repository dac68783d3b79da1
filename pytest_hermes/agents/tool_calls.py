"""Tool calls between the wire and the loop: one form for what servers send, and what their results say."""

from __future__ import annotations

import json
import uuid
from typing import Any


def normalised(calls: Any, seen: set[str]) -> list[dict[str, Any]]:
    """Calls as `{id, type, function: {name, arguments}}` with `arguments` a string.

    Takes a list of dicts or objects (anything else holds no calls), with `name` and `arguments` in `function` or on
    top. An id that is missing, or was used before in this conversation (`seen`, which is added to), becomes
    `call_<8 hex>`. `extra_content`, which Gemini wants back unchanged, is kept.
    """
    normal = []
    for call in calls if isinstance(calls, list | tuple) else ():
        function = _get(call, "function") or call
        call_id = _get(call, "id")
        if not isinstance(call_id, str) or not call_id or call_id in seen:
            call_id = f"call_{uuid.uuid4().hex[:8]}"
        seen.add(call_id)
        name = _get(function, "name")
        entry: dict[str, Any] = {
            "id": call_id,
            "type": "function",
            "function": {
                "name": name if isinstance(name, str) else "",
                "arguments": _text(_get(function, "arguments")),
            },
        }
        if extra := _get(call, "extra_content"):
            entry["extra_content"] = extra
        normal.append(entry)
    return normal


def error_in(result: str) -> str | None:
    """What a tool's JSON result says under `error`, if it says something."""
    if '"error"' not in result or not result.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(result)
    except (ValueError, RecursionError):
        return None
    error = value.get("error")
    return str(error) if error else None


def with_notice(result: str, notice: str) -> str:
    """A tool result with a notice for the model: a key in a JSON object, a last paragraph elsewhere."""
    try:
        value = json.loads(result)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return json.dumps({**value, "notice": notice}, ensure_ascii=False)
    return f"{result}\n\n[{notice}]"


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else getattr(value, key, None)


def _text(arguments: Any) -> str:
    if arguments is None or arguments == "":
        return "{}"
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
