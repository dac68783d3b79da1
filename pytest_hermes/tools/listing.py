"""What there is to choose from, for `pytest-hermes tools`: tool sets with their cost in tokens, and distributions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from pytest_hermes.tools.distributions import DISTRIBUTIONS
from pytest_hermes.tools.installed import installed_tools
from pytest_hermes.tools.registry import COMPOSED, DEFAULT_TOOLSETS, TOOLS, TOOLSETS
from pytest_hermes.tools.tool import Tool
from pytest_hermes.tools.toolbox import ToolSettings

CHARS_PER_TOKEN = 4
"""Rough, for English text and JSON; tokenizers differ."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """What the schemas of some tools add to every request."""

    chars: int
    tokens: int | None
    """Exact for the o200k vocabulary; None without tiktoken or its vocabulary file."""

    def __str__(self) -> str:
        exact = "" if self.tokens is None else f", {self.tokens:,} of o200k"
        return f"{self.chars:,} characters, about {round(self.chars / CHARS_PER_TOKEN):,} tokens{exact}"


def schema_cost(tools: Sequence[Tool]) -> Cost:
    """The cost of the tools' schemas as they are sent."""
    text = json.dumps([tool.schema for tool in tools], ensure_ascii=False, separators=(",", ":"))
    return Cost(len(text), _tokens(text))


def list_tools(settings: ToolSettings = ToolSettings()) -> list[str]:
    """Lines for a terminal. Raises ConfigurationError for an installed tool that cannot be loaded."""
    sets: dict[str, list[Tool]] = {name: [TOOLS[tool] for tool in tools] for name, tools in TOOLSETS.items()}
    for tool in installed_tools().values():
        sets.setdefault(tool.toolset or tool.name, []).append(tool)
    lines = ["tool sets (* by default):"]
    for name, tools in sets.items():
        lines.append(f"  {name}{'*' if name in DEFAULT_TOOLSETS else ''}: {', '.join(tool.name for tool in tools)}")
        lines.append(f"    {schema_cost(tools)}")
        lines += [f"    not here: {tool.name} ({why})" for tool in tools if (why := _reason(tool, settings))]
    lines.append("composed sets:")
    lines += [f"  {name}: {', '.join(members)}" for name, members in COMPOSED.items()]
    lines.append("distributions (percent of tasks that get a set):")
    for name, chances in DISTRIBUTIONS.items():
        lines.append(f"  {name}: " + ", ".join(f"{member} {chance}" for member, chance in chances.items()))
    absent = sorted({member for chances in DISTRIBUTIONS.values() for member in chances} - set(TOOLSETS))
    if absent:
        lines.append(f"  not here: {', '.join(absent)}")
    return lines


def _reason(tool: Tool, settings: ToolSettings) -> str | None:
    return tool.unavailable(settings) if tool.unavailable else None


def _tokens(text: str) -> int | None:
    try:
        import tiktoken
    except ImportError:
        return None
    try:
        encoding: Any = tiktoken.get_encoding("o200k_base")
    except OSError:  # its vocabulary is not on this machine and cannot be fetched
        return None
    return len(encoding.encode(text))
