"""Which tools a rollout's agent gets: a distribution's draw, else what the settings choose, else the benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_hermes.config import Settings
from pytest_hermes.tools.toolsets import Selection, select_tools

if TYPE_CHECKING:
    from pytest_hermes.tools.tool import Tool
    from pytest_hermes.tools.toolbox import ToolSettings


def agent_tools(
    settings: Settings,
    tool_settings: ToolSettings,
    toolsets: Sequence[str] | None,
    own: Sequence[Tool] = (),
    *,
    benchmark: str,
    task_id: str,
) -> Selection:
    """The agent's tools in a task of a benchmark that itself chooses `toolsets` and brings its `own` tools.

    All attempts of a task get the same. Raises ConfigurationError for what is unknown or cannot work here.
    """
    env = settings.env
    disabled = env.disabled_toolsets or ()
    if env.distribution is not None:
        from pytest_hermes.tools.distributions import draw_tools

        key = (env.seed, benchmark, task_id)
        return draw_tools(env.distribution, *key, settings=tool_settings, disabled=disabled, own=own)
    enabled = env.enabled_toolsets if env.enabled_toolsets is not None else toolsets
    return select_tools(enabled, disabled, settings=tool_settings, own=own)
