"""Harbor registry files: commits are fetched once, from where they say, and nothing else is run or read."""

from __future__ import annotations

import json
import shutil
import subprocess
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


@pytest.mark.parametrize("content", ["{", "[", '{"a": 1}', '[{"name": "x"}]', "[3]"])
def test_files_that_are_no_registry(tmp_path: Path, content: str) -> None:
    with pytest.raises(ConfigurationError, match=r"registry\.json: not "):
        load(tmp_path / "registry.json", content=content)
