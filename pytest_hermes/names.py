"""Checks of names that settings may hold: agent, sandbox backend, tool sets, errors. Run at collection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_hermes.agent_tools import agent_tools
from pytest_hermes.agents.markup import check_parser_name
from pytest_hermes.agents.registry import agent_needs_model
from pytest_hermes.outcome import Policies
from pytest_hermes.sandbox.registry import check_backend

if TYPE_CHECKING:
    from pytest_hermes.benchmark import Benchmark
    from pytest_hermes.config import Settings
    from pytest_hermes.tools.tool import Tool

NO_MODEL = (
    "no model: give --model=NAME (with --hermes-base-url=URL for an endpoint of your own), --model=scripted, "
    "or --hermes-agent=oracle|nop"
)


def check_names(settings: Settings, benchmark: Benchmark | None) -> None:
    """Raise ConfigurationError, with a close match, for a name that nothing answers to."""
    env = settings.env
    check_backend(env.terminal_backend)
    agent_needs_model(env.agent)
    Policies(env.error_policy)
    if env.tool_call_parser != "auto":
        check_parser_name(env.tool_call_parser)
    if benchmark is not None:
        check_tools(settings, benchmark.toolsets, benchmark.tools)
    else:
        check_tools(settings, None)


def check_tools(settings: Settings, toolsets: Sequence[str] | None, own: Sequence[Tool] = ()) -> None:
    """Raise ConfigurationError for a tool set or distribution that is unknown or cannot work on this machine."""
    from pytest_hermes.services import tool_settings

    agent_tools(settings, tool_settings(settings), toolsets, own, benchmark="", task_id="")


def check_endpoint(settings: Settings) -> None:
    """Raise ConfigurationError for a URL, key, price or script file that cannot be used; nothing is connected."""
    openai = settings.openai
    if openai.model_name and agent_needs_model(settings.env.agent):
        from pytest_hermes.models.registry import make_model

        make_model(
            openai.model_name,
            base_url=openai.base_url,
            client=openai.client,
            api_key=openai.api_key,
            prices=openai.prices,
        )


def lacks_model(settings: Settings) -> bool:
    """Whether the agent calls a model and none is named. An agent of the user's own may do without one."""
    return settings.env.agent == "hermes" and settings.openai.model_name is None
