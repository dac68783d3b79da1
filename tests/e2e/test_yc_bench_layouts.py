"""YC-Bench with the surface of later revisions (`doubles/newer_yc_bench.py`): what is offered, told, played and scored.

The expected ends were measured with that package's own commands and engine, outside of this product.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from doubles.loopback import LoopbackServer
from doubles.yc_players import model_server

from pytest_hermes.artifacts.records import read_rows

ROOT = Path(__file__).parents[2]
IS_INSTALLED = importlib.util.find_spec("yc_bench") is not None
pytestmark = pytest.mark.skipif(not IS_INSTALLED, reason="yc-bench is not installed (it needs Python 3.12)")
IN_BOTH = pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one process", "xdist"])
START_FUNDS = 60_000_000


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of the newer yc-bench."""
    from doubles.newer_yc_bench import make

    return make(tmp_path_factory.mktemp("newer") / "env")


class Bench:
    """pytest on the benchmark with that yc-bench, in a process of its own."""

    def __init__(self, pytester: pytest.Pytester, binary: Path) -> None:
        self.pytester, self.binary = pytester, binary

    def __call__(self, *arguments: str) -> pytest.RunResult:
        return self.pytester.runpytest_subprocess(
            str(ROOT / "benchmarks" / "yc_bench"),
            f"--yc-bench-bin={self.binary}",
            *("--hermes-run-dir=runs", "-p", "no:randomly", "-p", "no:cacheprovider", *arguments),
        )

    def rows(self, *arguments: str) -> dict[str, dict[str, Any]]:
        result = self(*arguments)
        assert result.ret in (0, 1), result.stdout.str()
        run = max((path for path in (self.pytester.path / "runs").iterdir()), key=lambda path: path.stat().st_mtime_ns)
        self.result = result
        return {row["task_id"]: row for row in read_rows(run)}

    def play(self, presets: str, seeds: str, cap: int | None, *arguments: str) -> dict[str, dict[str, Any]]:
        options = json.dumps({"policy": "by_name", "cap": cap})
        agent = ["--hermes-agent=doubles.yc_players:Player", "--hermes-set", f"env.agent_options={options}"]
        return self.rows(f"--yc-presets={presets}", f"--yc-seeds={seeds}", *agent, *arguments)


