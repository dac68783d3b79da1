"""Tools of installed packages: entry points of the group `pytest_hermes.tools`.

An entry point names a module (every function with `@tool` in it), one such function or `Tool`, or a list of them. A
tool without a tool set of its own belongs to the set that the entry point is called. They are read when a name is asked
for that is not built in.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Mapping
from typing import Any

from pytest_hermes.errors import ConfigurationError
from pytest_hermes.shown import named, shown_line
from pytest_hermes.tools.own import check_tool, is_tool, own_tool
from pytest_hermes.tools.tool import Tool

GROUP = "pytest_hermes.tools"


@functools.cache
def installed_tools() -> Mapping[str, Tool]:
    """Tools by name. Raises ConfigurationError for an entry point that cannot be loaded or names that collide."""
    import importlib.metadata

    found: dict[str, Tool] = {}
    origins: dict[str, str] = {}
    for entry in importlib.metadata.entry_points(group=GROUP):
        where = f"entry point {entry.name} = {entry.value} ({GROUP})"
        for made in _tools_of(entry, where):
            if made.name in found and found[made.name].run is not made.run:
                raise ConfigurationError(f"{where}: tool {made.name!r} is also that of {origins[made.name]}")
            found.setdefault(made.name, made)
            origins.setdefault(made.name, where)
    return found


def _tools_of(entry: Any, where: str) -> list[Tool]:
    try:
        loaded = entry.load()
        if isinstance(loaded, types.ModuleType):
            given = [value for value in vars(loaded).values() if is_tool(value)]
        else:
            given = list(loaded) if isinstance(loaded, list | tuple) else [loaded]
        tools = [own_tool(value) for value in given]
        tools = [made if made.toolset else dataclasses.replace(made, toolset=entry.name) for made in tools]
        for made in tools:
            check_tool(made)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # SystemExit or pytest's own: an import that skips or exits would end the collection, or empty it
        raise ConfigurationError(f"{where}: cannot be loaded: {shown_line(named(error))}") from error
    if not tools:
        raise ConfigurationError(f"{where}: has no function with @tool")
    return tools
