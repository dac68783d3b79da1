"""The section of YC-Bench: its whole text, its numbers, and the names of hermes-agent's environment."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_hermes.yc_bench.report import sample, section

SETTINGS = {"env": {"max_agent_turns": 200, "presets": ["fast_test", "medium"], "limits_from": "task"}}


def row(
    preset: str,
    seed: int,
    status: str,
    cents: int,
    date: str,
    turns: int,
    composite: float,
    *,
    attempt: int = 1,
    cause: str | None = None,
    **details: Any,
) -> dict[str, Any]:
    """A row of a run that was scored."""
    found = {
        "preset": preset,
        "seed": seed,
        "status": status,
        "composite": composite,
        "survived": status != "BANKRUPT",
        "final_funds_cents": cents,
        "initial_funds_cents": 25_000_000,
        "funds_as_left_cents": cents,
        "status_as_left": status,
        "sim_date": date,
        "horizon_end": "2026-01-01",
        "turns": turns,
        "commands": turns,
        "drain_resumes": 0,
        "terminal_reason": {"SURVIVED": "horizon_end", "BANKRUPT": "bankruptcy"}.get(status),
        "on_incomplete": "as_is",
        "init_mode": "sim_init",
        "package_version": "0.1.0",
        "package_sha256": "732fa212" + "0" * 56,
        "db": "yc_bench.db",
        **details,
    }
    return {
        "task_id": f"{preset}-seed{seed}",
        "attempt": attempt,
        "outcome": "passed" if status == "SURVIVED" else "failed",
        "cause": cause or (None if status == "SURVIVED" else status.lower()),
        "agent": "hermes",
        "model": "some-model",
        "turns": turns,
        "started": 100.0 + seed,
        "finished": 110.0 + 2 * seed,
        "resumed_from": None,
        "details": {f"yc.{name}": value for name, value in found.items()},
    }


def broken(preset: str, seed: int, cause: str = "model_unavailable", outcome: str = "invalid") -> dict[str, Any]:
    """A row of a run that was not scored."""
    return {**row(preset, seed, "BANKRUPT", 0, "", 7, 0.0), "outcome": outcome, "cause": cause, "details": {}}


FAST = [
    row("fast_test", 1, "SURVIVED", 950_029_229, "2026-01-01", 744, 0.896912),
    row("fast_test", 2, "SURVIVED", 1_113_928_112, "2026-01-01", 972, 0.913745),
    row("fast_test", 3, "SURVIVED", 1_215_237_011, "2026-01-01", 899, 0.922977),
]
MEDIUM = [
    row("medium", 1, "BANKRUPT", -491_336, "2025-09-01", 115, 0.0),
    row("medium", 2, "BANKRUPT", -1_490_374, "2025-09-01", 180, 0.0),
    row("medium", 3, "INCOMPLETE", 25_000_000, "2025-01-01", 3, 0.575095),
]
TABLE = """\
yc-bench 0.1.0 (wheel 732fa212)  init=sim_init  model=some-model  max_turns=200
preset     seed  status      final funds      sim date     turns  composite
fast_test     1  SURVIVED     $9,500,292.29   2026-01-01     744      0.897
fast_test     2  SURVIVED    $11,139,281.12   2026-01-01     972      0.914
fast_test     3  SURVIVED    $12,152,370.11   2026-01-01     899      0.923
  fast_test      3/3 survived   0.911 +/- 0.033   [min 0.897  max 0.923]
medium        1  BANKRUPT        -$4,913.36   2025-09-01     115      0.000
medium        2  BANKRUPT       -$14,903.74   2025-09-01     180      0.000
medium        3  INCOMPLETE     $250,000.00   2025-01-01       3      0.575*
  medium         0/2 survived, 1 incomplete   0.192 +/- 0.825   [min 0.000  max 0.575]
