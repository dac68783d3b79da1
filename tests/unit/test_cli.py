"""The command line: what it prints for runs that are there, broken, or none."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pytest_hermes import reaper
from pytest_hermes.agents.result import AgentResult
from pytest_hermes.artifacts import conversation
from pytest_hermes.artifacts.run_directory import RunDirectory, RunIdentity
from pytest_hermes.cli import main
from pytest_hermes.errors import SandboxUnavailable
from pytest_hermes.phases import TAIL_CHARS
from pytest_hermes.rollout import Rollout
from pytest_hermes.sandbox import registry
from pytest_hermes.task import Task

USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "cached_tokens": None, "reasoning_tokens": None, "cost_usd": None}
ROW = {
    "format": 1, "benchmark": "b", "node_id": "t.py::test[a]", "task_id": "a", "task_digest": "d", "attempt": 1,
    "outcome": "passed", "cause": None, "reward": 1.0, "difficulty": "easy", "category": None, "usage": USAGE,
    "turns": 3, "model": "m", "agent": "hermes", "tries": [], "verifier": None, "started": 1.0, "finished": 3.0,
    "clocks": {"agent_s": 2.0},
}  # fmt: skip


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory(RunIdentity.new(tmp_path), "b", "main")
    directory.make(lambda: {"settings": {}})
    directory.append(ROW)
    directory.append(ROW | {"node_id": "t.py::test[b]", "outcome": "invalid", "cause": "image", "reward": None})
    directory.append(ROW | {"node_id": "t.py::test[c]", "outcome": "invalid", "cause": "cancelled", "reward": None})
    directory.close()
    return directory.path


def test_show_prints_what_a_killed_run_left(run, capsys):
    assert main(["show", str(run)]) == 0
    output = capsys.readouterr().out
    assert "2 rollouts: 1 passed, 0 failed, 1 invalid (1 more cancelled or unused)" in output
    assert "50.0% if every invalid rollout had failed, 100.0% without them" in output
    assert "9 model calls" in output and "cost unknown" in output


def test_show_as_json(run, capsys):
    assert main(["show", "--json", str(run)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rollouts"]["passed"] == 1 and found["causes"] == {"image": 1} and found["cancelled"] == 1


def test_a_directory_that_is_no_run_is_one_line(tmp_path, capsys):
    assert main(["show", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"pytest-hermes show: {tmp_path}: not a run directory (it has no run.json)\n"


def test_control_sequences_of_a_task_never_reach_the_terminal(run, capsys):
    directory = RunDirectory(RunIdentity("x", "y", str(run.parent)), "b", "main")
    directory.make(lambda: {"settings": {}})
    directory.append(ROW | {"node_id": "t.py::test[\x1b[31m]", "category": "\x1b]0;title\x07"})
    directory.close()
    main(["show", str(directory.path)])
    assert "\x1b" not in capsys.readouterr().out


# -- one task ------------------------------------------------------------------------------------------

TALK = {
    "error": None, "stop_reason": "finished", "toolsets": None, "tools": [], "agent_metadata": {},
    "messages": [{"role": "user", "content": "do it"}],
}  # fmt: skip


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write rows of a run in `.hermes/runs` of the current directory."""
    monkeypatch.chdir(tmp_path)

    def write(*rows, at="20261130T000000Z", run_id="0000aaaa"):
        directory = RunDirectory(RunIdentity(run_id, at, str(tmp_path / ".hermes/runs")), "b", "main")
        directory.make(lambda: {"settings": {}})
        for row in rows:
            directory.append(ROW | TALK | row)
        directory.close()
        return directory.path

    return write


ATTEMPTS = [{"node_id": f"t.py::test[a:{n}]", "attempt": n, "turns": n} for n in (1, 2, 3)]


