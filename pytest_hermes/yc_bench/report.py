"""The section of YC-Bench in a run's summary: a line per run, per preset and over all, from the rows' details alone.

The unit of means and intervals is a (preset, seed): its attempts count as one, by their mean. A run that ended in an
infrastructure error is listed as ERROR and is in no mean; one that counts without having been scored (the agent broke
its sandbox or the verifier) is FAILED and scores 0. `evaluation` and `samples` have the names of hermes-agent's
YC-Bench environment, where errors count as 0.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pytest_hermes.artifacts.eval_files import evaluation_seconds
from pytest_hermes.artifacts.run_directory import file_name
from pytest_hermes.artifacts.sections import Section
from pytest_hermes.stats import t_95, t_interval

Row = Mapping[str, Any]

PREFIX = "yc."
ERROR, FAILED, TAMPERED = "ERROR", "FAILED", "TAMPERED"
NOT_DRAINED = {
    "as_is": "agent stopped before the horizon; not drained (--yc-on-incomplete=as_is)",
    "fail": "agent stopped before the horizon; scored 0 (--yc-on-incomplete=fail)",
}
DRAINED = "agent stopped before the horizon; drained: the clock ran out without it (--yc-on-incomplete=drain)"
_TASK_ID = re.compile(r"(?P<preset>.+)-seed(?P<seed>-?\d+)")


@dataclasses.dataclass(frozen=True)
class Run:
    """One row: what its details say, or what is known without them."""

    row: Row
    details: Mapping[str, Any]
    preset: str
    seed: int | None

    @classmethod
    def of(cls, row: Row) -> Run:
        details = {
            name.removeprefix(PREFIX): value
            for name, value in (row.get("details") or {}).items()
            if name.startswith(PREFIX)
        }
        if {"preset", "seed"} <= details.keys():
            return cls(row, details, details["preset"], details["seed"])
        named = _TASK_ID.fullmatch(str(row["task_id"]))
        return cls(row, {}, named["preset"] if named else str(row["task_id"]), int(named["seed"]) if named else None)

    @property
    def status(self) -> str:
        if self.row["outcome"] == "invalid":
            return ERROR
        if self.row["cause"] == "tampering":
            return TAMPERED
        return str(self.details.get("status", FAILED))

    @property
    def is_error(self) -> bool:
        return self.status == ERROR

    @property
    def composite(self) -> float | None:
        """None: it is in no mean."""
        return None if self.is_error else float(self.details.get("composite", 0.0))

    @property
    def survived(self) -> bool:
        """As hermes-agent counts it: solvent when it ended, however early."""
        return not self.is_error and bool(self.details.get("survived", False))

    @property
    def funds_cents(self) -> int | None:
        return None if self.is_error else self.details.get("final_funds_cents")

    @property
    def was_drained(self) -> bool:
        return bool(self.details.get("drain_resumes")) and self.status in ("SURVIVED", "BANKRUPT")


def section(rows: Sequence[Row], settings: Mapping[str, Any]) -> Section | None:
    """The section for the rows of a run (`artifacts.sections.SectionFunction`)."""
    runs = [Run.of(row) for row in rows]
    if not runs:
        return None
    order = _preset_order(runs, settings)
    runs.sort(key=lambda run: (order.index(run.preset), _seed_key(run), run.row["attempt"], run.row["started"]))
    metrics, evaluation = _metrics(runs), _evaluation(runs)
    return Section(
        title="YC-Bench composite",
        lines=_lines(runs, settings),
        metrics=metrics,
        evaluation=evaluation,
        samples=sample,
        files={
            "yc_bench_summary.json": {
                "metrics": metrics,
                "evaluation": evaluation,
                "presets": {name: _statistics(members) for name, members in _by_preset(runs).items()},
                "runs": [_as_json(run) for run in runs],
            }
        },
    )


def _preset_order(runs: Iterable[Run], settings: Mapping[str, Any]) -> list[str]:
    """Presets in the order given: by the setting, then by the tasks that were selected."""
    given = [*((settings.get("env") or {}).get("presets") or ())]
    selected = [named["preset"] for task in settings.get("tasks") or () if (named := _TASK_ID.fullmatch(str(task)))]
    return list(dict.fromkeys([*given, *selected, *sorted(run.preset for run in runs)]))


def _seed_key(run: Run) -> tuple[bool, int]:
    return run.seed is None, run.seed or 0


# -- numbers -------------------------------------------------------------------------------------------


def _by_preset(runs: Iterable[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.preset, []).append(run)
    return found


def _units(runs: Iterable[Run], value: Callable[[Run], float | None]) -> list[float]:
    """The mean of each (preset, seed) over its attempts that have a value."""
    found: dict[tuple[str, int | None], list[float]] = collections.defaultdict(list)
    for run in runs:
        if (number := value(run)) is not None:
            found[run.preset, run.seed].append(number)
    return [sum(values) / len(values) for values in found.values()]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


@dataclasses.dataclass(frozen=True)
class _Counts:
    """How runs ended. Survival is a share of the runs that came to an end, not of incomplete ones and errors."""

    survived: int
    ended: int
    others: dict[str, int]
    """What is said besides: `incomplete`, `tampered`, `failed`, `error`."""

    @classmethod
    def of(cls, runs: Sequence[Run]) -> _Counts:
        counts = collections.Counter(run.status for run in runs)
        others = {name.lower(): counts[name] for name in ("INCOMPLETE", TAMPERED, FAILED, ERROR)}
        return cls(counts["SURVIVED"], len(runs) - counts["INCOMPLETE"] - counts[ERROR], others)

    @property
    def rate(self) -> float | None:
        return self.survived / self.ended if self.ended else None

    @property
    def text(self) -> list[str]:
        return [
            f"{count} {name}{'s' if name == 'error' and count > 1 else ''}"
            for name, count in self.others.items()
            if count
        ]


def _metrics(runs: Sequence[Run]) -> dict[str, float | None]:
    statuses = collections.Counter(run.status for run in runs)
    found: dict[str, float | None] = {
        "yc.avg_composite": _mean(_units(runs, lambda run: run.composite)),
        "yc.survival_rate": _Counts.of(runs).rate,
        "yc.runs": len(runs) - statuses[ERROR],
        "yc.bankrupt": statuses["BANKRUPT"],
        "yc.incomplete": statuses["INCOMPLETE"],
        "yc.tampered": statuses[TAMPERED],
        "yc.errors": statuses[ERROR],
        "yc.avg_final_funds_usd": _mean(_units(runs, _funds_usd)),
    }
    for preset, members in _by_preset(runs).items():
        found[f"yc.avg_composite.{preset}"] = _mean(_units(members, lambda run: run.composite))
        found[f"yc.survival_rate.{preset}"] = _Counts.of(members).rate
    return found


def _funds_usd(run: Run) -> float | None:
    return None if run.funds_cents is None else run.funds_cents / 100


def _statistics(runs: Sequence[Run]) -> dict[str, Any]:
    units = _units(runs, lambda run: run.composite)
    return {
        "seeds": len(units),
        "mean": _mean(units),
        "interval_half_width": t_interval(units),
        "min": min(units, default=None),
        "max": max(units, default=None),
    }


def _evaluation(runs: Sequence[Run]) -> dict[str, Any]:
    """hermes-agent's metrics: plain means over all runs, an error being a run that scored 0 and did not survive."""
    found: dict[str, Any] = {
        "eval/survival_rate": sum(run.survived for run in runs) / len(runs),
        "eval/avg_composite_score": sum(run.composite or 0.0 for run in runs) / len(runs),
        "eval/total_runs": len(runs),
        "eval/survived_runs": sum(run.survived for run in runs),
        "eval/evaluation_time_seconds": evaluation_seconds([run.row for run in runs]),
    }
    for preset, members in sorted(_by_preset(runs).items()):
        name = preset.replace("-", "_")
        found[f"eval/survival_rate_{name}"] = sum(run.survived for run in members) / len(members)
        found[f"eval/avg_score_{name}"] = sum(run.composite or 0.0 for run in members) / len(members)
    return found


