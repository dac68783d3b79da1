"""YC-Bench by scripted players: every expected end of `tests/data/yc_bench/expected.json`, through the whole product.

The players' commands go through the agent's own terminal tool, the kept process or a process each, the verifier and the
records; what they must end with was measured without any of these.
"""

from __future__ import annotations

import collections
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_hermes.artifacts.records import read_rows

ROOT = Path(__file__).parents[2]
CASES = json.loads((ROOT / "tests/data/yc_bench/expected.json").read_text())["cases"]
GAMES: dict[tuple[str, str, int | None], list[dict[str, Any]]] = collections.defaultdict(list)
for case in CASES:
    GAMES[case["init"], case["policy"], case["cap"]].append(case)
IDLE = {(case["preset"], case["seed"]): case for case in CASES if case["policy"] == "idle"}
WHOLE_OFFERS = [
    *("--hermes-set", "env.terminal_output_chars=400000"),
    *("--hermes-set", "env.default_result_size_chars=400000"),
]
"""The players read all offers at once, which is more than a model is shown."""

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("yc_bench") is None, reason="yc-bench is not installed (it needs Python 3.12)"
)


class Games:
    """Runs games in a process of its own and compares what they end with."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester = pytester
        monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
        for name in ("DATABASE_URL", "YC_BENCH_EXPERIMENT", "YC_BENCH_BIN"):
            monkeypatch.delenv(name, raising=False)

    def play(self, cases: list[dict[str, Any]], *arguments: str) -> dict[str, dict[str, Any]]:
        """Rows by task, of a run that has exactly these games."""
        before = dict(os.environ)
        presets = list(dict.fromkeys(case["preset"] for case in cases))
        seeds = sorted({case["seed"] for case in cases})
        wanted = [f"{case['preset']}-seed{case['seed']}" for case in cases]
        result = self.pytester.runpytest_subprocess(
            str(ROOT / "benchmarks" / "yc_bench"),
            "--hermes-run-dir=runs",
            f"--yc-presets={','.join(presets)}",
            f"--yc-seeds={','.join(map(str, seeds))}",
            f"--hermes-task={','.join(wanted)}",
            f"--yc-init={cases[0]['init']}",
            *("-p", "no:randomly", "-p", "no:cacheprovider"),
            *WHOLE_OFFERS,
            *arguments,
        )
        assert result.ret in (0, 1), result.stdout.str()
        assert dict(os.environ) == before
        self.result = result
        run = max((self.pytester.path / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        return {row["task_id"]: row for row in read_rows(run)}

    def by_policy(self, cases: list[dict[str, Any]], *arguments: str) -> dict[str, dict[str, Any]]:
        case = cases[0]
        options = json.dumps({"policy": case["policy"], "cap": case["cap"]})
        agent = ["--hermes-agent=doubles.yc_players:Player", "--hermes-set", f"env.agent_options={options}"]
        return self.play(cases, *agent, *arguments)


@pytest.fixture
def games(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Games:
    return Games(pytester, monkeypatch)


def played_out(case: dict[str, Any]) -> dict[str, Any]:
    """What a game ends with when nobody acts any more."""
    if "after_drain" in case:
        return case["after_drain"]
    if case["last_terminal_reason"] is not None:
        return case
    return IDLE[case["preset"], case["seed"]]  # no task was taken, and offers do not matter then


def compare(cases: list[dict[str, Any]], rows: dict[str, dict[str, Any]], *, fast: bool) -> None:
    """As left, and played out."""
    assert len(rows) == len(cases)
    for case in cases:
        row = rows[f"{case['preset']}-seed{case['seed']}"]
        found, wanted = row["details"], played_out(case)
        assert row["cause"] != "tampering", row["verifier"]
        assert found["yc.funds_as_left_cents"] == case["final_funds_cents"]
        assert found["yc.composite_as_left"] == pytest.approx(case["score"], abs=1e-12)
        assert found["yc.sim_date_as_left"] == case["sim_date"]
        assert wanted["final_funds_cents"] in (found["yc.final_funds_cents"], None)
        assert found["yc.composite"] == pytest.approx(wanted["score"], abs=1e-12)
        assert row["reward"] == found["yc.composite"]
        assert found["yc.survived"] == wanted["survived"]
        assert found["yc.commands"] == case["commands"]
        assert found["yc.fast_commands"] == (case["commands"] if fast else 0)
        assert found["yc.init_mode"] == case["init"]
        assert row["outcome"] == ("passed" if found["yc.status"] == "SURVIVED" else "failed")


# Nobody measured what idling ends with for two of the seeds; how much is left then does not matter.
for preset, seed in (("hard", 2), ("hard", 3)):
    IDLE.setdefault((preset, seed), {"survived": False, "score": 0.0, "final_funds_cents": None})

QUICK = [game for game in GAMES if game[1] in ("idle", "look_only", "quit_at_once")]
LONG = [game for game in GAMES if game not in QUICK]


def name_of(game: tuple[str, str, int | None]) -> str:
    return "-".join(str(part) for part in game if part is not None)


@pytest.mark.parametrize("processes", [["--hermes-concurrency=3"], ["-n", "4"]], ids=["one process", "xdist"])
@pytest.mark.parametrize("game", [*QUICK, *(pytest.param(game, marks=pytest.mark.slow) for game in LONG)], ids=name_of)
def test_a_policy_ends_as_measured(games, game, processes):
    compare(GAMES[game], games.by_policy(GAMES[game], *processes), fast=True)
