"""One attempt at one task: provision -> agent -> verify -> teardown, each phase under its own clock.

`run_rollout` is the only code path: everything that wants a rollout calls it. It never raises: whatever happens becomes
an outcome and a cause by the table in `outcome.py`, with what the agent did until then kept. The sandbox is always
removed, also when the rollout is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import time
import traceback
from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pytest_hermes import limits as limits_module
from pytest_hermes.agents.protocol import AgentContext
from pytest_hermes.agents.result import NOT_RUN, AgentResult
from pytest_hermes.benchmark import Verdict, Verification, Verifier, as_verdict, is_asynchronous
from pytest_hermes.bridge import drive
from pytest_hermes.errors import (
    AgentError,
    AgentTimeout,
    ContextOverflow,
    HermesError,
    HookError,
    InfrastructureError,
    RunAborted,
    SandboxStartError,
    TaskError,
    VerifierError,
    VerifierTimeout,
)
from pytest_hermes.job import BodyGate, Job
from pytest_hermes.models.protocol import ChatModel, Sampling, Usage
from pytest_hermes.outcome import Policies
from pytest_hermes.rollout import Rollout
from pytest_hermes.shown import described
from pytest_hermes.threads import in_thread

if TYPE_CHECKING:
    from pytest_hermes.episode import Episode
    from pytest_hermes.sandbox.protocol import Sandbox
    from pytest_hermes.services import Services
    from pytest_hermes.tools.toolbox import Toolbox

VERIFY_MARGIN_S = 15.0
"""For a verifier that keeps its clock itself: what uploading the tests and reading the reward may take on top of it."""
GRACE_S = 5.0
"""What an agent or verifier may take to end once it was told to; then its rollout goes on without it."""
TAIL_CHARS = 4000
TRACEBACK_CHARS = 10_000

T = TypeVar("T")


async def run_rollout(job: Job, services: Services, gate: BodyGate | None = None, queued_s: float = 0.0) -> Rollout:
    """Roll out one attempt to its end. Never raises; see the module docstring.

    With a `gate`, the sandbox stays alive until the test body has judged. Infrastructure errors before that are
    retried `env.retries` times in a new sandbox.
    """
    env = job.settings.env
    policies = services.policies(job.settings)
    tries: list[dict[str, Any]] = []
    started = time.time()
    while True:
        rollout = await _Try(job, services, policies, gate).run()
        rollout.started, rollout.tries, rollout.clocks.queued_s = started, tries, queued_s
        error = rollout.policy_error
        body_ran = gate is not None and gate.ctx is not None
        if error is None or not policies.of(error).retry or len(tries) >= env.retries or body_ran:
            return rollout
        tries.append({"cause": rollout.cause, "error": rollout.error, "clocks": dataclasses.asdict(rollout.clocks)})
        try:
            await asyncio.sleep(min(env.retry_backoff * 2 ** (len(tries) - 1), 60.0))
        except asyncio.CancelledError:
            rollout.outcome, rollout.cause, rollout.error = "invalid", "cancelled", "the run was stopped"
            return rollout


class _Try:
    """One pass through the four phases."""

    def __init__(self, job: Job, services: Services, policies: Policies, gate: BodyGate | None) -> None:
        self.job, self.services, self.policies, self.gate = job, services, policies, gate
        self.task, self.settings = job.task, job.settings
        self.limits = job.effective_limits()
        self.toolbox: Toolbox
        self.stack = contextlib.AsyncExitStack()
        self.episode: Episode | None = None
        self.model: ChatModel | None = None
        self.stop_error: BaseException | None = None
        self.rollout = Rollout(
            benchmark=job.benchmark,
            task=job.task,
            attempt=job.attempt,
            node_id=job.node_id,
            pass_threshold=job.pass_threshold,
            agent=job.settings.env.agent,
            model=job.settings.openai.model_name if services.needs_model(job.settings) else None,
            trajectory=AgentResult(messages=[], stop_reason=NOT_RUN),
        )

    async def run(self) -> Rollout:
        rollout = self.rollout
        error: BaseException | None = None
        rollout.started = time.time()
        try:
            if self.task.error:
                raise TaskError(self.task.error)
            if self.settings.env.agent == "oracle" and self.task.solution is None:
                raise TaskError(f"task {self.task.id} has no solution, which --hermes-agent=oracle would run")
            await self.services.check_usable(self.settings)
            self.model = self.services.model(self.settings, self.task)
            async with self.provisioned() as sandbox:
                await self.act(sandbox)
                await self.judge(sandbox)
        except BaseException as raised:  # noqa: BLE001 - the boundary: whatever happens becomes an outcome
            error = RunAborted("the run was stopped") if is_cancelled(raised) else raised
        self.conclude(error)
        rollout.finished = time.time()
        return rollout

    # -- provision and teardown --------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def provisioned(self) -> AsyncIterator[Sandbox]:
        """The task's sandbox, ready for the agent; removed afterwards under its own clock."""
        rollout = self.rollout
        allowed = (self.limits.provision_s or 0) + ((self.limits.build_s or 0) if self.task.sandbox.needs_image else 0)
        try:
            with rollout.clocks.running("provision"):
                try:
                    async with asyncio.timeout(allowed) as clock:
                        sandbox = await self.stack.enter_async_context(self.services.sandbox(self.job, self.limits))
                        rollout.sandbox = {
                            "backend": sandbox.backend,
                            "id": sandbox.id,
                            "image": getattr(sandbox, "image", None),
                        }
                        await self.set_up(sandbox)
                        if self.job.episode is not None:
                            from pytest_hermes.episode import EpisodeContext, begun

                            context = EpisodeContext(self.task, sandbox, self.settings)
                            self.episode = await self.stack.enter_async_context(begun(self.job.episode, context))
                except TimeoutError as error:
                    if not clock.expired():
                        raise
                    raise SandboxStartError(f"provisioning did not end within {allowed:g} s") from error
            yield sandbox
        finally:
            with rollout.clocks.running("teardown"):
                await self.tear_down()

    async def set_up(self, sandbox: Sandbox) -> None:
        if self.task.files is not None:
            await sandbox.upload_tar(self.task.files.tar(), sandbox.workdir)
        if self.task.sandbox.healthcheck is not None:
            from pytest_hermes.verification import wait_healthy

            await wait_healthy(sandbox, self.task.sandbox.healthcheck)

    async def tear_down(self) -> None:
        """End the tools and remove the sandbox, also while the rollout is being cancelled; failures are noted."""
        closing = asyncio.ensure_future(self.stack.aclose())
        try:
            async with asyncio.timeout(self.limits.teardown_s):
                await asyncio.shield(closing)
        except TimeoutError:
            closing.cancel()
            self.rollout.sandbox["teardown_error"] = f"not removed within {self.limits.teardown_s:g} s"
        except asyncio.CancelledError:
            await asyncio.wait([closing], timeout=self.limits.teardown_s)
            raise
        except HermesError as error:
            self.rollout.sandbox["teardown_error"] = str(error)

    # -- agent -------------------------------------------------------------------------------------

    async def act(self, sandbox: Sandbox) -> None:
        """Run the agent under its clock. What stops it but leaves something to verify is kept in `stop_error`."""
        from pytest_hermes.agents.registry import make_agent

        job, env, rollout = self.job, self.settings.env, self.rollout
        seconds = self.limits.agent_s or limits_module.DEFAULTS.agent_s or 0.0
        if self.episode is not None:
            sandbox = self.episode.sandbox
        context = AgentContext(
            task=self.task,
            sandbox=sandbox,
            model=self.model,
            sampling=Sampling(
                temperature=env.agent_temperature, max_tokens=env.max_token_length, extra_body=env.extra_body or {}
            ),
            system_prompt=self.task.system_prompt if env.system_prompt is None else env.system_prompt,
            max_turns=self.limits.max_turns or env.max_agent_turns,
            deadline_s=seconds,
            history_keep_rounds=env.history_keep_rounds,
            tool_call_parser=env.tool_call_parser,
            parallel_tool_calls=job.parallel_tools,
            episode=self.episode,
            options=dict(env.agent_options or {}),
        )
        agent = make_agent(env.agent, context)
        self.toolbox = toolbox = self.services.toolbox(sandbox, job)
        toolbox.workspace.episode = self.episode
        rollout.toolsets = toolbox.selection.record()
        self.stack.push_async_callback(toolbox.state.aclose)
        rollout.trajectory = AgentResult(messages=[{"role": "user", "content": self.task.prompt}], stop_reason="error")
        try:
            with rollout.clocks.running("agent"):
                late = AgentTimeout(f"the agent's {seconds:g} s were used up")
                result = await self._within(seconds, agent.run(self.task.prompt, toolbox), late=late, who="agent")
                rollout.trajectory = checked_result(result, env.agent)
        except BaseException as raised:
            error = self._agent_error(raised)
            self._keep_partial(agent, toolbox, error)
            if not isinstance(error, Exception) or not self.policies.of(error).verify:
                raise error from raised
            self.stop_error = error
        finally:
            await toolbox.aclose()

    async def _within(self, seconds: float, work: Coroutine[Any, Any, T], *, late: HermesError, who: str) -> T:
        """What `work` gives. Raises `late` once its time is over, whether or not it then stops; what it gives or raises
        after that does not count."""
        task = asyncio.create_task(work)
        try:
            done, _ = await asyncio.wait([task], timeout=seconds)
        except asyncio.CancelledError:
            await self._stop(task, who)
            raise
        if not done:
            await self._stop(task, who)
            raise late
        return task.result()

    async def _stop(self, task: asyncio.Task[Any], who: str) -> None:
        """Cancel it and wait a little; one that does not listen is left to itself, without its sandbox."""
        task.cancel()
        stopped, _ = await asyncio.wait([task], timeout=GRACE_S)
        if stopped and not task.cancelled():
            task.exception()  # seen: what it raised while being stopped does not matter
        self.rollout.trajectory.metadata.update({} if stopped else {f"{who}_did_not_stop": True})

    def _agent_error(self, raised: BaseException) -> BaseException:
        if isinstance(raised, HermesError) or is_cancelled(raised):
            return raised
        return AgentError(f"agent {self.settings.env.agent}: {described(raised)}")

    def _keep_partial(self, agent: object, toolbox: Toolbox, error: BaseException) -> None:
        partial = getattr(agent, "partial_result", None)
        result = partial() if callable(partial) else None
        if isinstance(result, AgentResult):
            self.rollout.trajectory = result
        else:
            self.rollout.trajectory.metadata["tool_calls"] = [dataclasses.asdict(call) for call in toolbox.calls]
            self.rollout.trajectory.tool_schemas = toolbox.schemas
        reasons = {AgentTimeout: "timeout", ContextOverflow: "context_overflow", asyncio.CancelledError: "cancelled"}
        self.rollout.trajectory.stop_reason = reasons.get(type(error), "error")
        self.rollout.trajectory.error = self.rollout.trajectory.error or str(error) or type(error).__name__

    # -- verification ------------------------------------------------------------------------------

    async def judge(self, sandbox: Sandbox) -> None:
        """Verify in the same sandbox; a verifier without a reward runs once more there. Then the body's turn."""
        rollout = self.rollout
        with rollout.clocks.running("verify"):
            await sandbox.check()
            if self.job.verify is not None:
                await self.verify(sandbox, self.job.verify)
            if self.gate is not None:
                ctx = self.services.tool_context(sandbox, self.toolbox, self.task)
                try:
                    await self.gate.judgement(rollout, ctx)
                finally:
                    await ctx.aclose()
        await self.services.collect_artifacts(sandbox, self.job)

    async def verify(self, sandbox: Sandbox, verifier: Verifier) -> None:
        rollout = self.rollout
        rollout.verifier = {"runs": 0}
        async with self.services.verify_slot(self.settings):
            while True:
                rollout.verifier["runs"] += 1
                rollout.verifier["load"] = round(os.getloadavg()[0], 2)
                try:
                    verdict = await self._verify_once(sandbox, verifier)
                except VerifierError as error:
                    rollout.verifier["output"] = error.output[-TAIL_CHARS:]
                    await sandbox.check()
                    if rollout.verifier["runs"] > 1 or not self.policies.of(error).reverify:
                        raise
                    continue
                rollout.verdict, rollout.reward = verdict, verdict.reward
                rollout.verifier.update(
                    output=verdict.output[-TAIL_CHARS:], exit_code=verdict.exit_code, evidence=verdict.evidence
                )
                return

    async def _verify_once(self, sandbox: Sandbox, verifier: Verifier) -> Verdict:
        seconds = self.limits.verify_s or limits_module.DEFAULTS.verify_s or 0.0
        ctx = self.services.tool_context(sandbox, self.toolbox, self.task)
        verification = Verification(
            self.task,
            sandbox,
            ctx,
            self.rollout.trajectory,
            seconds,
            self.settings,
            episode=self.episode,
            keep=functools.partial(self.services.run.keep, self.task.id, self.job.attempt),
            another_sandbox=functools.partial(self.services.sandbox, self.job, self.limits),
        )
        # It may run twice, each time under the same clock.
        margin = seconds + 2 * VERIFY_MARGIN_S if getattr(verifier, "keeps_own_clock", False) else 0.0
        late = VerifierTimeout(f"the verifier did not end within {seconds:g} s")
        try:
            work = _judge(verifier, verification)
            return as_verdict(await self._within(seconds + margin, work, late=late, who="verifier"))
        except HermesError:
            raise
        except (AssertionError, pytest.fail.Exception) as error:
            return Verdict(0.0, output=str(error))
        except BaseException as error:
            if is_cancelled(error):
                raise
            raise VerifierError(f"the verifier raised {described(error)}") from error
        finally:
            await ctx.aclose()

    # -- outcome -----------------------------------------------------------------------------------

    def conclude(self, error: BaseException | None) -> None:
        """Turn what happened into outcome, cause and reward."""
        rollout = self.rollout
        rollout.policy_error = error
        if error is not None:
            policy = self.policies.of(error)
            rollout.cause = policy.cause
            rollout.error = str(error) if isinstance(error, HermesError) and str(error) else described(error)
            if _is_of_users_code(error):
                rollout.traceback = "".join(traceback.format_exception(error.__cause__ or error))[-TRACEBACK_CHARS:]
            if not policy.valid_reward:
                rollout.outcome, rollout.reward = "invalid", None
                if isinstance(error, InfrastructureError):
                    self.services.note_refusal(error, self.settings)
                return
            rollout.reward = 0.0
        elif self.stop_error is not None:
            rollout.cause, rollout.error = self.policies.of(self.stop_error).cause, str(self.stop_error)
        elif rollout.trajectory.stop_reason not in ("finished", "ended", "error"):
            rollout.cause = rollout.trajectory.stop_reason
        if error is None and rollout.verdict is not None and rollout.verdict.cause:
            rollout.cause = rollout.verdict.cause
        judged = rollout.verdict_passed if error is None else None
        enough = (rollout.reward or 0.0) >= rollout.pass_threshold if judged is None else judged
        rollout.outcome = "passed" if (rollout.body_passed if self.gate is not None else enough) else "failed"
        if rollout.outcome == "failed" and rollout.cause is None:
            rollout.cause = "reward_below_threshold" if judged is None else "not_passed"


