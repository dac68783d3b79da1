"""YC-Bench by scripted players: every expected end of `tests/data/yc_bench/expected.json`, through the whole product.

The players' commands go through the agent's own terminal tool, the kept process or a process each, the verifier and the
records; what they must end with was measured without any of these.
"""

from __future__ import annotations

import collections
import contextlib
import importlib.util
import json
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from doubles.loopback import LoopbackServer
from doubles.yc_players import CHEATS, model_server

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
        self.run = max((self.pytester.path / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        return {row["task_id"]: row for row in read_rows(self.run)}

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


def name_of(game: tuple[Any, ...]) -> str:
    return "-".join(str(part) for part in game if part is not None)


ALONE, WORKERS = ["--hermes-concurrency=3"], ["-n", "4"]
ALL = os.environ.get("HERMES_TEST_EXAMPLES", "1") != "1"
"""Whether every case also runs with xdist's workers; else some of each kind do, for each costs four processes more."""


def alone_and_with_workers(cases: list[Any], some: list[Any]) -> list[Any]:
    both = [(case, processes) for case in cases for processes in (ALONE, WORKERS)]
    return [
        pytest.param(case, processes, id=f"{name_of(case)}-{'alone' if processes is ALONE else 'workers'}")
        for case, processes in both
        if processes is ALONE or ALL or case in some
    ]


SOME = [
    ("sim_init", "idle", None),
    ("preset", "look_only", None),
    ("preset", "spread", 60),
    ("sim_init", "careful", 60),
]


@pytest.mark.slow
@pytest.mark.parametrize(("game", "processes"), alone_and_with_workers([*GAMES], SOME))
def test_a_policy_ends_as_measured(games, game, processes):
    compare(GAMES[game], games.by_policy(GAMES[game], *processes), fast=True)


# -- the same by a model, and by a process per command ---------------------------------------------------

SIX = [
    ("sim_init", "careful", 60, "hard", 3),
    ("preset", "spread", 60, "fast_test", 3),
    ("sim_init", "greedy", 60, "fast_test", 2),
    ("preset", "look_only", None, "hard", 2),
    ("preset", "idle", None, "medium", 3),
    ("sim_init", "idle", None, "fast_test", 1),
]


def case_of(init: str, policy: str, cap: int | None, preset: str, seed: int) -> list[dict[str, Any]]:
    (found,) = [case for case in GAMES[init, policy, cap] if (case["preset"], case["seed"]) == (preset, seed)]
    return [found]


@pytest.mark.slow
@pytest.mark.parametrize(("wanted", "processes"), alone_and_with_workers(SIX, [SIX[1], SIX[4]]))
def test_a_model_over_http_ends_as_measured(games, wanted, processes):
    """Through the agent loop: sampling, tool calls, the history that is sent, the end at the horizon."""
    (case,) = cases = case_of(*wanted)
    server = LoopbackServer(model_server(case["policy"], case["cap"]))
    try:
        model = ["--model=player", f"--hermes-base-url={server.url}", "--hermes-set", "openai.api_key=none"]
        rows = games.play(cases, *model, *processes)
    finally:
        server.close()
    compare(cases, rows, fast=True)
    (row,) = rows.values()
    over = case["last_terminal_reason"] is not None
    assert row["stop_reason"] == ("ended" if over else "finished")
    assert row["turns"] == case["commands"] + (not over)
    rewards = [turn["reward"] for turn in row["turn_records"] if turn["reward"] is not None]
    bankrupt = over and not case["survived"]
    assert sum(rewards) == pytest.approx((case["final_funds_cents"] - 25_000_000) / 25_000_000 - bankrupt)


@pytest.mark.slow
@pytest.mark.parametrize(("wanted", "processes"), alone_and_with_workers(SIX, [SIX[1], SIX[4]]))
def test_a_process_per_command_ends_as_measured(games, wanted, processes):
    cases = case_of(*wanted)
    compare(cases, games.by_policy(cases, "--yc-fast-path=off", *processes), fast=False)


# -- what players do that is no play -----------------------------------------------------------------------

DO_NOTHING = [{"preset": "fast_test", "seed": seed, "init": "sim_init"} for seed in (1, 2)]


@pytest.mark.parametrize(
    ("mode", "score", "status"),
    [("drain", 0.0, "BANKRUPT"), ("as_is", 0.575095241611844, "INCOMPLETE"), ("fail", 0.0, "INCOMPLETE")],
)
def test_doing_nothing_in_the_three_modes(games, mode, score, status):
    rows = games.play(DO_NOTHING, "--hermes-agent=nop", f"--yc-on-incomplete={mode}", "--junitxml=j.xml")
    for row in rows.values():
        assert row["details"]["yc.composite"] == pytest.approx(score, abs=1e-12)
        assert (row["details"]["yc.status"], row["outcome"]) == (status, "failed")
        assert row["cause"] == status.lower()
        assert (row["details"]["yc.drain_resumes"] > 0) == (mode == "drain")
    junit = (games.pytester.path / "j.xml").read_text()
    assert f'<property name="yc.status" value="{status}"' in junit
    metrics = json.loads((games.run / "summary.json").read_text())["metrics"]
    assert metrics["yc.avg_composite"] == pytest.approx(score, abs=1e-12)
    assert metrics["yc.survival_rate"] == (0.0 if mode == "drain" else None)


def by_model(games: Games, policy: str, *arguments: str, cap: int | None = None) -> dict[str, Any]:
    """The row of a model that plays fast_test with seed 1."""
    server = LoopbackServer(model_server(policy, cap))
    try:
        model = ["--model=player", f"--hermes-base-url={server.url}", "--hermes-set", "openai.api_key=none"]
        rows = games.play(DO_NOTHING[:1], *model, *arguments)
    finally:
        server.close()
    return rows["fast_test-seed1"]


PLAIN = "yc-bench company status"


def by_calls(
    games: Games, cases: list[dict[str, Any]], *calls: dict[str, Any], arguments: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """What these calls of the terminal print, by run, and the names of the test process's variables meanwhile."""
    options = json.dumps({"calls": calls})
    agent = ["--hermes-agent=doubles.yc_players:Caller", "--hermes-set", f"env.agent_options={options}"]
    rows = games.play(cases, *agent, *arguments)
    return [json.loads(row["messages"][0]["content"]) for row in rows.values()]


def test_the_run_ends_with_bankruptcy_though_the_model_would_go_on(games):
    row = by_model(games, "talks_on")
    assert (row["stop_reason"], row["turns"], row["cause"]) == ("ended", 1, "bankrupt")
    assert '"terminal_reason": "bankruptcy"' in json.loads(row["messages"][-1]["content"])["output"]


@pytest.mark.slow
def test_the_clock_is_advanced_for_a_model_that_does_not(games):
    row = by_model(games, "never_resumes", "--yc-auto-advance=3")
    assert (row["stop_reason"], row["turns"]) == ("ended", 3)
    assert row["messages"][-1]["role"] == "user"
    assert "3 turns passed" in row["messages"][-1]["content"] and "bankruptcy" in row["messages"][-1]["content"]


def test_calls_of_one_message_are_done_in_order(games):
    row = by_model(games, "two_at_once", "--yc-on-incomplete=as_is")
    results = [json.loads(message["content"]) for message in row["messages"] if message["role"] == "tool"]
    assert [result["exit_code"] for result in results] == [0, 0, 0]
    database = games.run / "artifacts" / "fast_test-seed1" / "1" / "yc_bench.db"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute("select replenish_counter from sim_state").fetchone() == (2,)
        titles = [title for (title,) in connection.execute("select title from tasks where status = 'market'")]
    assert len([title for title in titles if "-0]" in title]) <= 1  # no replacement was made twice


@pytest.mark.slow
@pytest.mark.parametrize("cheat", [*CHEATS, "puts_back"])
def test_what_is_no_play_scores_nothing(games, cheat):
    row = by_model(games, cheat)
    assert (row["outcome"], row["cause"], row["reward"]) == ("failed", "tampering", 0.0)
    assert row["verifier"]["evidence"]


@pytest.mark.slow
def test_looking_around_is_no_tampering(games):
    row = by_model(games, "looks_around")
    assert (row["cause"], row["verifier"]["evidence"]) == ("bankrupt", [])
    assert row["details"]["yc.fast_commands"] == 1


@pytest.mark.slow
@pytest.mark.requires("bwrap")  # elsewhere they would be this machine's
def test_an_agent_that_ends_every_python_of_its_sandbox_is_scored_all_the_same(games):
    row = by_model(games, "ends_pythons")
    assert (row["outcome"], row["cause"], row["tries"]) == ("failed", "bankrupt", [])


@pytest.mark.slow
def test_a_database_that_nobody_may_read_is_scored_as_none(games):
    """Also with the clock advanced: an agent cannot make its run one that does not count."""
    row = by_model(games, "locks_home", "--yc-auto-advance=2", "--hermes-max-turns=6")
    assert (row["outcome"], row["reward"], row["stop_reason"]) == ("failed", 0.0, "max_turns")


@pytest.mark.slow
def test_a_clock_is_advanced_later_than_a_loop_would_be_ended(games):
    row = by_model(games, "never_resumes", "--yc-auto-advance=8")
    assert (row["stop_reason"], row["turns"]) == ("ended", 8)


@pytest.mark.slow
def test_the_shell_may_change_in_a_call_with_a_directory_of_its_own(games):
    (said,) = by_calls(
        games, DO_NOTHING[:1], {"command": "yc-bench() { echo mine; }", "workdir": "/tmp"}, {"command": PLAIN}
    )
    assert said["printed"][-1] == "mine\n"


def test_each_run_has_a_folder_a_database_and_variables_of_its_own(games):
    look = "echo $DATABASE_URL $YC_BENCH_EXPERIMENT $TYPER_USE_RICH; command -v yc-bench"
    found = by_calls(games, DO_NOTHING, {"command": look}, arguments=["--hermes-concurrency=2"])
    assert not any(name in said["variables"] for said in found for name in ("DATABASE_URL", "YC_BENCH_EXPERIMENT"))
    seen = [said["printed"][0].split() for said in found]
    assert len({words[0] for words in seen}) == 2 and {words[1] for words in seen} == {"fast_test"}
    assert all(words[0].startswith("sqlite:////") and words[2] == "0" for words in seen)
    assert all(words[3].endswith("/yc_bench/bin/yc-bench") for words in seen)
