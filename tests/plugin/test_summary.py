"""What a run says at its end, and the files of its numbers, from the user's side."""

from __future__ import annotations

import json

import pytest

from pytest_hermes.cli import main
from pytest_hermes.stats import wilson

LUCK = """
    from pathlib import Path
    from pytest_hermes.errors import SandboxLost

    def luck(name, outcomes, **more):
        \"\"\"A task of which one verification ends by each letter of `outcomes`: passed, failed, invalid.\"\"\"
        data = {"outcomes": outcomes, "script": [{"content": "ok"}]}
        return Task(id=name, prompt="x", data=data, **more)

    def verify_by_luck(v):
        for number, outcome in enumerate(v.task.data["outcomes"]):
            try:
                Path(f"{v.task.id}-{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            if outcome == "i":
                raise SandboxLost("gone")
            return outcome == "p"
"""
THREE = (
    LUCK
    + """
    benchmark = Benchmark("luck", verify=verify_by_luck, tasks=[
        luck("always", "pppp", category="System Admin", difficulty="easy"),
        luck("half", "pfpf", category="System Admin", difficulty="hard"),
        luck("never", "ffff", category="data-science", difficulty="hard"),
    ])

    @benchmark.parametrize
    def test_task(rollout): rollout.check()
"""
)


def evals(run, benchmark="luck"):
    folder = run.directory / "evals" / benchmark
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    return json.loads((folder / "metrics.json").read_text()), samples


