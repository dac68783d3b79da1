"""`--hermes-resume RUN`: valid rows are replayed as reports, the rest runs, a changed configuration is refused."""

from __future__ import annotations

import fcntl
import json
import re
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from pytest_hermes.artifacts.records import read_rows

SUITE = """
    from pathlib import Path

    def verify_noting(v):
        with open("verified", "a") as noted:
            noted.write(v.task.id + "\\n")
        return {"reward": 1.0 if verify(v) else 0.25, "style": 0.5}

    TASKS = [write("right", "a"), write("wrong", "a", "b"), write("other", "c"), write("last", "d")]
    benchmark = Benchmark("bench", tasks=TASKS, verify=verify_noting)

    @benchmark.parametrize
    def test_task(rollout): rollout.check()
"""
SOME = ("-k", "right or wrong")


def directories(bench) -> list[Path]:
    """The run directories, oldest first."""
    found = [path.parent for path in (bench.pytester.path / "runs").glob("*/run.json")]
    return sorted(found, key=lambda path: json.loads((path / "run.json").read_text())["started"])


def rows(run: Path) -> dict[str, dict[str, Any]]:
    return {row["node_id"].split("::", 1)[1]: row for row in read_rows(run)}


def verified(bench) -> list[str]:
    """Ids of the tasks verified since this was last asked."""
    noted = bench.pytester.path / "verified"
    found = sorted(noted.read_text().split()) if noted.exists() else []
    noted.unlink(missing_ok=True)
    return found


