"""What one attempt left behind: `Rollout`, with its clocks, and how it explains itself."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_hermes.agents.result import AgentResult
from pytest_hermes.benchmark import Verdict, as_verdict
from pytest_hermes.failures import TaskFailed
from pytest_hermes.outcome import Outcome
from pytest_hermes.shown import ending, shown
from pytest_hermes.task import Task

TAIL_CHARS = 1500
"""Of the verifier's output in a failure's text."""


@dataclasses.dataclass
class Clocks:
    """Seconds that each phase of the last try took; `queued_s` is the wait for a slot before."""

    queued_s: float = 0.0
    provision_s: float = 0.0
    agent_s: float = 0.0
    verify_s: float = 0.0
    teardown_s: float = 0.0

    @contextlib.contextmanager
    def running(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            setattr(self, f"{phase}_s", getattr(self, f"{phase}_s") + time.monotonic() - began)


@dataclasses.dataclass
class Rollout:
    """What one attempt left behind, whatever way it ended."""

    benchmark: str
    task: Task
    attempt: int
    node_id: str
    pass_threshold: float
    agent: str
    model: str | None
    outcome: Outcome = "invalid"
    cause: str | None = None
    error: str | None = None
    reward: float | None = None
    verdict: Verdict | None = None
    verifier: dict[str, Any] | None = None
    """Of the record: output tail, exit code, evidence, load average while it ran, runs."""
    trajectory: AgentResult = dataclasses.field(default_factory=lambda: AgentResult(messages=[]))
    toolsets: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Of the record: the agent's tool sets, the distribution they were drawn from, and what was left out and why."""
    sandbox: dict[str, Any] = dataclasses.field(default_factory=dict)
    clocks: Clocks = dataclasses.field(default_factory=Clocks)
    started: float = 0.0
    finished: float = 0.0
    tries: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Earlier tries that ended in an infrastructure error: cause, error, clocks."""
    record: str = ""
    """Where the trajectory was written."""
    body_passed: bool = False
    """Whether the test body, where it judges a living sandbox, passed: that decides the outcome there."""
    traceback: str | None = None
    """Of an error in code of the user's: the agent, the verifier, a hook."""
    resumed_from: str | None = dataclasses.field(default=None, repr=False)
    """The run that it is a replay from (`--hermes-resume`); None: it was rolled out in this run."""
    policy_error: BaseException | None = None

    @property
    def duration_s(self) -> float:
        return max(0.0, self.finished - self.started)

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"

    @property
    def components(self) -> dict[str, float]:
        """The verifier's named components."""
        return self.verdict.components if self.verdict else {}

    @property
    def details(self) -> dict[str, str | int | float | bool | None]:
        """What else the verifier found, by full name."""
        return self.verdict.details if self.verdict else {}

    def check(self, threshold: float | None = None) -> None:
        """Fail the test (TaskFailed) unless the verifier lets it pass: by its `Verdict.passed`, else by a reward that
        reaches the benchmark's threshold. A `threshold` given here is always compared with the reward."""
        if threshold is None and (judged := self.verdict_passed) is not None:
            enough = judged
        else:
            wanted = self.pass_threshold if threshold is None else threshold
            enough = self.reward is not None and self.reward >= wanted
        if not enough:
            raise TaskFailed(self.explain(threshold))

    @property
    def verdict_passed(self) -> bool | None:
        """What the verifier says besides the reward; None: the reward decides."""
        return self.verdict.passed if self.verdict else None

    def score(self, reward: float) -> None:
        """Give the reward from the test body (form 1); without it the body's outcome is the reward, 1 or 0.

        The outcome stays the body's: a test that passes is `passed` with this reward.
        """
        self.verdict = as_verdict(reward)
        self.reward = self.verdict.reward

    def explain(self, threshold: float | None = None) -> str:
        """Why it did not pass, in a few lines: reward, cause, error, the verifier's tail, where the trajectory is."""
        by_reward = threshold is not None or self.verdict_passed is None
        wanted = self.pass_threshold if threshold is None else threshold
        reward = "no reward" if self.reward is None else f"reward {self.reward:g}"
        if self.reward is not None and by_reward:
            reward += f" < {wanted:g}"
        cause = self.cause or (self.verdict.cause if self.verdict else None) or self.outcome
        lines = [f"{cause}: {reward}, {self.outcome} ({self.task.id})"]
        if self.error:
            lines.append(self.error)
        if self.model and self.trajectory.messages:
            lines.append(self._agent_line())
        lines += [f"evidence: {sign}" for sign in (self.verifier or {}).get("evidence", [])]
        if self.verifier and self.verifier.get("output"):
            lines += ["--- verifier (end) ---", ending(self.verifier["output"], TAIL_CHARS).rstrip()]
        if self.record:
            lines.append(f"trajectory: {self.record}")
            run = os.path.relpath(Path(self.record).parent)
            attempt = f" --attempt {self.attempt}" if self._is_one_of_several else ""
            lines.append(f"conversation: pytest-hermes show {run} --task {self.task.id}{attempt}")
        return shown("\n".join(lines))

    @property
    def _is_one_of_several(self) -> bool:
        """Whether the task has more attempts: their node ids are `[task:1]`, `[1]`."""
        numbered = rf"[\[:]{self.attempt}[\]-]"
        bracket = self.node_id.find("[")
        return self.attempt > 1 or (bracket >= 0 and re.search(numbered, self.node_id[bracket:]) is not None)

    def _agent_line(self) -> str:
        trajectory = self.trajectory
        line = f"agent: {trajectory.turns_used} turns, stopped: {trajectory.stop_reason}"
        if trajectory.tool_errors:
            last = trajectory.tool_errors[-1]
            line += f", {len(trajectory.tool_errors)} tool errors, the last: {last.tool_name}: {last.error[:200]}"
        return line