def _is_of_users_code(error: BaseException) -> bool:
    """Whether its traceback tells more than its message: of an agent, a verifier, a hook, or a fault of this package.
    What sandboxes and models fail with leads through this package only."""
    if not isinstance(error, HermesError):
        return True
    theirs = isinstance(error, AgentError | HookError) or type(error) is VerifierError
    return theirs and error.__cause__ is not None


async def _judge(verifier: Verifier, verification: Verification) -> Any:
    """What the verifier gives, wherever it has to run."""
    if is_asynchronous(verifier):
        return await drive(verifier(verification))  # type: ignore[arg-type]
    result = await in_thread(verifier, verification)
    if isinstance(result, Coroutine):  # of a plain function around an asynchronous one
        return await drive(result)
    return result


def is_cancelled(error: BaseException) -> bool:
    """Whether this rollout itself is being cancelled; an agent or verifier may raise CancelledError by mistake."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def checked_result(result: object, agent: str) -> AgentResult:
    """An agent's return value. Raises AgentError unless it is an AgentResult with messages and a Usage."""
    if not isinstance(result, AgentResult):
        raise AgentError(f"agent {agent}: run() returned {type(result).__name__}, not an AgentResult")
    for name, kind in (("messages", list), ("usage", Usage), ("turns", list), ("metadata", dict)):
        if not isinstance(value := getattr(result, name), kind):
            raise AgentError(f"agent {agent}: its AgentResult has {name}={value!r}, not of type {kind.__name__}")
    return result
