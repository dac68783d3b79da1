"""The same suite of plain and rollout items, with the engine and in plain pytest: the same reports, the same set-ups.

The reference is `-p no:hermes` with the engine's fixtures made trivial (engine_off.py). What runs is compared item by
item and phase by phase, and every set-up and teardown of the suite's fixtures is counted.
"""

from __future__ import annotations

import collections
import json
import os
import shutil
from pathlib import Path

import pytest

from pytest_hermes.artifacts.records import read_rows

SUITE = """
import asyncio, dataclasses, os, pytest

def note(text):
    descriptor = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, (text + "\\n").encode())
    os.close(descriptor)

SCRIPT = [{"tool": "terminal", "arguments": {"command": "echo 1 > n"}}, {"content": "ok"}]
broken = dataclasses.replace(write("broken", "x"), error="task broken: no tests")
benchmark = Benchmark(
    "bench",
    tasks=[
        write("one", "a", difficulty="easy"), write("two", "a", "b", difficulty="hard"),
        write("three", "c", difficulty="easy"), broken, write("four", "d", "e"),
    ],
    verify=verify,
)

@pytest.fixture(scope="session")
def whole_session():
    note("setup session")
    yield
    note("teardown session")

@pytest.fixture(scope="module")
def per_module():
    note("setup module")
    yield
    note("teardown module")

@pytest.fixture(scope="module", params=["p", "q"])
def flavour(request):
    note(f"setup flavour {request.param}")
    yield request.param
    note(f"teardown flavour {request.param}")

@pytest.fixture
def per_test(request):
    note(f"setup {request.node.name}")
    yield
    note(f"teardown {request.node.name}")

@pytest.fixture(scope="module")
def skips_the_module():
    note("setup skipping")
    pytest.skip("not here")

def test_plain_first(per_test): pass
def test_plain_fails(): assert 1 == 2

@benchmark.parametrize
def test_task(rollout, per_module, per_test): rollout.check()

@benchmark.parametrize
def test_flavoured(flavour, rollout): rollout.check()

@pytest.mark.skip(reason="never")
@benchmark.parametrize
def test_skipped(rollout): rollout.check()

@pytest.mark.skipif(True, reason="never")
@pytest.mark.hermes(prompt="x", script=SCRIPT)
def test_skipped_if(ctx): pass

@pytest.mark.xfail(run=False, reason="never")
@pytest.mark.hermes(prompt="x", script=SCRIPT)
def test_not_run(ctx): pass

@pytest.mark.xfail(reason="known")
@pytest.mark.hermes(prompt="x", script=SCRIPT)
def test_known_to_fail(ctx): assert ctx.terminal("cat n")["output"] == "2\\n"

@pytest.mark.xfail(reason="outdated")
@pytest.mark.hermes(prompt="x", script=SCRIPT)
def test_passes_unexpectedly(ctx): assert ctx.terminal("cat n")["output"] == "1\\n"

@pytest.mark.hermes(prompt="x", script=SCRIPT)
def test_in_skipped_module(skips_the_module, ctx): pass

@pytest.mark.hermes(prompt="x", script=SCRIPT)
@pytest.mark.parametrize("number", [1, 2])
def test_form_one(ctx, number, whole_session):
    assert ctx.terminal("cat n")["output"] == f"{number}\\n"

@pytest.mark.asyncio
@pytest.mark.hermes(prompt="x", script=SCRIPT)
async def test_asynchronous(ctx, per_test):
    await asyncio.sleep(0)
    assert ctx.terminal("cat n")["output"] == "1\\n"

class TestInClass:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def per_class(cls):
        note("setup class")
        yield
        note("teardown class")

    @benchmark.parametrize
    def test_task(self, rollout, whole_session): rollout.check()

    def test_plain(self): pass

def test_error_in_setup(request):
    request.getfixturevalue("no_such_fixture")

def test_plain_last(): pass
"""
SECOND = """
import pytest
SCRIPT = [{"content": "ok"}]

def setup_module(module): print("module set up")

@pytest.mark.hermes(prompt="x", script=SCRIPT)
def test_other_module(ctx): pass

def test_other_plain(tmp_path): assert tmp_path.exists()
"""
REPORTER = """
import json, os, pytest

def pytest_runtest_logreport(report):
    line = json.dumps([report.nodeid, report.when, report.outcome, hasattr(report, "wasxfail")])
    descriptor = os.open(os.environ["REPORTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, (line + "\\n").encode())
    os.close(descriptor)
"""
NEVER_RUN = ("test_skipped", "test_skipped_if", "test_not_run", "test_in_skipped_module")
EXACT = {
    "k": ["-k", "one or plain"],
    "m": ["-m", "difficulty_easy"],
    "last-failed": ["--lf"],
    "failed-first": ["--ff"],
    "new-first": ["--nf"],
    "workers": ["-n", "2"],
    "collect-only": ["--collect-only"],
    "setup-plan": ["--setup-plan"],
    "durations": ["--durations=3"],
    "junitxml": ["--junitxml=j.xml"],
    "no-randomly": ["-p", "no:randomly"],
}
"""Flags under which every item that pytest would run is run: order within a group may differ, nothing else."""
FAIL_FAST = {"x": ["-x"], "maxfail": ["--maxfail=2"], "stepwise": ["--sw"]}
"""Flags under which the first failures end the run: compared with one rollout at a time, in order."""


