"""What a verifier tells besides its reward, and the section that a benchmark adds to the summary, from outside."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

VERIFY = """
    from pytest_hermes.benchmark import Verdict

    def verify_with_details(v):
        right = verify(v)
        passed = v.task.data.get("passed")
        return Verdict(0.5, details={"own.size": 3 if right else 1, "own.kind": "round"}, passed=passed)

    def task(name, text, want=None, passed=None):
        made = write(name, text, want)
        made.data["passed"] = passed
        return made

    TASKS = [task("yes", "a", passed=True), task("no", "a", "b", passed=False), task("open", "a")]
"""
SUITE = (
    VERIFY
    + """
    benchmark = Benchmark("own", tasks=TASKS, verify=verify_with_details, section="own_report:section")

    @benchmark.parametrize
    def test_task(rollout): rollout.check()
"""
)
REPORT = '''
from pytest_hermes.artifacts.sections import Section

def section(rows, settings):
    """The sizes of a run's rows."""
    sizes = sorted((row["task_id"], row["details"]["own.size"]) for row in rows)
    assert not any("messages" in row for row in rows)
    return Section(
        title="Sizes",
        lines=[f"{name}: {size}" for name, size in sizes] + [", ".join(settings["tasks"])],
        metrics={"own.size": sum(size for _, size in sizes) / len(sizes), "own.none": None},
        evaluation={"eval/size": 7, "eval/total_tasks": 70},
        samples=lambda row: {"size": row["details"]["own.size"], "messages_seen": len(row["messages"]), "reward": 9},
        files={"own_summary.json": {"sizes": sizes, "turns": settings["env"]["max_agent_turns"]}},
    )
