"""Agents, verifiers, bodies and fixtures that do what they should not: one rollout suffers, the run goes on."""

from __future__ import annotations

import textwrap

import pytest

AGENTS = '''
import asyncio, os, sys, threading
from pytest_hermes import AgentResult

async def raises_exit(): sys.exit(3)
async def raises_interrupt(): raise KeyboardInterrupt
async def raises_cancelled(): raise asyncio.CancelledError
async def spawns_exit():
    asyncio.get_running_loop().create_task(raises_exit())
    await asyncio.sleep(0.1)
async def swallows_for_ever():
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pass
async def swallows_once():
    try:
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        pass

class Agent:
    """Does what its task's id says."""
    needs_model = False

    async def run(self, prompt, toolbox):
        result = AgentResult(messages=[])
        if prompt == "odd metadata":
            result.metadata = {("a", "tuple"): 1}
            result.metadata["circle"] = result.metadata
        elif prompt == "no usage":
            result.usage = None
        elif prompt != "nothing":
            await globals()[prompt]()
        return result
'''
SUITE = """
    benchmark = Benchmark(
        "bench",
        tasks=[Task(id=name.replace(" ", "-"), prompt=name) for name in ({prompt!r}, "nothing")],
        verify=lambda v: 1.0,
    )

    @benchmark.parametrize
    def test_task(rollout): rollout.check()
"""


def run_agent(bench, prompt: str, *arguments: str):
    bench.pytester.makepyfile(hostile=textwrap.dedent(AGENTS))
    bench.pytester.makeini("[pytest]\npythonpath = .\nasyncio_default_fixture_loop_scope = function\n")
    bench.write(body=SUITE.format(prompt=prompt))
    run = bench.run("--hermes-agent=hostile:Agent", *arguments, model=None)
    rows = run.rows
    assert rows["test_task[nothing]"]["outcome"] == "passed"
    return run, rows[f"test_task[{prompt.replace(' ', '-')}]"]


@pytest.mark.parametrize("prompt", ["raises_exit", "raises_interrupt", "raises_cancelled", "no usage"])
def test_what_an_agent_raises_ends_its_rollout_only(bench, processes, prompt):
    run, row = run_agent(bench, prompt, *processes)
    run.result.assert_outcomes(passed=1, errors=1)
    assert (row["outcome"], row["cause"]) == ("invalid", "agent_error")


def test_an_exit_in_a_task_of_the_agents_does_not_end_the_engine(bench):
    run, row = run_agent(bench, "spawns_exit")
    run.result.assert_outcomes(passed=2)
    assert row["outcome"] == "passed"


@pytest.mark.parametrize("prompt", ["swallows_for_ever", "swallows_once"])
def test_an_agent_that_does_not_listen_is_out_of_time_all_the_same(bench, processes, prompt):
    run, row = run_agent(bench, prompt, "--timeout=0.3", *processes)
    run.result.assert_outcomes(passed=2)
    assert row["cause"] == "timeout"
    assert row["agent_metadata"].get("agent_did_not_stop", False) is (prompt == "swallows_for_ever")


def test_results_that_json_cannot_hold_are_written_all_the_same(bench, processes):
    run, row = run_agent(bench, "odd metadata", *processes)
    run.result.assert_outcomes(passed=2)
    assert "('a', 'tuple')" in row["agent_metadata"]


VERIFIERS = {
    "exits": ("sys.exit(1)", "failed", "verifier_error"),
    "skips": ("pytest.skip('no')", "failed", "verifier_error"),
    "fails": ("pytest.fail('not good')", "failed", "reward_below_threshold"),
    "stops iteration": ("next(iter([]))", "failed", "verifier_error"),
    "cancelled": ("cancelled()", "failed", "verifier_error"),
    "surrogates": (
        r"Verdict(0.0, output='\udc80\x1b[31mred', components={'c\udc80\x1b': 0.5})",
        "failed",
        "reward_below_threshold",
    ),
}


