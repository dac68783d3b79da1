"""Llama's layout: a JSON object anywhere in the text, with a name and parameters."""

from __future__ import annotations

import re
from typing import Any

from pytest_hermes.tool_call_parsers.json_calls import ARGUMENT_KEYS, call_of
from pytest_hermes.tool_call_parsers.json_text import ANY_STRING, Malformed, Scanner, lenient
from pytest_hermes.tool_call_parsers.parser import Block, Source, ToolCallParser

_KEYED = re.compile(rf"\{{\s*+(?:{ANY_STRING})\s*+:", re.DOTALL)
_BEFORE = re.compile(r"(?:<\|python_tag\|>|```[A-Za-z]*|[\s\[;,])+\Z")
_BEFORE_CHARS = 64
_AFTER = re.compile(r"\s*+(?:\]\s*+)?(?:```)?(?:\s*+(?:<\|eom_id\|>|<\|eot_id\|>|;(?=\s*+\Z)))*+")


class Llama3JsonParser(ToolCallParser):
    """Llama 3 and 4: `{"name": ..., "parameters": {...}}`, with or without `<|python_tag|>`; several of them behind one
    another, with `;` between them, or in a list. Objects inside of objects are data."""

    name = "llama3_json"
    aliases = ("llama3", "llama4_json", "llama", "llama3_1", "llama31")
    section = r"<\|python_tag\|>"
    start = r"""\{(?=\s*+[\{"'])"""

    _scanner = Scanner(r"<\|python_tag\|>|<\|eom_id\|>|<\|eot_id\|>")

    def read(self, source: Source, start: re.Match[str], *, is_wrapped: bool) -> Block:
        text, at = source.text, start.start()
        span = self._scanner.span(text, at)
        body = text[at : span.end]
        is_object = _KEYED.match(text, at) is not None  # and not a brace in prose; then what is in it is data
        if span.state == "cut":
            inside = start.end() if not is_object and source.may_spend(len(body)) else len(text)
            is_call = _looks_like_call(body)
            return Block(inside, [], "the text ends in the middle of a JSON object" if is_call else "", is_call)
        try:
            value = lenient(body)
        except Malformed as error:
            inside = start.end() if not is_object and source.may_spend(len(body)) else span.end
            return Block(inside, [], f"its JSON cannot be read: {error}" if _looks_like_call(body) else "")
        if not _is_call(value):
            return Block(span.end, [])
        try:
            call = call_of(value)
        except Malformed:
            return Block(span.end, [])
        before = _BEFORE.search(text, max(0, at - _BEFORE_CHARS), at)
        end = source.skip(_AFTER, span.end)
        return Block(end, [call], begin=at if before is None else before.start())


def _looks_like_call(body: str) -> bool:
    """Whether an object that cannot be read was meant as a call, so that the model is told."""
    return '"name"' in body[:200] and any(f'"{key}"' in body[:1000] for key in ARGUMENT_KEYS)


def _is_call(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    inner = value if "name" in value else value.get("function")
    return isinstance(inner, dict) and any(key in inner for key in ARGUMENT_KEYS)
