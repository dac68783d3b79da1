"""Tasks in the row form of Terminal-Bench data sets: a row per task, its directories as archives in columns.

    task_name, instruction, category, docker_image, environment_tar, tests_tar, test_sh

are the columns that hermes environments read (`*_tar`: base64 of a tar.gz, "" if there is none; `test_sh`: the text of
tests/test.sh). Used besides where a data set has them: `solution_tar`, `task_toml` (the whole of a Harbor task.toml)
and those of `COLUMNS`, which win over it. `entry_of` checks a row and puts its archives into the cache; what is left is
the index's entry, from which `task_of` makes the task without touching an archive.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from pytest_hermes.config import Settings
from pytest_hermes.datasets import archives
from pytest_hermes.datasets.store import Store
from pytest_hermes.datasets.task_reader import read_task
from pytest_hermes.errors import ConfigurationError, TaskError
from pytest_hermes.task import Entry, ListedFiles, Task

NEEDED = ("task_name", "instruction")
TREES = {"environment": "environment_tar", "tests": "tests_tar", "solution": "solution_tar"}
COLUMNS = {
    "difficulty": "metadata.difficulty",
    "category": "metadata.category",
    "tags": "metadata.tags",
    "docker_image": "environment.docker_image",
    "agent_timeout_sec": "agent.timeout_sec",
    "max_agent_timeout_sec": "agent.timeout_sec",
    "verifier_timeout_sec": "verifier.timeout_sec",
    "max_test_timeout_sec": "verifier.timeout_sec",
    "build_timeout_sec": "environment.build_timeout_sec",
    "cpus": "environment.cpus",
    "memory": "environment.memory",
    "memory_mb": "environment.memory_mb",
    "storage": "environment.storage",
    "storage_mb": "environment.storage_mb",
    "workdir": "environment.workdir",
    "network_mode": "environment.network_mode",
    "allow_internet": "environment.allow_internet",
}
"""Column -> field of task.toml that it says. The second of two columns for one field is the older spelling's."""
TEXTS = ("task_toml", "test_sh")
KINDS = ((bool, "a truth value"), (int | float | Decimal, "a number"), (list | tuple, "a list"), (Mapping, "a table"))


def check_columns(columns: Mapping[str, Any], where: str) -> None:
    """Raise ConfigurationError for a data set that is not in the row form."""
    if lacking := [name for name in NEEDED if name not in columns]:
        found = ", ".join(columns) or "none"
        raise ConfigurationError(
            f"{where}: not a data set of tasks: it has no column {lacking[0]} (its columns: {found}). Wanted are"
            " task_name, instruction, test_sh and docker_image or environment_tar; `pytest-hermes dataset pack` makes"
            " such rows of Harbor directories"
        )


def entry_of(row: Mapping[str, Any], number: int, store: Store) -> dict[str, Any]:
    """The index's entry of a row; its archives are checked and kept in `store`. What is wrong is the entry's `error`.

    `number` counts rows from 1. The id of a row without a usable name is "".
    """
    entry: dict[str, Any] = {"id": "", "columns": {}, "trees": {}, "error": None}
    problems = []
    for column in ("task_name", "instruction", *TEXTS, *COLUMNS):
        try:
            if (value := _plain(row.get(column), column)) is not None:
                entry["columns"][column] = value
        except TaskError as error:
            if column != "task_name":
                problems.append(str(error))
    name = entry["columns"].pop("task_name", None)
    if isinstance(name, str) and name.strip() and name.isprintable():
        entry["id"] = name
    else:
        problems.insert(0, f"row {number}: task_name is {_shown(row.get('task_name'))}, not a name")
    if not problems:
        try:
            for tree, column in TREES.items():
                entry["trees"][tree] = _kept(row, column, store)
            _add_test_script(entry["trees"]["tests"], entry["columns"].get("test_sh"), store)
        except TaskError as error:
            problems.append(str(error))
    if problems:
        refuse(entry, "; ".join(problems))
    return entry


def refuse(entry: dict[str, Any], reason: str) -> None:
    """Make an entry that of a broken task."""
    entry["error"] = reason
    entry["trees"] = {}


def _shown(value: Any) -> str:
    return f"{value!r:.80}" if isinstance(value, str | bytes) or _kind_of(value) == "a number" else _kind_of(value)


def _kind_of(value: Any) -> str:
    if value is None:
        return "nothing"
    return next((name for kind, name in KINDS if isinstance(value, kind)), f"a {type(value).__name__}")


def _plain(value: Any, column: str) -> Any:
    """A column's value as JSON holds it; None for what stands for nothing: null, "", NaN. Raises TaskError."""
    if isinstance(value, bytes):
        value = value.decode(errors="surrogateescape")  # what is not UTF-8 is found below
    if value is None or value == "" or value != value:
        return None
    if isinstance(value, Decimal):
        value = int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, Mapping) or (not isinstance(value, str) and column in ("instruction", *TEXTS)):
        raise TaskError(f"column {column} is {_kind_of(value)}, not a {'value' if column in COLUMNS else 'text'}")
    if isinstance(value, list | tuple):
        value = [str(part) for part in value]
    elif not isinstance(value, bool | int | float | str):
        value = str(value)
    try:
        "".join(value if isinstance(value, list) else [str(value)]).encode()
    except UnicodeEncodeError as error:
        raise TaskError(f"column {column} is not Unicode text ({error.reason})") from error
    return value


