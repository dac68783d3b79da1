"""From the names that a user chose (tool sets, composed sets, single tools) to the tools of a rollout.

What was named itself must work on this machine; what came with a composed set or a distribution is left out if it
cannot, and the selection says why.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_hermes.errors import ConfigurationError
from pytest_hermes.tools.registry import BUILTIN, COMPOSED, DEFAULT_TOOLSETS, TOOLS, TOOLSETS

if TYPE_CHECKING:
    from pytest_hermes.tools.tool import Tool
    from pytest_hermes.tools.toolbox import ToolSettings

ABSENT = "there is no such tool set here"


@dataclasses.dataclass(frozen=True)
class Selection:
    """The tools of a rollout, and how they came about."""

    tools: tuple[Tool, ...]
    sets: tuple[str, ...]
    """The names that were chosen or drawn."""
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Tool or tool set -> why the agent does not have it."""
    own: tuple[Tool, ...] = ()
    """The benchmark's own tools, which come with its tasks."""
    distribution: str | None = None

    def record(self) -> dict[str, object]:
        """For the rollout's row."""
        return {"sets": list(self.sets), "distribution": self.distribution, "left_out": dict(self.left_out)}


def select_tools(
    enabled: Sequence[str] | None,
    disabled: Sequence[str] = (),
    *,
    settings: ToolSettings,
    own: Sequence[Tool] = (),
    optional: bool = False,
) -> Selection:
    """The tools that `enabled` (None: `DEFAULT_TOOLSETS`) and `own` give, minus those of `disabled`.

    `optional`: also what is named itself is left out if it cannot work. Raises ConfigurationError for an unknown name,
    for a named tool that cannot work here, and if all that was chosen cannot.
    """
    sets = tuple(DEFAULT_TOOLSETS if enabled is None else enabled)
    wanted: dict[str, str | None] = {}  # tool -> the name that demands it; None: it may be left out
    left_out: dict[str, str] = {}
    for name in sets:
        for member, demanded in _members(name, own):
            wanted[member] = wanted.get(member) or (name if demanded and not optional else None)
        left_out |= {member: ABSENT for member in COMPOSED.get(name, ()) if not _is_known(member)}
    wanted |= {tool.name: tool.toolset or tool.name for tool in own}
    for name in disabled:
        for member, _ in _members(name, own):
            wanted.pop(member, None)
    tools = []
    for name in sorted(wanted, key=_rank):
        tool = find_tool(name, own)
        assert tool is not None
        reason = tool.unavailable(settings) if tool.unavailable else None
        if reason is None:
            tools.append(tool)
        elif demander := wanted[name]:
            raise ConfigurationError(f"tool set {demander!r}: {name} cannot work here: {reason}")
        else:
            left_out[name] = reason
    if not tools and left_out and not optional:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise ConfigurationError(f"tool sets {', '.join(sets)}: no tool of them can work here ({reasons})")
    return Selection(tuple(tools), sets, left_out, tuple(own))


def find_tool(name: str, own: Sequence[Tool] = ()) -> Tool | None:
    """The tool called `name`: built in, the benchmark's own, or an installed one."""
    if name in BUILTIN:
        return TOOLS[name]
    return next((tool for tool in own if tool.name == name), None) or _installed().get(name)


def home_of(tool: str) -> str | None:
    """The set that a built-in tool belongs to; other sets only borrow it."""
    return next((name for name, tools in TOOLSETS.items() if tool in tools), None)


def _members(name: str, own: Sequence[Tool] = ()) -> Iterator[tuple[str, bool]]:
    """The tools that a name means, each with whether it was asked for itself (not borrowed, not composed)."""
    if name in TOOLSETS:
        for tool in TOOLSETS[name]:
            yield tool, home_of(tool) == name
    elif name in COMPOSED:
        for member in filter(_is_known, COMPOSED[name]):
            for tool, _ in _members(member):
                yield tool, False
    elif name in BUILTIN:
        yield name, True
    else:
        others = {**_installed(), **{tool.name: tool for tool in own}}
        found = [tool.name for tool in others.values() if name in (tool.toolset, tool.name)]
        if not found:
            sets = dict.fromkeys([*TOOLSETS, *COMPOSED, *(tool.toolset for tool in others.values() if tool.toolset)])
            raise unknown("tool set", name, sets, (*BUILTIN, *others))
        for tool in found:
            yield tool, True


def _is_known(member: str) -> bool:
    return member in TOOLSETS or member in BUILTIN


def unknown(kind: str, name: str, known: Iterable[str], others: Iterable[str] = ()) -> ConfigurationError:
    """The error for a name that nothing has, with the closest one that something has; `others` are not listed."""
    listed = list(known)
    close = difflib.get_close_matches(str(name), [*listed, *others], n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return ConfigurationError(f"Unknown {kind} {name!r}.{hint} Known: {', '.join(listed)}.")


def _rank(tool: str) -> tuple[int, str]:
    """Sorts tools as the registry has them, others by name after them: equal choices give equal prompts."""
    return (_ORDER.get(tool, len(_ORDER)), tool)


_ORDER = {name: number for number, name in enumerate(BUILTIN)}


def _installed() -> Mapping[str, Tool]:
    from pytest_hermes.tools.installed import installed_tools

    return installed_tools()
