"""The numbers of a run task by task: how its attempts ended, what they cost, and pass@k and pass^k over tasks."""

from __future__ import annotations

import collections
import dataclasses
import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from pytest_hermes.models.protocol import Usage
from pytest_hermes.stats import clustered_interval, clustered_standard_error, pass_at_k, pass_hat_k

Row = dict[str, Any]
TaskKey = tuple[str, str, str, str]


def task_key(row: Row) -> TaskKey:
    """What the attempts of one task share: benchmark, test, task id and digest.

    Tasks of the same id in two benchmarks, modules or tests are different ones, as are those of a test that is
    parametrised further.
    """
    return row["benchmark"], test_of(row), row["task_id"], row["task_digest"]


def test_of(row: Row) -> str:
    """The node id without what names task and attempt: `t.py::test_task[fix-git:2-fast]` -> `t.py::test_task[fast]`."""
    module, _, test = str(row["node_id"]).partition("::")
    function, bracket, parameters = test.partition("[")
    if not bracket:
        return f"{module}::{test}"
    rest = parameters.removesuffix("]")
    for own in (f"{row['task_id']}:{row['attempt']}", str(row["task_id"]), str(row["attempt"])):
        if rest == own or rest.startswith(f"{own}-"):
            rest = rest[len(own) + 1 :]
            break
    else:  # pytest writes some characters of ids in another way
        rest = re.sub(rf":{row['attempt']}(?=-|$)", "", rest, count=1)
    return f"{module}::{function}[{rest}]" if rest else f"{module}::{function}"


def clusters(rows: Iterable[Row]) -> dict[TaskKey, list[Row]]:
    """Rows by task, in the order in which tasks first appear."""
    found: dict[TaskKey, list[Row]] = {}
    for row in rows:
        found.setdefault(task_key(row), []).append(row)
    return found


@dataclasses.dataclass(frozen=True)
class TaskSummary:
    """One task. Means are over valid rollouts, tokens and cost are sums over all; None: nothing to say."""

    task: str
    benchmark: str
    test: str
    category: str | None
    difficulty: str | None
    attempts: int
    passed: int
    failed: int
    invalid: int
    cause: str | None
    """The most frequent one of its rollouts, of equally frequent ones the first."""
    mean_reward: float | None
    seconds_mean: float | None
    turns_mean: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: float | None

    @property
    def valid(self) -> int:
        return self.passed + self.failed

    @classmethod
    def of(cls, rows: Sequence[Row]) -> TaskSummary:
        first = rows[0]
        outcomes = collections.Counter(row["outcome"] for row in rows)
        causes = collections.Counter(row["cause"] for row in rows if row["cause"])
        valid = [row for row in rows if row["outcome"] != "invalid"]
        usage = Usage()
        for row in rows:
            usage = usage.plus(Usage(**row["usage"]))
        return cls(
            task=first["task_id"],
            benchmark=first["benchmark"],
            test=test_of(first),
            category=first["category"],
            difficulty=first["difficulty"],
            attempts=len(rows),
            passed=outcomes["passed"],
            failed=outcomes["failed"],
            invalid=outcomes["invalid"],
            cause=next((cause for cause, _ in causes.most_common(1)), None),
            mean_reward=_mean([row["reward"] for row in valid if row["reward"] is not None]),
            seconds_mean=_mean([row["finished"] - row["started"] for row in valid]),
            turns_mean=_mean([row["turns"] for row in valid if row["model"]]),
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cost_usd=usage.cost_usd,
        )


@dataclasses.dataclass(frozen=True)
class PassAtK:
    """pass@k and pass^k, averaged over the `tasks` that have at least k valid attempts; None if there is none."""

    k: int
    pass_at_k: float | None
    pass_hat_k: float | None
    tasks: int


@dataclasses.dataclass(frozen=True)
class Attempts:
    """What several attempts per task tell. Every task weighs the same, however many of its attempts were valid."""

    attempts: int
    """The most attempts that a task had."""
    tasks: int
    tasks_with_valid_attempts: int
    pass_at_1: float | None
    standard_error: float | None
    """Of pass@1, clustered by task."""
    interval: tuple[float, float]
    """95 % interval of pass@1 from that error."""
    by_k: list[PassAtK]

    @classmethod
    def of(cls, tasks: Sequence[TaskSummary]) -> Attempts:
        """For equally many valid attempts per task the error is the clustered one of all attempts; where some were
        invalid, that of the tasks' own shares, so that a task with more valid attempts does not weigh more."""
        shares = [[task.passed / task.valid] for task in tasks if task.valid]
        attempts = max((task.attempts for task in tasks), default=0)
        return cls(
            attempts=attempts,
            tasks=len(tasks),
            tasks_with_valid_attempts=len(shares),
            pass_at_1=_mean([share for (share,) in shares]),
            standard_error=clustered_standard_error(shares),
            interval=clustered_interval(shares),
            by_k=[_pass_at(k, tasks) for k in _readable(attempts)],
        )

    def as_json(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        low, high = values.pop("interval")
        return {**values, "pass_at_1_low": low, "pass_at_1_high": high}


def _readable(attempts: int) -> list[int]:
    """The powers of two up to the number of attempts, and that number."""
    powers = [1 << exponent for exponent in range(attempts.bit_length()) if 1 << exponent < attempts]
    return [*powers, attempts] if attempts else []


def _pass_at(k: int, tasks: Sequence[TaskSummary]) -> PassAtK:
    enough = [task for task in tasks if task.valid >= k]
    at = [value for task in enough if (value := pass_at_k(task.passed, task.valid, k)) is not None]
    hat = [value for task in enough if (value := pass_hat_k(task.passed, task.valid, k)) is not None]
    return PassAtK(k, _mean(at), _mean(hat), len(enough))


@dataclasses.dataclass(frozen=True)
class Typical:
    """Mean and median of a quantity over the valid rollouts where it is known."""

    mean: float
    median: float
    rollouts: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Typical | None:
        return cls(statistics.fmean(values), statistics.median(values), len(values)) if values else None


def typical(rows: Iterable[Row]) -> dict[str, Typical | None]:
    """Seconds, turns, tokens and cost of a valid rollout."""
    valid = [row for row in rows if row["outcome"] != "invalid"]
    modelled = [row for row in valid if row["model"]]
    values: dict[str, list[float]] = {
        "seconds": [row["finished"] - row["started"] for row in valid],
        "turns": [row["turns"] for row in modelled],
    }
    for field in ("prompt_tokens", "completion_tokens", "cost_usd"):
        values[field] = [row["usage"][field] for row in modelled if row["usage"][field] is not None]
    return {name: Typical.of(found) for name, found in values.items()}


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
