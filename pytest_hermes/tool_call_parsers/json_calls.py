"""Calls written as JSON objects: `{"name": ..., "arguments": {...}}`, one after another, in lists, or nearly so."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from pytest_hermes.tool_call_parsers.json_text import FENCE, STRING, Malformed, Scanner, dumps, lenient, loads, repaired
from pytest_hermes.tool_call_parsers.parser import Call, Source

_BETWEEN = re.compile(r"[\s,;\]}]*+")
_STRING = re.compile(STRING, re.DOTALL)
ARGUMENT_KEYS = ("arguments", "parameters")


class Objects(NamedTuple):
    """The calls of a sequence of JSON objects. It ends at `end`; if `truncated`, an object that is cut off
    begins there. `reason` says why one of them is no call."""

    end: int
    calls: list[Call]
    reason: str = ""
    truncated: bool = False
    nameless: Any = None
    """The first object without a name."""


def read_objects(source: Source, at: int, scanner: Scanner) -> Objects:
    """Read objects until something else comes; lists, fences and stray closing brackets around them are passed over.

    An object that cannot be read ends the sequence where it begins if there is a marker in it: its strings may be
    anything. Never raises.
    """
    text, calls, reason, nameless = source.text, list[Call](), "", None
    while True:
        at = source.skip(_BETWEEN, at)
        if text.startswith("[", at) and not scanner.stop.match(text, at):
            at += 1
        elif text.startswith("```", at):
            at = source.skip(FENCE, at)
        elif text.startswith("{", at):
            value, end, failure, truncated = read_value(text, at, scanner)
            if truncated:
                resumed = at if source.may_spend(end - at) else end
                return Objects(resumed, calls, reason or failure, True, nameless)
            if failure and source.may_spend(end - at) and scanner.stop.search(text, at, end):
                return Objects(at + 1, calls, reason or failure, False, nameless)
            at = end
            if not failure:
                try:
                    calls.append(call_of(value))
                except Malformed as error:
                    failure = str(error)
                    nameless = value if nameless is None else nameless
            reason = reason or failure
        elif text.startswith('"', at) and (junk := _STRING.match(text, at)):
            at = junk.end()
        else:
            return Objects(at, calls, reason, False, nameless)


def read_value(text: str, at: int, scanner: Scanner) -> tuple[Any, int, str, bool]:
    """The value at `at`, its end, why it is none (or ""), and whether the text ends within it. Never raises."""
    span = scanner.span(text, at)
    body = text[at : span.end]
    try:
        if span.state != "cut":
            return lenient(body), span.end, "", False
        if span.depth == 1 and is_complete(value := repaired(body, cut=True)):
            return value, span.end, "", False
    except Malformed as error:
        if span.state != "cut":
            return None, span.end, f"its JSON cannot be read: {error}", False
    return None, span.end, "the text ends in the middle of a call", True


def is_complete(value: Any) -> bool:
    """Whether an object that may have been cut off after a member has all of a call."""
    return isinstance(value, dict) and "name" in value and any(value.get(key) is not None for key in ARGUMENT_KEYS)


def call_of(value: Any) -> Call:
    """The call that an object describes. Raises Malformed."""
    if not isinstance(value, dict):
        raise Malformed("a call is a JSON object")
    if "name" not in value and isinstance(inner := value.get("function"), dict):
        value = inner
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        raise Malformed('a call needs "name", a string that is not empty')
    key = next((key for key in ARGUMENT_KEYS if key in value), "")
    return Call(name.strip(), arguments_text(value.get(key)))


def arguments_text(value: Any) -> str:
    """The arguments as the text of a JSON object; anything that is none is passed on as it is."""
    if value is None or value == "":
        return "{}"
    if isinstance(value, str):
        try:
            inner = loads(value)
        except Malformed:
            return value
        return dumps(inner) if isinstance(inner, dict) else value
    return dumps(value)