@pytest.mark.parametrize("case", VERIFIERS)
def test_what_a_verifier_does_ends_its_rollout_only(bench, processes, case):
    expression, outcome, cause = VERIFIERS[case]
    bench.write(
        body=f"""
        import asyncio, sys, pytest
        from pytest_hermes import Verdict

        def cancelled(): raise asyncio.CancelledError

        def check(v):
            if v.task.id == "good": return 1.0
            return {expression}

        benchmark = Benchmark("bench", tasks=[Task(id=n, prompt="x") for n in ("bad", "good")], verify=check)

        @benchmark.parametrize
        def test_task(rollout): rollout.check()
        """
    )
    run = bench.run("--hermes-agent=nop", "--junitxml=j.xml", *processes, model=None)
    run.result.assert_outcomes(passed=1, failed=1)
    row = run.rows["test_task[bad]"]
    assert (row["outcome"], row["cause"], row["reward"]) == (outcome, cause, 0.0)
    assert "\x1b" not in run.result.stdout.str()
    assert set(run.junit()) == {"test_task[bad]", "test_task[good]"}


def test_a_thread_that_never_ends_does_not_keep_the_process(bench):
    bench.write(
        body="""
        import time
        from pytest_hermes import Limits
        benchmark = Benchmark(
            "bench", tasks=[Task(id="t", prompt="x")], verify=lambda v: time.sleep(3600), limits=Limits(verify_s=0.2)
        )

        @benchmark.parametrize
        def test_task(rollout): rollout.check()
        """
    )
    run = bench.run("--hermes-agent=nop", model=None)
    run.result.assert_outcomes(failed=1)
    assert next(iter(run.rows.values()))["cause"] == "verifier_timeout"


DEADLOCKS = {
    "module fixture behind fail-fast siblings": (
        ["-x"],
        """
        import pytest
        b = Benchmark("m", tasks=[Task(id=f"t{i}", prompt="p") for i in range(6)], verify=lambda v: 1.0)

        @pytest.fixture(scope="module")
        def m(): return 1

        @b.parametrize
        def test_1(m, rollout): pass
        def test_plain(): pass
        @b.parametrize
        def test_2(rollout): pass
        """,
        {"passed": 13},
    ),
    "form 1 in several groups": (
        [],
        """
        import pytest

        @pytest.fixture(scope="module", params=[1, 2])
        def m(request): return request.param

        @pytest.mark.parametrize("i", range(6))
        @pytest.mark.hermes(prompt="x")
        def test_a(ctx, i, m): pass

        class TestB:
            @pytest.mark.parametrize("i", range(6))
            @pytest.mark.hermes(prompt="x")
            def test_b(self, ctx, i): pass
        """,
        {"passed": 18},
    ),
    "reruns behind siblings that wait for their body": (
        ["--reruns=1", "-p", "rerunfailures"],
        """
        import pytest
        seen = set()

        @pytest.mark.parametrize("i", range(8))
        @pytest.mark.hermes(prompt="x")
        def test_r(ctx, i):
            first = i not in seen
            seen.add(i)
            assert not (first and i == 0)
        """,
        {"passed": 8},
    ),
}


@pytest.mark.parametrize("case", DEADLOCKS)
def test_main_thread_and_slots_never_wait_for_each_other(bench, case):
    flags, body, outcomes = DEADLOCKS[case]
    if "--reruns=1" in flags:
        pytest.importorskip("pytest_rerunfailures", reason="pytest-rerunfailures is not installed")
        flags = flags[:1]
    bench.write(body=body)
    run = bench.run("--hermes-agent=nop", "--hermes-concurrency=2", *flags, model=None)
    found = run.result.parseoutcomes()
    assert {name: found.get(name) for name in outcomes} == outcomes


def test_x_under_workers_ends_although_a_teardown_is_slow(bench):
    bench.write(
        body="""
        import threading, pytest
        b = Benchmark("m", tasks=[Task(id=f"t{i}", prompt="p") for i in range(6)], verify=lambda v: 1.0)

        @pytest.fixture
        def slow_teardown():
            yield
            threading.Event().wait(1.5)

        @b.parametrize
        def test_a(slow_teardown, rollout):
            assert rollout.task.id != "t0"
        """
    )
    run = bench.run("--hermes-agent=nop", "-n", "2", "-x", model=None)
    assert run.result.ret in (1, 2)
    run.result.stdout.fnmatch_lines(["*1 failed*"])


