"""Tool sets: names for groups of tools. `TOOLSETS` is the one table that options and configuration derive from."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from pytest_hermes.errors import ConfigurationError

TOOLSETS: Mapping[str, tuple[str, ...]] = {
    "terminal": ("terminal", "process"),
    "file": ("read_file", "write_file", "patch", "search_files"),
    "todo": ("todo",),
}


def resolve_toolsets(enabled: Sequence[str] | None, disabled: Sequence[str] = ()) -> list[str]:
    """Names of the tools in the enabled sets minus those in the disabled ones, in the order of `TOOLSETS`.

    `None` enables every set. Raises ConfigurationError for an unknown set, with the closest known name.
    """
    for name in (*(enabled or ()), *disabled):
        if name not in TOOLSETS:
            close = difflib.get_close_matches(str(name), TOOLSETS, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            raise ConfigurationError(f"Unknown tool set {name!r}.{hint} Known: {', '.join(TOOLSETS)}.")
    chosen = [name for name in TOOLSETS if (enabled is None or name in enabled) and name not in disabled]
    return [tool for name in chosen for tool in TOOLSETS[name]]
