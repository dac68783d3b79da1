"""What went wrong and what it means: infrastructure, model, verifier and agent troubles from the user's side."""

from __future__ import annotations

import pytest

HOOKED = """
    from contextlib import asynccontextmanager
    import pytest_hermes.errors as errors
    from pytest_hermes.sandbox.registry import make_provider

    benchmark = Benchmark("bench", tasks=[write("right", "a"), write("other", "b")], verify=verify)

    @benchmark.parametrize
    def test_task(rollout): rollout.check()
"""
CONFTEST = """
    from contextlib import asynccontextmanager
    from pathlib import Path
    from pytest_hermes.errors import SandboxStartError
    from pytest_hermes.sandbox.labels import Owner
    from pytest_hermes.sandbox.protocol import SandboxRequest
    from pytest_hermes.sandbox.registry import make_provider

    @asynccontextmanager
    async def flaky(task):
        tries = Path(f"tries-{{task.id}}")
        tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
        if task.id == "right" and len(tries.read_text()) <= {failures}:
            raise SandboxStartError("no room")
        provider = make_provider("local", confine="off")
        labels = Owner.here(run="hook").labels()
        sandbox = await provider.create(SandboxRequest(task.sandbox, labels, task.id, 60, 60))
        try:
            yield sandbox
        finally:
            await sandbox.close()
            await provider.aclose()

    def pytest_hermes_make_sandbox(task, settings):
        return flaky(task)
"""
FAST = ("--hermes-set", "env.retry_backoff=0")


def conftest(bench, failures: int) -> None:
    import textwrap

    bench.pytester.makeconftest(textwrap.dedent(CONFTEST).format(failures=failures))


def test_infrastructure_is_retried_in_a_new_sandbox(bench, processes):
    conftest(bench, failures=1)
    bench.write(body=HOOKED)
    run = bench.run(*FAST, *processes)
    run.result.assert_outcomes(passed=2)
    row = run.rows["test_task[right]"]
    assert row["outcome"] == "passed"
    assert [(t["cause"], t["error"]) for t in row["tries"]] == [("sandbox_start", "no room")]
    assert (bench.pytester.path / "tries-right").read_text() == "xx"


def test_infrastructure_that_stays_broken_is_an_error_not_a_failure(bench, processes):
    conftest(bench, failures=99)
    bench.write(body=HOOKED)
    run = bench.run(*FAST, "--junitxml=j.xml", *processes)
    run.result.assert_outcomes(passed=1, errors=1)
    assert run.result.ret == 1
    row = run.rows["test_task[right]"]
    assert (row["outcome"], row["cause"], row["reward"], len(row["tries"])) == ("invalid", "sandbox_start", None, 1)
    run.result.stdout.fnmatch_lines(["*50.0% if every invalid rollout had failed, 100.0% without them*"])
    assert run.junit()["test_task[right]"]["hermes.cause"] == "sandbox_start"


def test_retries_can_be_switched_off(bench):
    conftest(bench, failures=99)
    bench.write(body=HOOKED)
    bench.run(*FAST, "--hermes-retries=0", "-k", "right")
    assert (bench.pytester.path / "tries-right").read_text() == "x"


@pytest.mark.parametrize(("allowed", "status"), [(0, 1), (1, 0)])
def test_invalid_rollouts_may_be_allowed(bench, processes, allowed, status):
    conftest(bench, failures=99)
    bench.write(body=HOOKED)
    assert bench.run(*FAST, f"--hermes-max-invalid={allowed}", *processes).result.ret == status


def test_a_failure_beside_an_allowed_invalid_still_fails(bench):
    conftest(bench, failures=99)
    bench.write(body=HOOKED + "\n    def test_plain(): assert False\n")
    assert bench.run(*FAST, "--hermes-max-invalid=5").result.ret == 1


VERIFIERS = {
    "nan": ("lambda v: float('nan')", "reward_unreadable", "the reward is nan"),
    "above one": ("lambda v: 1.5", "reward_unreadable", "outside"),
    "none": ("lambda v: None", "verifier_no_reward", "returned None"),
    "text": ("lambda v: 'good'", "reward_unreadable", "returned str"),
    "ambiguous": ("lambda v: {'a': 1, 'b': 0}", "reward_unreadable", "keys a, b, none of them 'reward'"),
    "raises": ("lambda v: 1 / 0", "verifier_error", "ZeroDivisionError"),
}


