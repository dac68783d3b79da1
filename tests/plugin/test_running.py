"""A benchmark from the user's side: items, outcomes, records, JUnit, with and without xdist."""

from __future__ import annotations

import pytest

THREE = """
    benchmark = Benchmark(
        "bench",
        tasks=[
            write("right", "a", difficulty="easy", category="Data Science"),
            write("wrong", "b", "c", difficulty="hard", category="security"),
            write("also-right", "d", difficulty="easy"),
        ],
        verify=verify,
    )

    @benchmark.parametrize
    def test_task(rollout):
        rollout.check()
"""


def test_each_task_is_an_item_with_a_row(bench, processes):
    bench.write(body=THREE)
    run = bench.run("--junitxml=j.xml", *processes)
    run.result.assert_outcomes(passed=2, failed=1)
    assert run.result.ret == 1
    assert {name: (row["outcome"], row["reward"]) for name, row in run.rows.items()} == {
        "test_task[right]": ("passed", 1.0),
        "test_task[wrong]": ("failed", 0.0),
        "test_task[also-right]": ("passed", 1.0),
    }
    row = run.rows["test_task[right]"]
    assert [message["role"] for message in row["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert row["turns"] == 2 and row["usage"]["completion_tokens"] > 0 and len(row["turn_records"]) == 2
    assert row["clocks"]["agent_s"] > 0
    properties = run.junit()["test_task[wrong]"]
    assert properties["hermes.outcome"] == "failed"
    assert properties["hermes.reward"] == "0.0"
    assert properties["hermes.difficulty"] == "hard"
    assert properties["hermes.cause"] == "reward_below_threshold"


def test_the_summary_has_counts_rate_groups_and_the_run_directory(bench, processes):
    bench.write(body=THREE)
    run = bench.run(*processes)
    run.result.stdout.fnmatch_lines(
        [
            "*3 rollouts: 2 passed, 1 failed, 0 invalid*",
            "*pass rate 66.7% [[]20.8%, 93.9%]*",
            "*by category:*",
            "*by difficulty:*",
            "*easy*100.0%*2/2 passed*",
            "*hard*0.0%*0/1 passed*",
            "*causes: reward_below_threshold 1*",
            "*model calls; tokens: prompt *",
            "*slowest:*",
            "*run directory: runs/*",
        ]
    )
    assert run.summary["rollouts"]["passed"] == 2


def test_a_failure_says_reward_cause_and_where_the_trajectory_is(bench):
    bench.write(body=THREE)
    run = bench.run("-k", "wrong")
    run.result.stdout.fnmatch_lines(
        [
            "*reward_below_threshold: reward 0 < 1, failed (wrong)*",
            "*agent: 2 turns, stopped: finished*",
            "*trajectory: *",
            "*conversation: pytest-hermes show runs/* --task wrong*",
        ]
    )
    run.result.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize(
    ("arguments", "ran"),
    [
        (["-k", "also"], {"test_task[also-right]"}),
        (["-m", "difficulty_easy"], {"test_task[right]", "test_task[also-right]"}),
        (["-m", "difficulty_easy and not category_data_science"], {"test_task[also-right]"}),
        (["--hermes-task=right,wrong"], {"test_task[right]", "test_task[wrong]"}),
        (["--hermes-skip-task=right"], {"test_task[wrong]", "test_task[also-right]"}),
        (["test_bench.py::test_task[wrong]"], {"test_task[wrong]"}),
    ],
)
def test_choosing_tasks(bench, arguments, ran):
    bench.write(body=THREE)
    assert set(bench.run("--strict-markers", *arguments).rows) == ran


def test_several_attempts_are_items_of_their_own(bench, processes):
    bench.write(body=THREE)
    run = bench.run("--hermes-attempts=2", "-k", "also", *processes)
    assert {name: row["attempt"] for name, row in run.rows.items()} == {
        "test_task[also-right:1]": 1,
        "test_task[also-right:2]": 2,
    }


@pytest.mark.parametrize(("agent", "passed"), [("oracle", 3), ("nop", 0)])
def test_oracle_and_nop_need_no_model(bench, processes, agent, passed):
    bench.write(body=THREE)
    run = bench.run(f"--hermes-agent={agent}", *processes, model=None)
    run.result.assert_outcomes(passed=passed, failed=3 - passed)
    assert all(row["usage"]["prompt_tokens"] is None for row in run.rows.values())


def test_form_one_judges_in_the_test_body(bench, processes):
    bench.write(
        body="""
        import pytest
        SCRIPT = [{"tool": "terminal", "arguments": {"command": "echo 1 > n"}}, {"content": "ok"}]

        @pytest.mark.hermes(prompt="write 1 to n", toolsets=["terminal"], script=SCRIPT, difficulty="easy")
        def test_good(ctx, task, trajectory):
            assert task.id == "test_good" and trajectory.finished_naturally
            assert ctx.terminal("cat n")["output"].strip() == "1"

        @pytest.mark.hermes(prompt="write 1 to n", script=SCRIPT)
        def test_bad(ctx):
            assert ctx.terminal("cat n")["output"].strip() == "2"

        @pytest.mark.hermes(prompt="write 1 to n", script=SCRIPT)
        def test_scored(ctx, rollout):
            rollout.score(0.25)

        @pytest.mark.hermes(prompt="write 1 to n", script=SCRIPT)
        def test_skips(ctx):
            pytest.skip("later")
        """
    )
    run = bench.run("--junitxml=j.xml", *processes)
    run.result.assert_outcomes(passed=2, failed=1, skipped=1)
    rows = run.rows
    assert (rows["test_good"]["outcome"], rows["test_good"]["reward"]) == ("passed", 1.0)
    assert (rows["test_bad"]["outcome"], rows["test_bad"]["reward"]) == ("failed", 0.0)
    assert rows["test_bad"]["cause"] == "test_body"
    assert rows["test_scored"]["reward"] == 0.25
    assert rows["test_skips"]["cause"] == "skipped"
    assert run.junit()["test_bad"]["hermes.reward"] == "0.0"


def test_async_bodies_in_both_forms(bench, processes):
    bench.write(
        body="""
        import asyncio, pytest
        benchmark = Benchmark("bench", tasks=[write("right", "a")], verify=verify)

        @pytest.mark.asyncio
        @benchmark.parametrize
        async def test_task(rollout):
            await asyncio.sleep(0)
            rollout.check()

        @pytest.mark.asyncio
        @pytest.mark.hermes(prompt="x", script=[{"content": "ok"}])
        async def test_form_one(ctx):
            await asyncio.sleep(0)
            assert ctx.terminal("echo hi")["output"].strip() == "hi"
        """
    )
    bench.run(*processes).result.assert_outcomes(passed=2)


def test_async_verifiers_run_on_the_engines_loop(bench):
    bench.write(
        body="""
        async def check(v):
            return (await v.sandbox.exec("cat ~/out.txt")).stdout == b"a\\n"

        benchmark = Benchmark("bench", tasks=[write("right", "a")], verify=check)

        @benchmark.parametrize
        def test_task(rollout):
            rollout.check()
        """
    )
    bench.run().result.assert_outcomes(passed=1)


def test_a_body_may_be_stricter_than_the_verifier(bench, processes):
    bench.write(
        body="""
        benchmark = Benchmark("bench", tasks=[write("right", "a")], verify=verify)

        @benchmark.parametrize
        def test_task(rollout):
            rollout.check()
            assert rollout.trajectory.turns_used < 2
        """
    )
    run = bench.run("--junitxml=j.xml", *processes)
    run.result.assert_outcomes(failed=1)
    (row,) = run.rows.values()
    assert (row["outcome"], row["cause"], row["reward"]) == ("failed", "test_body", 1.0)
    assert run.junit()["test_task[right]"]["hermes.outcome"] == "failed"


def test_ctx_in_a_benchmark_keeps_the_sandbox_for_the_body(bench):
    bench.write(
        body="""
        benchmark = Benchmark("bench", tasks=[write("right", "a")], verify=verify)

        @benchmark.parametrize
        def test_task(rollout, ctx):
            rollout.check()
            assert ctx.terminal("cat out.txt")["output"].strip() == "a"
        """
    )
    bench.run().result.assert_outcomes(passed=1)


def test_part_scores_and_the_pass_threshold(bench):
    bench.write(
        body="""
        benchmark = Benchmark("bench", tasks=[write("half", "a")], verify=lambda v: {"reward": 0.5, "style": 0.9})

        @benchmark.parametrize
        def test_task(rollout):
            rollout.check()
        """
    )
    run = bench.run("--hermes-set", "env.pass_threshold=0.5", "--junitxml=j.xml")
    run.result.assert_outcomes(passed=1)
    assert run.junit()["test_task[half]"]["hermes.reward.style"] == "0.9"


def test_the_body_has_the_last_word(bench, processes):
    bench.write(
        body="""
        benchmark = Benchmark("bench", tasks=[write("half", "a")], verify=lambda v: 0.5)

        @benchmark.parametrize
        def test_task(rollout): rollout.check(0.4)
        """
    )
    run = bench.run(*processes)
    run.result.assert_outcomes(passed=1)
    (row,) = run.rows.values()
    assert (row["outcome"], row["cause"], row["reward"]) == ("passed", None, 0.5)


def test_errors_in_code_of_the_users_say_where(bench):
    bench.write(
        body="""
        def check(v):
            return v.task.data["no such key"]

        benchmark = Benchmark("bench", tasks=[write("a", "a")], verify=check)

        @benchmark.parametrize
        def test_task(rollout): rollout.check()
        """
    )
    run = bench.run()
    run.result.stdout.re_match_lines(
        [r".*the verifier raised KeyError: 'no such key' \(test_bench.py:\d+ in check\).*"]
    )
    assert "KeyError" in next(iter(run.rows.values()))["traceback"]


def test_one_conversation_can_be_read(bench):
    bench.write(body=THREE)
    run = bench.run("-k", "wrong")
    import sys

    shown = bench.pytester.run(
        sys.executable, "-m", "pytest_hermes.cli", "show", f"runs/{run.directory.name}", "--task", "wrong"
    )
    shown.stdout.fnmatch_lines(["=== wrong, attempt 1: failed*", "--- user", "write b", "-> terminal(*", "--- tool"])
    missing = bench.pytester.run(
        sys.executable, "-m", "pytest_hermes.cli", "show", f"runs/{run.directory.name}", "--task", "wrogn"
    )
    assert missing.ret == 2
    missing.stderr.fnmatch_lines(["*no task 'wrogn'. Did you mean 'wrong'?*"])


def test_plain_runs_are_left_alone(bench, processes):
    bench.pytester.makepyfile(test_plain="def test_plain(): pass")
    run = bench.run(*processes, model=None)
    run.result.assert_outcomes(passed=1)
    assert not [
        line for line in run.result.outlines if "hermes" in line and not line.startswith(("plugins", "rootdir"))
    ]
    assert not run.started


def test_collect_only_starts_nothing(bench, processes):
    bench.write(body=THREE)
    run = bench.run("--collect-only", "-q", *processes, model=None)
    assert run.result.ret == 0
    run.result.stdout.fnmatch_lines(["*::test_task[[]right[]]*"])
    assert not run.started


def test_rerunfailures_style_reruns_get_a_new_rollout(bench):
    bench.pytester.makeconftest(
        """
        from _pytest.runner import runtestprotocol
        import pytest

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(item, nextitem):
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            for _ in range(2):
                item._initrequest()
                reports = runtestprotocol(item, nextitem=nextitem, log=False)
            for report in reports:
                item.ihook.pytest_runtest_logreport(report=report)
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            return True
        """
    )
    bench.write(body=THREE)
    run = bench.run("-k", "also")
    run.result.assert_outcomes(passed=1)
    (shard,) = run.directory.glob("rollouts-*.jsonl")
    assert len(shard.read_text().splitlines()) == 2