def test_several_attempts_are_told_by_task(bench, processes, capsys):
    bench.write(body=THREE)
    run = bench.run("--hermes-attempts=4", *processes)
    run.result.assert_outcomes(passed=6, failed=6)
    run.result.stdout.fnmatch_lines(
        [
            "12 rollouts of 3 tasks: 6 passed, 6 failed, 0 invalid",
            "pass rate 50.0%; mean reward 0.500 (standard error 0.289)",
            r"pass@1 50.0% [[]0.0%, 100.0%[]], standard error 28.9% clustered by task (3 tasks)",
            "pass@2 61.1%, pass^2 38.9% (3 tasks)",
            "pass@4 66.7%, pass^4 33.3% (3 tasks)",
            "mean (median) of a rollout: * s (*), 1.0 turns (1.0), *",
        ]
    )
    assert run.summary["attempts"]["pass_at_1"] == 0.5
    assert {task["task"]: (task["passed"], task["failed"]) for task in run.summary["tasks"]} == {
        "always": (4, 0),
        "half": (2, 2),
        "never": (0, 4),
    }
    metrics, samples = evals(run)
    found = metrics["results"]["all"]
    assert metrics["results"]["atropos|luck_eval|0"] == found and metrics["config_general"]["model_name"] == "scripted"
    assert (found["eval/pass_rate"], found["eval/total_tasks"], found["eval/passed_tasks"]) == (0.5, 3, 1.5)
    assert (found["eval/pass_rate_system_admin"], found["eval/pass_rate_data_science"]) == (0.75, 0.0)
    assert (found["eval/pass_rate_difficulty_easy"], found["eval/pass^4"]) == (1.0, pytest.approx(1 / 3))
    assert sorted((s["task_name"], s["attempt"]) for s in samples) == [
        (task, attempt) for task in ("always", "half", "never") for attempt in (1, 2, 3, 4)
    ]
    assert all(s["messages"][-1]["content"] == "ok" and s["turns_used"] == 1 for s in samples)
    capsys.readouterr()
    assert main(["show", str(run.directory), "--tasks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {tuple(line.split()[:4]) for line in lines[2:]} == {
        ("always", "4", "4", "0"),
        ("half", "4", "2", "2"),
        ("never", "4", "0", "4"),
    }


@pytest.mark.slow
def test_invalid_attempts_are_not_mixed_into_pass_at_k(bench, processes):
    bench.write(
        body=LUCK
        + """
    benchmark = Benchmark("luck", verify=verify_by_luck, tasks=[
        luck("whole", "pp"), luck("half", "fi"), luck("gone", "ii")
    ])

    @benchmark.parametrize
    def test_task(rollout): rollout.check()
    """
    )
    run = bench.run("--hermes-attempts=2", "--hermes-retries=0", *processes)
    run.result.assert_outcomes(passed=2, failed=1, errors=3)
    run.result.stdout.fnmatch_lines(
        [
            "6 rollouts of 3 tasks: 2 passed, 1 failed, 3 invalid",
            "pass rate 66.7%; 33.3% if every invalid rollout had failed, 66.7% without them;*",
            "pass@1 50.0% *(2 of 3 tasks)",
            "pass@2 100.0%, pass^2 100.0% (1 of 3 tasks have 2 valid attempts)",
        ]
    )
    metrics, samples = evals(run)
    found = metrics["results"]["all"]
    assert (found["eval/pass_rate"], found["eval/invalid"], found["eval/total_tasks"]) == (0.5, 3, 2)
    assert found["eval/pass_rate_invalid_failed"] == pytest.approx(1 / 3)
    assert [s["reward"] for s in samples if s["outcome"] == "invalid"] == [None] * 3
    assert all(s["error"] == "gone" and not s["passed"] for s in samples if s["outcome"] == "invalid")


@pytest.mark.slow
def test_one_attempt_each_shows_wilson_only_and_copies_go_to_the_directory_of_the_setting(bench, processes):
    bench.write(body=THREE)
    run = bench.run("--hermes-set", "env.data_dir_to_save_evals=out/evals", *processes)
    low, high = wilson(2, 3)
    run.result.stdout.fnmatch_lines([f"pass rate 66.7% [[]{low:.1%}, {high:.1%}[]]; mean reward 0.667"])
    run.result.stdout.no_fnmatch_line("*pass@*")
    for name in ("metrics.json", "samples.jsonl"):
        copy = bench.pytester.path / "out/evals" / name
        assert copy.read_bytes() == (run.directory / "evals/luck" / name).read_bytes()


@pytest.mark.slow
def test_the_bodys_last_word_is_in_the_samples(bench, processes):
    bench.write(
        body=LUCK
        + """
    benchmark = Benchmark("luck", verify=verify_by_luck, tasks=[luck("a", "p"), luck("b", "f")])

    @benchmark.parametrize
    def test_task(rollout):
        assert rollout.task.id == "b"
    """
    )
    run = bench.run(*processes)
    run.result.assert_outcomes(passed=1, failed=1)
    _, samples = evals(run)
    assert {s["task_name"]: (s["passed"], s["reward"]) for s in samples} == {"a": (False, 1.0), "b": (True, 0.0)}


def test_benchmarks_of_one_run_have_a_pair_each(bench, processes):
    bench.write("test_one", body=THREE)
    bench.write("test_two", body=THREE.replace('"luck"', '"bad luck"').replace('luck("', 'luck("other-'))
    run = bench.run("--hermes-set", "env.data_dir_to_save_evals=out", *processes)
    names = sorted(folder.name for folder in (run.directory / "evals").iterdir())
    assert len(names) == 2 and names[1] == "luck" and names[0].startswith("bad_luck-")
    assert sorted(
        str(f.relative_to(bench.pytester.path / "out")) for f in (bench.pytester.path / "out").rglob("*.json")
    ) == [f"{name}/metrics.json" for name in names]
    assert [task["benchmark"] for task in run.summary["tasks"]].count("luck") == 3


@pytest.mark.slow
def test_files_that_cannot_be_written_are_one_line_after_the_summary(bench, processes):
    bench.write(body=THREE)
    (bench.pytester.path / "file").write_text("")
    run = bench.run("--hermes-set", "env.data_dir_to_save_evals=file/below", *processes)
    run.result.assert_outcomes(passed=2, failed=1)
    run.result.stdout.fnmatch_lines(
        [
            "3 rollouts: 2 passed, 1 failed, 0 invalid",
            "env.data_dir_to_save_evals: evaluation files of luck not written: *Not a directory*",
            "run directory: *",
        ]
    )
    assert run.result.ret == 1 and run.summary["rollouts"]["passed"] == 2
    assert evals(run)[0]["results"]["all"]["eval/passed_tasks"] == 2


@pytest.mark.slow
def test_a_fault_in_writing_them_loses_nothing(bench, processes):
    bench.write(body=THREE)
    bench.pytester.makeconftest(
        """
        from pytest_hermes.artifacts import eval_files

        def broken(*_): raise RuntimeError("odd \\x1b[31m")
        eval_files.evaluation = broken
        """
    )
    run = bench.run(*processes)
    run.result.assert_outcomes(passed=2, failed=1)
    run.result.stdout.fnmatch_lines(["3 rollouts: 2*", "evaluation files not written: RuntimeError: odd *", "run dir*"])
    assert "\x1b[31m" not in run.result.stdout.str() and run.summary["rollouts"]["passed"] == 2


def test_tasks_that_are_skipped_are_told(bench, processes):
    skips = 'backend_skips={"local": {"half": "needs KVM", "never": "needs KVM"}}, '
    bench.write(body=THREE.replace("verify=", skips + "verify="))
    run = bench.run("--hermes-attempts=2", *processes)
    run.result.assert_outcomes(passed=2, skipped=4)
    run.result.stdout.fnmatch_lines(["2 of 3 tasks skipped: half, never (*needs KVM*)"])
    skipped = run.summary["skipped"]
    assert (skipped["tasks"], skipped["of"], *skipped["reasons"].values()) == (2, 3, ["half", "never"])
    assert evals(run)[0]["results"]["all"]["eval/skipped_tasks"] == 2


@pytest.mark.slow
def test_attempts_taken_over_from_an_earlier_run_are_attempts_of_the_same_tasks(bench, processes):
    bench.write(body=THREE)
    old = bench.run(*processes).directory
    run = bench.run(f"--hermes-resume={old.name}", "--hermes-attempts=2", *processes)
    run.result.stdout.fnmatch_lines(
        ["6 rollouts of 3 tasks: 3 passed, 3 failed, 0 invalid", "pass@2 66.7%, pass^2 33.3% *"]
    )
    (new,) = [path for path in old.parent.iterdir() if path.is_dir() and path != old]
    found = json.loads((new / "evals/luck/metrics.json").read_text())["results"]["all"]
    assert (found["eval/total_tasks"], found["eval/pass_rate"], found["eval/pass@2"]) == (3, 0.5, pytest.approx(2 / 3))
    samples = [json.loads(line) for line in (new / "evals/luck/samples.jsonl").read_text().splitlines()]
    assert sorted(s["task_name"] for s in samples) == ["always"] * 2 + ["half"] * 2 + ["never"] * 2


STOPS = {
    "-x": ("rollout.check()", ["-x"], pytest.ExitCode.TESTS_FAILED),
    "ctrl-c": ("raise KeyboardInterrupt", [], pytest.ExitCode.INTERRUPTED),
}


def stopping(bench, body):
    tasks = ", ".join(f'luck("t{n}", "f")' for n in range(6))
    bench.write(
        body=LUCK
        + f"""
    benchmark = Benchmark("luck", verify=verify_by_luck, tasks=[{tasks}])

    @benchmark.parametrize
    def test_task(rollout): {body}
    """
    )


@pytest.mark.parametrize("way", STOPS)
def test_a_run_that_was_stopped_says_what_is_missing_and_how_to_go_on(bench, way, capsys):
    body, arguments, status = STOPS[way]
    stopping(bench, body)
    run = bench.run(*arguments, "--hermes-concurrency=1")
    assert run.result.ret == status
    name = run.directory.name
    told = ["stopped early; 5 of 6 tasks have no result", f"go on with: --hermes-resume {name}"]
    run.result.stdout.fnmatch_lines([*told, "run directory: *"], consecutive=True)
    assert (run.summary["end"]["state"], run.summary["end"]["without_result"]) == ("stopped early", 5)
    capsys.readouterr()
    main(["show", str(run.directory)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{run.directory}: {told[0]}" and lines[-1] == f"  {told[1]}"


@pytest.mark.slow
def test_a_stopped_run_of_several_processes_says_so_too(bench):
    stopping(bench, "rollout.check()")
    run = bench.run("-x", "-n", "2")
    run.result.stdout.fnmatch_lines(
        ["stopped early; * of 6 tasks have no result", f"go on with: --hermes-resume {run.directory.name}"],
        consecutive=True,
    )


@pytest.mark.slow
def test_a_run_that_reached_its_end_says_nothing_of_the_kind(bench, processes):
    bench.write(body=THREE)
    run = bench.run(*processes)
    run.result.stdout.no_fnmatch_line("*go on with*")
    run.result.stdout.no_fnmatch_line("stopped early*")
    assert (run.summary["end"]["state"], run.summary["end"]["without_result"]) == ("finished", 0)


@pytest.mark.slow
def test_only_errors_of_the_users_code_have_a_traceback_and_an_agent_that_never_began_says_so(bench):
    bench.write(
        body="""
        from pytest_hermes.errors import SandboxLost

        class Agent:
            needs_model = False
            async def run(self, prompt, toolbox):
                from pytest_hermes.agents.result import AgentResult
                if prompt == "write agent":
                    raise KeyError("mine")
                return AgentResult(messages=[])

        def check(v):
            if v.task.id == "verifier":
                raise KeyError("mine")
            try:
                raise OSError("of a library")
            except OSError as error:
                raise SandboxLost("gone") from error

        tasks = [write(name, name) for name in ("agent", "verifier", "sandbox")]
        tasks.append(Task(id="broken", prompt="x", error="its files are not there"))
        benchmark = Benchmark("bench", tasks=tasks, verify=check)

        @benchmark.parametrize
        def test_task(rollout): rollout.check()
        """
    )
    run = bench.run("--hermes-agent=test_bench:Agent", "--hermes-retries=0", "--junitxml=j.xml", model=None)
    rows = {row["task_id"]: row for row in run.rows.values()}
    assert {name: (row["cause"], bool(row["traceback"])) for name, row in rows.items()} == {
        "agent": ("agent_error", True),
        "verifier": ("verifier_error", True),
        "sandbox": ("sandbox_lost", False),
        "broken": ("task_broken", False),
    }
    assert {name: row["stop_reason"] for name, row in rows.items()} == {
        "agent": "error",
        "verifier": "finished",
        "sandbox": "finished",
        "broken": "not_run",
    }
    run.result.stdout.fnmatch_lines(["no model calls"])
    assert all("hermes.turns" not in properties for properties in run.junit().values())
