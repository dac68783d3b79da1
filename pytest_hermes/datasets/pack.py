"""Harbor directories as rows (`datasets/rows.py`), in a JSONL or parquet file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pytest_hermes.config import Settings
from pytest_hermes.datasets import archives
from pytest_hermes.datasets.harbor import TaskDirectory, task_folders
from pytest_hermes.datasets.task_reader import read_task
from pytest_hermes.errors import ConfigurationError, TaskError
from pytest_hermes.task import DirectoryFiles

FORMATS = (".jsonl", ".parquet")


def pack(directories: Iterable[Path], target: Path) -> int:
    """Write the tasks of the directories to `target`, a .jsonl or .parquet file; how many they are.

    Two packings of the same files are the same rows. Raises ConfigurationError, and writes nothing, for a task that
    cannot be used as it is, for two tasks of one name, and without pyarrow for parquet.
    """
    if target.suffix not in FORMATS:
        raise ConfigurationError(f"{target}: ends in {target.suffix or 'nothing'}, not in {' or '.join(FORMATS)}")
    folders = [folder for directory in directories for folder in task_folders(directory)]
    rows: dict[str, dict[str, Any]] = {}
    for folder in folders:
        if folder.name in rows:
            raise ConfigurationError(f"{folder}: two tasks are called {folder.name}")
        try:
            rows[folder.name] = row_of(folder)
        except TaskError as error:
            raise ConfigurationError(f"cannot pack: {error}") from error
    partial = target.with_name(f".{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        (_write_parquet if target.suffix == ".parquet" else _write_jsonl)(list(rows.values()), partial)
        partial.replace(target)
    except OSError as error:
        raise ConfigurationError(f"{target}: cannot be written ({error.strerror or error})") from error
    finally:
        partial.unlink(missing_ok=True)
    return len(rows)


class _WithoutHostVariables(TaskDirectory):
    """Which variables of a host a verifier may read is the business of whoever runs it: no problem of a row."""

    def toml(self) -> dict[str, Any]:
        fields = super().toml()
        for name in ("verifier", "solution"):
            if isinstance(table := fields.get(name), dict):
                table.pop("env", None)
        return fields


def row_of(folder: Path) -> dict[str, Any]:
    """One task directory as a row. Raises TaskError for a task that is broken or has what a row cannot hold."""
    parts = _WithoutHostVariables(folder)
    task = read_task(parts, Settings())
    problems = [task.error] if task.error else []
    for name in ("environment", "tests", "solution"):
        if (folder / name).is_dir():
            problems += parts.problems(name, directory_links=False)
    if problems:
        raise TaskError("; ".join(problems))
    environment = parts.toml().get("environment", {})
    limits, spec = task.limits, task.sandbox
    return {
        "task_name": task.id,
        "instruction": parts.instruction(),
        "category": task.category,
        "difficulty": task.difficulty,
        "tags": list(task.tags),
        "docker_image": environment.get("docker_image") or "",
        "environment_tar": _archive(folder / "environment"),
        "tests_tar": _archive(folder / "tests"),
        "test_sh": _script(folder / "tests" / "test.sh"),
        "solution_tar": _archive(folder / "solution"),
        "agent_timeout_sec": limits.agent_s,
        "verifier_timeout_sec": limits.verify_s,
        "build_timeout_sec": limits.build_s,
        "cpus": spec.cpus,
        "memory_mb": spec.memory_mb,
        "storage_mb": spec.disk_mb,
        "task_toml": (folder / "task.toml").read_text(encoding="utf-8"),
    }


def _script(path: Path) -> str:
    """The text as it is; "" for one that is not UTF-8, which the archive of the tests has anyway."""
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        return ""


def _archive(folder: Path) -> str:
    if not folder.is_dir():
        return ""
    return archives.encoded(archives.packed(DirectoryFiles(folder).entries()))


def _write_jsonl(rows: list[dict[str, Any]], path: Path) -> None:
    with path.open("w", encoding="utf-8") as lines:
        for row in rows:
            lines.write(json.dumps(row) + "\n")


def _write_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigurationError(
            f"{path.name}: parquet needs pyarrow ({error}): pip install 'pytest-hermes[hub]'"
        ) from error
    text, number = pa.string(), pa.float64()
    kinds = {"tags": pa.list_(text), "cpus": number, "memory_mb": pa.int64(), "storage_mb": pa.int64()}
    kinds |= {name: number for name in rows[0] if name.endswith("_timeout_sec")}
    schema = pa.schema([(name, kinds.get(name, text)) for name in rows[0]])
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows, schema=schema), path, row_group_size=8)