def _kept(row: Mapping[str, Any], column: str, store: Store) -> dict[str, Any]:
    packed = archives.decoded(row.get(column), f"column {column}")
    if packed is None:
        return {"blob": None, "digest": StoredFiles(None).computed_digest(), "names": []}
    entries = archives.entries_of(packed, f"column {column}")
    if column == TREES["tests"] and row.get("test_sh") and any(name.startswith("test.sh/") for name, _, _ in entries):
        raise TaskError(f"column {column}: 'test.sh' is a directory, and column test_sh holds the file")
    blob = store.add_blob(packed)
    files = _Listed(entries)
    top = sorted({name for name, _, _ in entries if "/" not in name})
    return {"blob": blob, "digest": files.digest(), "names": top}


def _add_test_script(tree: dict[str, Any], text: Any, store: Store) -> None:
    """`test_sh` is the script whatever the archive holds, as hermes environments wrote it over the archive's."""
    if not isinstance(text, str):
        return
    files = StoredFiles(store.blob(tree["blob"]) if tree["blob"] else None, tree["blob"], added={"test.sh": text})
    tree["digest"] = files.computed_digest()
    tree["names"] = sorted({*tree["names"], "test.sh"})


def task_of(entry: Mapping[str, Any], settings: Settings, source: str, store: Store) -> Task:
    """The task of an index's entry. `source` says which data set and revision, for messages and records."""
    if entry["error"]:
        return Task(
            id=entry["id"],
            prompt="",
            difficulty=_text(entry["columns"].get("difficulty")),
            category=_text(entry["columns"].get("category")),
            source=source,
            error=f"task {entry['id']} of {source}: {entry['error']}",
        )
    return read_task(_Row(entry, source, store), settings)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


@dataclasses.dataclass(frozen=True)
class _Listed(ListedFiles):
    files: list[Entry]

    def entries(self) -> list[Entry]:
        return self.files


@dataclasses.dataclass(frozen=True)
class StoredFiles(ListedFiles):
    """The files of an archive in the cache, and text files on top of it; read when they are needed.

    Raises TaskError where the cache no longer has the archive, or has another content under its name.
    """

    path: Path | None
    sha256: str | None = None
    known_digest: str | None = None
    added: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def entries(self) -> list[Entry]:
        found = {entry[0]: entry for entry in self._archived()}
        for name, text in self.added.items():
            found[name] = name, found[name][1] if name in found else 0o755, text.encode()
        return sorted(found.values())

    def digest(self) -> str:
        return self.known_digest or self.computed_digest()

    def computed_digest(self) -> str:
        return super().digest()

    def __str__(self) -> str:
        return f"archive {self.path}"

    def _archived(self) -> list[Entry]:
        if self.path is None:
            return []
        try:
            packed = self.path.read_bytes()
        except OSError as error:
            raise TaskError(
                f"{self.path}: the cached archive cannot be read ({error.strerror}). Start the run again: it is"
                " fetched again"
            ) from error
        if hashlib.sha256(packed).hexdigest() != self.sha256:
            raise TaskError(f"{self.path}: the cached archive was changed. Delete it and start the run again")
        return archives.entries_of(packed, str(self.path))


class _Row:
    """`TaskParts` of a row, by its entry in the index."""

    def __init__(self, entry: Mapping[str, Any], source: str, store: Store) -> None:
        self.id = str(entry["id"])
        self.source = source
        self._columns: Mapping[str, Any] = entry["columns"]
        self._trees: Mapping[str, Mapping[str, Any]] = entry["trees"]
        self._store = store

    def toml(self) -> dict[str, Any]:
        text = self._columns.get("task_toml")
        try:
            fields = tomllib.loads(text) if isinstance(text, str) else {}
        except (ValueError, RecursionError) as error:
            raise TaskError(f"column task_toml is not TOML: {error}") from error
        said = set()
        for column, field in COLUMNS.items():
            section, key = field.split(".")
            if column not in self._columns or field in said:
                continue
            said.add(field)
            table = fields.setdefault(section, {})
            if not isinstance(table, dict):
                continue  # the reader says what is wrong with it
            value = self._columns[column]
            table[key] = _tags(value) if column == "tags" else value
            for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
                if key in (old, new):  # one of two spellings: the column's counts
                    table.pop(new if key == old else old, None)
        metadata = fields.setdefault("metadata", {})
        if isinstance(metadata, dict):
            metadata.setdefault("category", "unknown")
        return fields

    def instruction(self) -> str:
        text = self._columns.get("instruction")
        return text if isinstance(text, str) else ""

    def named(self, path: str) -> str:
        tree, _, name = path.partition("/")
        if path == "tests/test.sh":
            return "column test_sh"
        return f"{name} in column {TREES[tree]}" if tree in TREES else f"column {Path(path).stem}"

    def has(self, path: str) -> bool:
        tree, _, name = path.partition("/")
        return tree in self._trees and name in self._trees[tree]["names"]

    def tree(self, name: str) -> StoredFiles:
        kept = self._trees[name]
        script = self._columns.get("test_sh") if name == "tests" else None
        return StoredFiles(
            self._store.blob(kept["blob"]) if kept["blob"] else None,
            kept["blob"],
            kept["digest"],
            {"test.sh": script} if isinstance(script, str) else {},
        )

    def build_context(self) -> StoredFiles:
        return self.tree("environment")

    def problems(self, name: str, *, directory_links: bool) -> list[str]:
        return []  # archives with links are refused when they come in


def _tags(value: Any) -> Any:
    """Tags are a list, the JSON of one, or a comma list."""
    if not isinstance(value, str):
        return value
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    except RecursionError as error:
        raise TaskError("column tags is nested too deeply") from error
    return found if isinstance(found, list) else [part.strip() for part in value.split(",") if part.strip()]