class Observed:
    """What one pytest run did."""

    def __init__(self, folder: Path, result: pytest.RunResult) -> None:
        lines = (folder / "reports").read_text().splitlines() if (folder / "reports").exists() else []
        workers_twice = {tuple(json.loads(line)) for line in lines}
        self.reports = sorted(workers_twice)
        self.order = list(dict.fromkeys(json.loads(line)[0] for line in lines))
        notes = (folder / "notes").read_text().splitlines() if (folder / "notes").exists() else []
        self.set_ups = collections.Counter(notes)
        self.ret = result.ret
        runs = list((folder / "runs").glob("*/run.json")) if (folder / "runs").exists() else []
        self.rows = [row for run in runs for row in read_rows(run.parent)]
        self.outcomes = result.parseoutcomes()


def observe(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Observed:
    folder = pytester.path
    for leftover in ("reports", "notes", "j.xml"):
        (folder / leftover).unlink(missing_ok=True)
    shutil.rmtree(folder / "runs", ignore_errors=True)
    monkeypatch.setenv("REPORTS", str(folder / "reports"))
    monkeypatch.setenv("NOTES", str(folder / "notes"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(Path(__file__).parent)]))
    result = pytester.runpytest_subprocess(
        "--model=scripted", "--hermes-run-dir=runs", "--hermes-local-confine=off", "-p", "reporter", *arguments
    )
    return Observed(folder, result)


@pytest.fixture
def suite(bench, monkeypatch):
    """`suite(flags, engine=K or None)` observes the suite; the cache of failed tests starts from a failed run."""
    pytester = bench.pytester
    bench.write(name="test_a", body=SUITE)
    pytester.makepyfile(test_b=SECOND, reporter=REPORTER)

    def run(flags: list[str], engine: int | None) -> Observed:
        off = ["-p", "no:hermes", "-p", "engine_off"]
        shutil.rmtree(pytester.path / ".pytest_cache", ignore_errors=True)
        if {"--lf", "--ff", "--nf"} & set(flags):
            observe(pytester, monkeypatch, *off)
        order = (
            [] if "no:randomly" in flags else ["--randomly-seed=7"]
        )  # pytest-randomly is on, and the same on both sides
        here = off if engine is None else [] if engine == 0 else [f"--hermes-concurrency={engine}"]
        return observe(pytester, monkeypatch, *here, *order, *flags)

    return run


def differences(engine: Observed, plain: Observed, *, shared_set_ups: bool = True) -> list[object]:
    """Reports and set-ups that are on one side only; of higher-scoped fixtures if `shared_set_ups`."""
    reports = set(engine.reports) ^ set(plain.reports)
    set_ups = (engine.set_ups - plain.set_ups) + (plain.set_ups - engine.set_ups)
    if not shared_set_ups:
        set_ups = {name: count for name, count in set_ups.items() if " test_" in name}
    return [*sorted(reports), *set_ups.items()] + ([("exit", engine.ret, plain.ret)] if engine.ret != plain.ret else [])


def assert_only_items_that_ran_rolled_out(observed: Observed) -> None:
    rolled_out = {row["node_id"] for row in observed.rows if row["cause"] not in ("task_broken", "cancelled")}
    assert not [name for name in rolled_out if name.split("::")[-1].split("[")[0] in NEVER_RUN]
    assert rolled_out <= {nodeid for nodeid, when, *_ in observed.reports if when == "call"}


@pytest.mark.parametrize("flags", EXACT.values(), ids=EXACT.keys())
def test_engine_and_plain_pytest_agree(suite, flags):
    engine = suite(flags, engine=0 if "-n" in flags else 3)
    plain = suite(flags, engine=None)
    # which worker gets which item, and so how often a module's fixture is set up, is xdist's choice in either run
    assert differences(engine, plain, shared_set_ups="-n" not in flags) == []
    assert plain.reports or "--collect-only" in flags
    assert_only_items_that_ran_rolled_out(engine)
    if {"--collect-only", "--setup-plan"} & set(flags):
        assert engine.rows == []


@pytest.mark.parametrize("flags", FAIL_FAST.values(), ids=FAIL_FAST.keys())
def test_fail_fast_one_at_a_time_is_plain_pytest(suite, flags):
    engine = suite(flags, engine=1)
    plain = suite(flags, engine=None)
    assert differences(engine, plain) == []
    assert engine.order == plain.order
    assert_only_items_that_ran_rolled_out(engine)


@pytest.mark.parametrize("flags", FAIL_FAST.values(), ids=FAIL_FAST.keys())
def test_fail_fast_with_several_in_flight_stops_and_starts_nothing_more(suite, flags):
    engine = suite(flags, engine=3)
    plain = suite(flags, engine=None)
    wanted = 2 if "--maxfail=2" in flags else 1
    assert engine.ret == plain.ret
    assert sum(outcome == "failed" for _, _, outcome, _ in engine.reports) == wanted
    reported = {nodeid for nodeid, *_ in engine.reports}
    unreported = [row for row in engine.rows if row["node_id"] not in reported]
    assert len(unreported) <= 3  # what was in flight when the run stopped


def test_fail_fast_across_workers(suite):
    flags = ["-n", "4", "-x"]
    engine, plain = suite(flags, engine=0), suite(flags, engine=None)
    assert engine.ret == plain.ret
    assert any(outcome == "failed" for _, _, outcome, _ in engine.reports)
    assert_only_items_that_ran_rolled_out(engine)
