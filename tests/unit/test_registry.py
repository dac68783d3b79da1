"""Harbor registry files: commits are fetched once, from where they say, and nothing else is run or read."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_hermes.config import Settings
from pytest_hermes.datasets.dataset import rows
from pytest_hermes.datasets.harbor import load_tasks
from pytest_hermes.errors import ConfigurationError
from pytest_hermes.task import Task

SAMPLES = Path(__file__).parent.parent / "data" / "harbor"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A git repository with two tasks, and its commit."""
    monkeypatch.setenv("PYTEST_HERMES_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "repository"
    for name in ("fix-git", "orders-report"):
        shutil.copytree(SAMPLES / name, folder / "tasks" / name)

    def git(*arguments: str) -> str:
        author = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        done = subprocess.run(
            ["git", "-C", str(folder), *author, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "tasks")
    return folder, git("rev-parse", "HEAD")


def load(path: Path, dataset: str = "", *, content: Any) -> list[Task]:
    path.write_text(json.dumps(content) if not isinstance(content, str) else content)
    return rows(f"{path}#{dataset}" if dataset else str(path)).load(Settings(), "")[0]


def dataset(url: str | None, commit: str | None, *paths: str, name: str = "tb", version: str = "2.0") -> dict[str, Any]:
    tasks = [{"name": Path(path).name, "git_url": url, "git_commit_id": commit, "path": path} for path in paths]
    return {"name": name, "version": version, "description": "", "tasks": tasks, "metrics": []}


def test_tasks_of_a_commit(tmp_path: Path, repository: tuple[Path, str]) -> None:
    folder, commit = repository
    registry = [dataset(str(folder), commit, "tasks/orders-report", "tasks/fix-git")]
    tasks = load(tmp_path / "registry.json", content=registry)
    assert [task.id for task in tasks] == ["orders-report", "fix-git"]
    wanted = {task.id: task.digest for task in load_tasks(SAMPLES, Settings())}
    assert all(task.error is None and task.digest == wanted[task.id] for task in tasks)
    assert tasks[1].source == f"{folder}@{commit}:tasks/fix-git"
    shutil.rmtree(folder)
    again = load(tmp_path / "registry.json", "tb@2.0", content=registry)
    assert [task.digest for task in again] == [task.digest for task in tasks], "from the cache"


def test_what_a_killed_fetch_left_is_removed_by_the_next(tmp_path: Path, repository: tuple[Path, str]) -> None:
    folder, commit = repository
    registry = [dataset(str(folder), commit, "tasks/fix-git")]
    load(tmp_path / "registry.json", content=registry)
    (checkouts,) = (tmp_path / "cache" / "git").iterdir()
    shutil.rmtree(checkouts / commit)
    (checkouts / ".tmp1" / ".git").mkdir(parents=True)
    load(tmp_path / "registry.json", content=registry)
    assert [path.name for path in checkouts.iterdir()] == [commit]


def test_tasks_beside_the_file(tmp_path: Path, repository: tuple[Path, str]) -> None:
    (task,) = load(tmp_path / "registry.json", content=[dataset(None, None, "repository/tasks/fix-git")])
    assert task.error is None and task.id == "fix-git"


def test_one_of_several_data_sets(tmp_path: Path, repository: tuple[Path, str]) -> None:
    both = [
        dataset(None, None, "repository/tasks/fix-git"),
        dataset(None, None, "repository/tasks/orders-report", version="1.0"),
    ]
    path = tmp_path / "registry.json"
    assert [task.id for task in load(path, "tb@1.0", content=both)] == ["orders-report"]
    with pytest.raises(ConfigurationError, match=r"several data sets; choose one, as .*#tb@2\.0: tb@2\.0, tb@1\.0"):
        load(path, content=both)
    with pytest.raises(ConfigurationError, match=r"no data set 'tb@3\.0'.*Did you mean"):
        load(path, "tb@3.0", content=both)


@pytest.mark.parametrize(
    ("url", "commit", "path", "said"),
    [
        ("{repository}", "main", "tasks/fix-git", "names git_commit_id 'main', not a commit"),
        ("{repository}", None, "tasks/fix-git", "names git_commit_id None, not a commit"),
        ("{repository}", "a" * 40, "tasks/fix-git", "git "),
        ("{repository}", "{commit}", "../x", "path '../x' leads out"),
        ("{repository}", "{commit}", "/etc", "path '/etc' leads out"),
        ("--upload-pack=touch {marker}", "{commit}", "tasks/fix-git", "has git_url '--upload-pack"),
        ("ext::sh -c touch% {marker}", "{commit}", "tasks/fix-git", "git fetch failed"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, repository: tuple[Path, str], url: str, commit: str | None, path: str, said: str
) -> None:
    names = {"repository": repository[0], "commit": repository[1], "marker": tmp_path / "marker"}
    registry = [dataset(url.format(**names), commit and commit.format(**names), path)]
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path / "registry.json", content=registry)
    assert str(caught.value).startswith(f"{tmp_path / 'registry.json'}#tb@2.0: ") and said in str(caught.value)
    assert not (tmp_path / "marker").exists()


def test_a_path_that_is_no_task_is_a_broken_task(tmp_path: Path, repository: tuple[Path, str]) -> None:
    folder, commit = repository
    broken, fine = load(tmp_path / "r.json", content=[dataset(str(folder), commit, "tasks/nothing", "tasks/fix-git")])
    assert "task.toml is missing" in str(broken.error) and fine.error is None


def commit_all(folder: Path) -> str:
    author = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for arguments in (["add", "."], ["commit", "-qm", "more"]):
        subprocess.run(["git", "-C", str(folder), *author, *arguments], check=True)
    return subprocess.check_output(["git", "-C", str(folder), "rev-parse", "HEAD"], text=True).strip()


@pytest.mark.parametrize("part", ["", "instruction.md", "task.toml", "environment", "tests", "solution"])
def test_a_link_out_of_the_repository_is_a_broken_task(tmp_path: Path, repository: tuple[Path, str], part: str) -> None:
    folder, _ = repository
    private = tmp_path / "private"
    shutil.copytree(SAMPLES / "fix-git", private)
    shutil.copytree(SAMPLES / "fix-git", folder / "tasks" / "linked")
    link = folder / "tasks" / "linked" / part
    shutil.rmtree(link) if link.is_dir() else link.unlink()
    link.symlink_to(private / part)
    registry = [dataset(str(folder), commit_all(folder), "tasks/linked", "tasks/fix-git")]
    broken, fine = load(tmp_path / "registry.json", content=registry)
    assert "is a link out of the repository" in str(broken.error) and fine.error is None
    assert broken.prompt == ""


def test_git_started_by_a_hook_of_another_repository_leaves_that_alone(
    tmp_path: Path, repository: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, commit = repository
    own = tmp_path / "own"
    subprocess.run(["git", "init", "-q", str(own)], check=True)
    (own / "work").write_text("mine")
    head = commit_all(own)
    (own / "work").write_text("not committed")
    for name, value in (("GIT_DIR", own / ".git"), ("GIT_WORK_TREE", own), ("GIT_INDEX_FILE", own / ".git" / "index")):
        monkeypatch.setenv(name, str(value))
    (task,) = load(tmp_path / "registry.json", content=[dataset(str(folder), commit, "tasks/fix-git")])
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name)
    assert task.error is None
    assert (own / "work").read_text() == "not committed" and not (own / "tasks").exists()
    assert subprocess.check_output(["git", "-C", str(own), "rev-parse", "HEAD"], text=True).strip() == head


def test_settings_of_git_in_the_environment_hold(
    tmp_path: Path, repository: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, commit = repository
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.{folder}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://example.invalid/tasks")
    registry = [dataset("https://example.invalid/tasks", commit, "tasks/fix-git")]
    (task,) = load(tmp_path / "registry.json", content=registry)
    assert task.error is None


def test_a_git_that_never_ends_is_given_up(
    tmp_path: Path, repository: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path / 'pid'}\nwait\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setattr("pytest_hermes.datasets.registry.GIT_SECONDS", 0.5)
    with pytest.raises(ConfigurationError, match="git init did not end in"):
        load(tmp_path / "registry.json", content=[dataset("https://example.invalid/x", "a" * 40, "t")])
    state = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    deadline = time.monotonic() + 5
    while state.exists() and ") Z" not in state.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not state.exists() or ") Z" in state.read_text()


@pytest.mark.parametrize(("url", "shown"), [("https://me:s3cret@example.invalid/x", "https://example.invalid/x")])
def test_a_password_in_an_address_is_not_shown(tmp_path: Path, monkeypatch, url: str, shown: str) -> None:
    monkeypatch.setenv("PYTEST_HERMES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("pytest_hermes.datasets.registry._git", lambda folder, *_: (folder / "t").mkdir(exist_ok=True))
    (task,) = load(tmp_path / "registry.json", content=[dataset(url, "a" * 40, "t")])
    assert task.source == f"{shown}@{'a' * 40}:t" and "s3cret" not in str(task.error)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"git_url": ["x"]}, "has git_url"),
        ({"git_url": "a\0b"}, "has git_url"),
        ({"path": "a\0b"}, "path 'a"),
        ({"path": "a" * 300}, "path 'aaa"),
    ],
)
def test_odd_values_of_a_registry(
    tmp_path: Path, repository: tuple[Path, str], change: dict[str, Any], said: str
) -> None:
    registry = [dataset(str(repository[0]), repository[1], "tasks/fix-git")]
    registry[0]["tasks"][0] |= change
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path / "registry.json", content=registry)
    assert said in str(caught.value)


@pytest.mark.parametrize("content", ["{", "[", '{"a": 1}', '[{"name": "x"}]', "[3]"])
def test_files_that_are_no_registry(tmp_path: Path, content: str) -> None:
    with pytest.raises(ConfigurationError, match=r"registry\.json: not "):
        load(tmp_path / "registry.json", content=content)
