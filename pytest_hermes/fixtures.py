"""The fixtures of a rollout: thin wrappers that wait for the engine. `task`, `rollout`, `ctx`, `trajectory`.

A rollout without a valid reward becomes an error of the item's set-up, never a failure. In form 2 (a benchmark) the
rollout is over, verified and recorded when the body runs; in form 1 (the mark describes the task) and wherever `ctx` is
asked for, the agent has stopped and the sandbox lives until the body is done.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NoReturn

import pytest

from pytest_hermes.failures import RolloutInvalid
from pytest_hermes.stash import rollout_key, session_key, waited_key

if TYPE_CHECKING:
    from pytest_hermes.agents.result import AgentResult
    from pytest_hermes.job import Job
    from pytest_hermes.rollout import Rollout
    from pytest_hermes.task import Task
    from pytest_hermes.tool_context import ToolContext


@pytest.fixture
def _hermes_job(request: pytest.FixtureRequest) -> Job:
    session = request.config.stash[session_key]
    job = session.job(request.node)
    if job is None:
        raise pytest.UsageError(
            f"{request.node.nodeid}: asks for a fixture of pytest-hermes, but has no mark `hermes`. "
            "Use @benchmark.parametrize or @pytest.mark.hermes(prompt=...)"
        )
    return job


@pytest.fixture
def task(_hermes_job: Job) -> Task:
    """The task of this item (`pytest_hermes.Task`)."""
    return _hermes_job.task


@pytest.fixture
def rollout(request: pytest.FixtureRequest, _hermes_job: Job) -> Rollout:
    """This item's rollout (`pytest_hermes.Rollout`); `rollout.check()` fails the test below the pass threshold."""
    return rollout_of_item(request.node)


@pytest.fixture
def ctx(request: pytest.FixtureRequest, _hermes_job: Job) -> ToolContext:
    """The tools in this item's living sandbox (`pytest_hermes.ToolContext`), after the agent has stopped."""
    rollout_of_item(request.node)
    gate = request.config.stash[session_key].submit(request.node).gate
    if gate is None or gate.ctx is None:
        raise pytest.UsageError(
            f"{request.node.nodeid}: the fixture ctx was asked for while the test ran, when the sandbox was gone. "
            "Name ctx among the test's parameters: then its sandbox is kept"
        )
    return gate.ctx


@pytest.fixture
def trajectory(request: pytest.FixtureRequest, _hermes_job: Job) -> AgentResult:
    """What the agent did (`pytest_hermes.AgentResult`): messages, usage, turns, tool errors."""
    return rollout_of_item(request.node).trajectory


def rollout_of_item(item: pytest.Item) -> Rollout:
    """Wait for the item's rollout (once per run of the item); raise RolloutInvalid if it has no valid reward."""
    if (known := item.stash.get(rollout_key, None)) is not None:
        return known
    if item.config.option.setuponly:
        pytest.skip("--setup-only starts no rollout")
    from pytest_hermes.errors import HermesError, RunAborted
    from pytest_hermes.reporting import clock_paused, describe, progress

    session = item.config.stash[session_key]
    began = time.monotonic()
    try:
        with clock_paused():  # the first one makes the run directory and loads the engine
            if session.replays is not None and (replayed := session.replays.take(item)) is not None:
                item.stash[waited_key] = time.monotonic() - began
                item.stash[rollout_key] = replayed
                describe(item, replayed)
                return replayed
            handle = session.submit(item)
            session.pump()
            session.engine.wait_for(handle, progress(item.config))
        open_rollout = handle.gate.rollout if handle.gate is not None and handle.open else None
        rollout = open_rollout or handle.done.result()
    except RunAborted as error:
        _end_run(item, f"rollouts were cancelled: {error}")
    except HermesError as error:
        raise RolloutInvalid(str(error)) from None
    item.stash[waited_key] = time.monotonic() - began
    item.stash[rollout_key] = rollout
    describe(item, rollout)
    if rollout.cause == "cancelled" and session.engine.aborted:
        _end_run(item, f"rollouts were cancelled: {session.engine.aborted}")
    if rollout.outcome == "invalid" and open_rollout is None:
        raise RolloutInvalid(rollout.explain())
    return rollout


def _end_run(item: pytest.Item, reason: str) -> NoReturn:
    """Run nothing more in this process. A worker of xdist that exits is reported as a crash of its item, so there the
    item is skipped and the worker's loop asked to end."""
    if not item.config.stash[session_key].on_worker:
        pytest.exit(reason, returncode=pytest.ExitCode.INTERRUPTED)
    item.session.shouldstop = reason
    pytest.skip(reason)
