"""Distributions of tool sets, by hermes names: each set is given with its own probability, drawn once per task.

A draw depends on the seed, the benchmark, the task, the distribution and the set alone, so all attempts of a task
share one sample, and a set that becomes available changes no other draw.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_hermes.errors import ConfigurationError
from pytest_hermes.tools.registry import TOOLSETS
from pytest_hermes.tools.toolsets import ABSENT, Selection, home_of, select_tools, unknown

if TYPE_CHECKING:
    from pytest_hermes.tools.tool import Tool
    from pytest_hermes.tools.toolbox import ToolSettings

DISTRIBUTIONS: Mapping[str, Mapping[str, int]] = {
    "default": {"web": 100, "vision": 100, "image_gen": 100, "terminal": 100, "file": 100, "browser": 100},
    "image_gen": {"image_gen": 90, "vision": 90, "web": 55, "terminal": 45},
    "research": {"web": 90, "browser": 70, "vision": 50, "terminal": 10},
    "science": {"web": 94, "terminal": 94, "file": 94, "vision": 65, "browser": 50, "image_gen": 15},
    "development": {"terminal": 80, "file": 80, "web": 30, "vision": 10},
    "safe": {"web": 80, "browser": 70, "vision": 60, "image_gen": 60},
    "balanced": {"web": 50, "vision": 50, "image_gen": 50, "terminal": 50, "file": 50, "browser": 50},
    "minimal": {"web": 100},
    "terminal_only": {"terminal": 100, "file": 100},
    "terminal_web": {"terminal": 100, "file": 100, "web": 100},
    "creative": {"image_gen": 90, "vision": 90, "web": 30},
    "reasoning": {"web": 90, "file": 60, "terminal": 20},
    "browser_use": {"browser": 100, "web": 80, "vision": 70},
    "browser_only": {"browser": 100},
    "browser_tasks": {"browser": 97, "vision": 12, "terminal": 15},
    "terminal_tasks": {"terminal": 97, "file": 97, "web": 97, "browser": 75, "vision": 50, "image_gen": 10},
    "mixed_tasks": {"browser": 92, "terminal": 92, "file": 92, "web": 35, "vision": 15, "image_gen": 15},
}
"""Tool set -> percent of the tasks that get it. Sets that do not exist here keep their place and are left out."""


def draw_tools(
    distribution: str,
    *key: object,
    settings: ToolSettings,
    disabled: Sequence[str] = (),
    own: Sequence[Tool] = (),
) -> Selection:
    """The tools of a task under a distribution; `key` is seed, benchmark and task id.

    Sets that cannot work here are never drawn; if no other was, the most probable one is taken. Raises
    ConfigurationError for an unknown distribution and for one of which nothing can work.
    """
    chances = chances_of(distribution)
    left_out: dict[str, str] = {}
    usable = []
    for name in chances:
        if name not in TOOLSETS:
            left_out[name] = ABSENT
            continue
        alone = select_tools([name], disabled, settings=settings, optional=True)
        left_out |= alone.left_out
        if any(home_of(tool.name) == name for tool in alone.tools):
            usable.append(name)
    if not usable:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items()) or "all are disabled"
        raise ConfigurationError(f"--hermes-distribution={distribution}: none of its tools can work here ({reasons})")
    drawn = [name for name in usable if _draw(*key, distribution, name) < chances[name]]
    drawn = drawn or [max(usable, key=lambda name: chances[name])]
    selection = select_tools(drawn, disabled, settings=settings, own=own, optional=True)
    return dataclasses.replace(selection, left_out=left_out, distribution=distribution)


def chances_of(distribution: str) -> Mapping[str, int]:
    """Percent by tool set. Raises ConfigurationError for an unknown name, with the closest known one."""
    if distribution not in DISTRIBUTIONS:
        raise unknown("tool set distribution", distribution, DISTRIBUTIONS)
    return DISTRIBUTIONS[distribution]


def _draw(*key: object) -> float:
    """A number in [0, 100) that depends on `key` alone."""
    digest = hashlib.sha256("\0".join(map(str, key)).encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:7], "big") / 2**56 * 100
