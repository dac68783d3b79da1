"""The numbers of a run, computed from its rows alone: outcome counts, pass rate with bounds, groups, tokens, time.

A rollout that is `invalid` has no valid reward. It is never silently in or out of the denominator: the pass rate is
over valid rollouts, and `bounds` are what it would be if every invalid one had failed, or had passed as the others did
(invalid dropped). Rollouts that were cancelled (the run was stopped) or unused (the test skipped or failed before it
asked for them) are counted apart. `summary_text.py` shows the numbers, `task_summary.py` has those of single tasks.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_hermes.artifacts.run_reader import LocatedRow, locate, read_manifest
from pytest_hermes.artifacts.task_summary import Attempts, TaskSummary, Typical, clusters, task_key, typical
from pytest_hermes.models.protocol import Usage
from pytest_hermes.stats import clustered_interval, clustered_standard_error, wilson

NOT_COUNTED = ("cancelled", "unused")
VERIFIER_CAUSES = ("verifier_timeout", "verifier_no_reward", "reward_unreadable", "verifier_error")


@dataclasses.dataclass(frozen=True)
class GroupSummary:
    """Counts of one group of rollouts. Rates are None when there is nothing to divide by.

    Standard errors are clustered by task (`stats.clustered_standard_error`); None for fewer than two tasks.
    """

    rollouts: int
    tasks: int
    passed: int
    failed: int
    invalid: int
    pass_rate_standard_error: float | None
    mean_reward: float | None
    mean_reward_standard_error: float | None
    interval: tuple[float, float]
    """95 % interval of the pass rate over valid rollouts: Wilson's, or the clustered one if a task has several."""

    @property
    def valid(self) -> int:
        return self.passed + self.failed

    @property
    def pass_rate(self) -> float | None:
        return self.passed / self.valid if self.valid else None

    @property
    def several_attempts(self) -> bool:
        return self.rollouts > self.tasks

    @property
    def part_scores(self) -> bool:
        """Whether the mean reward says something that the pass rate does not."""
        rate = self.pass_rate
        return rate is not None and self.mean_reward is not None and abs(rate - self.mean_reward) > 1e-9

    @property
    def bounds(self) -> tuple[float, float] | None:
        """(every invalid rollout failed, every invalid rollout dropped); None without a valid one."""
        if not self.valid:
            return None
        return self.passed / self.rollouts, self.passed / self.valid

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]]) -> GroupSummary:
        counts = collections.Counter(row["outcome"] for row in rows)
        tasks = list(clusters(rows).values())
        valid = [[row for row in task if row["outcome"] != "invalid"] for task in tasks]
        passes = [[float(row["outcome"] == "passed") for row in task] for task in valid]
        rewards = [[row["reward"] for row in task if row["reward"] is not None] for task in valid]
        every = [reward for task in rewards for reward in task]
        several = len(rows) > len(tasks)
        return cls(
            rollouts=len(rows),
            tasks=len(tasks),
            passed=counts["passed"],
            failed=counts["failed"],
            invalid=counts["invalid"],
            pass_rate_standard_error=clustered_standard_error(passes),
            mean_reward=sum(every) / len(every) if every else None,
            mean_reward_standard_error=clustered_standard_error(rewards),
            interval=clustered_interval(passes)
            if several
            else wilson(counts["passed"], counts["passed"] + counts["failed"]),
        )

    def as_json(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        low, high = values.pop("interval")
        return {
            **values,
            "pass_rate": self.pass_rate,
            "pass_rate_low": low,
            "pass_rate_high": high,
            "bounds": self.bounds,
        }


@dataclasses.dataclass(frozen=True)
class Skipped:
    """Tasks that a skip list kept out of the run: they are in no rate, so they are named."""

    reasons: dict[str, list[str]]
    """Reason -> tasks."""
    selected: int
    """Tasks of the run with the skipped ones."""

    @property
    def tasks(self) -> int:
        return sum(len(names) for names in self.reasons.values())

    def as_json(self) -> dict[str, Any]:
        return {"tasks": self.tasks, "of": self.selected, "reasons": self.reasons}


@dataclasses.dataclass(frozen=True)
class Summary:
    """The whole run and its groups."""

    total: GroupSummary
    cancelled: int
    """Rollouts that are not counted: cancelled ones and unused ones."""
    unused: int
    by_category: dict[str, GroupSummary]
    by_difficulty: dict[str, GroupSummary]
    causes: dict[str, int]
    """Cause -> rollouts, over all outcomes but plain passes."""
    without_reward: list[str]
    """Ids of tasks of which a verifier gave no reward."""
    usage: Usage
    unpriced: int
    """Rollouts that used tokens but whose cost is unknown."""
    turns: int
    oracle: bool
    """Whether only the tasks' own solutions ran."""
    retried: int
    flagged: list[str]
    """Task ids with signs of tampering."""
    slowest: list[tuple[str, float, dict[str, float]]]
    """(label, seconds, clocks) of the five slowest rollouts."""
    distributions: dict[str, dict[str, int]]
    """Distribution -> tool set -> rollouts that drew it."""
    left_out: dict[str, str]
    """Tool or tool set that agents did not get -> why."""
    attempts: Attempts | None
    """pass@k and pass^k; None with one attempt per task."""
    per_rollout: dict[str, Typical | None]
    skipped: Skipped
    tasks: list[TaskSummary]
    """In the order in which they started."""
    datasets: dict[str, dict[str, str]]
    """Benchmark -> `source`, `commit`, `split` of its tasks, and a `note` about them."""

    def as_json(self) -> dict[str, Any]:
        return {
            "rollouts": self.total.as_json(),
            "cancelled": self.cancelled,
            "unused": self.unused,
            "by_category": {name: group.as_json() for name, group in self.by_category.items()},
            "by_difficulty": {name: group.as_json() for name, group in self.by_difficulty.items()},
            "causes": self.causes,
            "without_reward": self.without_reward,
            "usage": dataclasses.asdict(self.usage),
            "unpriced_rollouts": self.unpriced,
            "turns": self.turns,
            "retried": self.retried,
            "flagged": self.flagged,
            "slowest": [{"rollout": label, "seconds": s, "clocks": clocks} for label, s, clocks in self.slowest],
            "distributions": self.distributions,
            "left_out": self.left_out,
            "attempts": self.attempts.as_json() if self.attempts else None,
            "per_rollout": {name: vars(found) if found else None for name, found in self.per_rollout.items()},
            "skipped": self.skipped.as_json(),
            "tasks": [dataclasses.asdict(task) for task in self.tasks],
            "datasets": self.datasets,
        }


def summarize_run(run: Path) -> Summary:
    """The summary of a run directory, read without its conversations. Raises ConfigurationError if it is none."""
    manifest = read_manifest(run)
    return summarize_located(locate(run), manifest)


def summarize_located(located: Iterable[LocatedRow], manifest: Mapping[str, Any]) -> Summary:
    """As `summarize_run`, of rows and a manifest that were read already."""
    datasets = {
        name: {key: value for key, value in origin.items() if key != "tasks"}
        for name, origin in (manifest.get("datasets") or {}).items()
    }
    return summarize((place.numbers for place in located), manifest.get("skipped") or {}, datasets)


def summarize(
    rows: Iterable[dict[str, Any]],
    skipped: Mapping[str, str] | None = None,
    datasets: Mapping[str, dict[str, str]] | None = None,
) -> Summary:
    """The summary of a run's rows (`records.read_rows`), of the items it left out ({node id: reason}), and where its
    tasks came from."""
    every = list(rows)
    counted = [row for row in every if row["cause"] not in NOT_COUNTED]
    total = GroupSummary.of(counted)
    tasks = [TaskSummary.of(members) for members in clusters(counted).values()]
    usage = Usage()
    for row in every:
        usage = usage.plus(Usage(**row["usage"]))
    order = {"easy": 0, "medium": 1, "hard": 2, "extreme": 3}
    return Summary(
        total=total,
        cancelled=len(every) - len(counted),
        unused=sum(1 for row in every if row["cause"] == "unused"),
        by_category=_groups(counted, "category", str),
        by_difficulty=_groups(counted, "difficulty", lambda name: (order.get(name, 9), name)),
        causes=dict(collections.Counter(row["cause"] for row in counted if row["cause"]).most_common()),
        without_reward=list(dict.fromkeys(row["task_id"] for row in counted if row["cause"] in VERIFIER_CAUSES)),
        usage=usage,
        unpriced=sum(
            1 for row in every if row["usage"]["cost_usd"] is None and (row["usage"]["completion_tokens"] or 0) > 0
        ),
        turns=sum(row["turns"] for row in every if row["model"]),
        oracle=bool(every) and all(row["agent"] == "oracle" for row in every),
        retried=sum(1 for row in every if row["tries"]),
        flagged=sorted({row["task_id"] for row in every if (row["verifier"] or {}).get("evidence")}),
        slowest=sorted(
            ((_label(row), row["finished"] - row["started"], row["clocks"]) for row in counted),
            key=lambda entry: -entry[1],
        )[:5],
        distributions=_distributions(counted),
        left_out={name: why for row in every for name, why in (row.get("toolsets") or {}).get("left_out", {}).items()},
        attempts=Attempts.of(tasks) if total.several_attempts else None,
        per_rollout=typical(counted),
        skipped=skipped_tasks(every, skipped or {}),
        tasks=tasks,
        datasets={name: origin for name, origin in (datasets or {}).items() if origin},
    )


def skipped_tasks(rows: Sequence[dict[str, Any]], skipped: Mapping[str, str]) -> Skipped:
    """Skipped items by reason, the attempts of a task as one. An item that has a row was not skipped."""
    ran = {row["node_id"] for row in rows}
    several = any(row["attempt"] > 1 for row in rows)
    found: dict[tuple[str, str], str] = {}
    for node, reason in skipped.items():
        if node not in ran:
            test, _, parameters = node.partition("[")
            name = parameters.removesuffix("]")
            if several:
                name = "" if name.isdecimal() else re.sub(r":\d+(?=-|$)", "", name)
            found[test, name or test.rpartition("::")[2]] = str(reason)
    reasons: dict[str, list[str]] = {}
    for (_, name), reason in found.items():
        reasons.setdefault(reason, []).append(name)
    return Skipped(reasons, len({task_key(row) for row in rows}) + len(found))


def _distributions(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        if distribution := (row.get("toolsets") or {}).get("distribution"):
            counts = found.setdefault(distribution, {})
            for name in row["toolsets"]["sets"]:
                counts[name] = counts.get(name, 0) + 1
    return found


def _label(row: dict[str, Any]) -> str:
    return str(row["node_id"]).rsplit("::", 1)[-1]


def _groups(rows: Sequence[dict[str, Any]], field: str, key: Any) -> dict[str, GroupSummary]:
    members: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for row in rows:
        if row[field] is not None:
            members[row[field]].append(row)
    return {name: GroupSummary.of(members[name]) for name in sorted(members, key=key)}