overall        survival 60.0% (3/5, 1 incomplete)   composite 0.551 (6 runs)
* agent stopped before the horizon; not drained (--yc-on-incomplete=as_is)
mean +/- half-width of the 95% t interval over seeds (n=3, t=4.303)
"""


def text(rows: list[dict[str, Any]], settings: dict[str, Any] = SETTINGS) -> str:
    return "".join(f"{line}\n" for line in section(rows, settings).lines)


def test_the_whole_table():
    found = section([*reversed(MEDIUM), *reversed(FAST)], SETTINGS)
    assert found.title == "YC-Bench composite"
    assert "".join(f"{line}\n" for line in found.lines) == TABLE


DRAINED = """\
yc-bench 0.1.0 (wheel 732fa212)  init=sim_init  model=some-model  max_turns=200
preset  seed  status      final funds      sim date     turns  composite
hard       1  SURVIVED       $214,369.70   2026-01-01     200      0.567+  as left: $610,202.40 on 2025-02-10
hard       2  BANKRUPT        -$7,357.17   2025-10-01     200      0.000+  as left: $250,000.00
hard       3  ERROR                    -   -                7          -   model_unavailable
  hard        1/2 survived, 1 error   0.284 +/- 3.603   [min 0.000  max 0.567]
easy      -1  TAMPERED    $99,999,999.99   2025-03-03      12      0.000
easy       4  FAILED                   -   -                7      0.000   sandbox_killed
  easy        0/2 survived, 1 tampered, 1 failed   0.000 +/- 0.000   [min 0.000  max 0.000]
slow       1  ERROR                    -   -                7          -   image
  slow        0/0 survived, 1 error   -
overall     survival 25.0% (1/4, 1 tampered, 1 failed, 2 errors)   composite 0.142 (4 runs)
+ agent stopped before the horizon; drained: the clock ran out without it (--yc-on-incomplete=drain)
mean +/- half-width of the 95% t interval over seeds (n=2, t=12.706)
ERROR: infrastructure; in no mean
"""


def test_drained_broken_and_tampered_runs():
    drain = {"on_incomplete": "drain", "status_as_left": "INCOMPLETE", "drain_resumes": 1}
    rows = [
        row(
            *("hard", 1, "SURVIVED", 21_436_970, "2026-01-01", 200, 0.567086),
            **{**drain, "funds_as_left_cents": 61_020_240, "sim_date_as_left": "2025-02-10"},
        ),
        row("hard", 2, "BANKRUPT", -735_717, "2025-10-01", 200, 0.0, **{**drain, "funds_as_left_cents": 25_000_000}),
        broken("hard", 3),
        row("easy", -1, "INCOMPLETE", 9_999_999_999, "2025-03-03", 12, 0.0, cause="tampering", survived=False),
        broken("easy", 4, "sandbox_killed", "failed"),
        broken("slow", 1, "image"),
    ]
    tasks = {"tasks": ["hard-seed1", "easy-seed-1", "slow-seed1"], "env": {"max_agent_turns": 200}}
    assert text(rows, tasks) == DRAINED
    found = section(rows, tasks)
    assert found.metrics == {
        "yc.avg_composite": pytest.approx(0.567086 / 4),
        "yc.survival_rate": 0.25,
        "yc.runs": 4,
        "yc.bankrupt": 1,
        "yc.incomplete": 0,
        "yc.tampered": 1,
        "yc.errors": 2,
        "yc.avg_final_funds_usd": pytest.approx((214_369.70 - 7_357.17 + 99_999_999.99) / 3),
        "yc.avg_composite.hard": pytest.approx(0.567086 / 2),
        "yc.survival_rate.hard": 0.5,
        "yc.avg_composite.easy": 0.0,
        "yc.survival_rate.easy": 0.0,
        "yc.avg_composite.slow": None,
        "yc.survival_rate.slow": None,
    }


SEVERAL = """\
yc-bench 0.1.0  init=preset  agent=scripted  max_turns=50
preset     seed  status      final funds      sim date     turns  composite
fast_test   1:1  SURVIVED       $100,000.00   2026-01-01       9      0.600
fast_test   1:2  BANKRUPT            -$0.01   2026-01-01       9      0.000
fast_test   2:1  SURVIVED       $100,000.00   2026-01-01       9      0.500
  fast_test      2/3 survived   0.400 +/- 1.271   [min 0.300  max 0.500]
