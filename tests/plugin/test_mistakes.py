"""Mistakes in options, settings, marks and tasks: one clear line, nothing started, the other tasks go on."""

from __future__ import annotations

import pytest

ONE = """
    benchmark = Benchmark("bench", tasks=[write("fix-git", "a"), write("other", "b")], verify=verify)

    @benchmark.parametrize
    def test_task(rollout):
        rollout.check()
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hermes-task=fix-gti"], "*--hermes-task: benchmark bench has no task 'fix-gti'. Did you mean 'fix-git'?*"),
        (["--hermes-skip-task=nothing-like-it"], "*--hermes-skip-task: * has no task 'nothing-like-it'. Known: *"),
        (["--hermes-toolsets=terminl"], "*nknown tool set 'terminl'*Did you mean 'terminal'*"),
        (["--hermes-sandbox=dokcer"], "*dokcer*docker*"),
        (["--hermes-agent=orcale"], "*orcale*did you mean 'oracle'*"),
        (["--hermes-agent=no.such:Agent"], "*there is no module 'no.such'*"),
        (["--hermes-set", "env.attemps=2"], "*unknown setting env.attemps. Did you mean 'attempts'?*"),
        (["--hermes-set", "env.tool_call_parser=hermse"], "*env.tool_call_parser: no tool-call parser 'hermse'. Did*"),
        (["--hermes-set", "attempts"], "*--hermes-set 'attempts': not of the form*"),
        (["--hermes-config=none.yaml"], "*none.yaml: cannot be read*"),
        (["--hermes-attempts=0"], "*env.attempts: 0 is below 1*"),
        (["--hermes-concurrency=0"], "*env.concurrency: 0 is below 1*"),
        (["--hermes-timeout-multiplier=0"], "*timeout_multiplier: 0 is not above 0*"),
        (["--hermes-timeout-multiplier=inf"], "*timeout_multiplier: inf is not above 0 and below 1e9*"),
        (["--hermes-set", "env.test_timeout=-5"], "*env.test_timeout: -5 is not above 0*"),
        (["--hermes-skip-task=fix-git,other"], "*--hermes-task and --hermes-skip-task leave no task*"),
        (["--hermes-local-confine=maybe"], "*local_confine: 'maybe' is none of auto, on, off*"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_wrong_names_stop_at_collection(bench, processes, arguments, message):
    bench.write(body=ONE)
    run = bench.run(*processes, *arguments)
    assert run.result.ret in (2, 1, 4)
    run.result.stdout.fnmatch_lines([message])
    run.result.stdout.no_fnmatch_line("*Traceback*")
    assert not run.started


def said(run) -> str:
    """What pytest printed, on whichever stream."""
    return run.result.stdout.str() + run.result.stderr.str()


def test_no_model_is_said_once_before_anything_starts(bench, processes):
    bench.write(body=ONE)
    run = bench.run(*processes, model=None)
    assert run.result.ret == 4
    assert said(run).count("no model: give --model=NAME") == 1
    assert not run.started


def test_no_key_is_said_once_before_anything_starts(bench, processes, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENROUTER_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    bench.write(body=ONE)
    run = bench.run(*processes, model="some/model")
    assert run.result.ret == 4
    assert said(run).count("no API key for") == 1
    assert not run.started


def test_a_daemon_that_is_not_there_is_said_once_before_anything_starts(bench, processes, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{bench.pytester.path}/none.sock")
    bench.write(
        body="""
        from pytest_hermes import SandboxSpec

        TASKS = [write(name, "x", sandbox=SandboxSpec(image="some/image")) for name in "abc"]
        benchmark = Benchmark("bench", tasks=TASKS, verify=verify)

        @benchmark.parametrize
        def test_task(rollout): rollout.check()
        """
    )
    run = bench.run(*processes, "--hermes-sandbox=docker")
    assert run.result.ret == 4
    assert said(run).count("no Docker daemon at unix://") == 1 and "none.sock. Start it" in said(run)
    assert "--hermes-sandbox=local" not in said(run), "which has no images"
    assert not run.started


def test_a_daemon_that_a_hook_does_not_need_is_not_asked_for(bench, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{bench.pytester.path}/none.sock")
    bench.pytester.makeconftest(
        """
        from contextlib import asynccontextmanager
        from pytest_hermes.sandbox.labels import Owner
        from pytest_hermes.sandbox.protocol import SandboxRequest
        from pytest_hermes.sandbox.registry import make_provider

        @asynccontextmanager
        async def mine(task):
            provider = make_provider("local", confine="off")
            labels = Owner.here(run="mine").labels()
            sandbox = await provider.create(SandboxRequest(task.sandbox, labels, task.id, 600, 60))
            yield sandbox
            await sandbox.close()

        def pytest_hermes_make_sandbox(task, settings):
            return mine(task)
        """
    )
    bench.write(body=ONE)
    bench.run("--hermes-sandbox=docker").result.assert_outcomes(passed=2)


def test_an_oracle_without_any_solution_is_refused_and_one_task_without_is_that_tasks_error(bench, processes):
    body = """
        TASKS = [write("a", "x"), Task(id="bare", prompt="p", data={"want": "x"})]
        benchmark = Benchmark("bench", tasks=TASKS, verify=verify)

        @benchmark.parametrize
        def test_task(rollout): rollout.check()
        """
    bench.write(body=body)
    alone = bench.run(*processes, "--hermes-agent=oracle", "-k", "bare", model=None)
    assert alone.result.ret == 4 and not alone.started
    assert said(alone).count("no task of bench that was selected has one") == 1
    both = bench.run(*processes, "--hermes-agent=oracle", model=None)
    both.result.assert_outcomes(passed=1, errors=1)
    row = both.rows["test_task[bare]"]
    assert (row["cause"], row["sandbox"]) == ("task_broken", {}) and "has no solution" in row["error"]


GROUPS = """
        TASKS = [write("a", "x", difficulty="easy", category="web"), write("b", "y", difficulty="hard")]
        benchmark = Benchmark("bench", tasks=TASKS, verify=verify)

        @benchmark.parametrize
        def test_task(rollout): rollout.check()
        """


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("difficulty_esy", "no collected task is difficulty_esy. Did you mean 'easy'?"),
        ("difficulty_easy and not category_webs", "no collected task is category_webs. Did you mean 'web'?"),
        ("difficulty_extreme", "no collected task is difficulty_extreme. Known: easy, hard"),
    ],
)
def test_groups_that_no_task_is_of(bench, processes, expression, message):
    bench.write(body=GROUPS)
    run = bench.run(*processes, "-m", expression)
    assert run.result.ret == 4 and not run.started
    assert said(run).count(message) == 1


def test_groups_of_tasks_that_do_not_say_them(bench):
    bench.write(body=ONE)
    run = bench.run("-m", "difficulty_hard", "--strict-markers")
    assert run.result.ret == 4
    assert "none of the 2 collected tasks says its difficulty" in said(run)


def test_groups_that_are_there_and_marks_of_the_users_own(bench):
    bench.write(body=GROUPS)
    bench.run("-m", "difficulty_hard and not category_web").result.assert_outcomes(passed=1, deselected=1)
    bench.pytester.makeini("[pytest]\nmarkers =\n    category_mine: of the user\n")
    bench.run("-m", "not category_mine").result.assert_outcomes(passed=2)


def test_plain_tests_without_a_model_still_run_when_ours_are_deselected(bench):
    bench.write(body=ONE + "\n    def test_plain(): pass\n")
    bench.run("-k", "plain", model=None).result.assert_outcomes(passed=1, deselected=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model=m", "--hermes-base-url=localhost:8000/v1"], "*localhost:8000/v1*http*"),
        (["--model=scripted:none.json"], "*none.json*"),
        (["--model=m", "--hermes-set", "openai.prices={m: 3}"], "*openai.prices*"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_an_endpoint_that_cannot_be_is_said_once_before_anything_starts(bench, arguments, message):
    bench.write(body=ONE)
    run = bench.run(*arguments, model=None)
    assert run.result.ret == 4 and not run.started
    run.result.stderr.fnmatch_lines([message])


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ("[Task(id='a', prompt='x', sandbox=None)]", "*task 'a': sandbox must be of type SandboxSpec, not NoneType*"),
        ("[Task(id='a', prompt='x', files=3)]", "*task 'a': files must be a mapping*not int*"),
        ("[{'id': 'a'}]", "*benchmark bench: its tasks hold a dict, not a Task*"),
        ("lambda: []", "*benchmark bench: tasks=... is called with the settings*"),
    ],
)
def test_wrong_types_in_tasks_are_said_at_collection(bench, tasks, message):
    bench.write(
        body=f"""
        benchmark = Benchmark("bench", tasks={tasks}, verify=verify)

        @benchmark.parametrize
        def test_task(rollout): rollout.check()
        """
    )
    run = bench.run("--hermes-agent=nop", model=None)
    assert run.result.ret == 2 and not run.started
    run.result.stdout.fnmatch_lines([message])


def test_k_above_one_with_workers_is_refused(bench):
    bench.write(body=ONE)
    run = bench.run("-n", "2", "--hermes-concurrency=3")
    assert run.result.ret == 4
    run.result.stderr.fnmatch_lines(["*--hermes-concurrency=3 together with -n 2*"])


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("prompt='x', promt='y'", "*unknown argument 'promt'. Did you mean 'prompt'?*"),
        ("toolsets=['terminal']", "*needs prompt=...*"),
        ("prompt=3", "*prompt=3 is of type int*"),
        ("prompt='x', toolsets=['terminl']", "*nknown tool set 'terminl'*"),
    ],
)
def test_wrong_marks(bench, mark, message):
    bench.pytester.makepyfile(f"import pytest\n@pytest.mark.hermes({mark}, script=[])\ndef test_x(ctx): pass\n")
    run = bench.run()
    assert run.result.ret != 0
    run.result.stdout.fnmatch_lines([message])
    assert not run.started


def test_a_mark_without_a_fixture_is_refused(bench):
    bench.pytester.makepyfile("import pytest\n@pytest.mark.hermes(prompt='x')\ndef test_x(): pass\n")
    run = bench.run()
    run.result.stdout.fnmatch_lines(["*marked `hermes`, but asks for none of the fixtures*"])


def test_a_fixture_without_a_mark_is_refused(bench):
    bench.pytester.makepyfile("def test_x(rollout): pass\n")
    run = bench.run()
    run.result.assert_outcomes(errors=1)
    run.result.stdout.fnmatch_lines(["*asks for a fixture of pytest-hermes, but has no mark `hermes`*"])


def test_an_unusable_run_directory_is_one_line_before_anything_starts(bench):
    bench.write(body=ONE)
    run = bench.run("--hermes-run-dir=/dev/null/x")
    assert run.result.ret == 4
    run.result.stderr.fnmatch_lines(["*run directory /dev/null/x: /dev/null is not a directory*--hermes-run-dir*"])


def test_ctx_asked_for_too_late_is_said(bench):
    bench.write(
        body="""
        benchmark = Benchmark("bench", tasks=[write("a", "1")], verify=verify)

        @benchmark.parametrize
        def test_task(rollout, request): request.getfixturevalue("ctx")
        """
    )
    bench.run().result.stdout.fnmatch_lines(["*Name ctx among the test's parameters*"])


def test_two_tasks_of_one_name_are_refused(bench):
    bench.write(
        body="""
        benchmark = Benchmark("bench", tasks=[write("a", "1"), write("a", "2")], verify=verify)

        @benchmark.parametrize
        def test_task(rollout): rollout.check()
        """
    )
    bench.run().result.stdout.fnmatch_lines(["*two tasks are called 'a'*"])


def test_a_broken_task_is_an_error_of_its_own(bench, processes):
    bench.write(
        body="""
        import dataclasses
        broken = dataclasses.replace(write("broken", "x"), error="task broken: no Dockerfile")
        benchmark = Benchmark("bench", tasks=[broken, write("right", "a")], verify=verify)

        @benchmark.parametrize
        def test_task(rollout): rollout.check()
        """
    )
    run = bench.run(*processes)
    run.result.assert_outcomes(passed=1, errors=1)
    run.result.stdout.fnmatch_lines(["*task broken: no Dockerfile*"])
    assert run.rows["test_task[broken]"]["cause"] == "task_broken"


@pytest.mark.parametrize("owner_first", [True, False], ids=["conftest", "plugin"])
def test_another_owner_of_the_short_model_option_keeps_it(bench, owner_first):
    hook = "def pytest_addoption(parser):\n    parser.addoption('--model', default='theirs')\n"
    bench.write(body=ONE + "\n    def test_option(request): assert request.config.getoption('--model') == 'mine'\n")
    arguments = ["--model=mine", "--hermes-model=scripted"]
    if owner_first:
        bench.pytester.makeconftest(hook)
    else:
        bench.pytester.makepyfile(owner=hook)
        bench.pytester.syspathinsert()
        arguments += ["-p", "owner"]
    bench.run(*arguments, model=None).result.assert_outcomes(passed=3)
