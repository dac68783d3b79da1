"""What a parser finds in a text, for people: `pytest-hermes parse`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from pytest_hermes.tool_call_parsers.auto import formats_of_text
from pytest_hermes.tool_call_parsers.parser import Findings, ParseError
from pytest_hermes.tool_call_parsers.registry import findings_of, get_parser

SHOWN_CHARS = 500


def report(name: str, text: str, tools: Iterable[Any] | None = None) -> Iterator[str]:
    """Lines on what the parser `name` finds. Raises UnknownParser."""
    parser = get_parser(name)
    found = findings_of(parser, text, tools)
    if name == "auto":
        formats = ", ".join(kind.name for kind in formats_of_text(text)) or "none"
        yield f"formats by their markers: {formats}"
    yield f"content: {_quoted(found.content)}"
    if found.reasoning is not None:
        yield f"reasoning: {_quoted(found.reasoning)}"
    yield f"calls: {len(found.calls)}"
    for number, call in enumerate(found.calls, 1):
        yield f"  {number}. {call.name}  (id {call.id})"
        yield from (f"     {line}" for line in _arguments(call.arguments))
    if found.trailing is not None:
        yield f"text after the calls: {_quoted(found.trailing)}"
    for error in found.errors:
        yield f"not read: {_place(text, error)}: {error.reason}"
        yield f"     {_quoted(error.excerpt)}"
    if found.truncated:
        yield "the text ends in the middle of a call"


def as_json(name: str, text: str, tools: Iterable[Any] | None = None) -> str:
    """The same as one line of JSON."""
    found = findings_of(get_parser(name), text, tools)
    return json.dumps(_fields(found), ensure_ascii=False)


def _fields(found: Findings) -> dict[str, Any]:
    return {
        "content": found.content,
        "tool_calls": [call._asdict() for call in found.calls],
        "reasoning": found.reasoning,
        "trailing": found.trailing,
        "errors": [{"start": error.start, "end": error.end, "reason": error.reason} for error in found.errors],
        "truncated": found.truncated,
    }


def _arguments(text: str) -> list[str]:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False).splitlines()
    except ValueError:
        return [f"not JSON: {_quoted(text)}"]


def _place(text: str, error: ParseError) -> str:
    line = text.count("\n", 0, error.start) + 1
    column = error.start - (text.rfind("\n", 0, error.start) + 1) + 1
    return f"line {line}, column {column}"


def _quoted(text: str | None) -> str:
    if text is None:
        return "none"
    cut = "" if len(text) <= SHOWN_CHARS else f"... ({len(text):,} characters)"
    return json.dumps(text[:SHOWN_CHARS], ensure_ascii=False) + cut
