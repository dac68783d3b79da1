"""The cache of data sets on this machine: archives by their content, and an index of tasks per data set and revision.

    $PYTEST_HERMES_CACHE (default: $XDG_CACHE_HOME/pytest-hermes, ~/.cache/pytest-hermes)
        blobs/<sha256[:2]>/<sha256>    archives of rows, as they came
        indexes/<key>.json             what is needed to make tasks of a data set without its archives
        revisions/<key>.json           which commit a moving revision (a branch) meant to which run
        failures/<key>.json            what the last run that could not get it was told
        git/<url>/<commit>/            checkouts of Harbor registries' tasks

Files are written under another name and renamed, so a reader needs no lock; who makes something holds `locked(name)`,
so that over all processes of the machine it is made once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_hermes.errors import ConfigurationError

INDEX_FORMAT = 2
"""Goes up with every change of what a row means, so that no cache answers as an older version read it."""
TREES = {"environment", "tests", "solution"}
TREE = {"blob", "digest", "names"}
VARIABLE = "PYTEST_HERMES_CACHE"


def cache_directory() -> Path:
    """Where data sets are cached; see the module docstring."""
    if given := os.environ.get(VARIABLE):
        return Path(given).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(base) / "pytest-hermes" if base else Path.home() / ".cache" / "pytest-hermes"
    except RuntimeError as error:
        raise ConfigurationError(
            f"cache of data sets: there is no home directory for it. Choose a place with the variable {VARIABLE}"
        ) from error


class Store:
    """The cache below `root`. Errors of the file system are ConfigurationError, naming `$PYTEST_HERMES_CACHE`."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or cache_directory()

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold the lock of this name; waits for whoever has it."""
        with self.writing():
            folder = self.root / "locks"
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def once(self, name: str, run_id: str) -> Iterator[None]:
        """Hold the lock of this name. A ConfigurationError is raised again in the other processes of the run, at once:
        each would wait as long, and one that had better luck would collect what the others do not."""
        with self.locked(name):
            failed = self.read("failures", name) if run_id else None
            if failed and failed.get("run") == run_id:
                raise ConfigurationError(str(failed.get("said")))
            try:
                yield
            except ConfigurationError as error:
                if run_id:
                    with contextlib.suppress(ConfigurationError):
                        self.write("failures", name, {"run": run_id, "said": str(error)})
                raise

    # -- archives --------------------------------------------------------------------------------------

    def blob(self, sha256: str) -> Path:
        """Where the archive with this digest is, or would be."""
        return self.root / "blobs" / sha256[:2] / sha256

    def add_blob(self, content: bytes) -> str:
        """Keep an archive; its sha256."""
        sha256 = hashlib.sha256(content).hexdigest()
        path = self.blob(sha256)
        if not path.is_file() or path.stat().st_size != len(content):
            self._write(path, content)
        return sha256

    # -- indexes ---------------------------------------------------------------------------------------

    def read_index(self, key: str) -> dict[str, Any] | None:
        """A data set's index; None if there is none, or if an archive that it names is gone."""
        index = self.read("indexes", key)
        if index is None or not _is_index(index):
            return None
        needed = {tree["blob"] for task in index["tasks"] for tree in task["trees"].values() if tree["blob"]}
        return index if all(self.blob(sha256).is_file() for sha256 in needed) else None

    def read(self, kind: str, key: str) -> dict[str, Any] | None:
        """A JSON file of the cache; None if it is not there or cannot be read as such."""
        try:
            found = json.loads((self.root / kind / f"{key}.json").read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def write(self, kind: str, key: str, value: dict[str, Any]) -> None:
        """Replace a JSON file of the cache."""
        self._write(self.root / kind / f"{key}.json", json.dumps(value, separators=(",", ":")).encode())

    def indexes(self) -> list[dict[str, Any]]:
        """All indexes that can be read, by the data set's name."""
        names = sorted(path.stem for path in (self.root / "indexes").glob("*.json"))
        found = [index for name in names if (index := self.read_index(name)) is not None]
        return sorted(found, key=lambda index: (index["source"], index["made"]))

    def _write(self, path: Path, content: bytes) -> None:
        with self.writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.{os.getpid()}")
            try:
                partial.write_bytes(content)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """What the file system says against it is a ConfigurationError."""
        try:
            yield
        except OSError as error:
            raise ConfigurationError(
                f"cache of data sets {self.root}: cannot be written ({error.strerror}). Choose another place with"
                f" the variable {VARIABLE}"
            ) from error


def _is_index(found: dict[str, Any]) -> bool:
    """Whether this is an index that this version wrote."""
    tasks = found.get("tasks")
    return (
        found.get("format") == INDEX_FORMAT
        and all(isinstance(found.get(name), str) for name in ("source", "name"))
        and isinstance(found.get("made"), int | float)
        and {"commit", "split"} <= found.keys()
        and isinstance(tasks, list)
        and len(tasks) > 0
        and all(isinstance(task, dict) and _is_entry(task) for task in tasks)
    )


def _is_entry(task: dict[str, Any]) -> bool:
    trees = task.get("trees")
    return (
        isinstance(task.get("id"), str)
        and isinstance(task.get("columns"), dict)
        and "error" in task
        and isinstance(trees, dict)
        and (bool(task["error"]) or trees.keys() == TREES)
        and all(isinstance(tree, dict) and tree.keys() == TREE for tree in trees.values())
    )


def key_of(*parts: object) -> str:
    """A file name for whatever identifies a thing."""
    return hashlib.sha256(json.dumps([INDEX_FORMAT, *parts], default=str).encode()).hexdigest()[:32]
