"""Harbor task directories: what is read, what is refused and how that is said."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_hermes.config import EnvSettings, Settings
from pytest_hermes.datasets.harbor import load_tasks
from pytest_hermes.errors import ConfigurationError
from pytest_hermes.limits import Limits
from pytest_hermes.task import Artifact, Healthcheck, Task

SAMPLES = Path(__file__).parent.parent / "data" / "harbor"
MakeTask = Callable[..., Path]


@pytest.fixture
def make_task(tmp_path: Path) -> MakeTask:
    """Writes `tasks/NAME` with the given task.toml; returns the directory."""

    def make(toml: str = "", name: str = "one", dockerfile: str | None = "FROM x\n") -> Path:
        folder = tmp_path / "tasks" / name
        for part in ("environment", "tests", "solution"):
            (folder / part).mkdir(parents=True)
        (folder / "task.toml").write_text(toml)
        (folder / "instruction.md").write_text("Do it.\n")
        (folder / "tests" / "test.sh").write_text("true\n")
        if dockerfile:
            (folder / "environment" / "Dockerfile").write_text(dockerfile)
        return folder

    return make


def only(folder: Path, **env: object) -> Task:
    (task,) = load_tasks(folder, Settings(env=EnvSettings(**env)))  # type: ignore[arg-type]
    return task


def test_samples_are_read() -> None:
    tasks = {task.id: task for task in load_tasks(SAMPLES, Settings())}
    assert list(tasks) == [
        "async-limit", "c-segfault", "fix-git", "kv-service", "log-summary", "orders-report", "selfsigned-cert",
        "slow-verifier",
    ]  # fmt: skip
    assert all(task.error is None for task in tasks.values())
    slow = tasks["slow-verifier"]
    assert slow.limits == Limits(agent_s=20.0, verify_s=5.0, build_s=600.0)
    assert (slow.difficulty, slow.category, slow.tags) == ("easy", "harness", ("timeout", "harness-only"))
    assert (slow.sandbox.cpus, slow.sandbox.memory_mb, slow.sandbox.disk_mb) == (1.0, 1024, 4096)
    assert slow.sandbox.build is not None and slow.sandbox.image is None
    assert slow.solution is not None and slow.solution.entry == "solve.sh"
    assert len({task.digest for task in tasks.values()}) == 8


def test_digest_follows_the_content(tmp_path: Path) -> None:
    copy = tmp_path / "fix-git"
    shutil.copytree(SAMPLES / "fix-git", copy)
    assert only(copy).digest == only(SAMPLES / "fix-git").digest
    (copy / "tests" / "test_outputs.py").write_text("")
    assert only(copy).digest != only(SAMPLES / "fix-git").digest


def test_new_spellings_and_every_supported_field(make_task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_task(
        """
