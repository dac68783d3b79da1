"""The command line: what it prints for runs that are there, broken, or none."""

from __future__ import annotations

import io
import json

import pytest

from pytest_hermes.artifacts.run_directory import RunDirectory, RunIdentity
from pytest_hermes.cli import main

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
