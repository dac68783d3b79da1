"""Checking a parser against cases: the project's own, or those of somebody who writes a parser.

A case is one line of JSON: `id`, `text`, `tools` (OpenAI schemas or null), and what is expected: `content`, and
`tool_calls` (null for none) with `name`, `arguments` (an object, compared with its types, or the exact text) and, where
it matters, `id`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_hermes.tool_call_parsers.registry import Parser


def read_cases(path: Path) -> Iterator[dict[str, Any]]:
    """The cases of a JSONL file."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)


def failure(parser: Parser, case: Mapping[str, Any]) -> str | None:
    """What is wrong with a parser's result for a case; None if it is as expected."""
    content, calls = parser.parse(case["text"], case["tools"])
    expected = case["tool_calls"]
    if content != case["content"]:
        return f"content is {content!r}, not {case['content']!r}"
    if expected is None or calls is None:
        return None if expected is calls else f"calls are {calls!r}, not {expected!r}"
    found = [(call.function.name, call.function.arguments, call.id) for call in calls]
    if len(found) != len(expected):
        return f"{len(found)} calls, not {len(expected)}: {found!r}"
    for (name, arguments, identity), wanted in zip(found, expected, strict=True):
        is_same = arguments == wanted["arguments"]
        if not isinstance(wanted["arguments"], str):
            is_same = _typed(json.loads(arguments, parse_constant=str)) == _typed(wanted["arguments"])
        if name != wanted["name"] or not is_same:
            return f"{name}({arguments}), not {wanted['name']}({wanted['arguments']!r})"
        if identity != wanted.get("id", identity):
            return f"the id is {identity!r}, not {wanted['id']!r}"
    identities = [identity for _, _, identity in found]
    if len(set(identities)) < len(identities) or not all(identities):
        return f"ids are empty or not unique: {identities!r}"
    return None


def check_parser(parser: Parser, path: Path) -> list[str]:
    """The cases of a file that a parser fails, as `id: what is wrong`."""
    return [f"{case['id']}: {wrong}" for case in read_cases(path) if (wrong := failure(parser, case)) is not None]


def _typed(value: Any) -> Any:
    """A value that is equal to another only if all types are: 5 is not 5.0, and 1 is not true."""
    if isinstance(value, dict):
        return {key: _typed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_typed(inner) for inner in value]
    return type(value).__name__, value