@pytest.mark.parametrize(
    "flags", [["--setup-only"], ["--setup-plan"], ["--setup-show", "--collect-only"]], ids=" ".join
)
def test_showing_set_ups_starts_no_rollout(bench, processes, flags):
    bench.write(body=SUITE.format(prompt="nothing else"))
    run = bench.run("--hermes-agent=nop", *flags, *processes, model=None)
    assert run.result.ret == 0 and not run.started


@pytest.mark.parametrize(
    "hang",
    [
        "def test_it(rollout): time.sleep(3600)",
        "def test_it(rollout, slow): pass\n@pytest.fixture\ndef slow(): time.sleep(3600)",
        "def test_it(rollout, slow): pass\n@pytest.fixture\ndef slow():\n    yield\n    time.sleep(3600)",
        "def test_it(rollout):\n    try: time.sleep(3600)\n    except BaseException: time.sleep(3600)",
    ],
    ids=["body", "fixture", "teardown", "body that catches"],
)
def test_what_the_test_itself_runs_is_under_the_verify_clock(bench, hang):
    bench.pytester.makepyfile(
        "import time, pytest\nfrom pytest_hermes import Benchmark, Limits, Task\n"
        "b = Benchmark('b', tasks=[Task(id='t', prompt='x')], verify=lambda v: 1.0, limits=Limits(verify_s=0.4))\n"
        "@b.parametrize\n" + hang
    )
    run = bench.run("--hermes-agent=nop", model=None)
    assert run.result.ret == 1
    run.result.stdout.fnmatch_lines(["*the test's own code did not end within the verifier's 0.4 s*"])


def test_a_rollout_that_its_test_never_asked_for_is_not_counted(bench, processes):
    bench.write(
        body="""
        import pytest

        @pytest.fixture
        def first(): pytest.skip("not today")

        b = Benchmark("m", tasks=[Task(id=f"t{i}", prompt="p") for i in range(3)], verify=lambda v: 1.0)

        @b.parametrize
        def test_a(first, rollout): pass

        @pytest.mark.hermes(prompt="x")
        def test_b(first, ctx): pass

        @b.parametrize
        def test_c(rollout): pass
        """
    )
    run = bench.run("--hermes-agent=nop", *processes, model=None)
    run.result.assert_outcomes(passed=3, skipped=4)
    assert run.summary["rollouts"]["passed"] == 3 and run.summary["rollouts"]["invalid"] == 0


def test_max_invalid_of_a_benchmark_is_its_own(bench, processes):
    bench.write(
        body="""
        import dataclasses
        bad = Task(id="bad", prompt="x", error="task bad: broken")
        lenient = Benchmark("lenient", tasks=[bad], verify=verify, defaults={"env": {"max_invalid": 1}})
        strict = Benchmark("strict", tasks=[bad], verify=verify)

        @lenient.parametrize
        def test_lenient(rollout): pass

        @strict.parametrize
        def test_strict(rollout): pass
        """
    )
    assert bench.run("--hermes-agent=nop", "-k", "lenient", *processes, model=None).result.ret == 0
    import shutil

    shutil.rmtree(bench.pytester.path / "runs")
    assert bench.run("--hermes-agent=nop", *processes, model=None).result.ret == 1


def test_a_row_that_cannot_be_written_makes_its_item_an_error(bench):
    bench.write(
        body=SUITE.format(prompt="x")
        + """
    import pytest

    @pytest.mark.hermes(prompt="x")
    def test_form_one(ctx): pass
"""
    )
    bench.pytester.makeconftest(
        """
        from pytest_hermes.artifacts import run_directory

        def full(self, row, secrets=()):
            raise OSError(28, "No space left on device")

        run_directory.RunDirectory.append = full
        """
    )
    run = bench.run("--hermes-agent=nop", model=None)
    run.result.assert_outcomes(errors=3)
    run.result.stdout.fnmatch_lines(["*row could not be written*No space left on device*"])
    run.result.stdout.no_fnmatch_line("*INTERNALERROR*")
