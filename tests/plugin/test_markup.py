"""An endpoint that leaves tool calls in the text: they are run, and what cannot be read is answered and recorded."""

from __future__ import annotations

import pytest

TASK = """
    CALL = '<tool_call>{"name": "terminal", "arguments": {"command": "echo a > ~/out.txt"}}</tool_call>'
    BAD = '<tool_call>{"name": "terminal", "arguments": {"command": echo}}</tool_call>'
    benchmark = Benchmark(
        "bench",
        tasks=[
            Task(
                id="text",
                prompt="write a",
                data={"want": "a", "script": [{"content": BAD}, {"content": CALL}, {"content": "done"}]},
            )
        ],
        verify=verify,
    )

    @benchmark.parametrize
    def test_task(rollout):
        rollout.check()
"""


@pytest.mark.parametrize("parser", ["auto", "hermes"])
def test_calls_in_text_are_run(bench, processes, parser):
    bench.write(body=TASK)
    run = bench.run(f"--hermes-set=env.tool_call_parser={parser}", *processes)
    run.result.assert_outcomes(passed=1)
    row = run.rows["test_task[text]"]
    assert [message["role"] for message in row["messages"]] == [
        "user",
        *["assistant", "user"],
        *["assistant", "tool"],
        "assistant",
    ]
    (error,) = row["tool_errors"]
    assert error["turn"] == 1 and error["error"].startswith("not read: its JSON cannot be read")
    assert row["messages"][3]["tool_calls"][0]["function"]["name"] == "terminal"


def test_without_a_parser_the_first_answer_is_the_last(bench):
    bench.write(body=TASK)
    run = bench.run("--hermes-set=env.tool_call_parser=none")
    run.result.assert_outcomes(failed=1)
    assert run.rows["test_task[text]"]["turns"] == 1
