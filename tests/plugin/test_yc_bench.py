"""YC-Bench at collection: its items, what is refused, and what it does where yc-bench is not there."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
installed = pytest.mark.skipif(
    importlib.util.find_spec("yc_bench") is None, reason="yc-bench is not installed (it needs Python 3.12)"
)


@pytest.fixture
def collect(pytester, monkeypatch):
    """pytest on the benchmark, in a process of its own."""
    monkeypatch.delenv("YC_BENCH_BIN", raising=False)

    def run(*arguments: str) -> pytest.RunResult:
        return pytester.runpytest_subprocess(
            str(ROOT / "benchmarks/yc_bench"),
            *("--hermes-run-dir=runs", "-p", "no:randomly", "-p", "no:cacheprovider", *arguments),
        )

    return run


def ids(result: pytest.RunResult) -> list[str]:
    return [line.rpartition("::")[2] for line in result.outlines if "::" in line]


@installed
def test_nine_items_by_default_and_as_chosen(collect):
    nine = ids(collect("--collect-only", "-q"))
    assert nine == [
        f"test_run[{preset}-seed{seed}]" for preset in ("fast_test", "medium", "hard") for seed in (1, 2, 3)
    ]
    assert ids(collect("--collect-only", "-q", "--yc-presets", "fast_test", "--yc-seeds", "1")) == [
        "test_run[fast_test-seed1]"
    ]
    assert ids(collect("--collect-only", "-q", "-k", "hard and seed3")) == ["test_run[hard-seed3]"]
    several = ids(collect("--collect-only", "-q", "--yc-presets=easy,tutorial", "--yc-seeds=7", "--hermes-attempts=2"))
    assert several == [f"test_run[{name}-seed7:{attempt}]" for name in ("easy", "tutorial") for attempt in (1, 2)]


@installed
def test_hermes_configurations_are_taken_as_they_are(collect, pytester):
    pytester.makefile(
        ".yaml",
        config="""
        env:
          enabled_toolsets: ["terminal"]
          presets: ["medium"]
          seeds: [4, 5]
          run_timeout: 60
          survival_weight: 0.7
          funds_weight: 0.3
          horizon_years: 1
          company_name: "Acme"
          start_date: "02/01/2025"
        """,
    )
    assert ids(collect("--collect-only", "-q", "--hermes-config=config.yaml")) == [
        "test_run[medium-seed4]",
        "test_run[medium-seed5]",
    ]


@installed
@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one process", "xdist"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--yc-presets=fast_tset"], "*has no preset 'fast_tset'*challenge*Did you mean 'fast_test'?*"),
        (["--yc-seeds=one"], "*--yc-seeds: env.seeds: 'one' is not a list of whole numbers ('one')*"),
        (["--yc-seeds=1,1"], "*--yc-seeds: 1 is given twice; --hermes-attempts N plays each N times*"),
        (["--yc-on-incomplete=maybe"], "*--yc-on-incomplete=maybe: none of drain, as_is, fail*"),
        (["--yc-init=other"], "*--yc-init=other: none of sim_init, preset*"),
        (["--yc-auto-advance=0"], "*env.yc_auto_advance: 0 is not between 1 and*"),
        (["--hermes-sandbox=docker"], "*--hermes-sandbox=docker: yc_bench plays*local*"),
        (["--hermes-set", "env.start_date='2025-01-01'"], "*env.start_date: '2025-01-01' is not a date MM/DD/YYYY*"),
        (["--hermes-set", "env.survival_weight=0.9"], "*env.survival_weight + env.funds_weight: 1.4 is more than 1*"),
        (["--hermes-agent=oracle"], "*no task of yc_bench*has one*"),
        (["--hermes-agent=hermes"], "*model*"),
        (["--yc-bench-bin=/nowhere/yc-bench"], "*--yc-bench-bin=/nowhere/yc-bench: no such command. Give the path*"),
        ([f"--yc-bench-bin={shutil.which('true')}"], "*--yc-bench-bin=*true: * is not the script of a Python*"),
        (["--yc-presets=,"], "*--yc-presets: names none*"),
        (["--yc-seeds=99999999999999999999"], "*--yc-seeds: 99999999999999999999 is more than its database holds*"),
        (["--hermes-set", "env.start_date='02/29/2024'"], "*env.start_date: '02/29/2024': most years lack that day*"),
        (["--hermes-set", "env.horizon_years=9000"], "*env.horizon_years: 9000 is not between 1 and 100*"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_mistakes_are_one_line_and_start_nothing(collect, pytester, arguments, message, processes):
    result = collect("--hermes-agent=nop", *arguments, *processes)
    assert result.ret in (1, 2, 4)
    printed = pytest.LineMatcher([*result.outlines, *result.errlines])
    printed.fnmatch_lines([message])
    printed.no_fnmatch_line("*Traceback*")
    assert not (pytester.path / "runs").exists()


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_without_yc_bench_its_items_are_skipped_with_what_to_do(collect, pytester, monkeypatch, processes):
    pytester.makepyfile(hide="import sys\nsys.modules['yc_bench'] = None")
    monkeypatch.setenv("PYTHONPATH", str(pytester.path))
    result = collect("--hermes-agent=nop", "-p", "hide", "-rs", *processes)
    result.assert_outcomes(skipped=9)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*pip install 'pytest-hermes[[]yc-bench]'*--yc-bench-bin*"])


@installed
def test_an_installation_of_another_environment_is_played(collect, pytester, tmp_path):
    """Also one whose interpreter is not this one: here, the same by another name."""
    script = tmp_path / "other" / "yc-bench"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nimport sys\nfrom yc_bench.cli import app_main\nsys.exit(app_main())\n")
    script.chmod(0o755)
    one = ("--yc-presets=fast_test", "--yc-seeds=1", "--yc-on-incomplete=as_is")
    result = collect("--hermes-agent=nop", f"--yc-bench-bin={script}", *one)
    result.stdout.fnmatch_lines(["incomplete: reward 0.575095, failed (fast_test-seed1)", "INCOMPLETE on 2025-01-01 *"])
    (run,) = (path for path in (pytester.path / "runs").iterdir() if path.is_dir())
    (row,) = [json.loads(line) for line in (run / "rollouts-main.jsonl").read_text().splitlines()]
    assert row["details"]["yc.package_version"] == "0.1.0"
    assert "DATABASE_URL" not in os.environ
