"""The settings of YC-Bench: fields of `env:` with the names of hermes environments, and ours beside them."""

from __future__ import annotations

import dataclasses

from pytest_hermes.setting import setting


@dataclasses.dataclass(frozen=True)
class YcBenchSettings:
    """The part of `env:` that only YC-Bench reads."""

    presets: list[str] | None = setting(None, "presets to play; unset: fast_test, medium, hard", changes_results=False)
    seeds: list[int] | None = setting(None, "seeds to play each preset with; unset: 1, 2, 3", changes_results=False)
    run_timeout: float | None = setting(None, "seconds that the agent of one run has; wins over `task_timeout`")
    survival_weight: float = setting(0.5, "what survival counts for in the composite score")
    funds_weight: float = setting(0.5, "what the final funds count for in the composite score")
    db_dir: str | None = setting(
        None, "directory that gets a copy of each run's database, relative to the current one", changes_results=False
    )
    horizon_years: int | None = setting(None, "years to play; unset: the preset's own horizon")
    company_name: str = setting("BenchCo", "name of the company")
    start_date: str = setting("01/01/2025", "first day, MM/DD/YYYY")
    yc_bench_bin: str | None = setting(
        None,
        "the `yc-bench` to play with, a path or a name on PATH; unset: YC_BENCH_BIN, else this Python's own package",
        changes_results=False,
    )
    yc_init: str = setting(
        "sim_init", "how the world is made: sim_init (`yc-bench sim init`) or preset (as `yc-bench run` does)"
    )
    yc_on_incomplete: str = setting(
        "drain", "a run that stops before its end: drain (play it out without the agent), as_is (score it), fail (0)"
    )
    yc_auto_advance: int | None = setting(
        None, "turns without progress of the clock before it is advanced; unset: never"
    )
    yc_fast_path: str = setting(
        "auto",
        "auto: a kept process answers plain yc-bench commands where it answers alike; off",
        changes_results=False,
    )
    yc_outcome: str = setting("strict", "which runs pass: strict (those that survive) or report (all that were scored)")
    yc_min_score: float | None = setting(None, "composite score below which a run fails, with yc_outcome: strict")
