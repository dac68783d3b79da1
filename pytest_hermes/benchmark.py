"""A benchmark: tasks, how they are verified, and defaults. `@benchmark.parametrize` makes a test of each task."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import pytest

from pytest_hermes.config import Settings, hint, load_yaml, names
from pytest_hermes.errors import ConfigurationError, RewardUnreadable, VerifierError, VerifierNoReward
from pytest_hermes.limits import Limits
from pytest_hermes.task import Task

if TYPE_CHECKING:
    from pytest_hermes.agents.result import AgentResult
    from pytest_hermes.datasets.dataset import Provenance
    from pytest_hermes.episode import Episode, EpisodeFactory
    from pytest_hermes.sandbox.protocol import Sandbox
    from pytest_hermes.tool_context import ToolContext
    from pytest_hermes.tools.tool import Tool

Function = TypeVar("Function", bound=Callable[..., Any])
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_CAUSE = re.compile(r"[a-z][a-z0-9_]*")
_DETAIL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")


@dataclasses.dataclass
class Verdict:
    """What a verifier found: a reward in [0, 1], named components, and what to keep about it."""

    reward: float
    components: dict[str, float] = dataclasses.field(default_factory=dict)
    output: str = ""
    """Tail of what the verifier printed."""
    exit_code: int | None = None
    evidence: list[str] = dataclasses.field(default_factory=list)
    """Signs of tampering, each one sentence."""
    cause: str | None = None
    """The rollout's cause where the verifier found one: `tampering`."""
    details: dict[str, str | int | float | bool | None] = dataclasses.field(default_factory=dict)
    """What else it found, by full name: `yc.status`. In rows, and under that name in reports."""
    passed: bool | None = None
    """Whether it passes, where the reward alone does not say; None: it does from the benchmark's `pass_threshold`."""


@dataclasses.dataclass(frozen=True)
class Verification:
    """What a verifier may use. The agent has stopped; the sandbox is alive and unchanged since."""

    task: Task
    sandbox: Sandbox
    """Asynchronous, on the engine's loop: for `async def` verifiers."""
    ctx: ToolContext
    """Synchronous, also in an `async def`: its calls wait there as an `await` does, and the loop goes on."""
    trajectory: AgentResult
    timeout_s: float
    """The verifier's clock; the engine enforces it."""
    settings: Settings
    episode: Episode | None = None
    """The benchmark's, still going on."""
    keep: Callable[[str, bytes], Path] | None = None
    """Writes a file (name, content) among the attempt's artifacts in the run directory; where it is."""
    another_sandbox: Callable[[], AbstractAsyncContextManager[Sandbox]] | None = None
    """A sandbox like this one that no agent was in, for as long as the `async with` lasts."""


VerifierResult = Verdict | float | bool | Mapping[str, float]
Verifier = Callable[[Verification], VerifierResult | Awaitable[VerifierResult]]
VerifierFunction = TypeVar("VerifierFunction", bound=Verifier)


@runtime_checkable
class TaskSet(Protocol):
    """Tasks that are kept somewhere and found by the settings (`datasets.dataset.Dataset`)."""

    def load(self, settings: Settings, run_id: str) -> tuple[list[Task], Provenance]:
        """The tasks and where they came from; the same ones for all processes of a run."""
        ...


TaskSource = Sequence[Task] | Callable[[Settings], Iterable[Task]] | TaskSet


