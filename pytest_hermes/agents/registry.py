"""From the name on the command line to an agent: `hermes`, `oracle`, `nop`, or a user's `package.module:Factory`."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from pytest_hermes.agents.loop import HermesAgentLoop
from pytest_hermes.agents.nop import NopAgent
from pytest_hermes.agents.oracle import OracleAgent
from pytest_hermes.agents.protocol import Agent, AgentContext, AgentFactory
from pytest_hermes.errors import ConfigurationError

HERMES_OPTIONS = ("loop_limit", "parallel_tool_calls")
"""What `env.agent_options` may hold for the `hermes` agent."""


def make_agent(name: str, context: AgentContext) -> Agent:
    """The agent called `name`, for one rollout. ConfigurationError for a name, module or option that is not there."""
    return _agent_of(name, find_agent(name), context)


def find_agent(name: str) -> AgentFactory:
    """The factory behind a name, imported from `sys.path` for `package.module:Factory`. Raises ConfigurationError."""
    if name in _BUILTIN:
        return _BUILTIN[name]
    if ":" not in name:
        close = difflib.get_close_matches(name, _BUILTIN, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(_BUILTIN)}, or package.module:Factory"
        raise ConfigurationError(f"--hermes-agent={name}: no such agent; {hint}")
    module_name, _, path = name.partition(":")
    asked = f"--hermes-agent={name}"
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise ConfigurationError(
                f"{asked}: there is no module {module_name!r} on sys.path (pytest's rootdir is on it when pytest "
                "is started with `python -m pytest`, or set pythonpath in its ini file)"
            ) from error
        raise ConfigurationError(f"{asked}: {module_name} imports {error.name!r}, which is not installed") from error
    except ImportError as error:
        raise ConfigurationError(f"{asked}: {module_name} cannot be imported: {error}") from error
    for part in path.split("."):
        names = [other for other in vars(found) if not other.startswith("_")] if hasattr(found, "__dict__") else []
        if not hasattr(found, part):
            close = difflib.get_close_matches(part, names, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigurationError(f"{asked}: {module_name} has no {path!r}{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigurationError(f"{asked}: {path!r} is a {type(found).__name__}, not a class or function")
    factory: AgentFactory = found
    return factory


def agent_needs_model(name: str) -> bool:
    """Whether this agent is given the model: `oracle` and `nop` are not, nor is one that says `needs_model = False`."""
    return bool(getattr(find_agent(name), "needs_model", True))


def _hermes(context: AgentContext) -> HermesAgentLoop:
    if context.model is None:
        raise ConfigurationError("--hermes-agent=hermes needs a model: give --model NAME (or --model=scripted)")
    for key in context.options:
        if key not in HERMES_OPTIONS:
            close = difflib.get_close_matches(key, HERMES_OPTIONS, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(HERMES_OPTIONS)}"
            raise ConfigurationError(f"env.agent_options: unknown option {key!r} of the hermes agent; {hint}")
    return HermesAgentLoop(
        context.model,
        max_turns=context.max_turns,
        task_id=context.task.id,
        temperature=context.sampling.temperature,
        max_tokens=context.sampling.max_tokens,
        extra_body=context.sampling.extra_body,
        system_prompt=context.system_prompt,
        deadline_s=context.deadline_s,
        history_keep_rounds=context.history_keep_rounds,
        tool_call_parser=context.tool_call_parser,
        episode=context.episode,
        **{
            **context.options,
            "parallel_tool_calls": context.parallel_tool_calls and context.options.get("parallel_tool_calls", True),
        },
    )


_BUILTIN: dict[str, Callable[..., Agent]] = {"hermes": _hermes, "oracle": OracleAgent, "nop": NopAgent}


def _agent_of(name: str, factory: AgentFactory, context: AgentContext) -> Agent:
    agent = factory(context) if _takes_positional(factory) else factory()
    if not callable(getattr(agent, "run", None)):
        raise ConfigurationError(
            f"--hermes-agent={name}: the factory gave a {type(agent).__name__}, which has no "
            "`async def run(self, prompt, toolbox)`"
        )
    return agent


@functools.lru_cache(maxsize=64)
def _takes_positional(factory: AgentFactory) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return False
    kind = inspect.Parameter
    positional = (kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD, kind.VAR_POSITIONAL)
    return any(parameter.kind in positional for parameter in parameters)
