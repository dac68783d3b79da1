"""A task: one problem, the sandbox it needs, its limits, and the files that solve and verify it.

A `Task` is immutable and cheap; file contents (`FileTree`) are read when a rollout needs them. `digest` identifies the
content: two runs compare a task only when the digests are equal.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pytest_hermes.errors import ConfigurationError, TaskError
from pytest_hermes.limits import Limits


class FileTree(Protocol):
    """A set of files that can be sent into a sandbox."""

    def tar(self) -> bytes:
        """An uncompressed tar archive of the files, paths relative, modes kept, owner root."""
        ...

    def digest(self) -> str:
        """Hex sha256 over names, modes and contents; the same on every machine."""
        ...


Entry = tuple[str, int, bytes]
"""A file of a tree: name relative to it, mode, content."""


class ListedFiles:
    """`FileTree` over the entries that a subclass lists."""

    def entries(self) -> list[Entry]:
        raise NotImplementedError

    def tar(self) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name, mode, content in self.entries():
                info = tarfile.TarInfo(name)
                info.size, info.mode = len(content), mode
                archive.addfile(info, io.BytesIO(content))
        return buffer.getvalue()

    def digest(self) -> str:
        total = hashlib.sha256()
        for name, mode, content in self.entries():
            total.update(json.dumps([name, bool(mode & 0o100), len(content)]).encode())
            total.update(content)
        return total.hexdigest()


@dataclasses.dataclass(frozen=True)
class InlineFiles(ListedFiles):
    """Files given as text or bytes by relative name; a name ending in `.sh` is executable."""

    files: Mapping[str, str | bytes]

    def entries(self) -> list[Entry]:
        return [
            (name, 0o755 if name.endswith(".sh") else 0o644, text.encode() if isinstance(text, str) else text)
            for name, text in sorted(self.files.items())
        ]


@dataclasses.dataclass(frozen=True)
class DirectoryFiles(ListedFiles):
    """The regular files below a directory. A symbolic link that leaves the directory is refused."""

    directory: Path

    def entries(self) -> list[Entry]:
        root = self.directory.resolve()
        found = []
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                if not path.resolve().is_relative_to(root):
                    raise TaskError(f"{path}: a link out of the task's directory. Replace it by the file itself.")
                if path.is_file():
                    relative = path.relative_to(root).as_posix()
                    found.append((relative, path.stat().st_mode & 0o777, path.read_bytes()))
        return sorted(found)


@dataclasses.dataclass(frozen=True)
class Script:
    """Files plus the one to run: a solution (uploaded to /solution) or a verifier (uploaded to /tests)."""

    files: FileTree
    entry: str
    """Path of the script inside `files`, run with bash."""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    user: str | None = None


@dataclasses.dataclass(frozen=True)
class ImageBuild:
    """An image to build from a directory, or from files that are kept elsewhere."""

    context: Path | ListedFiles
    dockerfile: str = "Dockerfile"

    @property
    def files(self) -> FileTree:
        """What the image is made of; decides its digest."""
        return DirectoryFiles(self.context) if isinstance(self.context, Path) else self.context


@dataclasses.dataclass(frozen=True)
class Healthcheck:
    """A command that must exit 0 before the agent starts."""

    command: str
    interval_s: float = 5.0
    timeout_s: float = 30.0
    start_period_s: float = 0.0
    """Failures in these first seconds do not count as retries."""
    start_interval_s: float = 5.0
    retries: int = 3


@dataclasses.dataclass(frozen=True)
class SandboxSpec:
    """What a task needs of its sandbox. `image` or `build` makes it an image task; with neither any backend will do."""

    image: str | None = None
    build: ImageBuild | None = None
    cpus: float | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    pids: int | None = None
    network: bool = True
    workdir: str | None = None
    """None keeps the image's WORKDIR (local: the sandbox's own home)."""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    user: str | None = None
    """User that the agent's commands run as; None keeps the image's."""
    healthcheck: Healthcheck | None = None
    readable: tuple[str, ...] = ()
    """Directories of this machine that confined local sandboxes show, read-only, also where they hide what is around
    them. Where programs are installed is no part of a task: not in its digest."""

    @property
    def needs_image(self) -> bool:
        return self.image is not None or self.build is not None


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A path to fetch from the sandbox after verification, into the run's `artifacts/`."""

    source: str
    destination: str | None = None
    exclude: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Task:
    """One problem of a benchmark.

    `data` is the benchmark's own (expected values, a scripted model's turns, ...): plain JSON-like values.
    `error` marks a task that could not be read: its item reports that error, the others go on.
    """

    id: str
    prompt: str
    sandbox: SandboxSpec = SandboxSpec()
    limits: Limits = Limits()
    system_prompt: str | None = None
    """System message of the task's own; `env.system_prompt` wins."""
    difficulty: str | None = None
    category: str | None = None
    tags: tuple[str, ...] = ()
    files: FileTree | None = None
    """Put into the sandbox's working directory before the agent starts; a mapping of name to text is taken too."""
    solution: Script | None = None
    """What `--hermes-agent=oracle` runs; the text of a shell script is taken too."""
    tests: Script | None = None
    artifacts: tuple[Artifact, ...] = ()
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    source: str | None = None
    """Where the task was read from (a directory, `dataset@revision`), for messages and records."""
    error: str | None = None

    def __post_init__(self) -> None:
        """Take a mapping for `files` and a shell script's text for `solution`; refuse other wrong types."""
        files: Any = self.files
        solution: Any = self.solution
        if isinstance(files, Mapping):
            object.__setattr__(self, "files", InlineFiles(files))
        if isinstance(solution, str):
            object.__setattr__(self, "solution", Script(InlineFiles({"solve.sh": solution}), "solve.sh"))
        wanted: dict[str, tuple[type, ...]] = {
            "id": (str,),
            "prompt": (str,),
            "sandbox": (SandboxSpec,),
            "limits": (Limits,),
            "solution": (Script, type(None)),
            "tests": (Script, type(None)),
            "data": (Mapping,),
        }
        for name, kinds in wanted.items():
            if not isinstance(value := getattr(self, name), kinds):
                expected = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
                raise ConfigurationError(
                    f"task {self.id!r}: {name} must be of type {expected}, not {type(value).__name__}"
                )
        if self.files is not None and not callable(getattr(self.files, "tar", None)):
            raise ConfigurationError(
                f"task {self.id!r}: files must be a mapping of name to text, InlineFiles or DirectoryFiles, "
                f"not {type(self.files).__name__}"
            )

    @property
    def digest(self) -> str:
        """`sha256:<hex>` over everything that decides what is asked and how it is judged (not over `source`).

        Computed from file contents on first use, then kept.
        """
        found: str | None = self.__dict__.get("_digest")
        if found is None:
            found = "sha256:" + _digest_of(self)
            object.__setattr__(self, "_digest", found)
        return found


def _digest_of(task: Task) -> str:
    def script(value: Script | None) -> Any:
        return value and [value.files.digest(), value.entry, dict(value.env), value.user]

    spec = dataclasses.asdict(dataclasses.replace(task.sandbox, build=None))
    del spec["readable"]
    if task.sandbox.build is not None:
        build = task.sandbox.build
        spec["build"] = [build.files.digest(), build.dockerfile]
    parts = [
        task.id,
        task.prompt,
        spec,
        dataclasses.asdict(task.limits),
        task.files and task.files.digest(),
        script(task.solution),
        script(task.tests),
        {key: task.data[key] for key in sorted(task.data)},
        task.error,
    ]
    if task.system_prompt is not None:
        parts.append({"system_prompt": task.system_prompt})
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=repr).encode()).hexdigest()


def slug(text: str) -> str:
    """Lower case, anything else than letters and digits becomes `_`: the form used in mark names."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "none"
