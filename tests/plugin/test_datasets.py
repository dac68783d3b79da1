"""Benchmarks on data sets, in a user's session: the hub is asked once per run, and never again with a warm cache."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.hub import Hub, serving

from pytest_hermes.datasets.pack import pack

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "tests" / "data" / "harbor"
NAME = "NousResearch/terminal-bench-2"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the samples as rows of Terminal-Bench 2, and caches of the test's own."""
    folder = tmp_path / "hub" / NAME / "data"
    folder.mkdir(parents=True)
    pack([SAMPLES], folder / "train-00000-of-00001.parquet")
    with serving(tmp_path / "hub") as running:
        for name, value in {
            "HF_ENDPOINT": running.url,
            "HF_HOME": str(tmp_path / "hf"),
            "PYTEST_HERMES_CACHE": str(tmp_path / "cache"),
        }.items():
            monkeypatch.setenv(name, value)
        yield running


def collect(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Collect the benchmark; nothing is started."""
    target = str(ROOT / "benchmarks" / "terminalbench_2")
    return pytester.runpytest_subprocess(target, "--collect-only", "-q", "-p", "no:cacheprovider", *arguments)


def revisions(hub: Hub) -> int:
    """How often `main` was resolved."""
    return sum(path.endswith("/revision/main") for _, path in hub.requests)


def test_tasks_marks_and_names_from_the_hub(pytester: pytest.Pytester, hub: Hub) -> None:
    result = collect(pytester)
    assert "8 tests collected" in result.stdout.str()
    assert any("test_task[fix-git]" in line for line in result.outlines)
    assert revisions(hub) == 1
    chosen = collect(pytester, "-m", "difficulty_easy and not category_security", "--strict-markers")
    assert [line.rsplit("[", 1)[1] for line in chosen.outlines if "::" in line] == [
        "fix-git]", "orders-report]", "slow-verifier]",
    ]  # fmt: skip
    assert "1/8 tests collected" in collect(pytester, "-k", "fix-git").stdout.str()
    assert "2 tests collected" in collect(pytester, "--hermes-task=fix-git,kv-service").stdout.str()
    collect(pytester, "--hermes-task=fix-gut").stdout.fnmatch_lines(
        ["*has no task 'fix-gut'. Did you mean 'fix-git'?*"]
    )


def test_a_run_asks_once_and_a_pinned_one_not_at_all(pytester: pytest.Pytester, hub: Hub) -> None:
    agent = ["--hermes-agent=nop", "--hermes-task=fix-git,kv-service", "--hermes-retries=0", "-n", "4"]
    pytester.makeconftest(
        """
        from contextlib import asynccontextmanager

        @asynccontextmanager
        async def refused(task):
            raise RuntimeError("no sandbox here")
            yield

        def pytest_hermes_make_sandbox(task, settings):
            return refused(task)
        """
    )
    target = str(ROOT / "benchmarks" / "terminalbench_2")
    result = pytester.runpytest_subprocess(target, *agent, "-p", "conftest", f"--rootdir={pytester.path}")
    result.assert_outcomes(errors=2)
    assert revisions(hub) == 1, "four workers, one resolution"
    files = [path for _, path in hub.requests if path.endswith(".parquet")]
    commit = hub.repository(NAME).commit  # type: ignore[union-attr]
    assert len(files) == 2 and commit in files[0], "one HEAD, one GET"
    (run,) = (pytester.path / ".hermes" / "runs").glob("*-terminalbench_2-*")
    origin = json.loads((run / "run.json").read_text())["datasets"]["terminalbench_2"]
    assert (origin["source"], origin["commit"], origin["split"]) == (NAME, commit, "train")
    assert set(origin["tasks"]) == {"fix-git", "kv-service"}
    assert all(digest.startswith("sha256:") for digest in origin["tasks"].values())
    hub.requests.clear()
    assert "8 tests collected" in collect(pytester, "--hermes-set", f"env.dataset_revision={commit}").stdout.str()
    assert hub.requests == []


@pytest.mark.slow
def test_a_branch_that_moves_is_followed_by_the_next_run(pytester: pytest.Pytester, hub: Hub) -> None:
    assert "8 tests collected" in collect(pytester).stdout.str()
    pack([SAMPLES / "fix-git"], hub.root / NAME / "data" / "train-00000-of-00001.parquet")
    hub.changed()
    assert "1 test collected" in collect(pytester).stdout.str()


@pytest.mark.slow
@pytest.mark.parametrize("offline", [True, False], ids=["offline mode", "no connection"])
def test_without_a_connection_the_cache_is_used_and_that_is_said(
    pytester: pytest.Pytester, hub: Hub, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    assert "8 tests collected" in collect(pytester).stdout.str()
    hub.close()
    monkeypatch.setattr(hub, "close", lambda: None)
    if offline:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "8 tests collected" in collect(pytester).stdout.str()
    other = collect(pytester, "--hermes-dataset=NousResearch/other")
    other.stdout.fnmatch_lines(["*NousResearch/other: the hub cannot be reached*pytest-hermes dataset fetch*"])
    assert other.ret == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--hermes-dataset=NousResearch/none"], "*NousResearch/none: the hub has no such data set*"),
        (["--hermes-set", "env.dataset_revision=v9"], "*the hub knows no revision 'v9' of it*"),
        (["--hermes-set", "env.dataset_split=test"], '*split test: Unknown split "test". Should be one of*train*'),
        (["--hermes-dataset=x.parquet"], "*--hermes-dataset x.parquet: there is no such file*"),
        (["--hermes-dataset=a/b", "--hermes-tasks=x"], "*--hermes-dataset and --hermes-tasks exclude each other*"),
    ],
)
def test_mistakes_are_one_line_at_collection(
    pytester: pytest.Pytester, hub: Hub, arguments: list[str], said: str
) -> None:
    result = collect(pytester, *arguments)
    result.stdout.fnmatch_lines([said])
    assert result.ret != 0 and "Traceback" not in result.stdout.str()


@pytest.mark.slow
def test_a_hub_that_fails_after_it_was_asked_fails_all_workers_with_one_line(
    pytester: pytest.Pytester, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = {"X-Error-Code": "GatedRepo", "X-Error-Message": "not for you"}
    monkeypatch.setattr("doubles.hub._Handler._file", lambda self, parts: self._send({}, 403, refusal))
    target = str(ROOT / "benchmarks" / "terminalbench_2")
    result = pytester.runpytest_subprocess(target, "-n", "3", "--hermes-agent=nop", "-p", "no:cacheprovider")
    result.stdout.fnmatch_lines([f"{NAME}@*, split train: *gated*"])
    assert result.ret != 0 and revisions(hub) == 1
    text = result.stdout.str()
    assert "Traceback" not in text and "Different tests were collected" not in text


@pytest.mark.slow
def test_an_answer_that_is_not_the_hub_s_is_a_hub_that_cannot_be_reached(
    pytester: pytest.Pytester, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("doubles.hub._Handler._api", lambda self, *_: self._send(b"<html>log in first</html>"))
    result = collect(pytester)
    result.stdout.fnmatch_lines([f"{NAME}: the hub cannot be reached (*) and main of it is not in the cache*"])
    assert "Traceback" not in result.stdout.str()


def test_local_sources_of_the_benchmark(pytester: pytest.Pytester, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTEST_HERMES_CACHE", str(tmp_path / "cache"))
    pack([SAMPLES], tmp_path / "rows.jsonl")
    for chosen in (
        f"--hermes-dataset={tmp_path / 'rows.jsonl'}",
        f"--hermes-tasks={SAMPLES}",
        f"--hermes-dataset={SAMPLES}",
    ):
        assert "8 tests collected" in collect(pytester, chosen).stdout.str()


def test_the_default_settings_are_those_of_the_hermes_environments() -> None:
    import yaml

    for name, seconds in (("terminalbench_2", 1800), ("tblite", 1200)):
        env = yaml.safe_load((ROOT / "benchmarks" / name / "default.yaml").read_text())["env"]
        assert env["task_timeout"] == seconds
        wanted = {"max_agent_turns": 60, "terminal_timeout": 300, "test_timeout": 600, "agent_temperature": 0.8}
        assert wanted.items() <= env.items() and env["max_token_length"] == 32000


def test_tasks_that_a_backend_cannot_run_are_skipped_with_the_reason(bench, processes) -> None:
    bench.write(
        body="""
        benchmark = Benchmark(
            "bench", tasks=[write("a", "x"), write("b", "y")], verify=verify,
            backend_skips={"local": {"b": "no machine in the machine"}, "docker": {"a": "never"}},
        )

        @benchmark.parametrize
        def test_task(rollout): rollout.check()
        """
    )
    run = bench.run("-rs", *processes)
    run.result.assert_outcomes(passed=1, skipped=1)
    run.result.stdout.fnmatch_lines(["*cannot run with --hermes-sandbox=local: no machine in the machine*"])
    assert list(run.rows) == ["test_task[a]"]
    skipped = json.loads((run.directory / "run.json").read_text())["skipped"]
    assert [(node.rsplit("::", 1)[1], why) for node, why in skipped.items()] == [
        ("test_task[b]", "cannot run with --hermes-sandbox=local: no machine in the machine")
    ]


def test_terminal_bench_skips_on_modal_what_cannot_run_there() -> None:
    from benchmarks.terminalbench_2.test_terminalbench_2 import benchmark

    assert set(benchmark.backend_skips["modal"]) == {"qemu-startup", "qemu-alpine-ssh", "crack-7z-hash"}


@pytest.mark.slow
def test_a_directory_called_datasets_is_not_the_package(pytester: pytest.Pytester, hub: Hub) -> None:
    pytester.mkpydir("datasets")
    assert "8 tests collected" in collect(pytester).stdout.str()
    assert os.environ["HF_ENDPOINT"] == hub.url