overall        survival 66.7% (2/3)   composite 0.400 (3 runs)
mean +/- half-width of the 95% t interval over seeds (n=2, t=12.706)
"""


def test_attempts_of_a_seed_count_as_one():
    more = {"init_mode": "preset", "package_sha256": None}
    rows = [
        row("fast_test", 1, "BANKRUPT", -1, "2026-01-01", 9, 0.0, attempt=2, **more),
        row("fast_test", 1, "SURVIVED", 10_000_000, "2026-01-01", 9, 0.6, attempt=1, **more),
        row("fast_test", 2, "SURVIVED", 10_000_000, "2026-01-01", 9, 0.5, **more),
    ]
    for one in rows:
        one.update(model=None, agent="scripted")
    settings = {"env": {"max_agent_turns": 200, "presets": None}, "benchmark": {"limits": {"max_turns": 50}}}
    assert text(rows, settings) == SEVERAL
    assert section(rows, settings).metrics["yc.avg_final_funds_usd"] == pytest.approx((50_000 - 0.005 + 100_000) / 2)


def test_one_seed_has_no_interval():
    lines = section(FAST[:1], SETTINGS).lines
    assert "  fast_test      1/1 survived   0.897" in lines
    assert lines[-1] == "overall        survival 100.0% (1/1)   composite 0.897 (1 run)"


def test_incomplete_runs_that_score_nothing():
    failed = row("medium", 1, "INCOMPLETE", 25_000_000, "2025-01-01", 3, 0.0, on_incomplete="fail")
    assert "* agent stopped before the horizon; scored 0 (--yc-on-incomplete=fail)\n" in text([failed])
    assert "survival - (0/0, 1 incomplete)" in text([failed])


def test_a_run_of_errors_alone():
    found = section([broken("fast_test", 1)], SETTINGS)
    assert found.lines[0] == "model=some-model  max_turns=200"
    assert "overall        survival - (0/0, 1 error)   composite - (0 runs)" in found.lines
    assert found.metrics["yc.avg_composite"] is None and found.metrics["yc.runs"] == 0


def test_no_rows_no_section():
    assert section([], SETTINGS) is None


def test_metrics():
    found = section([*FAST, *MEDIUM], SETTINGS).metrics
    assert found["yc.avg_composite"] == pytest.approx((0.896912 + 0.913745 + 0.922977 + 0.575095) / 6)
    assert found["yc.survival_rate"] == 0.6
    assert (found["yc.runs"], found["yc.bankrupt"], found["yc.incomplete"], found["yc.errors"]) == (6, 2, 1, 0)
    assert found["yc.avg_composite.medium"] == pytest.approx(0.575095 / 3) and found["yc.survival_rate.medium"] == 0.0
    assert all(value is None or math.isfinite(value) for value in found.values())


def test_the_metrics_of_hermes_agent():
    """There an error is a run that scored 0, and a run that stopped early survived."""
    found = section([*FAST, *MEDIUM, broken("extra-hard", 1)], SETTINGS).evaluation
    assert found == {
        "eval/survival_rate": pytest.approx(4 / 7),
        "eval/avg_composite_score": pytest.approx((0.896912 + 0.913745 + 0.922977 + 0.575095) / 7),
        "eval/total_runs": 7,
        "eval/survived_runs": 4,
        "eval/evaluation_time_seconds": 15.0,
        "eval/survival_rate_extra_hard": 0.0,
        "eval/avg_score_extra_hard": 0.0,
        "eval/survival_rate_fast_test": 1.0,
        "eval/avg_score_fast_test": pytest.approx((0.896912 + 0.913745 + 0.922977) / 3),
        "eval/survival_rate_medium": pytest.approx(1 / 3),
        "eval/avg_score_medium": pytest.approx(0.575095 / 3),
    }


def test_samples():
    assert sample(FAST[0]) == {
        "preset": "fast_test",
        "seed": 1,
        "survived": True,
        "final_funds_cents": 950_029_229,
        "final_funds_usd": 9_500_292.29,
        "terminal_reason": "horizon_end",
        "composite_score": 0.896912,
        "elapsed_seconds": 11.0,
        "db_path": "artifacts/fast_test-seed1/1/yc_bench.db",
    }
    error = sample(broken("fast_test", 2))
    assert (error["preset"], error["seed"], error["composite_score"], error["survived"]) == ("fast_test", 2, 0.0, False)
    assert (error["terminal_reason"], error["db_path"]) == ("error: model_unavailable", None)


def test_the_file_has_metrics_and_runs():
    found = section([*FAST, *MEDIUM], SETTINGS)
    content = found.files["yc_bench_summary.json"]
    assert content["metrics"] == found.metrics and content["evaluation"] == found.evaluation
    assert content["presets"]["medium"]["interval_half_width"] == pytest.approx(0.825, abs=5e-4)
    assert [run["task_id"] for run in content["runs"]] == [one["task_id"] for one in [*FAST, *MEDIUM]]
    assert content["runs"][5]["status"] == "INCOMPLETE" and content["runs"][5]["details"]["init_mode"] == "sim_init"
