"""The sandbox seam: what a backend must offer. Shell session, tools and verification above it are backend-neutral.

A `Sandbox` belongs to one rollout, lives on the engine's event loop and is safe for concurrent calls. Commands are
either a string, run by `bash -c` (`sh -c` where the image has no bash), or an argument vector, run as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from pytest_hermes.errors import TransferError
from pytest_hermes.task import SandboxSpec

Command = str | Sequence[str]


@dataclasses.dataclass(frozen=True)
class ExecResult:
    """How one command ended. `exit_code` is None exactly when `timed_out`; a signal n is 128 + n.

    `stdout` and `stderr` hold at most `max_output` bytes each (head and tail, a line between them says how many bytes
    were cut); `stdout_bytes` and `stderr_bytes` count what the command wrote in all.
    """

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    duration_s: float = 0.0

    @property
    def truncated(self) -> bool:
        return self.stdout_bytes > len(self.stdout) or self.stderr_bytes > len(self.stderr)


class Stream(Protocol):
    """A running command with a two-way byte stream, stdout and stderr merged. Used for kept shells."""

    async def write(self, data: bytes) -> None:
        """Send to the command's stdin. Raises BrokenPipeError (or ConnectionError) once it has ended."""
        ...

    async def read(self) -> bytes:
        """The next chunk of output; `b""` at its end."""
        ...

    async def exit_code(self) -> int | None:
        """How the command ended, once `read` gave `b""`; a signal n is 128 + n, None is not known."""
        ...

    async def close(self) -> None:
        """End the command (not what it left in the background) and the stream; idempotent."""
        ...


class Sandbox(Protocol):
    """One isolated place to run commands. See the module docstring; errors are those of `pytest_hermes.errors`."""

    id: str
    """Identifier for people and logs (container name, directory)."""
    backend: str
    workdir: str
    """Absolute directory that commands start in."""
    home: str
    """HOME of the agent's user, what `~` means in file tools."""

    async def exec(
        self,
        command: Command,
        *,
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | None = None,
        max_output: int = 1_000_000,
    ) -> ExecResult:
        """Run a command to its end. At `timeout_s` (or on cancellation) its whole process tree is killed.

        Returns as soon as the main process has ended, even if a background child still holds the pipes.
        `user=None` is the spec's user, `"root"` the superuser where the backend has one. `env` comes on top of the
        sandbox's own. Raises SandboxLost or SandboxKilled when the sandbox is gone, TransferError never.
        """
        ...

    async def open_stream(
        self, argv: Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> Stream:
        """Start a command with a two-way stream. Raises NotImplementedError where the backend has none."""
        ...

    async def kill_marked(self, marker: str, *, shell_pid: int | None = None, since_s: float = 0.0) -> None:
        """Kill every process whose environment holds `HERMES_EXEC=<marker>`, and, with `shell_pid`, what that shell
        (its session, its descendants, not itself) started in the last `since_s` seconds."""
        ...

    async def read_file(self, path: str, *, max_bytes: int = 64_000_000) -> bytes:
        """A file's bytes, as root. Raises FileNotFoundError, IsADirectoryError, OutputTooLarge (a ValueError)."""
        ...

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file, as root, making missing parent directories; a symbolic link is written through.

        OSError, with nothing changed, where something else is in the way: a directory (IsADirectoryError), a pipe,
        socket or device (EINVAL).
        """
        ...

    async def upload_tar(self, archive: bytes, destination: str) -> None:
        """Unpack a tar archive below `destination` (made if missing), as root, modes kept. Raises TransferError.

        A file never takes the place of a directory.
        """
        ...

    async def download_tar(self, source: str, *, max_bytes: int = 512_000_000) -> bytes:
        """A tar archive of `source` (file or directory; member names relative to its parent).

        FileNotFoundError; OSError with a reason where nothing can be read; PartlyRead where only something can.
        """
        ...

    async def check(self) -> None:
        """Cheap probe: returns if the sandbox is alive, else raises SandboxLost or SandboxKilled."""
        ...

    async def close(self) -> None:
        """Remove the sandbox and everything in it. Idempotent; safe under cancellation."""
        ...


@runtime_checkable
class StreamsTar(Protocol):
    """What a sandbox may offer besides: archives that need not fit into memory."""

    async def stream_tar(self, source: str, add: Callable[[bytes], Awaitable[None]], *, max_bytes: int) -> None:
        """As `Sandbox.download_tar`; the archive goes to `add` in chunks, all of it before a PartlyRead."""
        ...


@dataclasses.dataclass(frozen=True)
class ChangedFile:
    """A file of a sandbox that its image does not have, or has otherwise."""

    path: str
    is_added: bool


@runtime_checkable
class SeesChanges(Protocol):
    """What a sandbox may offer besides: its files compared with its image's from outside, where no program in the
    sandbox, which the agent may have replaced, takes part."""

    async def changed_files(self, below: Sequence[str], *, quick: bool = False) -> list[ChangedFile]:
        """Files and links below these directories that were added or changed; what is in added directories may be left
        out. `quick` takes milliseconds, and leaves out what cannot be told in that time."""
        ...

    async def original_files(self, paths: Sequence[str]) -> bytes:
        """A tar archive of the image's own files and links at these paths, where it has such; members are named by
        their whole paths."""
        ...


class OutputTooLarge(ValueError):
    """A file or archive is larger than the caller allowed."""


@dataclasses.dataclass(frozen=True)
class ReadProblem:
    """What was wrong with one file while an archive was made. `name` is its name in the archive, "" if not known."""

    name: str
    reason: str
    has_changed_only: bool = False
    """The file was written to meanwhile; the archive has it as it was read."""


class PartlyRead(TransferError):
    """An archive is there but has not everything as it should be; `archive` is None where it was streamed."""

    def __init__(self, source: str, problems: Sequence[ReadProblem], archive: bytes | None = None) -> None:
        first = problems[0]
        super().__init__(f"{source}: {len(problems)} could not be read whole: {first.name or source}: {first.reason}")
        self.problems = tuple(problems)
        self.archive = archive


@dataclasses.dataclass(frozen=True)
class SandboxRequest:
    """What the engine asks a provider for: the task's spec plus who asks."""

    spec: SandboxSpec
    labels: Mapping[str, str]
    """`labels.Owner` fields: run id, host, boot id, owner pid and start time, worker, item, lease."""
    task_id: str
    lifetime_s: float
    build_timeout_s: float
    force_build: bool = False


class SandboxProvider(Protocol):
    """Makes sandboxes of one backend; one instance per process, lives on the engine's loop."""

    backend: str
    confined: bool
    """False where a sandbox shares the host's file system or users (image tasks refuse such a backend)."""

    async def create(self, request: SandboxRequest) -> Sandbox:
        """A started sandbox. Waits for a place in the cross-process start semaphore; errors: SandboxError types."""
        ...

    async def reap(self, *, run_id: str | None = None) -> int:
        """Remove sandboxes whose owner is dead (all of `run_id`'s when given); how many were removed."""
        ...

    async def aclose(self) -> None:
        """Close connections. Sandboxes that are still open are closed first."""
        ...
