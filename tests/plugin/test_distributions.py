"""Tool sets by name and by distribution, as a user's run shows them."""

from __future__ import annotations

import json

import pytest

from pytest_hermes.artifacts.records import read_rows
from pytest_hermes.cli import main

BODY = """
    def tasks(settings):
        return [write(f"t{n}", str(n)) for n in range(6)]

    benchmark = Benchmark("bench", tasks=tasks, verify=verify)

    @benchmark.parametrize
    def test_task(rollout):
        assert rollout.toolsets["sets"]
"""


@pytest.fixture(autouse=True)
def no_search_service(monkeypatch):
    for name in ("TAVILY_API_KEY", "EXA_API_KEY", "FIRECRAWL_API_KEY", "SEARXNG_URL", "BRAVE_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def samples(run):
    """Tool sets and schema names by test."""
    return {
        name: (tuple(row["toolsets"]["sets"]), tuple(schema["function"]["name"] for schema in row["tools"]))
        for name, row in run.rows.items()
    }


def test_a_distribution_is_drawn_per_task_and_shared_by_its_attempts(bench, processes):
    bench.write(body=BODY)
    run = bench.run(*processes, "--hermes-distribution=balanced", "--hermes-attempts=2")
    assert len(run.rows) == 12
    found = samples(run)
    for n in range(6):
        assert found[f"test_task[t{n}:1]"] == found[f"test_task[t{n}:2]"]
    assert len({found[f"test_task[t{n}:1]"] for n in range(6)}) > 1
    for sets, tools in found.values():
        assert ("terminal" in sets) == ("terminal" in tools) and ("file" in sets) == ("patch" in tools)
        assert "todo" not in tools
    toolsets = run.rows["test_task[t0:1]"]["toolsets"]
    assert toolsets["distribution"] == "balanced"
    assert toolsets["left_out"]["vision"] == "there is no such tool set here"
    assert "TAVILY_API_KEY" in toolsets["left_out"]["web_search"]
    run.result.stdout.fnmatch_lines(["tool sets drawn from balanced: *", "tools left out: *web_search (no search*"])
    assert run.summary["left_out"] == toolsets["left_out"] and "balanced" in run.summary["distributions"]


def test_the_same_seed_draws_the_same_and_another_does_not(bench, processes):
    bench.write(body=BODY)
    runs = []
    for number, seed in enumerate((0, 0, 1)):
        options = [
            "--hermes-distribution=balanced",
            "--hermes-set",
            f"env.seed={seed}",
            f"--hermes-run-dir=runs{number}",
        ]
        run = bench.run(*processes, *options)
        (directory,) = (path for path in (bench.pytester.path / f"runs{number}").iterdir() if path.is_dir())
        rows = read_rows(directory)
        assert run.result.ret in (0, 1) and len(rows) == 6
        runs.append({row["task_id"]: tuple(row["toolsets"]["sets"]) for row in rows})
    assert runs[0] == runs[1] != runs[2]


def test_show_tells_the_drawn_sets_of_a_task(bench, capsys):
    bench.write(body=BODY)
    run = bench.run("--hermes-distribution=terminal_only", "--hermes-task=t1")
    run.result.assert_outcomes(passed=1)
    assert main(["show", str(run.directory), "--task", "t1"]) == 0
    assert "drawn from terminal_only: terminal, file (terminal, process, read_file," in capsys.readouterr().out


def test_an_agent_without_tools_of_its_distribution_is_told_so(bench, processes):
    bench.write(body=BODY)
    run = bench.run(*processes, "--hermes-distribution=minimal", "--hermes-task=t1")
    row = run.rows["test_task[t1]"]
    assert [schema["function"]["name"] for schema in row["tools"]] == ["web_extract"]
    answer = next(message["content"] for message in row["messages"] if message["role"] == "tool")
    assert json.loads(answer)["error"].startswith("Unknown tool 'terminal'. Available tools: ['web_extract']")
    assert row["reward"] == 0.0


def test_composed_sets_leave_out_what_cannot_work_and_the_run_says_so(bench, processes):
    bench.write(body=BODY)
    run = bench.run(*processes, "--hermes-toolsets=debugging", "--hermes-task=t1")
    run.result.assert_outcomes(passed=1)
    run.result.stdout.fnmatch_lines(["tools left out: web_search (no search service: set one of TAVILY_API_KEY*"])
    row = run.rows["test_task[t1]"]
    assert row["toolsets"]["sets"] == ["debugging"] and row["toolsets"]["distribution"] is None
    assert "web_extract" in [schema["function"]["name"] for schema in row["tools"]]


def test_options_override_the_files_choice_of_the_other_kind(bench):
    bench.write(body=BODY)
    (bench.pytester.path / "c.yaml").write_text("env:\n  distribution: terminal_only\n")
    run = bench.run("--hermes-config=c.yaml", "--hermes-toolsets=terminal,process", "--hermes-task=t1")
    run.result.assert_outcomes(passed=1)
    assert run.rows["test_task[t1]"]["toolsets"] == {
        "sets": ["terminal", "process"],
        "distribution": None,
        "left_out": {},
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hermes-distribution=reserch"], "*Unknown tool set distribution 'reserch'. Did you mean 'research'?*"),
        (
            ["--hermes-distribution=safe", "--hermes-toolsets=file"],
            "*--hermes-toolsets and --hermes-distribution exclude each other*",
        ),
        (["--hermes-config=both.yaml"], "*both.yaml: env.enabled_toolsets and env.distribution exclude each other*"),
        (
            ["--hermes-distribution=minimal", "--hermes-disable-toolsets=web"],
            "*--hermes-distribution=minimal: none of its tools can work here*",
        ),
        (["--hermes-toolsets=web"], "*tool set 'web': web_search cannot work here: no search service: set one of*"),
        (["--hermes-toolsets=search"], "*tool sets search: no tool of them can work here (web_search: *"),
        (["--hermes-disable-toolsets=proces"], "*Unknown tool set 'proces'. Did you mean 'process'?*"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_choices_stop_at_collection(bench, processes, arguments, message):
    bench.write(body=BODY)
    (bench.pytester.path / "both.yaml").write_text("env:\n  distribution: safe\n  enabled_toolsets: [file]\n")
    run = bench.run(*processes, *arguments)
    assert run.result.ret in (1, 2, 4)
    run.result.stdout.fnmatch_lines([message])
    run.result.stdout.no_fnmatch_line("*Traceback*")
    assert not run.started


def test_a_marks_own_sets_must_work_too(bench, processes):
    bench.write(
        body="""
        import pytest

        @pytest.mark.hermes(prompt="p", toolsets=["terminal", "web"])
        def test_it(ctx):
            pass
        """
    )
    run = bench.run(*processes)
    run.result.stdout.fnmatch_lines(["*tool set 'web': web_search cannot work here*"])
    assert not run.started
    run = bench.run(*processes, "--hermes-toolsets=terminal", "--collect-only", "-q")
    run.result.stdout.fnmatch_lines(["*test_it*"])


def test_verifiers_may_call_tools_that_the_agent_has_not(bench, processes):
    bench.write(
        body="""
        import json
        import pytest

        def shout(text: str) -> str:
            "Shout a text."
            return text.upper()

        @pytest.mark.hermes(prompt="p", toolsets=["todo"], tools=[shout], script=[
            {"tool": "shout", "arguments": {"text": "a"}}, {"content": "done"}])
        def test_it(ctx, trajectory):
            assert [s["function"]["name"] for s in trajectory.tool_schemas] == ["todo", "shout"]
            assert any(m["content"] == '{"output": "A"}' for m in trajectory.messages)
            assert ctx.call_tool("shout", {"text": "b"}) == '{"output": "B"}'
            assert json.loads(ctx.call_tool("write_file", {"path": "a", "content": "b"}))["bytes_written"] == 1
            assert "web_search cannot work here" in json.loads(ctx.call_tool("web_search", {"query": "q"}))["error"]
            assert "terminal" in json.loads(ctx.call_tool("no_such", {}))["error"]
        """
    )
    bench.run(*processes).result.assert_outcomes(passed=1)