@pytest.mark.parametrize("case", VERIFIERS)
def test_a_verifier_without_a_reward_fails_the_rollout_and_is_named(bench, case):
    expression, cause, message = VERIFIERS[case]
    bench.write(
        body=f"""
        benchmark = Benchmark("bench", tasks=[write("right", "a")], verify={expression})

        @benchmark.parametrize
        def test_task(rollout): rollout.check()
        """
    )
    run = bench.run()
    run.result.assert_outcomes(failed=1)
    (row,) = run.rows.values()
    assert (row["outcome"], row["cause"], row["reward"]) == ("failed", cause, 0.0)
    assert message in row["error"] and row["verifier"]["runs"] == 2
    run.result.stdout.fnmatch_lines(["*check the benchmark with --hermes-agent=oracle*"])


def test_an_assertion_in_a_verifier_is_a_reward_of_zero(bench):
    bench.write(
        body="""
        def check(v):
            assert v.ctx.terminal("cat ~/out.txt")["output"] == "z", "not z"

        benchmark = Benchmark("bench", tasks=[write("right", "a")], verify=check)

        @benchmark.parametrize
        def test_task(rollout): rollout.check()
        """
    )
    run = bench.run()
    (row,) = run.rows.values()
    assert (row["outcome"], row["cause"]) == ("failed", "reward_below_threshold")
    assert "not z" in row["verifier"]["output"]


def test_a_verifier_that_hangs_is_stopped_by_its_own_clock(bench, processes):
    bench.write(
        body="""
        import asyncio
        async def hang(v): await asyncio.sleep(3600)

        benchmark = Benchmark("bench", tasks=[write("right", "a")], verify=hang)

        @benchmark.parametrize
        def test_task(rollout): rollout.check()
        """
    )
    run = bench.run("--hermes-set", "env.test_timeout=0.2", *processes)
    run.result.assert_outcomes(failed=1)
    (row,) = run.rows.values()
    assert (row["cause"], row["reward"]) == ("verifier_timeout", 0.0)


AGENTS = """
    import asyncio
    from pytest_hermes import AgentResult

    class Slow:
        needs_model = False
        async def run(self, prompt, toolbox):
            await toolbox.call("terminal", {"command": "echo a > ~/out.txt"})
            await asyncio.sleep(3600)

    class Broken:
        needs_model = False
        async def run(self, prompt, toolbox):
            raise KeyError("oops")

    class NoResult:
        needs_model = False
        async def run(self, prompt, toolbox):
            return None

    class Killer:
        needs_model = False
        async def run(self, prompt, toolbox):
            await toolbox.call("terminal", {"command": "kill -9 -1"})
            return AgentResult(messages=[])
"""
ONE = """
    benchmark = Benchmark("bench", tasks=[write("right", "a")], verify=verify)

    @benchmark.parametrize
    def test_task(rollout): rollout.check()
"""


def agents(bench) -> None:
    import textwrap

    bench.pytester.makepyfile(agents=textwrap.dedent(AGENTS))
    bench.pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\npythonpath = .\ntimeout = 0.001\n")


@pytest.mark.parametrize(
    "limit",
    [
        ["--timeout=0.5"],
        ["--hermes-set", "env.task_timeout=0.5"],
        ["--hermes-set", "env.task_timeout=5", "--hermes-timeout-multiplier=0.1"],
    ],
    ids=["--timeout", "setting", "multiplier"],
)
def test_an_agent_out_of_time_is_still_verified(bench, processes, limit):
    agents(bench)
    bench.write(body=ONE)
    run = bench.run("--hermes-agent=agents:Slow", *limit, *processes, model=None)
    run.result.assert_outcomes(passed=1)
    (row,) = run.rows.values()
    assert (row["outcome"], row["cause"], row["stop_reason"]) == ("passed", "timeout", "timeout")
    assert row["agent_metadata"]["tool_calls"][0]["name"] == "terminal"


def test_a_timeout_mark_lowers_the_agents_clock(bench):
    agents(bench)
    bench.write(
        body="""
        import pytest
        benchmark = Benchmark("bench", tasks=[write("right", "a")], verify=verify)

        @pytest.mark.timeout(0.5)
        @benchmark.parametrize
        def test_task(rollout): rollout.check()
        """
    )
    run = bench.run("--hermes-agent=agents:Slow", model=None)
    run.result.assert_outcomes(passed=1)
    assert next(iter(run.rows.values()))["cause"] == "timeout"