'''
LINES = ["no: 1", "open: 3", "yes: 3", "yes, no, open"]


def show(bench, *arguments: str) -> str:
    """`pytest-hermes show` in a process that has imported nothing of the benchmark."""
    command = [sys.executable, "-m", "pytest_hermes.cli", "show", *arguments]
    return subprocess.run(command, cwd=bench.pytester.path, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def suite(bench):
    bench.pytester.makepyfile(own_report=REPORT)
    bench.write(body=SUITE)
    return bench


def test_details_are_in_rows_and_reports(suite, processes):
    run = suite.run("--junitxml=j.xml", *processes)
    run.result.assert_outcomes(passed=1, failed=2)
    found = run.junit()["test_task[yes]"]
    assert found["own.size"] == "3" and found["own.kind"] == "round" and "hermes.own.size" not in found
    assert run.rows["test_task[no]"]["details"] == {"own.size": 1, "own.kind": "round"}


def test_a_verdict_that_says_whether_it_passes_decides(suite, processes):
    run = suite.run(*processes)
    run.result.assert_outcomes(passed=1, failed=2)
    ends = {name: (row["outcome"], row["cause"], row["reward"]) for name, row in run.rows.items()}
    assert ends == {
        "test_task[yes]": ("passed", None, 0.5),
        "test_task[no]": ("failed", "not_passed", 0.5),
        "test_task[open]": ("failed", "reward_below_threshold", 0.5),
    }
    run.result.stdout.fnmatch_lines(["*not_passed: reward 0.5, failed (no)*"])
    run.result.stdout.fnmatch_lines(["*reward_below_threshold: reward 0.5 < 1, failed (open)*"])


def test_a_body_has_the_last_word_over_such_a_verdict(bench):
    bench.write(
        body=SUITE.replace("rollout.check()", "rollout.check(0.4)").replace(', section="own_report:section"', "")
    )
    run = bench.run()
    run.result.assert_outcomes(passed=3)
    assert {(row["outcome"], row["cause"]) for row in run.rows.values()} == {("passed", None)}


def test_details_that_rows_cannot_hold_are_an_error_of_the_verifier(bench):
    bench.write(body=SUITE.replace('"round"', '["round"]').replace(', section="own_report:section"', ""))
    run = bench.run("-k", "yes")
    run.result.assert_outcomes(failed=1)
    row = run.rows["test_task[yes]"]
    assert row["cause"] == "verifier_error" and row["reward"] == 0.0 and row["details"] == {}
    run.result.stdout.fnmatch_lines(["*the verifier's Verdict: details: 'own.kind' holds a list, not a string*"])


def test_a_section_is_printed_and_its_numbers_are_written(suite, processes):
    run = suite.run(*processes)
    run.result.stdout.fnmatch_lines(["run directory: *", "=* Sizes =*", *LINES], consecutive=True)
    assert run.summary["metrics"] == {"own.size": pytest.approx(7 / 3), "own.none": None}
    written = json.loads((run.directory / "own_summary.json").read_text())
    assert written["sizes"] == [["no", 1], ["open", 3], ["yes", 3]] and written["turns"] > 0
    folder = run.directory / "evals" / "own"
    found = json.loads((folder / "metrics.json").read_text())["results"]["all"]
    assert found["eval/size"] == 7 and found["eval/total_tasks"] == 70 and found["eval/rollouts"] == 3
    samples = {line["task_name"]: line for line in map(json.loads, (folder / "samples.jsonl").read_text().splitlines())}
    assert samples["no"]["size"] == 1 and samples["no"]["messages_seen"] > 1 and samples["no"]["reward"] == 0.5


def test_show_and_a_resumed_run_have_it_too(suite, processes):
    first = suite.run("-k", "not open", *processes)
    second = suite.run(f"--hermes-resume={first.directory.name}", *processes)
    second.result.assert_outcomes(passed=1, failed=2)
    second.result.stdout.fnmatch_lines(["resumed from *: 2 replayed, 1 new", "=* Sizes =*", *LINES])
    second.result.stdout.fnmatch_lines(["*not_passed: reward 0.5, failed (no)*"])
    newest = max((second.folder / "runs").glob("*/own_summary.json"), key=lambda path: path.stat().st_mtime).parent
    shown = show(suite, str(newest)).splitlines()
    assert [line.strip() for line in shown[-len(LINES) :]] == LINES
    assert shown[-len(LINES) - 1].strip().strip("=") == " Sizes "
    assert json.loads(show(suite, "--json", str(newest)))["metrics"]["own.size"] == pytest.approx(7 / 3)
    assert "Sizes" not in show(suite, "--tasks", str(newest))


BROKEN = {
    "not there": ("", "no section of own: own_report:section cannot be imported here (AttributeError: *"),
    "exits": ("raise SystemExit(3)", "no section of own: own_report:section cannot be imported here (SystemExit: 3)"),
    "raises": (
        "def section(rows, settings): raise KeyError('x')",
        "no section of own: own_report:section raised KeyError: 'x' (own_report.py:1 in section)",
    ),
    "gives something else": (
        "def section(rows, settings): return {}",
        "no section of own: its function gave a dict, not a Section or None",
    ),
    "no number": (
        REPORT.replace('"own.none": None', '"own.none": float("inf")'),
        "no section of own: metric 'own.none' is inf, not a finite number or None",
    ),
    "a file of the run": (
        REPORT.replace("own_summary.json", "run.json"),
        "no section of own: file 'run.json': not a name like 'bench_summary.json' that is free",
    ),
    "a file elsewhere": (
        REPORT.replace("own_summary.json", "../own.json"),
        "no section of own: file '../own.json': not a name like 'bench_summary.json' that is free",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_section_that_cannot_be_made_is_a_line(suite, case):
    content, line = BROKEN[case]
    (suite.pytester.path / "own_report.py").write_text(content)
    run = suite.run("-k", "yes")
    run.result.assert_outcomes(passed=1)
    run.result.stdout.fnmatch_lines([line.replace("[", "[[]"), "run directory: *"], consecutive=True)
    assert run.summary["metrics"] == {} and (run.directory / "evals" / "own" / "metrics.json").exists()
    assert run.result.ret == 0


def test_samples_that_cannot_be_added_to_stand(suite):
    path = suite.pytester.path / "own_report.py"
    path.write_text(REPORT.replace('row["details"]["own.size"], "messages_seen"', 'row["nothing"], "messages_seen"'))
    run = suite.run("-k", "yes")
    run.result.stdout.fnmatch_lines(["samples of own lack what its section adds: KeyError: 'nothing' (own_report.py:*"])
    (line,) = (run.directory / "evals" / "own" / "samples.jsonl").read_text().splitlines()
    assert json.loads(line)["task_name"] == "yes" and "size" not in json.loads(line)


def test_a_section_with_nothing_to_say(suite):
    (suite.pytester.path / "own_report.py").write_text("def section(rows, settings): return None")
    run = suite.run("-k", "yes")
    run.result.stdout.no_fnmatch_line("*no section*")
    assert run.summary["metrics"] == {}


def test_metrics_of_two_sections_by_one_name(suite):
    again = SUITE.split('benchmark = Benchmark("own"')[1].replace("test_task", "test_again")
    suite.write(body=SUITE + f'\n    benchmark = Benchmark("other"{again}')
    run = suite.run("-k", "yes")
    run.result.assert_outcomes(passed=2)
    run.result.stdout.fnmatch_lines(["no section of own: another benchmark's section has 'own.none' too"])
    assert run.summary["metrics"]["own.size"] == 3


def test_it_is_imported_when_the_summary_is_made(suite):
    (suite.pytester.path / "own_report.py").write_text("import pathlib\npathlib.Path('imported').touch()\n" + REPORT)
    suite.run("--collect-only")
    assert not (suite.pytester.path / "imported").exists()
    suite.run("-k", "yes")
    assert (suite.pytester.path / "imported").exists()
