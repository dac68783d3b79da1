"""Tasks in the Harbor format as directories: NAME/{task.toml, instruction.md, environment/, tests/test.sh, solution/}.

`load_tasks` reads a directory of such tasks (or a single one). A task that is broken, or that asks for something this
package cannot do, becomes a `Task` with `error`; the others are not touched by it. Only task.toml and instruction.md
are read here; the other files when a rollout needs them.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_hermes.config import Settings, hint
from pytest_hermes.datasets.task_reader import read_task
from pytest_hermes.errors import ConfigurationError, TaskError
from pytest_hermes.task import DirectoryFiles, Task


def load_tasks(directory: Path, settings: Settings) -> list[Task]:
    """The tasks below `directory`, sorted by id (the directory's name), or the one task that it is.

    Limits are those that the tasks declare; the engine fills in the others. Raises ConfigurationError when there is no
    such directory or no task in it.
    """
    return [read_task(TaskDirectory(folder), settings) for folder in task_folders(directory)]


def task_folders(directory: Path) -> list[Path]:
    """The directories of `load_tasks`' tasks."""
    if not directory.is_dir():
        raise ConfigurationError(_missing(directory))
    if (directory / "task.toml").is_file():
        return [directory.resolve()]
    folders = [path for path in sorted(directory.iterdir()) if _looks_like_task(path)]
    if not folders:
        deeper = sorted({path.parent.parent.name for path in directory.glob("*/*/task.toml")})
        advice = f" Did you mean {directory / deeper[0]}?" if deeper else ""
        raise ConfigurationError(f"{directory}: no task in it (a task is a directory with a task.toml).{advice}")
    return folders


def _looks_like_task(path: Path) -> bool:
    names = ("task.toml", "instruction.md", "steps")
    return not path.name.startswith(".") and path.is_dir() and any((path / name).exists() for name in names)


def _missing(directory: Path) -> str:
    if directory.exists():
        return f"{directory}: a file, not a directory of tasks"
    parent = directory.parent
    siblings = [path.name for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
    return f"{directory}: there is no such directory of tasks{hint(directory.name, siblings) if siblings else ''}"


class TaskDirectory:
    """`TaskParts` of a directory."""

    def __init__(self, folder: Path, source: str | None = None, *, name: str | None = None) -> None:
        self.folder = folder
        self.id = name or folder.name
        self.source = source or str(folder)

    def toml(self) -> dict[str, Any]:
        path = self.folder / "task.toml"
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise TaskError(f"{path} is missing") from None
        except (OSError, UnicodeDecodeError) as error:
            raise TaskError(f"{path} cannot be read ({error})") from error
        except (ValueError, RecursionError) as error:
            raise TaskError(f"{path} is not TOML: {error}") from error

    def instruction(self) -> str:
        path = self.folder / "instruction.md"
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise TaskError(f"{path} is missing") from None
        except (OSError, UnicodeDecodeError) as error:
            raise TaskError(f"{path} cannot be read ({error})") from error

    def named(self, path: str) -> str:
        return str(self.folder / path)

    def has(self, path: str) -> bool:
        return (self.folder / path).is_file() if "/" in path else (self.folder / path).is_dir()

    def tree(self, name: str) -> DirectoryFiles:
        return DirectoryFiles(self.folder / name)

    def build_context(self) -> Path:
        return self.folder / "environment"

    def problems(self, name: str, *, directory_links: bool) -> Iterator[str]:
        folder = self.folder / name
        root = folder.resolve()
        for link in _links(folder):
            target = link.resolve()
            if not target.is_relative_to(root):
                yield f"{link} is a link out of {folder}. Replace it by what it points to"
            elif not target.exists():
                yield f"{link} is a link to nothing"
            elif target.is_dir() and not directory_links:
                yield f"{link} is a link to a directory. Replace it by the directory itself"


def _links(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.is_symlink():
            yield Path(entry.path)
        elif entry.is_dir():
            yield from _links(Path(entry.path))