@pytest.fixture
def bench(pytester: pytest.Pytester, newer: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    monkeypatch.setenv("PYTEST_HERMES_CACHE", str(newer.parents[2] / "cache"))  # it is asked once for all tests
    for name in ("DATABASE_URL", "YC_BENCH_EXPERIMENT", "YC_BENCH_BIN"):
        monkeypatch.delenv(name, raising=False)
    return Bench(pytester, newer)


def ended(row: dict[str, Any]) -> tuple[Any, ...]:
    found = row["details"]
    return found["yc.status"], found["yc.final_funds_cents"], found["yc.sim_date"], found["yc.tasks_succeeded"]


def as_left(row: dict[str, Any]) -> tuple[Any, ...]:
    found = row["details"]
    return found["yc.status_as_left"], found["yc.funds_as_left_cents"], found["yc.sim_date_as_left"]


def test_what_it_offers_is_read_from_it(newer):
    from pytest_hermes.yc_bench.install import find_installation

    found = find_installation(str(newer))
    assert found.presets == ("default",)
    assert found.domains == ("inference", "research", "data_environment", "training")
    assert found.commands["task assign"] == ("--task-id", "--employees")
    assert "--required-prestige-lte" not in found.commands["market browse"]
    assert "client list" in found.commands and "client history" in found.commands
    assert found.preset_facts["default"].initial_funds_cents == START_FUNDS
    assert found.preset_facts["default"].num_employees == 4
    assert found.preset_facts["hard"].initial_funds_cents == 25_000_000  # our own file of that name
    assert found.package_sha256 != find_installation().package_sha256


@IN_BOTH
def test_items_are_its_preset_and_ours(bench, processes):
    chosen = ("--yc-presets=default,hard", "--yc-seeds=1", *processes)
    result = bench("--collect-only", "-q", *chosen)
    items = [line.rpartition("::")[2] for line in result.outlines if "::" in line]
    assert items == ["test_run[default-seed1]", "test_run[hard-seed1]"]


@IN_BOTH
def test_an_unknown_preset_is_refused(bench, processes):
    result = bench("--hermes-agent=nop", "--yc-presets=defualt", *processes)
    assert result.ret != 0
    printed = pytest.LineMatcher([*result.outlines, *result.errlines])
    printed.fnmatch_lines(["*has no preset 'defualt', it has default. Did you mean 'default'?*"])
    printed.no_fnmatch_line("*Traceback*")
    assert not (bench.pytester.path / "runs").exists()


def test_a_model_plays_to_the_horizon_by_prompts_that_name_what_is_there(bench):
    server = LoopbackServer(model_server("by_name", None))
    try:
        model = ["--model=player", f"--hermes-base-url={server.url}", "--hermes-set", "openai.api_key=none"]
        (row,) = bench.rows("--yc-presets=default", "--yc-seeds=1", *model).values()
    finally:
        server.close()
    assert ended(row) == ("SURVIVED", 125_052_418, "2026-01-01", 6)
    assert (row["outcome"], row["stop_reason"], row["turns"]) == ("passed", "ended", 54)
    assert row["details"]["yc.fast_commands"] == row["details"]["yc.commands"] == 54
    assert row["details"]["yc.initial_funds_cents"] == START_FUNDS
    rewards = [turn["reward"] for turn in row["turn_records"] if turn["reward"] is not None]
    assert sum(rewards) == pytest.approx((125_052_418 - START_FUNDS) / START_FUNDS)
    # 0.5 + 0.5 * ln(1 + 125052418 / 60000000) / ln 101
    assert row["reward"] == pytest.approx(0.6220222266302038, abs=1e-12)
    system, first = (row["messages"][number]["content"] for number in (0, 1))
    assert "$600,000" in system and "4 domains: inference, research, data_environment, training" in system
    assert "`yc-bench task assign --task-id ID --employees NAME,NAME`" in system and "yc-bench client list" in system
    assert "It may refuse while no task is running." in system
    for absent in ("--required-prestige-lte", "--employee-id", "task cancel", "report monthly", "frontend"):
        assert absent not in system + first


@pytest.mark.slow
def test_bankrupt_by_the_figures_of_our_own_preset_in_a_worker(bench):
    (row,) = bench.play("fast_test", "1", None, "-n", "2").values()
    assert ended(row) == ("BANKRUPT", -491_336, "2025-09-01", 0)
    assert (row["outcome"], row["cause"], row["reward"]) == ("failed", "bankrupt", 0.0)
    assert row["details"]["yc.initial_funds_cents"] == 25_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cap", "left", "end"),
    [
        (8, ("INCOMPLETE", 61_850_148, "2025-02-27"), ("SURVIVED", 33_372_128, "2026-01-01", 1)),
        (12, ("INCOMPLETE", 61_850_148, "2025-02-27"), ("SURVIVED", 44_873_459, "2026-01-01", 2)),
    ],
    ids=["nobody at work", "a task under way"],
)
def test_the_clock_runs_out_where_it_is_refused(bench, cap, left, end):
    (row,) = bench.play("default", "1", cap).values()
    assert as_left(row) == left and ended(row) == end
    assert row["outcome"] == "passed" and row["details"]["yc.drain_resumes"] > 0


@pytest.mark.slow
def test_a_process_per_command_and_the_other_way_to_begin_are_the_same_game(bench):
    ways = ("--yc-fast-path=off", "--yc-init=preset", "--yc-on-incomplete=as_is")
    (row,) = bench.play("default", "1", 6, *ways).values()
    assert as_left(row) == ("INCOMPLETE", START_FUNDS, "2025-01-29")
    assert (row["cause"], row["details"]["yc.fast_commands"]) == ("incomplete", 0)


@pytest.mark.slow
def test_a_clock_that_refuses_says_so_when_it_is_advanced(bench):
    server = LoopbackServer(model_server("never_resumes", 4))
    try:
        model = ["--model=player", f"--hermes-base-url={server.url}", "--hermes-set", "openai.api_key=none"]
        arguments = ("--yc-auto-advance=2", "--yc-on-incomplete=fail")
        (row,) = bench.rows("--yc-presets=default", "--yc-seeds=1", *model, *arguments).values()
    finally:
        server.close()
    told = [message["content"] for message in row["messages"] if message["role"] == "user"][1:]
    assert told and all("No task is active." in text for text in told)
    assert as_left(row) == ("INCOMPLETE", START_FUNDS, "2025-01-01")
