"""The numbers of a run as text for a terminal: the summary, and the table of tasks. Without colour."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence

from pytest_hermes.artifacts.summary import GroupSummary, Skipped, Summary
from pytest_hermes.artifacts.task_summary import Attempts, TaskSummary, Typical
from pytest_hermes.shown import shown_line

LONGEST_NAME = 60
"""Characters of a name that the table of tasks shows."""


def render(summary: Summary) -> list[str]:
    """The summary as lines."""
    total = summary.total
    lines = [
        f"{total.rollouts} {'rollout' if total.rollouts == 1 else 'rollouts'}"
        + (f" of {_tasks(total.tasks)}" if total.several_attempts else "")
        + f": {total.passed} passed, {total.failed} failed, {total.invalid} invalid"
        + (f" ({summary.cancelled} more cancelled or unused)" if summary.cancelled else "")
        + (f"; {summary.retried} needed a retry" if summary.retried else "")
    ]
    if summary.unused:
        lines.append(f"  unused ({summary.unused}): the test skipped or failed before it asked for its rollout")
    lines += _skipped_lines(summary.skipped)
    if total.pass_rate is not None:
        lines.append(_rate_line(total))
    if summary.attempts is not None:
        lines += _attempts_lines(summary.attempts)
    for title, groups in (("category", summary.by_category), ("difficulty", summary.by_difficulty)):
        if groups:
            width = max(len(name) for name in groups)
            lines.append(f"by {title}:")
            lines += [f"  {name:<{width}}  {_group_line(group, total.part_scores)}" for name, group in groups.items()]
    if summary.causes:
        lines.append("causes: " + ", ".join(f"{cause} {count}" for cause, count in summary.causes.items()))
        if summary.without_reward and not summary.oracle:
            names = _some(summary.without_reward, 5)
            lines.append(f"  a verifier gave no reward ({names}): check the benchmark with --hermes-agent=oracle")
    if summary.flagged:
        lines.append(f"signs of tampering: {', '.join(summary.flagged)}")
    for distribution, drawn in summary.distributions.items():
        counts = ", ".join(f"{name} {count}" for name, count in sorted(drawn.items()))
        lines.append(f"tool sets drawn from {distribution}: {counts}")
    if summary.left_out:
        lines.append("tools left out: " + "; ".join(f"{name} ({why})" for name, why in summary.left_out.items()))
    lines.append(_usage_line(summary))
    if line := _typical_line(summary.per_rollout):
        lines.append(line)
    for origin in summary.datasets.values():
        commit = f"@{origin['commit'][:12]}" if "commit" in origin else ""
        lines.append(f"tasks from {origin['source']}{commit}")
        lines += [f"  {origin['note']}"] if "note" in origin else []
    if summary.slowest:
        lines.append("slowest:")
        width = max(len(label) for label, _, _ in summary.slowest)
        for label, seconds, clocks in summary.slowest:
            shares = {name.removesuffix("_s"): value for name, value in clocks.items() if value >= 0.05}
            queued = shares.pop("queued", None)
            parts = ", ".join(f"{name} {value:.1f}" for name, value in shares.items())
            lines.append(
                f"  {label:<{width}}  {seconds:7.1f} s"
                + (f"  ({parts})" if parts else "")
                + (f", after {queued:.1f} s in the queue" if queued else "")
            )
    return lines


def _rate_line(total: GroupSummary) -> str:
    text = f"pass rate {total.pass_rate:.1%}"
    if not total.several_attempts:
        low, high = total.interval
        text += f" [{low:.1%}, {high:.1%}]"
    if total.invalid and total.bounds:
        text += f"; {total.bounds[0]:.1%} if every invalid rollout had failed, {total.bounds[1]:.1%} without them"
    if total.mean_reward is not None:
        text += f"; mean reward {total.mean_reward:.3f}"
        error = total.mean_reward_standard_error
        if error is not None and (total.part_scores or total.several_attempts):
            text += f" (standard error {error:.3f})"
    return text


def _attempts_lines(attempts: Attempts) -> list[str]:
    """pass@1 with its interval, then pass@k and pass^k, each with the number of tasks it is over."""
    if attempts.pass_at_1 is None:
        return []
    low, high = attempts.interval
    line = f"pass@1 {attempts.pass_at_1:.1%} [{low:.1%}, {high:.1%}]"
    if attempts.standard_error is not None:
        line += f", standard error {attempts.standard_error:.1%} clustered by task"
    lines = [f"{line} ({_of(attempts.tasks_with_valid_attempts, attempts.tasks)})"]
    for entry in attempts.by_k[1:]:
        k, tasks = entry.k, attempts.tasks
        if entry.pass_at_k is None:
            lines.append(f"pass@{k}, pass^{k}: no task has {k} valid attempts")
        else:
            enough = f" have {k} valid attempts" if entry.tasks != tasks else ""
            share = f"({_of(entry.tasks, tasks)}{enough})"
            lines.append(f"pass@{k} {entry.pass_at_k:.1%}, pass^{k} {entry.pass_hat_k:.1%} {share}")
    return lines


def _tasks(count: int) -> str:
    return f"{count} {'task' if count == 1 else 'tasks'}"


def _of(some: int, every: int) -> str:
    return _tasks(every) if some == every else f"{some} of {_tasks(every)}"


def _skipped_lines(skipped: Skipped) -> list[str]:
    return [
        f"{_of(len(names), skipped.selected)} skipped: {_some(names)} ({reason})"
        for reason, names in skipped.reasons.items()
    ]


def _some(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _group_line(group: GroupSummary, part_scores: bool) -> str:
    rate = "   -  " if group.pass_rate is None else f"{group.pass_rate:6.1%}"
    line = f"{rate}  {group.passed}/{group.valid} passed"
    if part_scores and group.mean_reward is not None:
        line += f", mean reward {group.mean_reward:.3f}"
    if group.invalid:
        line += f", {group.invalid} invalid"
        if group.bounds:
            line += f" ({group.bounds[0]:.1%} if failed)"
    return line


def _typical_line(per_rollout: Mapping[str, Typical | None]) -> str | None:
    """One line of means and medians over valid rollouts."""
    forms = {
        "seconds": ("{:,.1f} s", "{:,.1f}"),
        "turns": ("{:,.1f} turns", "{:,.1f}"),
        "prompt_tokens": ("{:,.0f} prompt tokens", "{:,.0f}"),
        "completion_tokens": ("{:,.0f} completion tokens", "{:,.0f}"),
        "cost_usd": ("${:,.4f}", "{:,.4f}"),
    }
    parts = [
        f"{mean_form.format(found.mean)} ({median_form.format(found.median)})"
        for name, (mean_form, median_form) in forms.items()
        if (found := per_rollout[name]) is not None and found.mean
    ]
    return "mean (median) of a rollout: " + ", ".join(parts) if parts else None


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


def render_tasks(tasks: Sequence[TaskSummary]) -> list[str]:
    """A line per task in aligned columns. Means are over valid rollouts, tokens and cost are of all attempts."""
    table: list[tuple[str, ...]] = [
        (
            "task",
            "benchmark",
            "n",
            "passed",
            "failed",
            "invalid",
            "reward",
            "s",
            "turns",
            "prompt",
            "compl.",
            "$",
            "cause",
        )
    ]
    table += [
        (
            _fitted(shown_line(task.task)),
            _fitted(shown_line(task.benchmark)),
            *(str(count) for count in (task.attempts, task.passed, task.failed, task.invalid)),
            _number(task.mean_reward, ".3f"),
            _number(task.seconds_mean, ",.1f"),
            _number(task.turns_mean, ",.1f"),
            _number(task.prompt_tokens, ",d"),
            _number(task.completion_tokens, ",d"),
            _number(task.cost_usd, ",.4f"),
            task.cause or "",
        )
        for task in tasks
    ]
    if len({task.benchmark for task in tasks}) < 2:
        table = [(cells[0], *cells[2:]) for cells in table]
    numbers = range(len(table[0]) - 11, len(table[0]) - 1)
    widths = [max(_columns(cell) for cell in column) for column in zip(*table, strict=True)]
    return ["  ".join(_padded(cells, widths, numbers)).rstrip() for cells in table]


def _padded(cells: Sequence[str], widths: Sequence[int], numbers: range) -> list[str]:
    """Names to the left, numbers to the right."""
    padding = [" " * (width - _columns(cell)) for cell, width in zip(cells, widths, strict=True)]
    return [p + c if i in numbers else c + p for i, (c, p) in enumerate(zip(cells, padding, strict=True))]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _columns(text: str) -> int:
    """Terminal columns that a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _fitted(name: str) -> str:
    """A name of at most `LONGEST_NAME` characters: ids of one family differ at their ends, so the middle goes."""
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[1 - half :]}"
