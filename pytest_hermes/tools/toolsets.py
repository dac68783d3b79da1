"""From the names that a user chose (tool sets, composed sets, single tools) to the tools of a rollout."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from pytest_hermes.errors import ConfigurationError
from pytest_hermes.tools.registry import BUILTIN, COMPOSED, DEFAULT_TOOLSETS, TOOLSETS


def resolve_toolsets(enabled: Sequence[str] | None, disabled: Sequence[str] = ()) -> list[str]:
    """Names of the tools that `enabled` means minus those of `disabled`, in the order of the registry.

    `None` means `DEFAULT_TOOLSETS`. Raises ConfigurationError for an unknown name, with the closest known one.
    """
    chosen = {tool for name in (DEFAULT_TOOLSETS if enabled is None else enabled) for tool in tools_of(name)}
    for name in disabled:
        chosen -= tools_of(name)
    return [tool for tool in BUILTIN if tool in chosen]


def tools_of(name: str) -> set[str]:
    """The tools of a set, of a composed set, or the tool itself. Raises ConfigurationError for an unknown name."""
    if name in TOOLSETS:
        return set(TOOLSETS[name])
    if name in COMPOSED:
        return {
            tool for member in COMPOSED[name] if member in TOOLSETS or member in BUILTIN for tool in tools_of(member)
        }
    if name in BUILTIN:
        return {name}
    known = [*TOOLSETS, *COMPOSED]
    close = difflib.get_close_matches(str(name), [*known, *BUILTIN], n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    raise ConfigurationError(f"Unknown tool set {name!r}.{hint} Known: {', '.join(known)}.")
