"""The one table of built-in tools and tool sets; options, configuration, distributions and docs derive from it.

A tool's module is imported when the tool is looked up (`TOOLS[name]`), not before. To add a tool: a line in `BUILTIN`
and its name in `TOOLSETS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_hermes.tools.tool import Tool

BUILTIN: Mapping[str, str] = {
    "terminal": "terminal:TERMINAL",
    "process": "process:PROCESS",
    "read_file": "files:READ_FILE",
    "write_file": "files:WRITE_FILE",
    "patch": "files:PATCH",
    "search_files": "search:SEARCH_FILES",
    "todo": "todo:TODO",
    "web_search": "web.tools:WEB_SEARCH",
    "web_extract": "web.tools:WEB_EXTRACT",
    "browser_navigate": "browser.tools:NAVIGATE",
    "browser_snapshot": "browser.tools:SNAPSHOT",
    "browser_click": "browser.tools:CLICK",
    "browser_type": "browser.tools:TYPE",
    "browser_scroll": "browser.tools:SCROLL",
    "browser_back": "browser.tools:BACK",
    "browser_press": "browser.tools:PRESS",
    "browser_get_images": "browser.tools:GET_IMAGES",
    "browser_vision": "browser.tools:VISION",
    "browser_console": "browser.tools:CONSOLE",
    "browser_cdp": "browser.tools:CDP",
    "browser_dialog": "browser.tools:DIALOG",
}
"""Where each tool is: `module:ATTRIBUTE` below `pytest_hermes.tools`."""

TOOLSETS: Mapping[str, tuple[str, ...]] = {
    "terminal": ("terminal", "process"),
    "file": ("read_file", "write_file", "patch", "search_files"),
    "todo": ("todo",),
    "web": ("web_search", "web_extract"),
    "browser": (*(name for name in BUILTIN if name.startswith("browser_")), "web_search"),
}
"""Tools by set. A tool may stand in several sets; the first one that has it is its home."""

COMPOSED: Mapping[str, tuple[str, ...]] = {
    "search": ("web_search",),
    "debugging": ("terminal", "file", "web"),
    "coding": ("terminal", "file", "todo", "web"),
    "development": ("terminal", "file", "todo"),
    "safe": ("web",),
    "all": ("terminal", "file", "todo", "web", "browser"),
}
"""Sets and tools under one name. Members that cannot work on this machine are left out."""

DEFAULT_TOOLSETS = ("terminal", "file", "todo")
"""What an agent gets when nothing is chosen: what needs no network, key or browser."""


class _Builtin(Mapping[str, "Tool"]):
    def __getitem__(self, name: str) -> Tool:
        module, _, attribute = BUILTIN[name].partition(":")
        tool: Tool = getattr(importlib.import_module(f"pytest_hermes.tools.{module}"), attribute)
        return tool

    def __contains__(self, name: object) -> bool:
        return name in BUILTIN

    def __iter__(self) -> Iterator[str]:
        return iter(BUILTIN)

    def __len__(self) -> int:
        return len(BUILTIN)


TOOLS: Mapping[str, Tool] = _Builtin()
"""The built-in tools by name, each imported when it is looked up."""