def test_show_prints_one_attempt_of_a_task(write, capsys):
    run = str(write(*ATTEMPTS))
    assert main(["show", run, "--task", "a", "--attempt", "2"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("=== a, attempt 2: passed") and output.count("===") == 1
    assert "t.py::test[a:2]; 2 turns, stopped: finished" in output
    main(["show", run, "--task", "a"])
    assert capsys.readouterr().out.count("===") == 3
    assert main(["show", run, "--task", "a", "--attempt", "7"]) == 2
    assert capsys.readouterr().err == f"pytest-hermes show: {run}: task 'a' has no attempt 7. Known: 1, 2, 3\n"
    assert main(["show", run, "--attempt", "1"]) == 2
    assert "--attempt is one attempt of a task: name it with --task" in capsys.readouterr().err


def test_show_gives_the_rows_of_a_task_as_json_lines(write, capsys):
    run = str(write(*ATTEMPTS))
    assert main(["show", "--json", run, "--task", "a"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found == [ROW | TALK | row for row in ATTEMPTS]


def test_a_rollout_whose_agent_never_began_says_so(write, capsys):
    gone = {"outcome": "invalid", "cause": "image", "reward": None, "turns": 0, "messages": []}
    rows = [
        gone | {"task_id": "new", "node_id": "n", "stop_reason": "not_run"},
        gone | {"task_id": "old", "node_id": "o", "clocks": {"agent_s": 0.0}},
        {"task_id": "oracle", "node_id": "r", "agent": "oracle", "model": None, "turns": 1},
        {"task_id": "own", "node_id": "w", "messages": [], "turns": 1},
    ]
    run = str(write(*rows))
    for task, said in [
        ("new", "n; the agent did not run"),
        ("old", "o; the agent did not run"),
        ("oracle", "r; agent oracle, without a model; stopped: finished"),
        ("own", "w; 1 turn, stopped: finished"),
    ]:
        main(["show", run, "--task", task])
        assert said in capsys.readouterr().out.splitlines()


LINES = [f"line {n} of many" for n in range(400)]


def test_what_is_left_of_a_verifiers_output_begins_with_a_whole_line(write, capsys):
    assert conversation.TAIL_CHARS == TAIL_CHARS
    tail = "\n".join(LINES)[-TAIL_CHARS:]
    assert not tail.startswith("line")
    run = str(write({"verifier": {"output": tail, "exit_code": 1}}))
    main(["show", run, "--task", "a"])
    said = capsys.readouterr().out.split("--- verifier (exit code 1)\n")[1].splitlines()
    assert said[0] == "..." and said[1:] == LINES[-len(said) + 1 :] and len(said) > 100


def rollout(**changes):
    made = Rollout("b", Task(id="fix-git", prompt="x"), 1, "t.py::test[fix-git]", 1.0, "hermes", "m", outcome="failed")
    for name, value in changes.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("short\nwhole", ["short", "whole"]),
        ("\n".join(LINES), ["...", *LINES[-88:]]),
        ("x" * 3000 + "\nend", ["..." + "x" * 1496, "end"]),
    ],
    ids=["whole", "lines", "one long line"],
)
def test_a_failures_text_begins_its_tail_with_a_whole_line(output, shown):
    text = rollout(reward=0.0, verifier={"output": output}, trajectory=AgentResult(messages=[])).explain()
    assert text.splitlines()[2:] == shown


@pytest.mark.parametrize(
    ("node", "attempt", "tail"),
    [
        ("t.py::test[fix-git]", 1, ""),
        ("t.py::test[fix-git:1]", 1, " --attempt 1"),
        ("t.py::test[fix-git:2-fast]", 2, " --attempt 2"),
        ("t.py::test_own", 1, ""),
        ("t.py::test_own[1]", 1, " --attempt 1"),
    ],
)
def test_a_failures_text_names_the_attempt_where_there_are_several(node, attempt, tail):
    text = rollout(node_id=node, attempt=attempt, record="runs/r/rollouts-main.jsonl").explain()
    assert text.splitlines()[-1] == f"conversation: pytest-hermes show runs/r --task fix-git{tail}"


# -- which run -----------------------------------------------------------------------------------------


def test_show_takes_the_name_of_a_run_from_anywhere_below(write, capsys, monkeypatch, tmp_path):
    run = write({})
    assert main(["show", run.name]) == 0
    assert capsys.readouterr().out.startswith(f".hermes/runs/{run.name}: ")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert main(["show", run.name]) == 0
    assert capsys.readouterr().out.startswith(f"{run}: ")


def test_an_unknown_run_is_one_line_with_near_names_else_the_newest_first(write, capsys, tmp_path):
    runs = [write(at=f"202611{day:02}T000000Z", run_id=f"{day:08x}").name for day in range(1, 16)]
    root = tmp_path / ".hermes/runs"

    def refusal(given):
        assert main(["show", given]) == 2
        return capsys.readouterr().err.removeprefix(f"pytest-hermes show: {given}: no such directory here or in {root}")

    assert refusal(runs[0][:-1]).startswith(f". Did you mean {runs[0]!r} or ")  # the oldest is found all the same
    assert refusal("0000000f") == f". Did you mean {runs[-1]!r}?\n"
    assert refusal("nothing") == f". Known, newest first: {', '.join(runs[:2:-1])} and 3 older\n"


# -- pipes and daemons ---------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["show"], ["show", "--task", "a"], ["parse"]], ids=["show", "task", "parse"])
def test_a_reader_that_has_seen_enough_ends_it_quietly(write, tmp_path, command):
    long = "<tool_call>{bad}</tool_call>\n" * 2000
    run = write({"messages": [{"role": "user", "content": long}], "category": "c"})
    (tmp_path / "out.txt").write_text(long)
    given = str(tmp_path / "out.txt") if command == ["parse"] else str(run)
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest_hermes.cli", *command, given],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path,
    )  # fmt: skip
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 141


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "--hermes-sandbox=docker: no Docker daemon at unix:///d.sock. Start it, or use --hermes-sandbox=local",
            "no Docker daemon at unix:///d.sock. Start it",
        ),
        (
            "--hermes-sandbox=docker: no permission to use /d. Join its group (x), or use --hermes-sandbox=local",
            "no permission to use /d. Join its group (x)",
        ),
        (
            "--hermes-sandbox=docker needs the package aiodocker (no): pip install 'pytest-hermes[docker]'",
            "needs the package aiodocker (no): pip install 'pytest-hermes[docker]'",
        ),
    ],
)
def test_reap_does_not_advise_what_only_a_run_could_do(capsys, monkeypatch, message, said):
    async def refuse():
        raise SandboxUnavailable(message)

    async def close():
        pass

    monkeypatch.setattr(registry, "make_provider", lambda _: SimpleNamespace(reap=refuse, aclose=close))
    assert reaper.reap(["docker"]) == {"docker": f"nothing removed: {said}"}
    assert main(["reap", "--sandbox", "docker"]) == 1
    assert capsys.readouterr().out == f"docker: nothing removed: {said}\n"