def sample(row: Row) -> dict[str, Any]:
    """What a line of `samples.jsonl` has besides: the keys of hermes-agent's own lines that others do not have."""
    run = Run.of(row)
    funds = run.funds_cents or 0
    kept = run.details.get("db")
    return {
        "preset": run.preset,
        "seed": run.seed,
        "survived": run.survived,
        "final_funds_cents": funds,
        "final_funds_usd": funds / 100,
        "terminal_reason": run.details.get("terminal_reason") if run.details else f"error: {row['cause']}",
        "composite_score": run.composite or 0.0,
        "elapsed_seconds": row["finished"] - row["started"],
        "db_path": kept and f"artifacts/{file_name(str(row['task_id']))}/{row['attempt']}/{kept}",
    }


def _as_json(run: Run) -> dict[str, Any]:
    row = run.row
    shared = {name: row[name] for name in ("task_id", "attempt", "outcome", "cause", "turns", "model", "agent")}
    return {
        "preset": run.preset,
        "seed": run.seed,
        "status": run.status,
        "composite": run.composite,
        **shared,
        "seconds": row["finished"] - row["started"],
        "details": dict(run.details),
    }


# -- text ----------------------------------------------------------------------------------------------


def _lines(runs: Sequence[Run], settings: Mapping[str, Any]) -> list[str]:
    several = max(collections.Counter((run.preset, run.seed) for run in runs).values()) > 1
    names = [_seed(run, several) for run in runs]
    preset_width, seed_width = max(6, *(len(run.preset) for run in runs)), max(4, *map(len, names))
    indent = preset_width + 2 + seed_width + 2
    head = f"{'preset':<{preset_width}}  {'seed':>{seed_width}}  {'status':<10}  {'final funds':<14}"
    lines = [_header(runs, settings), f"{head}   {'sim date':<10}   {'turns':>5}  {'composite':>9}"]
    degrees: set[int] = set()
    for preset, members in _by_preset(runs).items():
        lines += [f"{preset:<{preset_width}}  {_seed(run, several):>{seed_width}}  {_run_line(run)}" for run in members]
        lines.append(f"{f'  {preset}':<{indent}}{_preset_line(members)}")
        if (seeds := len(_units(members, lambda run: run.composite))) > 1:
            degrees.add(seeds - 1)
    lines.append(f"{'overall':<{indent - 2}}{_overall(runs)}")
    return lines + _footnotes(runs, degrees)


