"""Episodes of benchmarks: what goes on beside the agent, as a user's benchmark has it."""

from __future__ import annotations

import fnmatch

import pytest

BODY = '''
    import contextlib
    from pytest_hermes.episode import Episode, SandboxWithVariables, TurnEnd
    from pytest_hermes.sandbox.shell import ShellResult

    class Game(Episode):
        """`guess N` is answered by the game, which knows the number; found is over."""

        def __init__(self, sandbox, secret):
            super().__init__(SandboxWithVariables(sandbox, {"GAME": "on"}))
            self.secret, self.guesses = secret, []

        async def answer(self, command, workspace, *, timeout_s, workdir=None):
            if not command.startswith("guess "):
                return None
            self.guesses.append(int(command.split()[1]))
            return ShellResult(3, b"noted\\n", False, 6, workspace.cwd)

        async def after_turn(self, turn):
            if not self.guesses:
                return TurnEnd()
            last = self.guesses[-1]
            if last == self.secret:
                return TurnEnd(is_over=True, reward=1.0)
            return TurnEnd(message="higher" if last < self.secret else "lower", reward=-0.1)

    @contextlib.asynccontextmanager
    async def game(context):
        yield Game(context.sandbox, context.task.data["secret"])
        await context.sandbox.exec("echo ended > ~/ended")

    def call(command):
        return {"tool": "terminal", "arguments": {"command": command}}

    def tasks(settings):
        turns = [call("echo $GAME"), call("guess 1"), call("echo after $?"), call("guess 9"), call("guess 5")]
        return [
            Task(id="found", prompt="guess", system_prompt="You guess.", data={
                "secret": 5, "script": [*turns, {"content": "never said"}]}),
            Task(id="given-up", prompt="guess", data={"secret": 7, "script": [call("guess 1"), {"content": "?"}]}),
        ]

    def verify(v):
        assert v.episode.guesses, "no guess"
        v.keep("guesses.txt", repr(v.episode.guesses).encode())
        return v.episode.guesses[-1] == v.task.data["secret"]

    benchmark = Benchmark("game", tasks=tasks, verify=verify, episode=game, parallel_tools=False, toolsets=["terminal"])

    @benchmark.parametrize
    def test_task(rollout):
        rollout.check()
'''


def outputs(row):
    return [message["content"] for message in row["messages"] if message["role"] in ("tool", "user")]


def test_an_episode_answers_speaks_rewards_and_ends_the_run(bench, processes):
    bench.write(body=BODY)
    run = bench.run(*processes)
    run.result.assert_outcomes(passed=1, failed=1)
    found, given_up = run.rows["test_task[found]"], run.rows["test_task[given-up]"]
    assert (found["stop_reason"], found["turns"], found["finished_naturally"]) == ("ended", 5, True)
    assert (found["outcome"], found["cause"]) == ("passed", None)
    said = outputs(found)
    assert '"on\\n"' in said[1]
    assert "noted" in said[2] and '"exit_code": 3' in said[2] and said[3] == "higher"
    assert "after 3" in said[4]  # what ran elsewhere is $? in the shell too
    assert said[7] == "lower" and "noted" in said[8] and len(said) == 9
    assert [turn["reward"] for turn in found["turn_records"]] == [None, -0.1, -0.1, -0.1, 1.0]
    assert found["messages"][0] == {"role": "system", "content": "You guess."}
    assert given_up["messages"][0]["role"] == "user" and given_up["stop_reason"] == "finished"
    kept = run.directory / "artifacts" / "found" / "1" / "guesses.txt"
    assert kept.read_text() == "[1, 9, 5]"


def test_the_settings_system_message_wins(bench):
    bench.write(body=BODY)
    run = bench.run("-k", "found", "--hermes-system-prompt=Be quick.")
    assert run.rows["test_task[found]"]["messages"][0]["content"] == "Be quick."