# -- parsers -------------------------------------------------------------------------------------------


TEXT = """<think>look first</think>I look.
<tool_call>{bad}</tool_call>
<tool_call>
{"name": "terminal", "arguments": {"command": "ls \\u001b[31m"}}
</tool_call> done"""


def test_parse_prints_what_is_found(tmp_path, capsys):
    (tmp_path / "out.txt").write_text(TEXT)
    assert main(["parse", str(tmp_path / "out.txt")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "formats by their markers: hermes"
    assert lines[1].startswith('content: "<think>look first</think>I look.') and lines[2] == 'reasoning: "look first"'
    assert lines[3] == "calls: 1" and lines[4].startswith("  1. terminal  (id call_")
    assert '       "command": "ls \\u001b[31m"' in lines
    assert 'text after the calls: "done"' in lines
    assert any(line.startswith("not read: line 2, column 1: its JSON cannot be read") for line in lines)


def test_parse_reads_standard_input_and_gives_json(tmp_path, capsys, monkeypatch):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"n": {"type": "integer"}}}}}]
    (tmp_path / "tools.json").write_text(json.dumps(tools))
    text = "<tool_call>\n<function=f>\n<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["parse", "--format=qwen3_code", "--json", f"--tools={tmp_path / 'tools.json'}"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(call["name"], json.loads(call["arguments"])) for call in found["tool_calls"]] == [("f", {"n": 5})]
    assert found["content"] is None and found["errors"] == [] and found["truncated"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format=hermse", "f"], "--format: no tool-call parser 'hermse'. Did you mean 'hermes'?"),
        (["missing.txt"], "missing.txt: No such file or directory"),
        (["f", "--tools=f"], "f: not JSON: "),
    ],
)
def test_mistakes_in_parsing_are_one_line(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").write_text("text")
    assert main(["parse", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"pytest-hermes parse: {message}") and error.count("\n") == 1
