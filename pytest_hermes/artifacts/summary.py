"""The numbers of a run, computed from its rows alone: outcome counts, pass rate with bounds, groups, tokens, time.

A rollout that is `invalid` has no valid reward. It is never silently in or out of the denominator: the pass rate is
over valid rollouts, and `bounds` are what it would be if every invalid one had failed, or had passed as the others did
(invalid dropped). Rollouts that were cancelled (the run was stopped) or unused (the test skipped or failed before it
asked for them) are counted apart.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from pytest_hermes.models.protocol import Usage
from pytest_hermes.stats import wilson

NOT_COUNTED = ("cancelled", "unused")
VERIFIER_CAUSES = ("verifier_timeout", "verifier_no_reward", "reward_unreadable", "verifier_error")


@dataclasses.dataclass(frozen=True)
class GroupSummary:
    """Counts of one group of rollouts. Rates are None when there is nothing to divide by."""

    rollouts: int
    passed: int
    failed: int
    invalid: int
    mean_reward: float | None

    @property
    def valid(self) -> int:
        return self.passed + self.failed

    @property
    def pass_rate(self) -> float | None:
        return self.passed / self.valid if self.valid else None

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson 95 % interval of the pass rate over valid rollouts."""
        return wilson(self.passed, self.valid)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """(every invalid rollout failed, every invalid rollout dropped); None without a valid one."""
        if not self.valid:
            return None
        return self.passed / self.rollouts, self.passed / self.valid

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]]) -> GroupSummary:
        counts = collections.Counter(row["outcome"] for row in rows)
        rewards = [row["reward"] for row in rows if row["outcome"] != "invalid" and row["reward"] is not None]
        mean = sum(rewards) / len(rewards) if rewards else None
        return cls(len(rows), counts["passed"], counts["failed"], counts["invalid"], mean)

    def as_json(self) -> dict[str, Any]:
        low, high = self.interval
        return {
            **dataclasses.asdict(self),
            "pass_rate": self.pass_rate,
            "pass_rate_low": low,
            "pass_rate_high": high,
            "bounds": self.bounds,
        }


@dataclasses.dataclass(frozen=True)
class Summary:
    """The whole run and its groups."""

    total: GroupSummary
    cancelled: int
    by_category: dict[str, GroupSummary]
    by_difficulty: dict[str, GroupSummary]
    causes: dict[str, int]
    """Cause -> rollouts, over all outcomes but plain passes."""
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

    def as_json(self) -> dict[str, Any]:
        return {
            "rollouts": self.total.as_json(),
            "cancelled": self.cancelled,
            "by_category": {name: group.as_json() for name, group in self.by_category.items()},
            "by_difficulty": {name: group.as_json() for name, group in self.by_difficulty.items()},
            "causes": self.causes,
            "usage": dataclasses.asdict(self.usage),
            "unpriced_rollouts": self.unpriced,
            "turns": self.turns,
            "retried": self.retried,
            "flagged": self.flagged,
            "slowest": [{"rollout": label, "seconds": s, "clocks": clocks} for label, s, clocks in self.slowest],
            "distributions": self.distributions,
            "left_out": self.left_out,
        }


def summarize(rows: Iterable[dict[str, Any]]) -> Summary:
    """The summary of a run's rows (`records.read_rows`)."""
    every = list(rows)
    counted = [row for row in every if row["cause"] not in NOT_COUNTED]
    usage = Usage()
    for row in every:
        usage = usage.plus(Usage(**row["usage"]))
    order = {"easy": 0, "medium": 1, "hard": 2, "extreme": 3}
    return Summary(
        total=GroupSummary.of(counted),
        cancelled=len(every) - len(counted),
        by_category=_groups(counted, "category", str),
        by_difficulty=_groups(counted, "difficulty", lambda name: (order.get(name, 9), name)),
        causes=dict(collections.Counter(row["cause"] for row in counted if row["cause"]).most_common()),
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
    )


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


def render(summary: Summary) -> list[str]:
    """The summary as lines for a terminal, without colour."""
    total = summary.total
    lines = [
        f"{total.rollouts} {'rollout' if total.rollouts == 1 else 'rollouts'}: "
        f"{total.passed} passed, {total.failed} failed, {total.invalid} invalid"
        + (f" ({summary.cancelled} more cancelled or unused)" if summary.cancelled else "")
        + (f"; {summary.retried} needed a retry" if summary.retried else "")
    ]
    if total.pass_rate is not None:
        low, high = total.interval
        text = f"pass rate {total.pass_rate:.1%} [{low:.1%}, {high:.1%}]"
        if total.invalid and total.bounds:
            text += f"; {total.bounds[0]:.1%} if every invalid rollout had failed, {total.bounds[1]:.1%} without them"
        if total.mean_reward is not None:
            text += f"; mean reward {total.mean_reward:.3f}"
        lines.append(text)
    for title, groups in (("category", summary.by_category), ("difficulty", summary.by_difficulty)):
        if groups:
            width = max(len(name) for name in groups)
            lines.append(f"by {title}:")
            lines += [f"  {name:<{width}}  {_group_line(group)}" for name, group in groups.items()]
    if summary.causes:
        lines.append("causes: " + ", ".join(f"{cause} {count}" for cause, count in summary.causes.items()))
        if not summary.oracle and any(cause in summary.causes for cause in VERIFIER_CAUSES):
            lines.append("  a verifier gave no reward: check the benchmark with --hermes-agent=oracle")
    if summary.flagged:
        lines.append(f"signs of tampering: {', '.join(summary.flagged)}")
    for distribution, drawn in summary.distributions.items():
        counts = ", ".join(f"{name} {count}" for name, count in sorted(drawn.items()))
        lines.append(f"tool sets drawn from {distribution}: {counts}")
    if summary.left_out:
        lines.append("tools left out: " + "; ".join(f"{name} ({why})" for name, why in summary.left_out.items()))
    lines.append(_usage_line(summary))
    if summary.slowest:
        lines.append("slowest:")
        width = max(len(label) for label, _, _ in summary.slowest)
        for label, seconds, clocks in summary.slowest:
            parts = ", ".join(
                f"{name.removesuffix('_s')} {value:.1f}" for name, value in clocks.items() if value >= 0.05
            )
            lines.append(f"  {label:<{width}}  {seconds:7.1f} s" + (f"  ({parts})" if parts else ""))
    return lines


def _group_line(group: GroupSummary) -> str:
    rate = "   -  " if group.pass_rate is None else f"{group.pass_rate:6.1%}"
    invalid = f", {group.invalid} invalid" if group.invalid else ""
    return f"{rate}  {group.passed}/{group.valid} passed{invalid}"


def _usage_line(summary: Summary) -> str:
    usage = summary.usage

    if not summary.turns:
        return "no model calls"

    def count(value: int | None) -> str:
        return "unknown" if value is None else f"{value:,}"

    line = f"{summary.turns:,} model calls; tokens: prompt {count(usage.prompt_tokens)}"
    if usage.cached_tokens:
        line += f" ({usage.cached_tokens:,} cached)"
    line += f", completion {count(usage.completion_tokens)}"
    if usage.cost_usd is not None:
        line += f"; cost ${usage.cost_usd:,.4f}"
        if summary.unpriced:
            line += f" (without {summary.unpriced} rollouts of unknown price)"
    elif summary.unpriced:
        line += "; cost unknown (no price for this model: openai.prices)"
    return line