def _seed(run: Run, several: bool) -> str:
    return f"{'-' if run.seed is None else run.seed}{':' + str(run.row['attempt']) if several else ''}"


def _header(runs: Sequence[Run], settings: Mapping[str, Any]) -> str:
    """What was played, by whom. Where rows differ (a resumed run, say) all of it is there."""

    def every(values: Iterable[object]) -> str:
        return ", ".join(dict.fromkeys(str(value) for value in values if value))

    known = [run.details for run in runs if run.details]
    parts = []
    if versions := every(
        f"yc-bench {details.get('package_version')}"
        + (f" (wheel {str(details['package_sha256'])[:8]})" if details.get("package_sha256") else "")
        for details in known
    ):
        parts.append(versions)
    if modes := every(details.get("init_mode") for details in known):
        parts.append(f"init={modes}")
    models = every(run.row["model"] for run in runs)
    parts.append(f"model={models}" if models else f"agent={every(run.row['agent'] for run in runs)}")
    env = settings.get("env") or {}
    own = ((settings.get("benchmark") or {}).get("limits") or {}).get("max_turns")
    turns = env.get("max_agent_turns") if own is None or env.get("limits_from") == "settings" else own
    if turns is not None:
        parts.append(f"max_turns={turns}")
    return "  ".join(parts)


def _run_line(run: Run) -> str:
    details = run.details
    scored = bool(details) and not run.is_error
    funds = _usd(run.funds_cents) if scored else "-"
    date = str(details.get("sim_date") or "-") if scored else "-"
    turns = details.get("turns", run.row["turns"])
    score = "-" if run.composite is None else f"{run.composite:.3f}"
    line = f"{run.status:<10}  {funds:>14}   {date:<10}   {turns:>5}  {score:>9}"
    if run.status == "INCOMPLETE":
        return f"{line}*"
    if run.was_drained:
        on = f" on {details['sim_date_as_left']}" if details.get("sim_date_as_left") else ""
        return f"{line}+  as left: {_usd(details.get('funds_as_left_cents'))}{on}"
    return f"{line}   {run.row['cause']}" if run.status in (ERROR, FAILED) else line


def _preset_line(runs: Sequence[Run]) -> str:
    counts, statistics = _Counts.of(runs), _statistics(runs)
    line = ", ".join([f"{counts.survived}/{counts.ended} survived", *counts.text])
    if statistics["mean"] is None:
        return f"{line}   -"
    line += f"   {statistics['mean']:.3f}"
    if statistics["interval_half_width"] is None:
        return line
    return (
        f"{line} +/- {statistics['interval_half_width']:.3f}"
        f"   [min {statistics['min']:.3f}  max {statistics['max']:.3f}]"
    )


def _overall(runs: Sequence[Run]) -> str:
    counts, mean = _Counts.of(runs), _mean(_units(runs, lambda run: run.composite))
    rate = "-" if counts.rate is None else f"{counts.rate:.1%}"
    scored = sum(not run.is_error for run in runs)
    shares = ", ".join([f"{counts.survived}/{counts.ended}", *counts.text])
    composite = "-" if mean is None else f"{mean:.3f}"
    return f"survival {rate} ({shares})   composite {composite} ({scored} {'run' if scored == 1 else 'runs'})"


def _footnotes(runs: Sequence[Run], degrees: Iterable[int]) -> list[str]:
    lines = []
    modes = dict.fromkeys(str(run.details.get("on_incomplete")) for run in runs if run.status == "INCOMPLETE")
    lines += [f"* {NOT_DRAINED.get(mode, 'agent stopped before the horizon')}" for mode in modes]
    if any(run.was_drained for run in runs):
        lines.append(f"+ {DRAINED}")
    if quantiles := "; ".join(f"n={count + 1}, t={t_95(count):.3f}" for count in sorted(degrees)):
        lines.append(f"mean +/- half-width of the 95% t interval over seeds ({quantiles})")
    if any(run.is_error for run in runs):
        lines.append("ERROR: infrastructure; in no mean")
    return lines


def _usd(cents: int | None) -> str:
    if cents is None:
        return "-"
    return f"{'-' if cents < 0 else ''}${abs(cents) // 100:,}.{abs(cents) % 100:02d}"
