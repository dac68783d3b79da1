"""Data sets of a Harbor registry file: `[{name, version, tasks: [{name, git_url, git_commit_id, path}]}]`.

Each commit is fetched once, with git, into the cache. A task without `git_url` is a directory beside the file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from pytest_hermes.config import Settings, hint
from pytest_hermes.datasets.harbor import TaskDirectory
from pytest_hermes.datasets.sources import RegistrySource
from pytest_hermes.datasets.store import Store, key_of
from pytest_hermes.datasets.task_reader import read_task
from pytest_hermes.errors import ConfigurationError
from pytest_hermes.task import Task

COMMIT = re.compile(r"[0-9a-f]{7,40}")
PROTOCOLS = "file:git:http:https:ssh"
"""What git may fetch by: not `ext`, which runs commands."""


def registry_tasks(source: RegistrySource, settings: Settings, store: Store) -> tuple[list[Task], str]:
    """The tasks of the chosen data set, in the file's order, and its name and version. Raises ConfigurationError."""
    chosen = _chosen(source)
    where = f"{source.path}#{_label(chosen)}"
    tasks = []
    for number, entry in enumerate(chosen["tasks"], 1):
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            raise ConfigurationError(f"{where}: task {number} has no path")
        folder = _folder(entry, source.path.parent, where, store)
        tasks.append(read_task(TaskDirectory(folder, _origin(entry, folder)), settings))
    if not tasks:
        raise ConfigurationError(f"{where}: it lists no task")
    return tasks, where


def _chosen(source: RegistrySource) -> Mapping[str, Any]:
    try:
        found = json.loads(source.path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{source.path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{source.path}: not JSON ({error})") from error
    if not isinstance(found, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("tasks"), list)
        for entry in found
    ):
        raise ConfigurationError(f"{source.path}: not a Harbor registry (a list of data sets with name and tasks)")
    matching = [entry for entry in found if source.dataset in (None, entry["name"], _label(entry))]
    if len(matching) == 1:
        return dict(matching[0])
    labels = [_label(entry) for entry in found]
    if source.dataset is None or matching:
        raise ConfigurationError(
            f"{source.path}: several data sets; choose one, as {source.path}#{labels[0]}: {', '.join(labels)}"
        )
    raise ConfigurationError(f"{source.path}: no data set {source.dataset!r}{hint(source.dataset, labels)}")


def _label(entry: Mapping[str, Any]) -> str:
    version = entry.get("version")
    return f"{entry['name']}@{version}" if version else str(entry["name"])


def _origin(entry: Mapping[str, Any], folder: Path) -> str:
    return f"{entry['git_url']}@{entry['git_commit_id']}:{entry['path']}" if entry.get("git_url") else str(folder)


def _folder(entry: Mapping[str, Any], beside: Path, where: str, store: Store) -> Path:
    path, url, commit = PurePosixPath(entry["path"]), entry.get("git_url"), entry.get("git_commit_id")
    if path.is_absolute() or ".." in path.parts:
        raise ConfigurationError(f"{where}: path {entry['path']!r} leads out of where the tasks are")
    if not url:
        return (beside / path).resolve()
    if not isinstance(commit, str) or COMMIT.fullmatch(commit) is None:
        raise ConfigurationError(
            f"{where}: task {path.name} names git_commit_id {commit!r}, not a commit: what it means could change"
        )
    if str(url).startswith("-"):
        raise ConfigurationError(f"{where}: task {path.name} has git_url {url!r}")
    return _checkout(str(url), commit, where, store) / path


def _checkout(url: str, commit: str, where: str, store: Store) -> Path:
    """The work tree of a commit, in the cache."""
    target = store.root / "git" / key_of(url) / commit
    if target.is_dir():
        return target
    with store.locked(f"git-{key_of(url)}"):
        if target.is_dir():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=target.parent, prefix="."))
        try:
            _git(folder, where, "init", "--quiet")
            try:
                _git(folder, where, "fetch", "--quiet", "--depth=1", "--", url, commit)
            except ConfigurationError:  # a server that gives no single commits, or a shortened name
                _git(folder, where, "fetch", "--quiet", "--tags", "--", url, "+refs/heads/*:refs/remotes/origin/*")
            _git(folder, where, "checkout", "--quiet", "--detach", commit)
            folder.chmod(0o755)
            folder.rename(target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return target


def _git(folder: Path, where: str, *arguments: str) -> None:
    environment = {
        **os.environ,
        "GIT_ALLOW_PROTOCOL": PROTOCOLS,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.hooksPath",
        "GIT_CONFIG_VALUE_0": os.devnull,
    }
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, env=environment, check=False
        )
    except FileNotFoundError as error:
        raise ConfigurationError(f"{where}: fetching its tasks needs git, which is not installed") from error
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise ConfigurationError(f"{where}: git {arguments[0]} failed: {said[-1] if said else done.returncode}")
