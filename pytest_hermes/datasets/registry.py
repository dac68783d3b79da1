"""Data sets of a Harbor registry file: `[{name, version, tasks: [{name, git_url, git_commit_id, path}]}]`.

Each commit is fetched once, with git, into the cache. A task without `git_url` is a directory beside the file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
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
from pytest_hermes.errors import ConfigurationError, TaskError
from pytest_hermes.task import Task

NAME_MAX = 255
GIT_SECONDS = 1800.0
"""How long one command of git may take."""
SLOWEST = {"Limit": 1000, "Time": 60}
"""Bytes per second, and for how many seconds fewer are borne, over http."""
OF_ONE_REPOSITORY = {
    *(
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_COMMON_DIR",
        "GIT_PREFIX",
        "GIT_NAMESPACE",
        "GIT_QUARANTINE_PATH",
    ),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_SHALLOW_FILE", "GIT_GRAFT_FILE", "GIT_CONFIG"),
    *("GIT_IMPLICIT_WORK_TREE", "GIT_REPLACE_REF_BASE", "GIT_NO_REPLACE_OBJECTS", "GIT_INTERNAL_SUPER_PREFIX"),
}
"""What git tells the hooks of a repository, where pytest may be one: it is about that one."""
PASSWORD = re.compile(r"(?<=://)[^/@\s]*@")
COMMIT = re.compile(r"[0-9a-f]{7,40}")
PROTOCOLS = "file:git:http:https:ssh"
"""What git may fetch by: not `ext`, which runs commands."""


def registry_tasks(
    source: RegistrySource, settings: Settings, store: Store, run_id: str = ""
) -> tuple[list[Task], str]:
    """The tasks of the chosen data set, in the file's order, and its name and version. Raises ConfigurationError."""
    chosen = _chosen(source)
    where = f"{source.path}#{_label(chosen)}"
    tasks = []
    for number, entry in enumerate(chosen["tasks"], 1):
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            raise ConfigurationError(f"{where}: task {number} has no path")
        tasks.append(read_task(_parts(entry, source.path.parent, where, store, run_id), settings))
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


class _Refused(ConfigurationError):
    """git ended with an error."""


class _FetchedTask(TaskDirectory):
    """A task of a checkout. Its repository is somebody else's: no link of it shows anything of this machine."""

    def __init__(self, checkout: Path, folder: Path, source: str, name: str | None) -> None:
        super().__init__(folder, source, name=name)
        self.checkout = checkout

    def toml(self) -> dict[str, Any]:
        for part in ("", "task.toml", "instruction.md", "environment", "tests", "solution"):
            path = self.folder / part
            if not path.resolve().is_relative_to(self.checkout.resolve()):
                raise TaskError(f"{path} is a link out of the repository")
        return super().toml()


def _parts(entry: Mapping[str, Any], beside: Path, where: str, store: Store, run_id: str) -> TaskDirectory:
    path, url, commit = PurePosixPath(entry["path"]), entry.get("git_url"), entry.get("git_commit_id")
    if path.is_absolute() or ".." in path.parts:
        raise ConfigurationError(f"{where}: path {entry['path']!r} leads out of where the tasks are")
    if not entry["path"].isprintable() or any(len(part.encode()) > NAME_MAX for part in path.parts):
        raise ConfigurationError(f"{where}: path {entry['path']!r:.80} is no path")
    given = entry.get("name")
    name = given if isinstance(given, str) and given and not path.name else None
    if not url:
        return TaskDirectory((beside / path).resolve(), name=name)
    if not isinstance(commit, str) or COMMIT.fullmatch(commit) is None:
        raise ConfigurationError(
            f"{where}: task {path.name} names git_commit_id {commit!r}, not a commit: what it means could change"
        )
    if not isinstance(url, str) or url.startswith("-") or not url.isprintable():
        raise ConfigurationError(f"{where}: task {path.name} has git_url {url!r:.80}")
    checkout = _checkout(url, commit, where, store, run_id)
    return _FetchedTask(checkout, checkout / path, f"{PASSWORD.sub('', url)}@{commit}:{path}", name)


def _checkout(url: str, commit: str, where: str, store: Store, run_id: str) -> Path:
    """The work tree of a commit, in the cache."""
    target = store.root / "git" / key_of(url) / commit
    if target.is_dir():
        return target
    with store.once(f"git-{key_of(url)}-{commit}", run_id), store.locked(f"git-{key_of(url)}"):
        if target.is_dir():
            return target
        with store.writing():
            target.parent.mkdir(parents=True, exist_ok=True)
            for left in target.parent.glob(".*"):  # by one that was killed: who makes them holds this lock
                shutil.rmtree(left, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(dir=target.parent, prefix="."))
        try:
            _git(folder, where, "init", "--quiet")
            try:
                _git(folder, where, "fetch", "--quiet", "--depth=1", "--", url, commit)
            except _Refused:  # a server that gives no single commits, or a shortened name
                _git(folder, where, "fetch", "--quiet", "--tags", "--", url, "+refs/heads/*:refs/remotes/origin/*")
            _git(folder, where, "checkout", "--quiet", "--detach", commit)
            with store.writing():
                folder.chmod(0o755)
                folder.rename(target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return target


def _git(folder: Path, where: str, *arguments: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in OF_ONE_REPOSITORY}
    environment |= {"GIT_ALLOW_PROTOCOL": PROTOCOLS, "GIT_TERMINAL_PROMPT": "0"}
    settings = [f"core.hooksPath={os.devnull}", *(f"http.lowSpeed{name}={value}" for name, value in SLOWEST.items())]
    chosen = [part for setting in settings for part in ("-c", setting)]
    try:
        process = subprocess.Popen(
            ["git", "-C", str(folder), *chosen, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,  # nobody is there to answer ssh on the terminal; its processes end together
        )
    except FileNotFoundError as error:
        raise ConfigurationError(f"{where}: fetching its tasks needs git, which is not installed") from error
    except OSError as error:
        raise ConfigurationError(f"{where}: git cannot be started ({error.strerror})") from error
    try:
        _, said = process.communicate(timeout=GIT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(f"{where}: git {arguments[0]} did not end in {GIT_SECONDS:g} s") from error
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert process.stderr is not None
        process.stderr.close()
    if process.returncode:
        lines = said.strip().splitlines() or [f"status {process.returncode}"]
        line = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1])
        told = ". ".join(dict.fromkeys([lines[0], line]))  # the first is that of ssh, say
        raise _Refused(f"{where}: git {arguments[0]} failed: {PASSWORD.sub('', told)}")
