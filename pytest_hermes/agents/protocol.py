"""The agent seam: what turns a prompt into actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pytest_hermes.agents.result import AgentResult
from pytest_hermes.models.protocol import ChatModel, Sampling

if TYPE_CHECKING:
    from pytest_hermes.episode import Episode
    from pytest_hermes.sandbox.protocol import Sandbox
    from pytest_hermes.task import Task
    from pytest_hermes.tools.toolbox import Toolbox


class Agent(Protocol):
    """One agent for one rollout."""

    async def run(self, prompt: str, toolbox: Toolbox) -> AgentResult:
        """Work until done. Cancelled at the agent's deadline; `partial_result()`, where an agent has it, is then what
        it did so far. Exceptions: ModelError types and ContextOverflow speak for themselves, others are the agent's."""
        ...


@dataclasses.dataclass(frozen=True)
class AgentContext:
    """What an agent may use besides the toolbox. Factories that take one argument get this."""

    task: Task
    sandbox: Sandbox
    model: ChatModel | None
    """None for agents that use no model (`oracle`, `nop`) and when no `--model` was given."""
    sampling: Sampling
    system_prompt: str | None
    max_turns: int
    deadline_s: float
    """Seconds that the agent phase may take in all."""
    history_keep_rounds: int | None = None
    """Rounds of the conversation that are sent; None: all."""
    tool_call_parser: str = "auto"
    """Name of the parser for calls that the endpoint leaves in the text; `none`: they are not looked for."""
    parallel_tool_calls: bool = True
    """False: the benchmark wants the calls of one turn done strictly in order."""
    episode: Episode | None = None
    """The benchmark's, to be told of every turn; `episode.sandbox` is the `sandbox` above."""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """`env.agent_options` of the configuration."""


AgentFactory = Callable[..., Agent]
"""Called with an AgentContext if it takes a positional argument, else with none."""
