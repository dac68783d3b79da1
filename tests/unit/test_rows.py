"""Rows of data sets: the same task as the directory it was packed from, columns that win, and what is refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_archives import archive

from pytest_hermes.config import EnvSettings, Settings
from pytest_hermes.datasets.dataset import rows
from pytest_hermes.datasets.harbor import load_tasks
from pytest_hermes.datasets.pack import pack, row_of
from pytest_hermes.errors import ConfigurationError, TaskError
from pytest_hermes.limits import Limits
from pytest_hermes.task import Task

SAMPLES = Path(__file__).parent.parent / "data" / "harbor"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("PYTEST_HERMES_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def b64(*members: tuple[str, dict[str, object], bytes]) -> str:
    return base64.b64encode(archive(*members)).decode()


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., list[Task]]:
    """The tasks of rows that are written to a JSONL file."""

    def tasks(*given: dict[str, Any], **env: Any) -> list[Task]:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in given))
        return rows(str(path)).load(Settings(env=EnvSettings(**env)), "")[0]

    return tasks


ROW: dict[str, Any] = {
    "task_name": "one",
    "instruction": "Do it.",
    "docker_image": "some/image:1",
    "environment_tar": "",
    "tests_tar": "",
    "test_sh": "echo 1 > /logs/verifier/reward.txt\n",
}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_packed_samples_are_the_same_tasks(tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"samples.{suffix}"
    assert pack([SAMPLES], target) == 8
    found = {task.id: task for task in rows(str(target)).load(Settings(), "")[0]}
    for wanted in load_tasks(SAMPLES, Settings()):
        task = found[wanted.id]
        assert task.error is None and task.digest == wanted.digest
        assert (task.difficulty, task.category, task.tags) == (wanted.difficulty, wanted.category, wanted.tags)
        assert task.tests is not None and wanted.tests is not None
        assert task.tests.files.tar() == wanted.tests.files.tar()


def test_packing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    pack([SAMPLES / "fix-git"], tmp_path / "a.jsonl")
    pack([SAMPLES / "fix-git"], tmp_path / "b.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_the_seven_columns_of_hermes_environments(read: Callable[..., list[Task]]) -> None:
    tests = b64(("test_outputs.py", {}, b"x = 1\n"), ("test.sh", {}, b"old\n"))
    (task,) = read({**ROW, "tests_tar": tests, "category": None})
    assert task.error is None
    assert (task.id, task.prompt, task.sandbox.image, task.category) == ("one", "Do it.", "some/image:1", "unknown")
    assert task.limits == Limits() and task.solution is None
    assert task.tests is not None and task.tests.entry == "test.sh"
    assert [(name, content) for name, _, content in task.tests.files.entries()] == [  # type: ignore[attr-defined]
        ("test.sh", ROW["test_sh"].encode()),
        ("test_outputs.py", b"x = 1\n"),
    ]


def test_further_columns(read: Callable[..., list[Task]]) -> None:
    more = {
        "difficulty": "hard",
        "category": "security",
        "tags": '["a", "b"]',
        "agent_timeout_sec": 900,
        "max_test_timeout_sec": 60.0,
        "build_timeout_sec": 600,
        "cpus": 2,
        "memory": "4G",
        "storage_mb": 5000,
        "workdir": "/srv",
        "allow_internet": False,
    }
    (task,) = read({**ROW, **more})
    assert task.error is None
    assert (task.difficulty, task.category, task.tags) == ("hard", "security", ("a", "b"))
    assert task.limits == Limits(agent_s=900.0, verify_s=60.0, build_s=600.0)
    spec = task.sandbox
    assert (spec.cpus, spec.memory_mb, spec.disk_mb, spec.workdir, spec.network) == (2.0, 4096, 5000, "/srv", False)


def test_columns_win_over_task_toml(read: Callable[..., list[Task]]) -> None:
    toml = '[agent]\ntimeout_sec = 5\nuser = "me"\n[environment]\nmemory = "1G"\n[metadata]\ndifficulty = "easy"\n'
    (task,) = read({**ROW, "task_toml": toml, "agent_timeout_sec": 7, "memory_mb": 2000, "difficulty": None})
    assert task.error is None
    assert (task.limits.agent_s, task.sandbox.memory_mb, task.sandbox.user) == (7.0, 2000, "me")
    assert task.difficulty == "easy"


def test_image_by_name_unless_it_is_to_be_built(read: Callable[..., list[Task]]) -> None:
    context = b64(("Dockerfile", {}, b"FROM x\n"), ("sub/data", {}, b"1"))
    named = {**ROW, "environment_tar": context}
    assert read(named)[0].sandbox.image == "some/image:1"
    build = read(named, force_build=True)[0].sandbox.build
    assert build is not None and [name for name, _, _ in build.context.entries()] == ["Dockerfile", "sub/data"]  # type: ignore[union-attr]
    assert read({**named, "docker_image": ""})[0].sandbox.build is not None
    (neither,) = read({**ROW, "docker_image": ""})
    assert "Dockerfile in column environment_tar is missing and environment.docker_image names no image" in str(
        neither.error
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tests_tar": b64(("../x", {}, b""))}, "task one of {path}: column tests_tar: '../x' leads out"),
        ({"environment_tar": "%%"}, "column environment_tar is not base64"),
        ({"instruction": "  "}, "column instruction is empty"),
        ({"instruction": None}, "column instruction is empty"),
        ({"test_sh": ""}, "column test_sh is missing"),
        ({"agent_timeout_sec": -3}, "field agent.timeout_sec is -3, not above 0"),
        ({"cpus": "two"}, "field environment.cpus is 'two', not a number"),
        ({"task_toml": "= ="}, "column task_toml is not TOML"),
        ({"task_name": ""}, "row 1: task_name is '', not a name"),
        ({"task_name": "a\nb"}, "row 1: task_name is 'a\\nb', not a name"),
        ({"task_name": 3}, "row 1: task_name is 3, not a name"),
    ],
)
def test_a_broken_row_is_named_and_the_others_go_on(
    read: Callable[..., list[Task]], tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    broken, fine = read({**ROW, **change}, {**ROW, "task_name": "two"})
    assert said.format(path=tmp_path / "rows.jsonl") in str(broken.error)
    assert fine.error is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the data set has no row"),
        ('{"a": 1}\n', "it has no column task_name (its columns: a)"),
        ("[1]\n", "line 1: a list, not an object"),
        ('{"task_name": "x", "instruction": "y"}\n{"task', "line 2: not JSON"),
    ],
)
def test_files_that_are_no_rows(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        rows(str(path)).load(Settings(), "")
    assert str(path) in str(caught.value) and said in str(caught.value)


def test_not_parquet(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_text("no")
    with pytest.raises(ConfigurationError, match=r"rows\.parquet: not a parquet file that can be read"):
        rows(str(path)).load(Settings(), "")


def test_a_changed_file_is_read_again_and_an_emptied_cache_filled_again(
    read: Callable[..., list[Task]], cache: Path
) -> None:
    row = {**ROW, "tests_tar": b64(("a", {}, b"1"))}
    first = read(row)[0]
    (index,) = (cache / "indexes").iterdir()
    made = index.stat().st_mtime_ns
    for blob in (cache / "blobs").rglob("*"):
        if blob.is_file():
            blob.unlink()
    assert first.tests is not None
    with pytest.raises(TaskError, match="cannot be read"):
        first.tests.files.tar()
    assert read(row)[0].tests.files.tar()  # type: ignore[union-attr]
    assert read({**row, "instruction": "Do more."})[0].prompt == "Do more."
    assert index.stat().st_mtime_ns == made


def test_a_damaged_archive_in_the_cache_is_no_result(read: Callable[..., list[Task]], cache: Path) -> None:
    (task,) = read({**ROW, "tests_tar": b64(("a", {}, b"1"))})
    (blob,) = (path for path in (cache / "blobs").rglob("*") if path.is_file())
    blob.write_bytes(b"other")
    assert task.tests is not None
    with pytest.raises(TaskError, match="the cached archive was changed"):
        task.tests.files.tar()


def test_a_cache_that_cannot_be_written_is_one_line(read: Callable[..., list[Task]], monkeypatch, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PYTEST_HERMES_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(ConfigurationError, match=r"cannot be written .*PYTEST_HERMES_CACHE"):
        read(ROW)


def test_packing_refuses_what_a_row_cannot_hold(tmp_path: Path) -> None:
    folder = tmp_path / "tasks" / "one"
    for part in ("environment", "tests"):
        (folder / part).mkdir(parents=True)
    (folder / "task.toml").write_text("[verifier]\nenv = {K = '${SOME_KEY}'}\ntimeout_sec = 3\n")
    (folder / "instruction.md").write_text("Do it.\n")
    (folder / "tests" / "test.sh").write_text("true\n")
    (folder / "environment" / "Dockerfile").write_text("FROM x\n")
    assert row_of(folder)["verifier_timeout_sec"] == 3.0, "host variables are the business of who runs it"
    (folder / "environment" / "link").symlink_to("/etc")
    with pytest.raises(ConfigurationError, match=r"cannot pack: .*link is a link out of"):
        pack([folder.parent], tmp_path / "x.jsonl")
    assert not list(tmp_path.glob("*x.jsonl*"))
    with pytest.raises(ConfigurationError, match=r"ends in \.csv, not in \.jsonl or \.parquet"):
        pack([SAMPLES], tmp_path / "x.csv")
    with pytest.raises(ConfigurationError, match="two tasks are called fix-git"):
        pack([SAMPLES / "fix-git", SAMPLES / "fix-git"], tmp_path / "x.jsonl")
