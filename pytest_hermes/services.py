"""What rollouts of one process share: sandbox providers, model clients, verifier slots, policies, threads.

Lives on the engine's loop; everything is made on first use and closed by `aclose`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_hermes.agent_tools import agent_tools
from pytest_hermes.agents.registry import agent_needs_model
from pytest_hermes.artifacts.run_directory import RunDirectory
from pytest_hermes.config import Settings
from pytest_hermes.errors import (
    ConfigurationError,
    HermesError,
    HookError,
    InfrastructureError,
    ModelNotFound,
    ModelUnauthorized,
    SandboxError,
)
from pytest_hermes.limits import Limits
from pytest_hermes.models.protocol import ChatModel
from pytest_hermes.names import NO_MODEL, lacks_model
from pytest_hermes.outcome import Policies
from pytest_hermes.sandbox.protocol import Sandbox, SandboxProvider, SandboxRequest
from pytest_hermes.shown import described
from pytest_hermes.task import Task
from pytest_hermes.threads import in_thread
from pytest_hermes.tool_context import ToolContext
from pytest_hermes.tools.toolbox import Toolbox, ToolSettings

if TYPE_CHECKING:
    from pytest_hermes.job import Job

log = logging.getLogger(__name__)
SandboxHook = Callable[[Task, Settings], AbstractAsyncContextManager[Sandbox] | None]
LIFETIME_MARGIN_S = 120.0
NOTE_EVERY_S = 1.0
KEY_VARIABLES = ("OPENAI_API_KEY", "OPENROUTER_API_KEY")


class Services:
    """See the module docstring. `make_sandbox` is the hook `pytest_hermes_make_sandbox`."""

    def __init__(self, run: RunDirectory, loop: asyncio.AbstractEventLoop, make_sandbox: SandboxHook) -> None:
        self.run = run
        self.loop = loop
        self.secrets: tuple[str, ...] = tuple(os.environ[name] for name in KEY_VARIABLES if os.environ.get(name))
        """Values that records never contain: the keys of model endpoints."""
        self._make_sandbox = make_sandbox
        self._providers: dict[tuple[Any, ...], SandboxProvider] = {}
        self._models: dict[str, ChatModel] = {}
        self._policies: dict[int, Policies] = {}
        self._verify_slots: Any = None
        self._refusals: dict[str, InfrastructureError] = {}
        self._health: dict[str, asyncio.Task[None]] = {}
        self._reaping: set[asyncio.Task[int]] = set()
        self._noted_at = -NOTE_EVERY_S

    # -- settings ------------------------------------------------------------------------------------

    def policies(self, settings: Settings) -> Policies:
        key = id(settings)
        if key not in self._policies:
            self._policies[key] = Policies(settings.env.error_policy)
        return self._policies[key]

    def needs_model(self, settings: Settings) -> bool:
        return agent_needs_model(settings.env.agent)

    async def check_usable(self, settings: Settings) -> None:
        """Raise before anything is started if the model is missing, or was refused before in this process.

        With `openai.health_check`, the endpoint is asked for its models before the first rollout.
        """
        if not self.needs_model(settings):
            return
        if lacks_model(settings):
            raise ConfigurationError(NO_MODEL)
        if refusal := self._refusals.get(_model_key(settings)):
            raise type(refusal)(f"{refusal} (not asked again)")
        if settings.openai.health_check:
            key = _model_key(settings)
            if key not in self._health:
                self._health[key] = asyncio.create_task(self._check_health(settings))
            await asyncio.shield(self._health[key])

    async def _check_health(self, settings: Settings) -> None:
        models = getattr(self._client(settings), "models", None)
        if models is not None:
            await models()

    def note_refusal(self, error: InfrastructureError, settings: Settings) -> None:
        """Remember that the endpoint does not know the model or the key, so that no further sandbox is started."""
        if isinstance(error, ModelNotFound | ModelUnauthorized) and "(not asked again)" not in str(error):
            self._refusals[_model_key(settings)] = error

    # -- sandboxes -----------------------------------------------------------------------------------

    def provider(self, settings: Settings) -> SandboxProvider:
        from pytest_hermes.sandbox.registry import make_provider

        env = settings.env
        key = (env.terminal_backend, env.sandbox_starts, env.local_confine, tuple(env.env_passthrough or ()))
        if key not in self._providers:
            self._providers[key] = make_provider(
                env.terminal_backend,
                starts=env.sandbox_starts,
                confine=env.local_confine,
                env_passthrough=tuple(env.env_passthrough or ()),
                progress=self._note_image,
            )
            self._reap_orphans(self._providers[key])
        return self._providers[key]

    def _note_image(self, line: str) -> None:
        """A step of an image's pull or build."""
        log.info("%s", line)
        done = line.startswith(("pulled ", "built "))
        now = self.loop.time()
        if done or now >= self._noted_at + NOTE_EVERY_S:
            self._noted_at = now
            self.run.note("" if done else line)

    def _reap_orphans(self, provider: SandboxProvider) -> None:
        """Remove what dead runs left on this machine, in the background; one process of the run does it."""
        flag = self.run.path / "locks" / f"reaped-{provider.backend}"
        flag.parent.mkdir(exist_ok=True)
        try:
            flag.touch(exist_ok=False)
        except FileExistsError:
            return

        async def reap() -> int:
            try:
                return await provider.reap()
            except SandboxError:
                return 0  # the backend does not answer: the rollout that needs it says so

        task = self.loop.create_task(reap())
        self._reaping.add(task)
        task.add_done_callback(self._reaping.discard)

    @contextlib.asynccontextmanager
    async def sandbox(self, job: Job, limits: Limits) -> AsyncIterator[Sandbox]:
        """A started sandbox for the job, removed at exit: from the hook if it makes one, else from the provider."""
        if (made := self._from_hook(job)) is not None:
            async with made as sandbox:
                yield sandbox
            return
        from pytest_hermes.sandbox.labels import Owner

        env = job.settings.env
        clocks = sum(
            seconds or 0.0 for seconds in (limits.provision_s, limits.build_s, limits.agent_s, limits.verify_s)
        )
        lifetime = max(env.terminal_lifetime, clocks + LIFETIME_MARGIN_S)
        sandbox = await self.provider(job.settings).create(
            SandboxRequest(
                spec=job.task.sandbox,
                labels=Owner.here(
                    run=self.run.run_id, worker=self.run.worker, item=job.node_id, lease_s=lifetime
                ).labels(),
                task_id=job.task.id,
                lifetime_s=lifetime,
                build_timeout_s=limits.build_s or 0.0,
                force_build=env.force_build,
            )
        )
        try:
            yield sandbox
        finally:
            await sandbox.close()

    def _from_hook(self, job: Job) -> AbstractAsyncContextManager[Sandbox] | None:
        try:
            made = self._make_sandbox(job.task, job.settings)
        except HermesError:
            raise
        except Exception as error:
            raise HookError(f"hook pytest_hermes_make_sandbox: {described(error)}") from error
        if made is not None and not hasattr(made, "__aenter__"):
            raise HookError(
                f"hook pytest_hermes_make_sandbox: gave a {type(made).__name__}, not an async context manager"
            )
        return made

    def toolbox(self, sandbox: Sandbox, job: Job) -> Toolbox:
        """The agent's tools."""
        settings = tool_settings(job.settings)
        if job.settings.env.vision_model:
            settings = dataclasses.replace(settings, describe_image=self._describer(job.settings))
        selection = agent_tools(
            job.settings, settings, job.toolsets, job.tools, benchmark=job.benchmark, task_id=job.task.id
        )
        return Toolbox(sandbox, selection, settings=settings, output_window=job.settings.env.terminal_output_chars)

    def _describer(self, settings: Settings) -> Callable[[bytes, str], Awaitable[str]]:
        from pytest_hermes.tools.browser.vision import describer

        openai = dataclasses.replace(settings.openai, model_name=settings.env.vision_model)
        return describer(self._client(dataclasses.replace(settings, openai=openai)))

    def tool_context(self, sandbox: Sandbox, toolbox: Toolbox, task: Task) -> ToolContext:
        """The verifier's synchronous tools: every tool set, whatever the agent had, in a shell of its own."""
        return ToolContext(toolbox, sandbox, self.loop, task_id=task.id)

    # -- model ---------------------------------------------------------------------------------------

    def model(self, settings: Settings, task: Task) -> ChatModel | None:
        """The client that the task's agent talks to; None for an agent that needs none or without a model's name."""
        if not settings.openai.model_name or not self.needs_model(settings):
            return None
        from pytest_hermes.models.registry import model_for_task

        return model_for_task(self._client(settings), task)

    def _client(self, settings: Settings) -> ChatModel:
        from pytest_hermes.models.registry import make_model

        openai = settings.openai
        key = _model_key(settings)
        if key not in self._models:
            if openai.api_key:
                self.secrets = (*self.secrets, openai.api_key)
            self._models[key] = make_model(
                openai.model_name or "",
                base_url=openai.base_url,
                client=openai.client,
                api_key=openai.api_key,
                timeout_s=openai.timeout,
                max_retries=openai.num_retries,
                prices=openai.prices,
            )
        return self._models[key]

    # -- verification ----------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def verify_slot(self, settings: Settings) -> AsyncIterator[None]:
        """One of the run's verifier places; shared by all its processes on this machine."""
        from pytest_hermes.sandbox.starts import Slots

        if self._verify_slots is None:
            places = settings.env.verify_concurrency or os.cpu_count() or 1
            self._verify_slots = Slots(self.run.path / "locks", "verify", places)
        async with self._verify_slots.slot():
            yield

    async def collect_artifacts(self, sandbox: Sandbox, job: Job) -> None:
        """Fetch the task's artifacts into the run directory; one that is missing is noted there."""
        if not job.task.artifacts:
            return
        from pytest_hermes.artifacts.collect import collect

        folder: Path = self.run.artifacts(job.task.id, job.attempt)
        await collect(sandbox, job.task.artifacts, folder, max_bytes=job.settings.env.artifacts_max_mb * 1_000_000)

    async def aclose(self) -> None:
        """Close everything that was made."""
        from pytest_hermes.tools.web import workers

        await in_thread(workers.stop_idle)
        await asyncio.gather(*self._reaping, return_exceptions=True)
        for provider in self._providers.values():
            await provider.aclose()
        for model in self._models.values():
            await model.aclose()


def tool_settings(settings: Settings) -> ToolSettings:
    env = settings.env
    return ToolSettings(
        terminal_timeout_s=env.terminal_timeout,
        default_result_size_chars=env.default_result_size_chars,
        turn_budget_chars=env.turn_budget_chars,
        preview_size_chars=env.preview_size_chars,
        tool_result_overrides=env.tool_result_overrides or {},
        context_window_tokens=env.context_window,
        tool_pool_size=env.tool_pool_size,
        web_backend=env.web_backend,
        allow_private_urls=env.allow_private_urls,
        browser_executable=env.browser_executable,
        browser_timeout_s=env.browser_timeout,
        browser_dialog_timeout_s=env.browser_dialog_timeout,
    )


def _model_key(settings: Settings) -> str:
    openai = settings.openai
    return json.dumps([openai.model_name, openai.base_url, openai.client, openai.api_key])
