"""What is handed to the engine: a job, and the gate through which a test body judges a living rollout."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

from pytest_hermes import limits as limits_module
from pytest_hermes.benchmark import Verifier
from pytest_hermes.config import Settings
from pytest_hermes.limits import Limits
from pytest_hermes.task import Task

if TYPE_CHECKING:
    from pytest_hermes.episode import EpisodeFactory
    from pytest_hermes.rollout import Rollout
    from pytest_hermes.tool_context import ToolContext
    from pytest_hermes.tools.tool import Tool


@dataclasses.dataclass(frozen=True)
class Job:
    """What is to be rolled out: one attempt at a task under one benchmark's settings."""

    benchmark: str
    task: Task
    attempt: int
    node_id: str
    settings: Settings
    verify: Verifier | None
    """None: the test body judges, through the rollout's `BodyGate`."""
    pass_threshold: float = 1.0
    toolsets: tuple[str, ...] | None = None
    """What the benchmark or mark chooses; the settings may say otherwise."""
    tools: tuple[Tool, ...] = ()
    """The benchmark's or mark's own tools, on top of what is chosen."""
    limits: Limits = Limits()
    """The benchmark's limits, for tasks that declare none."""
    parallel_tools: bool = True
    """May the calls of one turn run at the same time?"""
    episode: EpisodeFactory | None = None
    agent_cap_s: float | None = None
    """From a `timeout` mark or `--timeout`: lowers the agent's clock."""

    def effective_limits(self) -> Limits:
        """The task's limits over the benchmark's over the settings' over the package's, scaled.

        With `env.limits_from` the settings' come first."""
        env = self.settings.env
        configured = Limits(
            provision_s=env.provision_timeout,
            build_s=env.build_timeout,
            agent_s=env.task_timeout,
            verify_s=env.test_timeout,
            teardown_s=env.teardown_timeout,
            max_turns=env.max_agent_turns,
        )
        own = self.task.limits.over(self.limits)
        chosen = configured.over(own) if env.limits_from == "settings" else own.over(configured)
        full = chosen.over(limits_module.DEFAULTS)
        scaled = full.scaled(env.timeout_multiplier)
        if self.agent_cap_s is not None and self.agent_cap_s > 0:
            scaled = dataclasses.replace(scaled, agent_s=min(scaled.agent_s or self.agent_cap_s, self.agent_cap_s))
        return scaled


class BodyGate:
    """Hands a living rollout to the test body and its judgement back; one per item that judges in its body."""

    def __init__(self) -> None:
        self._judged: asyncio.Event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.ctx: ToolContext | None = None
        self.rollout: Rollout | None = None
        self.error: BaseException | None = None
        self.opened: Any = lambda: None
        """Called on the engine's loop once the body may run."""

    async def judgement(self, rollout: Rollout, ctx: ToolContext) -> None:
        """Let the body run and wait until it has judged; raises the error it ended with, if any."""
        self._loop = asyncio.get_running_loop()
        self.rollout, self.ctx = rollout, ctx
        self.opened()
        await self._judged.wait()
        if self.error is not None:
            raise self.error

    def judge(self, error: BaseException | None = None) -> None:
        """From the test's thread: the body is over; `error` if it could not judge. Later calls do nothing."""
        loop, self._loop = self._loop, None
        if loop is not None:
            self.error = error
            loop.call_soon_threadsafe(self._judged.set)