schema_version = "1.1"
artifacts = ["/app/out", {source = "/var/log", destination = "logs", exclude = ["*.gz"]}]
[task]
name = "org/one"
[metadata]
difficulty = "hard"
category = "security"
tags = ["a", "b"]
anything = {goes = "here"}
[agent]
timeout_sec = 12.5
user = "agent"
[verifier]
timeout_sec = 30
user = "1000"
environment_mode = "shared"
env = {LEVEL = 3, KEY = "${JUDGE_KEY}", URL = "${JUDGE_URL:-none}"}
[environment]
docker_image = "some/image:1"
build_timeout_sec = 77
cpus = 2
memory_mb = 3000
storage_mb = 5000
workdir = "/srv"
network_mode = "no-network"
env = {MODE = "test"}
gpus = 0
mcp_servers = []
[environment.healthcheck]
command = "true"
interval_sec = 1
timeout_sec = 2
start_period_sec = 3
start_interval_sec = 0.5
retries = 4
"""
    )
    monkeypatch.setenv("JUDGE_KEY", "secret")
    task = only(folder, verifier_env=["JUDGE_KEY"])
    assert task.error is None
    assert task.limits == Limits(build_s=77.0, agent_s=12.5, verify_s=30.0)
    spec = task.sandbox
    assert (spec.image, spec.build, spec.cpus, spec.memory_mb, spec.disk_mb) == ("some/image:1", None, 2.0, 3000, 5000)
    assert (spec.workdir, spec.network, dict(spec.env), spec.user) == ("/srv", False, {"MODE": "test"}, "agent")
    assert spec.healthcheck == Healthcheck("true", 1.0, 2.0, 3.0, 0.5, 4)
    assert task.artifacts == (Artifact("/app/out"), Artifact("/var/log", "logs", ("*.gz",)))
    assert task.tests is not None and task.tests.user == "1000"
    assert task.tests.env == {"LEVEL": "3", "KEY": "${JUDGE_KEY}", "URL": "${JUDGE_URL:-none}"}, "no secret in the task"
    assert dict(task.data) == {}


def test_force_build_prefers_the_dockerfile(make_task: MakeTask) -> None:
    folder = make_task('[environment]\ndocker_image = "some/image:1"\n')
    assert only(folder).sandbox.image == "some/image:1"
    assert only(folder, force_build=True).sandbox.build is not None


def test_limits_stay_unsaid_for_the_engine(make_task: MakeTask) -> None:
    assert only(make_task(), task_timeout=5.0, test_timeout=6.0).limits == Limits()


def test_unknown_keys_are_recorded_not_refused(make_task: MakeTask) -> None:
    task = only(make_task("colour = 1\n[environment]\nshape = 2\n[metadata]\nmood = 3\n"))
    assert task.error is None
    assert task.data["ignored_fields"] == ["colour", "environment.shape"]


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("[[steps]]\nname = 'a'", "field steps is not supported"),
        ("[environment]\ngpus = 1", "field environment.gpus is not supported"),
        ("[environment]\ntpu = {}\nmcp_servers = [{name = 'x'}]", "field environment.mcp_servers is not supported"),
        ("[environment]\nskills_dir = '/skills'", "field environment.skills_dir is not supported"),
        ("[environment]\nos = 'windows'", "field environment.os is not supported ('windows'"),
        ("[environment]\nnetwork_mode = 'allowlist'", "field environment.network_mode is not supported"),
        ("[environment]\nallowed_hosts = ['h']", "field environment.allowed_hosts is not supported"),
        ("[agent]\nnetwork_mode = 'no-network'", "field agent.network_mode is not supported"),
        ("[verifier]\nenvironment_mode = 'separate'", "field verifier.environment_mode is not supported"),
        ("[verifier]\ncollect = ['x']", "field verifier.collect is not supported"),
        ("[environment]\nenv = {A = '${HOME}'}", "field environment.env.A is not supported"),
        ("artifacts = [{source = '/x', service = 'db'}]", "field artifacts[0].service is not supported"),
        ("version = '2.0'", "field version is not supported"),
        ("[agent]\ntimeout_sec = -1", "field agent.timeout_sec is -1, not above 0"),
        ("[agent]\ntimeout_sec = nan", "field agent.timeout_sec is nan, not a number"),
        ("[agent]\ntimeout_sec = true", "field agent.timeout_sec is True, not a number"),
        ("[verifier]\ntimeout_sec = '5'", "field verifier.timeout_sec is '5', not a number"),
        (
            "[environment]\nmemory = '2 lots'",
            'field environment.memory is \'2 lots\', not a size such as "512M" or "2G"',
        ),
        ("[environment]\nmemory_mb = 1.5", "field environment.memory_mb is 1.5, not a whole number"),
        ("[environment]\nworkdir = 'app'", "field environment.workdir is 'app', not an absolute path"),
        ("[environment]\nhealthcheck = {retries = 2}", "field environment.healthcheck.command is missing"),
        ("environment = 3", "field environment is 3, not a table"),
        ("artifacts = '/x'", "field artifacts is '/x', not a list"),
        ("artifacts = [{destination = '../x', source = 'a'}]", "field artifacts[0].destination is '../x'"),
        ("[verifier]\nenv = {K = '${SOME_KEY}'}", "--hermes-set env.verifier_env=SOME_KEY"),
        ("[solution]\nenv = {K = '${SOME_KEY}'}", "[solution] env asks for the host variable SOME_KEY"),
    ],
)
def test_bad_and_unsupported_fields_are_named(make_task: MakeTask, toml: str, said: str) -> None:
    folder = make_task(toml)
    make_task("", "two")
    broken, fine = load_tasks(folder.parent, Settings())
    assert broken.error is not None and said in broken.error
    assert broken.error.startswith("task one: ")
    assert fine.error is None


def test_all_problems_of_a_task_are_said_at_once(make_task: MakeTask) -> None:
    error = only(make_task("[agent]\ntimeout_sec = 0\n[environment]\ncpus = 'two'\n")).error
    assert error is not None and "agent.timeout_sec" in error and "environment.cpus" in error


def test_broken_toml_names_file_and_line(make_task: MakeTask) -> None:
    folder = make_task("[agent]\ntimeout_sec = = 3\n")
    error = only(folder).error
    assert error is not None and str(folder / "task.toml") in error and "line 2" in error


@pytest.mark.parametrize(
    ("path", "said"),
    [("instruction.md", "is missing"), ("tests/test.sh", "is missing"), ("environment/Dockerfile", "is missing and")],
)
def test_missing_files_are_named(make_task: MakeTask, path: str, said: str) -> None:
    folder = make_task()
    (folder / path).unlink()
    error = only(folder).error
    assert error is not None and f"{folder / path} {said}" in error


def test_task_without_toml_is_reported_not_dropped(make_task: MakeTask) -> None:
    folder = make_task()
    make_task("", "two")
    (folder / "task.toml").unlink()
    broken, fine = load_tasks(folder.parent, Settings())
    assert broken.error is not None and "task.toml is missing" in broken.error
    assert fine.error is None


def test_not_utf8(make_task: MakeTask) -> None:
    folder = make_task()
    (folder / "instruction.md").write_bytes(b"\xff\xfe\xfa")
    assert "cannot be read" in (only(folder).error or "")


def test_compose_files_are_refused(make_task: MakeTask) -> None:
    folder = make_task()
    (folder / "environment" / "docker-compose.yaml").write_text("services: {}\n")
    assert "environment/docker-compose.yaml is not supported" in (only(folder).error or "")


def test_links_out_of_the_task_are_refused(make_task: MakeTask, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    folder = make_task()
    (folder / "tests" / "inside").symlink_to("test.sh")
    assert only(folder).error is None
    (folder / "tests" / "data").symlink_to(tmp_path / "secret")
    error = only(folder).error
    assert error is not None and f"{folder / 'tests' / 'data'} is a link out of" in error


def test_missing_directory_has_a_hint(make_task: MakeTask) -> None:
    folder = make_task().parent
    with pytest.raises(ConfigurationError, match=r"there is no such directory of tasks. Did you mean 'tasks'\?"):
        load_tasks(folder.with_name("task"), Settings())


def test_directory_without_tasks_points_deeper(make_task: MakeTask) -> None:
    folder = make_task().parent
    with pytest.raises(ConfigurationError, match=rf"no task in it .*Did you mean {folder}\?"):
        load_tasks(folder.parent, Settings())


def test_directories_that_are_no_tasks_are_left_out(make_task: MakeTask) -> None:
    folder = make_task().parent
    (folder / ".git").mkdir()
    (folder / "pictures").mkdir()
    (folder / "README.md").write_text("x")
    assert [task.id for task in load_tasks(folder, Settings())] == ["one"]