class Benchmark:
    """A named set of tasks with their verifier.

    `tasks` is a list, a function of the settings, or a data set (`rows`). `verify` gets a `Verification`; an `async
    def` runs on the engine's loop, a plain function in a thread; it returns a reward, a bool, a mapping of components
    with `reward`, or a `Verdict`. A rollout passes from `pass_threshold`, unless the `Verdict` says whether. `defaults`
    is a settings YAML (a path) or mapping. `limits` are for tasks that declare none. `toolsets` is what the agent gets
    unless the settings say otherwise; `tools` are the benchmark's own (functions, see `tool`), which it gets besides.
    `parallel_tools` False makes calls of one turn run strictly in order. `backend_skips` are tasks that a backend
    cannot run: backend -> task id -> the reason that their items are skipped with; `unavailable` says why none can run
    here, if so. `episode` makes what goes on beside the agent (`pytest_hermes.episode`). `section` is the import path
    `package.module:function` of what adds a section to the run's summary (`pytest_hermes.artifacts.sections`).
    """

    def __init__(
        self,
        name: str,
        *,
        tasks: TaskSource,
        verify: Verifier,
        pass_threshold: float = 1.0,
        defaults: Path | Mapping[str, Any] | None = None,
        limits: Limits = Limits(),
        toolsets: Sequence[str] = ("terminal", "file"),
        tools: Sequence[Any] = (),
        parallel_tools: bool = True,
        backend_skips: Mapping[str, Mapping[str, str]] | None = None,
        unavailable: Callable[[Settings], str | None] | None = None,
        episode: EpisodeFactory | None = None,
        section: str | None = None,
    ) -> None:
        if section is not None and not _IMPORT_PATH.fullmatch(section):
            raise ConfigurationError(
                f"benchmark {name}: section={section!r} is not an import path like 'package.module:function'"
            )
        self.name = name
        self.verify = verify
        self.pass_threshold = pass_threshold
        self.defaults = defaults
        self.limits = limits
        self.toolsets = tuple(toolsets)
        self.tools: tuple[Tool, ...] = ()
        if tools:
            from pytest_hermes.tools.own import own_tools

            self.tools = own_tools(tools, f"benchmark {name}")
        self.parallel_tools = parallel_tools
        self.backend_skips = backend_skips or {}
        self.section = section
        self.unavailable = unavailable
        self.episode = episode
        self.provenance: Provenance | None = None
        """Where the tasks that were loaded last came from, if they are a data set."""
        self._tasks = tasks

    def parametrize(self, function: Function) -> Function:
        """Run the test once per task and attempt; ask for the fixture `rollout` (or `ctx`, `task`, `trajectory`)."""
        return pytest.mark.hermes(benchmark=self)(function)  # type: ignore[no-any-return]

    def default_layer(self) -> dict[str, Any]:
        """The benchmark's own settings layer."""
        if isinstance(self.defaults, Path):
            return load_yaml(self.defaults)
        return dict(self.defaults or {})

    def skip_reason(self, task: Task, settings: Settings) -> str | None:
        """Why the task is not run with these settings; None if it is."""
        backend = settings.env.terminal_backend
        if self.unavailable is not None and (missing := self.unavailable(settings)):
            return missing
        reason = self.backend_skips.get(backend, {}).get(task.id)
        return f"cannot run with --hermes-sandbox={backend}: {reason}" if reason else None

    def _given(self, settings: Settings, run_id: str) -> Iterable[Task]:
        if isinstance(self._tasks, TaskSet):
            found, self.provenance = self._tasks.load(settings, run_id)
            return found
        if not callable(self._tasks):
            return self._tasks
        try:
            inspect.signature(self._tasks).bind(settings)
        except TypeError as error:
            raise ConfigurationError(
                f"benchmark {self.name}: tasks=... is called with the settings, and does not take them ({error})"
            ) from error
        return self._tasks(settings)

    def load(self, settings: Settings, run_id: str = "") -> list[Task]:
        """The tasks to run under these settings, in the benchmark's order, filters applied. All processes of the run
        `run_id` get the same ones.

        Raises ConfigurationError for an unknown name in a filter, for two tasks of one id and for no task at all.
        """
        found = list(self._given(settings, run_id))
        if not found:
            raise ConfigurationError(f"benchmark {self.name}: it has no task")
        by_id: dict[str, Task] = {}
        for task in found:
            if not isinstance(task, Task):
                raise ConfigurationError(f"benchmark {self.name}: its tasks hold a {type(task).__name__}, not a Task")
            if task.id in by_id:
                raise ConfigurationError(f"benchmark {self.name}: two tasks are called {task.id!r}")
            by_id[task.id] = task
        wanted, unwanted = names(settings.env.task_filter), names(settings.env.skip_tasks)
        for option, chosen in (("--hermes-task", wanted), ("--hermes-skip-task", unwanted)):
            for name in chosen:
                if name not in by_id:
                    raise ConfigurationError(f"{option}: benchmark {self.name} has no task {name!r}{hint(name, by_id)}")
        left = [task for task in found if (not wanted or task.id in wanted) and task.id not in unwanted]
        if not left:
            raise ConfigurationError(f"benchmark {self.name}: --hermes-task and --hermes-skip-task leave no task")
        return left


