"""Where tasks come from, as people write it: `--hermes-dataset SOURCE`.

A source is a hub data set, a table file, a directory of Harbor tasks or a data set of a Harbor registry file. What
exists on this machine is a path; a name with one slash is a data set of the hub.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from pytest_hermes.config import hint
from pytest_hermes.errors import ConfigurationError

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
COMMIT = re.compile(r"[0-9a-f]{40}")
TABLES = (".parquet", ".jsonl")


@dataclasses.dataclass(frozen=True)
class HubSource:
    """A data set of the Hugging Face hub (or of the one at HF_ENDPOINT)."""

    name: str
    revision: str
    split: str

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, which never means anything else."""
        return COMMIT.fullmatch(self.revision) is not None


@dataclasses.dataclass(frozen=True)
class TableSource:
    """A parquet or JSONL file of rows."""

    path: Path


@dataclasses.dataclass(frozen=True)
class DirectorySource:
    """A directory of Harbor tasks."""

    path: Path


@dataclasses.dataclass(frozen=True)
class RegistrySource:
    """A data set of a Harbor registry file; `dataset` is `name` or `name@version`, None where the file has only one."""

    path: Path
    dataset: str | None


Source = HubSource | TableSource | DirectorySource | RegistrySource


def parse_source(text: str, *, revision: str | None = None, split: str = "train") -> Source:
    """The source that a text names. Raises ConfigurationError for one that is nothing of these, or not there."""
    name, _, fragment = text.rpartition("#") if "#" in text and not _exists(Path(text)) else (text, "", "")
    path = _expanded(name)
    looks_like_path = name.startswith((".", "/", "~")) or path.suffix in (*TABLES, ".json")
    if not looks_like_path and not _exists(path):
        name, _, at = text.partition("@")
        if HUB_NAME.fullmatch(name) is None:
            raise ConfigurationError(
                f"--hermes-dataset {text!r}: neither a path that exists nor a data set of the hub (org/name)"
                f"{_near(path)}"
            )
        if at and revision and at != revision:
            raise ConfigurationError(f"--hermes-dataset {text!r}: env.dataset_revision says {revision!r}. Give one")
        return HubSource(name, at or revision or "main", split)
    if not _exists(path):
        raise ConfigurationError(f"--hermes-dataset {name}: there is no such file or directory{_near(path)}")
    if path.is_dir():
        return DirectorySource(path)
    if path.suffix in TABLES and path.is_file():
        return TableSource(path)
    if path.suffix == ".json" and path.is_file():
        return RegistrySource(path, fragment or None)
    raise ConfigurationError(
        f"--hermes-dataset {name}: not a file of tasks. Wanted is a .parquet or .jsonl of rows, a registry .json, or a"
        " directory of Harbor tasks"
    )


def _expanded(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # nobody of this name
        return Path(name)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long a name, or one with a NUL
        return False


def _near(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except (OSError, ValueError):
        names = []
    found = hint(path.name, names) if names else ""
    return found if "Did you mean" in found else ""