@pytest.mark.parametrize(
    ("agent", "message"), [("Broken", "KeyError: 'oops'"), ("NoResult", "returned NoneType, not an AgentResult")]
)
def test_a_broken_agent_is_invalid_and_not_retried(bench, agent, message):
    agents(bench)
    bench.write(body=ONE)
    run = bench.run(f"--hermes-agent=agents:{agent}", model=None)
    run.result.assert_outcomes(errors=1)
    (row,) = run.rows.values()
    assert (row["cause"], row["tries"]) == ("agent_error", [])
    assert message in row["error"]


BODIES = {
    "sync": "def test_it(ctx): time.sleep(3600)",
    "in a tool": "def test_it(ctx): ctx.terminal('sleep 3600', timeout=3600)",
    "async": "@pytest.mark.asyncio\nasync def test_it(ctx): await asyncio.sleep(3600)",
}


@pytest.mark.parametrize("body", BODIES)
def test_a_body_that_hangs_fails_by_the_verifiers_clock(bench, processes, body):
    mark = "@pytest.mark.hermes(prompt='x', script=[{'content': 'ok'}], limits=Limits(verify_s=0.5))\n"
    bench.pytester.makepyfile("import asyncio, time, pytest\nfrom pytest_hermes import Limits\n" + mark + BODIES[body])
    run = bench.run(*processes)
    run.result.assert_outcomes(failed=1)
    (row,) = run.rows.values()
    assert (row["outcome"], row["cause"], row["reward"]) == ("failed", "verifier_timeout", 0.0)
    run.result.stdout.fnmatch_lines(["*the test's own code did not end within the verifier's 0.5 s*"])


def test_an_infrastructure_error_in_a_body_is_an_error(bench, processes):
    bench.pytester.makepyfile(
        """
        import pytest
        from pytest_hermes.errors import SandboxLost

        @pytest.mark.hermes(prompt="x", script=[{"content": "ok"}])
        def test_it(ctx):
            raise SandboxLost("the daemon went away")
        """
    )
    run = bench.run("--junitxml=j.xml", *processes)
    run.result.assert_outcomes(errors=1)
    (row,) = run.rows.values()
    assert (row["outcome"], row["cause"]) == ("invalid", "sandbox_lost")
    assert "<error" in (bench.pytester.path / "j.xml").read_text()
    assert "<failure" not in (bench.pytester.path / "j.xml").read_text()


def test_another_fixture_that_fails_lets_the_sandbox_go(bench):
    bench.pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def broken(ctx): raise RuntimeError("no")

        @pytest.mark.hermes(prompt="x", script=[{"content": "ok"}])
        def test_it(ctx, broken): pass
        """
    )
    run = bench.run()
    run.result.assert_outcomes(errors=1)
    (row,) = run.rows.values()
    assert (row["outcome"], row["cause"]) == ("invalid", "test_error")


def test_module_fixtures_are_set_up_before_rollouts_start(bench):
    bench.write(
        body="""
        import pytest
        from pathlib import Path

        @pytest.fixture(scope="session", autouse=True)
        def model_server():
            Path("ready").write_text("yes")
            yield
            Path("ready").unlink()

        def verify_ready(v):
            return Path("ready").exists()

        class Watching:
            pass

        benchmark = Benchmark("bench", tasks=[write(f"t{n}", "a") for n in range(6)], verify=verify_ready)

        @benchmark.parametrize
        def test_task(rollout): rollout.check()
        """
    )
    bench.pytester.makepyfile(
        watcher="""
        from pathlib import Path
        from pytest_hermes import AgentResult

        class Watcher:
            needs_model = False
            async def run(self, prompt, toolbox):
                assert Path("ready").exists(), "started before the session's fixture"
                return AgentResult(messages=[])
        """
    )
    bench.pytester.makeini("[pytest]\npythonpath = .\nasyncio_default_fixture_loop_scope = function\n")
    bench.run("--hermes-agent=watcher:Watcher", model=None).result.assert_outcomes(passed=6)


def test_a_strict_xfail_that_passes_says_so_in_its_row(bench, processes):
    bench.write(
        body="""
        import pytest

        benchmark = Benchmark("bench", tasks=[write("a", "x")], verify=verify)

        @pytest.mark.xfail(strict=True, reason="known")
        @benchmark.parametrize
        def test_task(rollout): rollout.check()
        """
    )
    run = bench.run(*processes)
    run.result.assert_outcomes(failed=1)
    row = run.rows["test_task[a]"]
    assert (row["outcome"], row["cause"], row["reward"]) == ("failed", "test_body", 1.0)
    assert "XPASS(strict)" in row["error"]