def keeps_own_clock(verify: VerifierFunction) -> VerifierFunction:
    """Mark a verifier that ends its own work at `Verification.timeout_s`: what it does around that is not counted."""
    setattr(verify, "keeps_own_clock", True)  # noqa: B010 - functions have no such attribute by type
    return verify


def is_asynchronous(verify: Verifier) -> bool:
    """Whether a verifier runs on the engine's loop."""
    return inspect.iscoroutinefunction(verify) or inspect.iscoroutinefunction(type(verify).__call__)


def as_verdict(result: VerifierResult | None) -> Verdict:
    """A verifier's return value as a Verdict.

    Raises RewardUnreadable for anything but a reward in [0, 1], VerifierError for details that rows cannot hold.
    """
    if result is None:
        raise VerifierNoReward("the verifier returned None, not a reward")
    if isinstance(result, Verdict):
        verdict = result
    elif isinstance(result, Mapping):
        verdict = reward_of_object(dict(result))
    elif isinstance(result, bool | int | float):
        verdict = Verdict(float(result))
    else:
        raise RewardUnreadable(f"the verifier returned {type(result).__name__}, not a reward")
    verdict.reward = valid_reward(verdict.reward, verdict.output)
    if why := _unusable(verdict):
        raise VerifierError(f"the verifier's Verdict: {why}", output=verdict.output)
    return verdict


def _unusable(verdict: Verdict) -> str | None:
    """What is wrong with what a verdict says besides its reward."""
    if not isinstance(verdict.passed, bool | None):
        return f"passed={verdict.passed!r} is neither True, False nor None"
    if not isinstance(verdict.output, str):
        return f"output is of type {type(verdict.output).__name__}, not str"
    if not isinstance(verdict.cause, str | None) or (verdict.cause is not None and not _CAUSE.fullmatch(verdict.cause)):
        return f"cause={verdict.cause!r} is no slug (letters, digits, '_')"
    if not isinstance(verdict.evidence, list) or not all(isinstance(sign, str) for sign in verdict.evidence):
        return f"evidence={verdict.evidence!r} is not a list of sentences"
    if not isinstance(verdict.components, dict) or not all(
        isinstance(name, str) and isinstance(value, int | float) and math.isfinite(value)
        for name, value in verdict.components.items()
    ):
        return f"components={verdict.components!r} are not names with finite numbers"
    if not isinstance(verdict.details, dict):
        return f"details are of type {type(verdict.details).__name__}, not dict"
    for name, value in verdict.details.items():
        if not isinstance(name, str) or not _DETAIL_NAME.fullmatch(name) or name.startswith("hermes."):
            return f"details: {name!r} is no name (letters, digits, '_', '.', '-'; 'hermes.' is taken)"
        if not isinstance(value, str | int | float | bool | None):
            return f"details: {name!r} holds a {type(value).__name__}, not a string, number, bool or None"
        if isinstance(value, float) and not math.isfinite(value):
            return f"details: {name!r} is {value}, which JSON cannot hold"
        if isinstance(value, int) and value.bit_length() > 63:
            return f"details: {name!r} has more than 63 bits"
    return None


def reward_of_object(values: Mapping[str, Any]) -> Verdict:
    """The reward of an object of numbers: its key `reward`, else its only key; the other keys are components."""
    for name, value in values.items():
        if not isinstance(value, int | float):
            raise RewardUnreadable(f"reward object: {name!r} holds {value!r}, not a number")
    key = "reward" if "reward" in values else next(iter(values)) if len(values) == 1 else None
    if key is None:
        shown = ", ".join(values) or "no key"
        raise RewardUnreadable(f"reward object: keys {shown}, none of them 'reward'")
    rest = {name: float(value) for name, value in values.items() if name != key}
    if bad := [name for name, value in rest.items() if not math.isfinite(value)]:
        raise RewardUnreadable(f"reward object: {bad[0]!r} is not a finite number")
    return Verdict(float(values[key]), components=rest)


def valid_reward(value: float, output: str = "") -> float:
    """`value` as a float in [0, 1]. Raises RewardUnreadable for NaN, infinities and values outside."""
    reward = float(value)
    if not math.isfinite(reward):
        raise RewardUnreadable(f"the reward is {reward}, not a number in [0, 1]", output=output)
    if not 0.0 <= reward <= 1.0:
        raise RewardUnreadable(f"the reward is {reward:g}, outside [0, 1]", output=output)
    return reward