def content(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def resumed_line(run) -> str:
    (line,) = [line for line in run.result.outlines if line.startswith("resumed from ")]
    return line.split(": ", 1)[1]


def junit(bench, name: str = "j.xml") -> dict[str, ElementTree.Element]:
    root = ElementTree.parse(bench.pytester.path / name).getroot()
    return {case.attrib["name"]: case for case in root.iter("testcase")}


def first_run(bench, *arguments: str, body: str = SUITE, **more) -> Path:
    bench.write(body=body)
    bench.run(*arguments, **more)
    (run,) = directories(bench)
    verified(bench)
    return run


def test_valid_rows_are_replayed_and_the_rest_is_run(bench, processes):
    old = first_run(bench, *SOME)
    before = content(old)
    run = bench.run(f"--hermes-resume={old.name}", *processes)
    run.result.assert_outcomes(passed=3, failed=1)
    assert verified(bench) == ["last", "other"]
    assert resumed_line(run) == "2 replayed, 2 new"
    assert content(old) == before, "the old run was written to"
    _, new = directories(bench)
    assert json.loads((new / "run.json").read_text())["resumed_from"] == str(old)
    found = rows(new)
    origin = {name: row["resumed_from"] for name, row in found.items()}
    assert origin == {
        "test_task[right]": old.name,
        "test_task[wrong]": old.name,
        "test_task[other]": None,
        "test_task[last]": None,
    }
    was = rows(old)
    for name in ("test_task[right]", "test_task[wrong]"):
        changed = {field for field in found[name] if found[name][field] != was[name][field]}
        assert changed <= {"run_id", "worker", "resumed_from"}
    assert found["test_task[right]"]["run_id"] == new.name.rsplit("-", 1)[1]
    assert json.loads((new / "summary.json").read_text())["rollouts"]["rollouts"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("place", ["below the run root", "relative", "absolute"])
def test_the_run_may_be_a_name_or_a_path(bench, place):
    old = first_run(bench, *SOME)
    given = {"below the run root": old.name, "relative": f"runs/{old.name}", "absolute": str(old)}[place]
    run = bench.run(f"--hermes-resume={given}")
    assert resumed_line(run) == "2 replayed, 2 new"


def test_a_replay_reports_what_the_rollout_did(bench, processes):
    old = first_run(bench, "--junitxml=a.xml")
    run = bench.run(f"--hermes-resume={old.name}", "--junitxml=b.xml", *processes)
    assert verified(bench) == [] and resumed_line(run) == "4 replayed"
    a, b = junit(bench, "a.xml"), junit(bench, "b.xml")
    assert a.keys() == b.keys()
    for name in a:
        properties = [[entry.attrib for entry in case.iter("property")] for case in (a[name], b[name])]
        assert properties[0] == properties[1]
        assert abs(float(a[name].attrib["time"]) - float(b[name].attrib["time"])) < 0.3
        texts = [
            [re.sub(r"runs/[^/\s]+(/rollouts-\w+)?", "RUN", e.text) for e in c.iter("failure")]
            for c in (a[name], b[name])
        ]
        assert texts[0] == texts[1]
    assert len(list(b["test_task[wrong]"].iter("failure"))) == 1
    assert run.result.ret == 1


BODIES = {
    "stricter": ("rollout.check(2.0)", {"failed": 4}),
    "laxer": ("rollout.check(0.2)", {"passed": 4}),
    "its own": ("assert rollout.trajectory.turns_used == 3, rollout.verdict.components", {"failed": 4}),
    "of the messages": ("assert 'done' in rollout.trajectory.messages[-1]['content']", {"passed": 4}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BODIES)
def test_a_body_judges_a_replay_as_it_judged_the_rollout(bench, name):
    body, outcomes = BODIES[name]
    old = first_run(bench, "--junitxml=a.xml", body=SUITE.replace("rollout.check()", body))
    run = bench.run(f"--hermes-resume={old.name}", "--junitxml=b.xml")
    run.result.assert_outcomes(**outcomes)
    assert verified(bench) == []
    a, b = junit(bench, "a.xml"), junit(bench, "b.xml")
    for case in a:
        texts = [
            [re.sub(r"runs/[^/\s]+|at 0x\w+", "X", e.attrib["message"] + e.text) for e in c.iter("failure")]
            for c in (a[case], b[case])
        ]
        assert texts[0] == texts[1]
    was, now = rows(old), rows(directories(bench)[1])
    for case in was:
        for field in ("outcome", "cause", "error"):
            assert re.sub(r"runs/[^/\s]+", "X", str(now[case][field])) == re.sub(
                r"runs/[^/\s]+", "X", str(was[case][field])
            )


UNLUCKY = """
    from contextlib import asynccontextmanager
    from pathlib import Path
    from pytest_hermes.errors import SandboxStartError

    @asynccontextmanager
    async def broken():
        raise SandboxStartError("no room")
        yield

    def pytest_hermes_make_sandbox(task, settings):
        return broken() if task.id == "right" and Path("unlucky").exists() else None
"""


@pytest.mark.slow
def test_invalid_rollouts_are_run_again(bench, processes):
    bench.pytester.makeconftest(UNLUCKY)
    (bench.pytester.path / "unlucky").touch()
    old = first_run(bench, *SOME, "--hermes-retries=0")
    assert rows(old)["test_task[right]"]["outcome"] == "invalid"
    (bench.pytester.path / "unlucky").unlink()
    run = bench.run(f"--hermes-resume={old.name}", *processes)
    run.result.assert_outcomes(passed=3, failed=1)
    assert resumed_line(run) == "1 replayed, 1 run again (invalid), 2 new"
    assert verified(bench) == ["last", "other", "right"]


def edit_rows(run: Path, change) -> None:
    for shard in run.glob("rollouts-*.jsonl"):
        lines = [json.loads(line) for line in shard.read_text().splitlines()]
        shard.write_text("".join(json.dumps(change(row)) + "\n" for row in lines))


@pytest.mark.slow
def test_cancelled_and_unused_rollouts_are_run_again(bench):
    old = first_run(bench)
    causes = {"right": "cancelled", "wrong": "unused", "other": "sandbox_lost"}
    edit_rows(
        old,
        lambda row: row | ({"outcome": "invalid", "cause": c} if (c := causes.get(row["task_id"])) else {}),
    )
    run = bench.run(f"--hermes-resume={old.name}")
    assert resumed_line(run) == "1 replayed, 3 run again (1 cancelled, 1 invalid, 1 unused)"
    assert verified(bench) == ["other", "right", "wrong"]


@pytest.mark.slow
def test_a_changed_task_is_run_again_and_counted(bench, processes):
    old = first_run(bench)
    bench.write(body=SUITE.replace('write("other", "c")', 'write("other", "changed")'))
    run = bench.run(f"--hermes-resume={old.name}", *processes)
    run.result.assert_outcomes(passed=3, failed=1)
    assert verified(bench) == ["other"]
    assert resumed_line(run) == "3 replayed, 1 changed task"


CHANGES = {
    "temperature": (
        ["--hermes-temperature=0.6"],
        ["--hermes-temperature=0.8"],
        "env.agent_temperature: 0.6 then, 0.8 now",
    ),
    "turns": ([], ["--hermes-max-turns=7"], "env.max_agent_turns: 30 then, 7 now"),
    "prompt": ([], ["--hermes-system-prompt=Be brief."], "env.system_prompt: unset then, Be brief. now"),
    "tools": ([], ["--hermes-toolsets=terminal"], "env.enabled_toolsets: unset then, [\"terminal\"] now"),
    "a deep one": (
        ["--hermes-set", "env.extra_body={provider: {order: [a]}}"],
        ["--hermes-set", "env.extra_body={provider: {order: [b]}}"],
        'env.extra_body.provider.order: ["a"] then, ["b"] now',
    ),
    "--timeout": ([], ["--timeout=77"], "benchmark.timeout_s.test_bench.py::test_task: unset then, 77.0 now"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_configuration_is_refused_before_anything_starts(bench, name):
    then, now, line = CHANGES[name]
    old = first_run(bench, *SOME, *then)
    run = bench.run(f"--hermes-resume={old.name}", *now)
    assert run.result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"  {line}" in run.result.errlines
    assert verified(bench) == [] and directories(bench) == [old]


@pytest.mark.slow
def test_workers_refuse_a_changed_configuration_once_and_run_nothing(bench):
    bench.pytester.makepyfile(test_plain="from pathlib import Path\ndef test_plain(): Path('ran').touch()")
    old = first_run(bench, "test_bench.py", *SOME, "--hermes-temperature=0.6")
    run = bench.run(f"--hermes-resume={old.name}", "--hermes-temperature=0.8", "-n", "2")
    assert run.result.ret not in (0, pytest.ExitCode.INTERNAL_ERROR)
    output = run.result.stdout.str() + run.result.stderr.str()
    assert output.count("env.agent_temperature: 0.6 then, 0.8 now") == 1
    assert "Traceback" not in output
    assert verified(bench) == [] and directories(bench) == [old]
    assert not (bench.pytester.path / "ran").exists()


@pytest.mark.slow
def test_what_does_not_change_results_may_change(bench):
    old = first_run(bench, *SOME)
    run = bench.run(
        f"--hermes-resume={old.name}",
        "--hermes-concurrency=2",
        "--hermes-retries=3",
        "--hermes-set",
        "openai.timeout=5",
    )
    assert resumed_line(run) == "2 replayed, 2 new"


BENCHMARKS = {
    "limits": ("limits=Limits(agent_s=50)", "limits=Limits(agent_s=60)", "benchmark.limits.agent_s: 50 then, 60 now"),
    "threshold": ("", "pass_threshold=0.2", "benchmark.pass_threshold: 1.0 then, 0.2 now"),
    "tool sets": ("", "toolsets=['terminal']", 'benchmark.toolsets: ["terminal", "file"] then, ["terminal"] now'),
    "a new tool": ("", "tools=[look]", "benchmark.tools.look: unset then, "),
    "a tool's schema": (
        "tools=[look]",
        "tools=[see]",
        "benchmark.tools.look.parameters.properties.n.type: integer then, string now",
    ),
}  # fmt: skip
DEFINED = """
    from pytest_hermes import Limits, tool

    @tool
    def look(n: int) -> str:
        '''Look.'''
        return ""
    first = look

    @tool
    def look(n: str) -> str:
        '''Look.'''
        return ""
    look, see = first, look

    benchmark = Benchmark("bench", tasks=[write("right", "a")], verify=verify, {more})

    @benchmark.parametrize
    def test_task(rollout): rollout.check()
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_changed_benchmark_is_refused(bench, name):
    then, now, line = BENCHMARKS[name]
    old = first_run(bench, body=DEFINED.replace("{more}", then))
    bench.write(body=DEFINED.replace("{more}", now))
    run = bench.run(f"--hermes-resume={old.name}")
    assert run.result.ret == pytest.ExitCode.USAGE_ERROR
    assert any(found.startswith(f"  {line}") for found in run.result.errlines), run.result.errlines


@pytest.mark.slow
def test_a_benchmark_that_the_run_did_not_have_is_run(bench, processes):
    old = first_run(bench)
    bench.write("test_more", body=SUITE.replace('Benchmark("bench"', 'Benchmark("more"'))
    run = bench.run(f"--hermes-resume={old.name}", *processes)
    run.result.assert_outcomes(passed=6, failed=2)
    assert resumed_line(run) == "4 replayed, 4 new"


@pytest.mark.slow
def test_keys_are_no_difference_and_are_shown_nowhere(bench):
    then = ["--hermes-set", "openai.api_key=sk-then", "--hermes-set", "env.extra_body={auth: {api_key: sk-inner-then}}"]
    now = ["--hermes-set", "openai.api_key=sk-now", "--hermes-set", "env.extra_body={auth: {api_key: sk-inner-now}}"]
    old = first_run(bench, *SOME, *then)
    assert "sk-then" not in (old / "run.json").read_text()
    assert "inner-then" not in json.dumps(json.loads((old / "run.json").read_text())["settings"])
    run = bench.run(f"--hermes-resume={old.name}", *now, "--hermes-temperature=1")
    assert run.result.ret == pytest.ExitCode.USAGE_ERROR
    shown = run.result.stdout.str() + run.result.stderr.str()
    assert "env.agent_temperature: unset then, 1.0 now" in shown
    assert "sk-" not in shown


def test_a_torn_line_is_passed_over(bench, processes):
    old = first_run(bench)
    (shard,) = old.glob("rollouts-*.jsonl")
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-100])
    (old / "rollouts-gw7.jsonl").write_bytes(whole[:50])
    (old / "rollouts-gw8.jsonl").write_bytes(whole.splitlines(keepends=True)[0] + b"\0" * 40 + b"\n")
    run = bench.run(f"--hermes-resume={old.name}", *processes)
    run.result.assert_outcomes(passed=3, failed=1)
    assert resumed_line(run) == "3 replayed, 1 new"


def refusal(run) -> str:
    assert run.result.ret == pytest.ExitCode.USAGE_ERROR
    assert "Traceback" not in run.result.stderr.str()
    (line,) = [line for line in run.result.errlines if line.startswith("ERROR:")]
    return line.removeprefix("ERROR: ")


@pytest.mark.slow
def test_a_run_that_is_alive_is_refused(bench, processes):
    old = first_run(bench, *SOME)
    with (old / "locks" / "engines").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        said = refusal(bench.run(f"--hermes-resume={old.name}", *processes))
    assert said == f"--hermes-resume={old.name}: that run is still going on. Wait for its end, or stop it"
    assert directories(bench) == [old]


def test_a_wrong_run_is_one_line_with_a_hint(bench, processes):
    old = first_run(bench, *SOME)
    said = refusal(bench.run(f"--hermes-resume={old.name[:-1]}", *processes))
    runs = bench.pytester.path / "runs"
    assert said == f"--hermes-resume={old.name[:-1]}: no such directory here or in {runs}. Did you mean {old.name!r}?"
    said = refusal(bench.run("--hermes-resume=runs", *processes))
    assert said == f"--hermes-resume=runs: {runs}: not a run directory (it has no run.json). Known: {old.name}"
    (old / "run.json").write_text('{"format": 1, ')
    assert "run.json: not JSON" in refusal(bench.run(f"--hermes-resume={old.name}", *processes))
    (old / "run.json").write_text('{"format": 1}')
    assert "run.json: holds no settings" in refusal(bench.run(f"--hermes-resume={old.name}", *processes))
    (old / "run.json").write_text('{"format": 99, "settings": {}}')
    said = refusal(bench.run(f"--hermes-resume={old.name}", *processes))
    assert "written in format 99, this version reads up to 1. Install a newer pytest-hermes" in said


@pytest.mark.slow
def test_rows_that_cannot_be_read_are_one_line(bench):
    old = first_run(bench)
    (shard,) = old.glob("rollouts-*.jsonl")
    lines = shard.read_text().splitlines(keepends=True)
    shard.write_text("".join([lines[0], "{broken\n", *lines[1:]]))
    assert "a line is not JSON" in refusal(bench.run(f"--hermes-resume={old.name}"))


FORM_1 = """
    import pytest
    from pathlib import Path

    def ran(name):
        with open("verified", "a") as noted:
            noted.write(name + "\\n")

    @pytest.fixture
    def prepared(ctx):
        ran("fixture")
        return ctx.terminal("cat out.txt")["output"].strip()

    WRITE = [{"tool": "terminal", "arguments": {"command": "echo a > out.txt"}}, {"content": "done"}]

    @pytest.mark.hermes(prompt="x", script=WRITE)
    def test_good(prepared):
        ran("good")
        assert prepared == "a"

    @pytest.mark.hermes(prompt="x", script=WRITE)
    def test_bad(ctx):
        ran("bad")
        assert ctx.terminal("cat out.txt")["output"].strip() == "b"

    @pytest.mark.hermes(prompt="x", script=WRITE)
    def test_scored(ctx, rollout):
        ran("scored")
        rollout.score(0.75)

    @pytest.mark.asyncio
    @pytest.mark.hermes(prompt="x", script=WRITE)
    async def test_async(ctx):
        ran("async")
        assert ctx.terminal("cat out.txt")["output"].strip() == "b"

    @pytest.mark.xfail(strict=True)
    @pytest.mark.hermes(prompt="x", script=WRITE)
    def test_xfail(ctx):
        ran("xfail")
        assert ctx.terminal("cat out.txt")["output"].strip() == "b"

    @pytest.mark.xfail(raises=ZeroDivisionError)
    @pytest.mark.hermes(prompt="x", script=WRITE)
    def test_raises(ctx):
        ran("raises")
        1 / 0

    @pytest.mark.hermes(prompt="x", script=WRITE)
    def test_skipped(ctx):
        ran("skipped")
        pytest.skip("not today")
"""


def test_a_body_that_needs_the_sandbox_is_not_run_again(bench, processes):
    old = first_run(bench, "--junitxml=a.xml", body=FORM_1)
    run = bench.run(f"--hermes-resume={old.name}", "--junitxml=b.xml", *processes)
    run.result.assert_outcomes(passed=2, failed=2, xfailed=2, skipped=1)
    assert verified(bench) == ["raises", "skipped"], "what a row cannot tell is run again"
    assert resumed_line(run) == "5 replayed, 2 run again (1 invalid, 1 xfail(raises=...))"
    a, b = junit(bench, "a.xml"), junit(bench, "b.xml")
    for name in a:
        assert [child.tag for child in a[name]] == [child.tag for child in b[name]]
        first, second = ([p.attrib for p in case.iter("property")] for case in (a[name], b[name]))
        seconds = [p for p in first if p["name"] == "hermes.seconds"]
        if name not in ("test_raises", "test_skipped"):
            assert first == second and seconds
    (failure,) = b["test_bad"].iter("failure")
    assert failure.text.startswith("AssertionError: ")
    assert f"replayed from {old.name}: the test's body was not run" in failure.text
    assert rows(directories(bench)[1])["test_scored"]["reward"] == 0.75


@pytest.mark.slow
def test_a_benchmark_whose_body_asks_for_ctx(bench, processes):
    suite = SUITE.replace(
        "def test_task(rollout): rollout.check()",
        "def test_task(rollout, ctx):\n        Path('body').touch()\n        rollout.check()",
    )
    old = first_run(bench, body=suite)
    (bench.pytester.path / "body").unlink()
    run = bench.run(f"--hermes-resume={old.name}", *processes)
    run.result.assert_outcomes(passed=3, failed=1)
    assert not (bench.pytester.path / "body").exists() and verified(bench) == []
    run.result.stdout.fnmatch_lines(["*reward 0.25 < 1*"])


@pytest.mark.slow
def test_marks_that_changed_their_tools_are_changed_tasks(bench):
    old = first_run(bench, body=FORM_1)
    changed = FORM_1.replace(
        "script=WRITE)\n    def test_bad", 'script=WRITE, toolsets=["terminal"])\n    def test_bad'
    )
    bench.write(body=changed)
    run = bench.run(f"--hermes-resume={old.name}", "-k", "bad or good")
    assert verified(bench) == ["bad"] and resumed_line(run) == "1 replayed, 1 changed task"


@pytest.mark.slow
def test_skips_and_expected_failures(bench, processes):
    suite = SUITE.replace(
        "    @benchmark.parametrize",
        """    import pytest
    @benchmark.parametrize
    @pytest.mark.skip
    def test_skip(rollout): rollout.check()

    @benchmark.parametrize
    @pytest.mark.xfail
    def test_xfail(rollout): rollout.check()

    @benchmark.parametrize""",
    )
    old = first_run(bench, body=suite)
    run = bench.run(f"--hermes-resume={old.name}", *processes)
    run.result.assert_outcomes(passed=3, failed=1, skipped=4, xfailed=1, xpassed=3)
    assert verified(bench) == [] and resumed_line(run) == "8 replayed"


@pytest.mark.slow
@pytest.mark.parametrize("how", [("--hermes-concurrency=1",), ("--hermes-concurrency=4",), ("-n", "2")], ids=" ".join)
def test_x_stops_at_a_replayed_failure(bench, how):
    old = first_run(bench, *SOME)
    run = bench.run(f"--hermes-resume={old.name}", "-x", *how)
    run.result.stdout.fnmatch_lines(["FAILED *test_task[[]wrong[]]*"])
    if "-n" not in how:
        run.result.assert_outcomes(passed=1, failed=1)
        assert verified(bench) == []
        assert resumed_line(run) == "2 replayed"


@pytest.mark.slow
def test_lf(bench):
    old = first_run(bench)
    run = bench.run(f"--hermes-resume={old.name}", "--lf", "--hermes-concurrency=1")
    run.result.assert_outcomes(failed=1)
    assert resumed_line(run) == "1 replayed"


RERUNS = """
    from _pytest.runner import runtestprotocol
    import pytest

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(item, nextitem):
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for _ in range(2):
            item._initrequest()
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
            if not any(report.failed for report in reports):
                break
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True
"""


@pytest.mark.slow
@pytest.mark.parametrize("body", [SUITE, FORM_1], ids=["benchmark", "body judges"])
def test_a_rerun_of_a_replayed_failure_is_a_real_rollout(bench, processes, body):
    old = first_run(bench, body=body)
    bench.pytester.makeconftest(textwrap.dedent(RERUNS))
    chosen = "right or wrong or test_good or test_bad"
    run = bench.run(f"--hermes-resume={old.name}", "-k", chosen, *processes)
    run.result.assert_outcomes(passed=1, failed=1)
    assert verified(bench) == (["wrong"] if body is SUITE else ["bad"])
    found = rows(directories(bench)[1])
    assert sorted(row["resumed_from"] is None for row in found.values()) == [False, True]


@pytest.mark.slow
def test_pytest_rerunfailures(bench, processes):
    pytest.importorskip("pytest_rerunfailures", reason="pytest-rerunfailures is not installed")
    old = first_run(bench, "-p", "no:rerunfailures")
    run = bench.run(f"--hermes-resume={old.name}", "--reruns=1", *processes)
    assert run.result.parseoutcomes() == {"passed": 3, "failed": 1, "rerun": 1}
    assert verified(bench) == ["wrong"] and resumed_line(run) == "4 replayed"


@pytest.mark.slow
def test_a_resumed_run_can_be_resumed(bench, processes):
    old = first_run(bench, *SOME)
    bench.run(f"--hermes-resume={old.name}", "-k", "right or wrong or other")
    assert verified(bench) == ["other"]
    run = bench.run(f"--hermes-resume={directories(bench)[1].name}", *processes)
    run.result.assert_outcomes(passed=3, failed=1)
    assert verified(bench) == ["last"] and resumed_line(run) == "3 replayed, 1 new"
    second, third = directories(bench)[1:]
    origin = {row["task_id"]: row["resumed_from"] for row in rows(third).values()}
    assert origin == {"right": old.name, "wrong": old.name, "other": second.name, "last": None}


@pytest.mark.slow
def test_a_resumed_run_that_ended_early_gives_what_it_had_not_replayed_yet(bench, processes):
    old = first_run(bench, "-k", "right or wrong or other")
    bench.run(f"--hermes-resume={old.name}", "-k", "last or right")
    assert verified(bench) == ["last"]
    run = bench.run(f"--hermes-resume={directories(bench)[1].name}", *processes)
    run.result.assert_outcomes(passed=3, failed=1)
    assert verified(bench) == [] and resumed_line(run) == "4 replayed"


@pytest.mark.slow
def test_a_complete_run_is_replayed_without_an_engine(bench, processes):
    old = first_run(bench)
    bench.pytester.makeconftest(
        """
        import sys
        def pytest_sessionfinish(session):
            heavy = [name for name in ("pytest_hermes.engine", "pytest_hermes.phases") if name in sys.modules]
            assert not heavy, heavy
        """
    )
    run = bench.run(f"--hermes-resume={old.name}", *processes)
    run.result.assert_outcomes(passed=3, failed=1)
    assert run.result.ret == 1 and resumed_line(run) == "4 replayed"
    assert "INTERNALERROR" not in run.result.stdout.str() + run.result.stderr.str()
    assert "4 rollouts: 3 passed, 1 failed, 0 invalid" in run.result.outlines


@pytest.mark.slow
def test_only_collecting_does_nothing(bench):
    old = first_run(bench, *SOME)
    run = bench.run(f"--hermes-resume={old.name}", "--hermes-temperature=0.8", "--collect-only", "-q")
    assert run.result.ret == 0 and directories(bench) == [old]


@pytest.mark.slow
def test_more_attempts_keep_those_that_were_made(bench, processes):
    old = first_run(bench)
    run = bench.run(f"--hermes-resume={old.name}", "--hermes-attempts=2", *processes)
    run.result.assert_outcomes(passed=6, failed=2)
    assert resumed_line(run) == "4 replayed, 4 new"
    found = rows(directories(bench)[1])
    assert found["test_task[right:1]"]["resumed_from"] == old.name
    assert found["test_task[right:2]"]["resumed_from"] is None


@pytest.mark.slow
def test_artifacts_come_along(bench):
    suite = SUITE.replace('write("right", "a")', 'write("right", "a", artifacts=(Artifact("out.txt"),))')
    suite = "    from pytest_hermes.task import Artifact\n" + suite
    old = first_run(bench, body=suite)
    bench.run(f"--hermes-resume={old.name}")
    new = directories(bench)[1]
    names = {str(p.relative_to(old / "artifacts")) for p in (old / "artifacts").rglob("*")}
    assert names and names == {str(p.relative_to(new / "artifacts")) for p in (new / "artifacts").rglob("*")}