def test_an_episode_that_cannot_begin_is_an_error_of_the_start(bench, processes):
    bench.write(
        body=BODY.replace(
            'yield Game(context.sandbox, context.task.data["secret"])', 'raise OSError("no such game"); yield'
        )
    )
    run = bench.run(*processes, "--hermes-retries=0")
    run.result.assert_outcomes(errors=2)
    assert {row["outcome"] for row in run.rows.values()} == {"invalid"}
    assert "no such game" in run.rows["test_task[found]"]["error"]


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        ('return ShellResult(3, b"noted\\n", False, 6, workspace.cwd)', 'raise RuntimeError("torn")', "answer: *torn*"),
        ('return ShellResult(3, b"noted\\n", False, 6, workspace.cwd)', 'return "noted"', "answer: *str, not a Shell*"),
        ("last = self.guesses[-1]", 'raise RuntimeError("torn")', "after_turn: *torn*"),
        ("last = self.guesses[-1]", "return None", "after_turn: *NoneType, not a TurnEnd*"),
        ("last = self.guesses[-1]", 'return TurnEnd(reward=float("nan"))', "after_turn: *no finite number*"),
        (
            'yield Game(context.sandbox, context.task.data["secret"])',
            "yield None",
            "begins: *NoneType, not an Episode*",
        ),
    ],
    ids=["answer raises", "answer is none", "after_turn raises", "no TurnEnd", "not a number", "no episode"],
)
def test_a_fault_of_the_episode_is_no_act_of_the_agent(bench, was, becomes, said):
    assert was in BODY
    bench.write(body=BODY.replace(was, becomes))
    run = bench.run("-k", "found")
    run.result.assert_outcomes(errors=1)
    row = run.rows["test_task[found]"]
    assert (row["outcome"], row["cause"]) == ("invalid", "episode_error")
    assert fnmatch.fnmatch(row["error"], f"the benchmark's episode, {said}")


def test_an_episode_that_fails_on_its_way_out_changes_no_outcome(bench):
    bench.write(body=BODY.replace('await context.sandbox.exec("echo ended > ~/ended")', 'raise RuntimeError("torn")'))
    run = bench.run("-k", "found")
    run.result.assert_outcomes(passed=1)
    assert "ends: RuntimeError: torn" in run.rows["test_task[found]"]["sandbox"]["teardown_error"]


def test_a_benchmark_that_cannot_run_here_is_skipped_with_the_reason(bench, processes):
    bench.write(body=BODY.replace("episode=game,", 'episode=game, unavailable=lambda settings: "no game installed",'))
    run = bench.run(*processes, "-rs")
    run.result.assert_outcomes(skipped=2)
    run.result.stdout.fnmatch_lines(["*no game installed*"])


@pytest.mark.parametrize("parallel", [True, False])
def test_calls_of_a_turn_keep_their_order_where_a_benchmark_says_so(bench, parallel):
    bench.write(
        body="""
        import asyncio
        from pytest_hermes.tools.own import tool

        ORDER = []

        @tool(reads_only=True)
        async def look(place: str) -> dict:
            '''Look at a place.'''
            ORDER.append(f"begin {place}")
            await asyncio.sleep(0.05 if place == "a" else 0)
            ORDER.append(f"end {place}")
            return {"order": list(ORDER)}

        calls = [{"tool": "look", "arguments": {"place": "a"}}, {"tool": "look", "arguments": {"place": "b"}}]

        def verify(v):
            return ORDER == ["begin a", "end a", "begin b", "end b"]

        benchmark = Benchmark(
            "order",
            tasks=[Task(id="t", prompt="look", data={"script": [{"tools": calls}, {"content": "done"}]})],
            verify=verify,
            tools=[look],
            parallel_tools=PARALLEL,
        )

        @benchmark.parametrize
        def test_task(rollout):
            rollout.check()
        """.replace("PARALLEL", str(parallel))
    )
    run = bench.run()
    run.result.assert_outcomes(failed=1) if parallel else run.result.assert_outcomes(passed=1)
