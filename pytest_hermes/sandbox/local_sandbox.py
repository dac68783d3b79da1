"""One local sandbox: commands, streams and files of a directory on this machine, confined or not. See `local`."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import secrets
import shutil
import signal
import stat
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

from pytest_hermes.errors import SandboxLost, SandboxStartError, TransferError
from pytest_hermes.sandbox import bubblewrap, proctable
from pytest_hermes.sandbox.files import (
    absolute,
    extract,
    pack_by_exec,
    read_by_exec,
    stream_by_exec,
    unpack_by_exec,
    write_by_exec,
)
from pytest_hermes.sandbox.output import OutputWindow
from pytest_hermes.sandbox.protocol import Command, ExecResult, OutputTooLarge
from pytest_hermes.sandbox.spawn import HostProcess
from pytest_hermes.task import SandboxSpec

T = TypeVar("T")

_ARGUMENT_MAX = 100_000
"""A longer command travels by file: Linux allows 128 KiB for one argument."""
_QUEUE_MAX = 4_000_000
_ON_LOOP_MAX = 1_000_000
_IN_DIRECTORY = 'cd -- "$0" || exit 126; exec "$@"'

FEW = 8
OWNER_FILE = "owner.json"
"""In each sandbox's directory: the labels of its owner, which reaping reads."""


class LocalStream:
    """`Stream` over a child process's pipes; its end is the main process's end."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, enters: bool) -> None:
        self._enters = enters
        self._chunks: list[bytes] = []
        self._queued = 0
        self._wake: asyncio.Future[None] | None = None
        self._ended = False
        self._process = HostProcess(argv, env=env, cwd=cwd, sinks=[self._feed], stdin=True, kills_group=False)
        self._end = asyncio.ensure_future(self._process.wait())
        self._end.add_done_callback(lambda _: self._finish())

    @property
    def pid(self) -> int:
        return self._process.pid

    def _feed(self, data: bytes) -> None:
        self._chunks.append(data)
        self._queued += len(data)
        if self._queued > _QUEUE_MAX:
            self._process.pause(paused=True)
        self._notify()

    def _finish(self) -> None:
        self._ended = True
        self._notify()

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def wake(self) -> None:
        """Let an `nsenter` that stopped with its child go on."""
        self._process.wake()

    async def write(self, data: bytes) -> None:
        await self._process.write(data)

    async def read(self) -> bytes:
        while not self._chunks:
            if self._ended:
                return b""
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        if self._queued > _QUEUE_MAX:
            self._process.pause(paused=False)
        self._queued = 0
        return data

    async def exit_code(self) -> int | None:
        return await self._process.wait()

    async def close(self) -> None:
        if not self._ended:
            self._process.close_stdin()
            kill_command(self._process, enters=self._enters)
            await self._process.wait()
        self._process.dispose()


def kill_command(process: HostProcess, *, enters: bool) -> None:
    """SIGKILL to a command's main process. With `enters` that is the child of `process`, an `nsenter`, which must live
    to reap it: else the child stays a zombie that keeps the sandbox's namespace from ending. It also stops itself when
    its child is stopped, and must be woken to see the child's end."""
    inside = proctable.children(process.pid) if enters else []
    for pid in inside:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if inside:
        process.wake()
    else:
        process.kill()


class LocalSandbox:
    """A sandbox on this machine. See the module docstring; made by `LocalProvider.create`."""

    backend = "local"

    def __init__(
        self,
        directory: Path,
        spec: SandboxSpec,
        *,
        env: Mapping[str, str],
        holder: bubblewrap.Holder | None,
        sweep: proctable.SessionSweep,
    ) -> None:
        self.id = directory.name
        self.directory = directory
        self.home = str(directory / "home")
        self.workdir = spec.workdir or self.home
        self._env = dict(env)
        self._holder = holder
        self._sweep = sweep
        self._limits = _limit_arguments(spec, confined=holder is not None)
        self._running: set[HostProcess] = set()
        self._streams: set[LocalStream] = set()
        self._closing: asyncio.Task[None] | None = None
        self._gone = False

    # -- commands ------------------------------------------------------------------------------

    def _entered(self, argv: Sequence[str], cwd: str | None) -> tuple[list[str], str]:
        """The command line and the host directory to start it in."""
        self._require_open()
        start = absolute(cwd or self.workdir, self.workdir)
        if self._holder is None:
            limited = ["prlimit", *self._limits, "--"] if self._limits else []
            return [*limited, *argv], start
        return self._holder.entered(["sh", "-c", _IN_DIRECTORY, start, *argv], limits=self._limits), "/"

    def _require_open(self) -> None:
        if self._gone:
            raise SandboxLost(f"local sandbox {self.id} is closed")
        if not self.directory.is_dir():
            raise SandboxLost(f"local sandbox {self.id}: its directory {self.directory} is gone")

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
        """See `Sandbox.exec`. `user` is ignored: there is one user here."""
        started = time.monotonic()
        stdout, stderr = OutputWindow(max_output), OutputWindow(max_output)
        marker = secrets.token_hex(16)

        def result(code: int | None, *, timed_out: bool = False) -> ExecResult:
            spent = time.monotonic() - started
            return ExecResult(
                code, stdout.value(), stderr.value(), timed_out, stdout.total, stderr.total, duration_s=spent
            )

        argv, start = self._entered(await self._argv(command), cwd)
        try:
            process = HostProcess(
                argv,
                env={**self._env, **(env or {}), proctable.EXEC_VARIABLE: marker},
                cwd=start,
                sinks=[stdout.add, stderr.add],
                stdin=stdin is not None,
            )
        except OSError as error:
            self._require_open()
            stderr.add(_why_not_started(error, argv[0], start).encode())
            return result(127 if isinstance(error, FileNotFoundError) and error.filename != start else 126)
        self._running.add(process)
        feeding = asyncio.ensure_future(_feed(process, stdin)) if stdin is not None else None
        try:
            async with asyncio.timeout(timeout_s):
                code = await process.wait()
        except TimeoutError:
            return result(None, timed_out=True)
        finally:
            if feeding is not None:
                feeding.cancel()
            self._running.discard(process)
            if not process.has_exited:
                self._kill_now(marker, process.pid, proctable.boot_uptime_s() - (time.monotonic() - started))
                kill_command(process, enters=self._holder is not None)
                await asyncio.shield(process.wait())
            process.dispose()
        if self._holder is not None and not self._holder.is_alive:
            await self.check()
        return result(code)

    async def _argv(self, command: Command) -> list[str]:
        if not isinstance(command, str):
            return list(command)
        if len(command) <= _ARGUMENT_MAX:
            return ["bash", "-c", command]
        path = f"{self.home}/.command-{secrets.token_hex(6)}"
        await self.write_file(path, command.encode(errors="surrogateescape"), mode=0o600)
        return ["bash", "-c", 'c=$(<"$0"); rm -f -- "$0"; eval "$c"', path]

    async def open_stream(
        self, argv: Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> LocalStream:
        """See `Sandbox.open_stream`."""
        entered, start = self._entered(argv, cwd)
        try:
            stream = LocalStream(entered, env={**self._env, **(env or {})}, cwd=start, enters=self._holder is not None)
        except OSError as error:
            raise SandboxStartError(_why_not_started(error, argv[0], start)) from error
        self._streams.add(stream)
        return stream

    async def kill_marked(self, marker: str, *, shell_pid: int | None = None, since_s: float = 0.0) -> None:
        """See `Sandbox.kill_marked`; a few passes over /proc, no process."""
        not_before_s = proctable.boot_uptime_s() - since_s  # first of all: the passes take milliseconds
        if shell_pid is not None and self._holder is not None:
            shell_pid = proctable.host_pid(shell_pid, namespace_of=self._holder.init_pid)
        self._kill_now(marker, shell_pid, not_before_s)
        if self._holder is not None:
            for stream in self._streams:
                stream.wake()

    def _kill_now(self, marker: str, shell_pid: int | None = None, not_before_s: float = 0.0) -> None:
        inside = None if self._holder is None else self._holder.init_pid
        proctable.kill_marked(marker, shell_pid=shell_pid, not_before_s=not_before_s, namespace_of=inside)

    # -- files -----------------------------------------------------------------------------------

    async def read_file(self, path: str, *, max_bytes: int = 64_000_000) -> bytes:
        """See `Sandbox.read_file`."""
        path = absolute(path, self.workdir)
        if self._holder is not None:
            return await read_by_exec(self, path, max_bytes=max_bytes)
        self._require_open()
        data = await _opened(path, os.O_RDONLY, lambda file: file.read(max_bytes + 1))
        if len(data) > max_bytes:
            raise OutputTooLarge(f"{path}: more than the {max_bytes} bytes allowed")
        return data

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See `Sandbox.write_file`."""
        path = absolute(path, self.workdir)
        if self._holder is not None:
            await write_by_exec(self, path, data, mode=mode)
            return
        self._require_open()
        Path(path).parent.mkdir(parents=True, exist_ok=True)

        def write(file: BinaryIO) -> None:
            file.write(data)
            os.fchmod(file.fileno(), mode)

        await _opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, write, size=len(data))

    async def upload_tar(self, archive: bytes, destination: str) -> None:
        """See `Sandbox.upload_tar`."""
        destination = absolute(destination, self.workdir)
        if self._holder is not None:
            await unpack_by_exec(self, archive, destination)
            return
        self._require_open()
        try:
            Path(destination).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TransferError(f"could not make {destination}: {error}") from error
        await asyncio.to_thread(extract, archive, destination)

    async def download_tar(self, source: str, *, max_bytes: int = 512_000_000) -> bytes:
        """See `Sandbox.download_tar`."""
        return await pack_by_exec(self, absolute(source, self.workdir), max_bytes=max_bytes)

    async def stream_tar(self, source: str, add: Callable[[bytes], Awaitable[None]], *, max_bytes: int) -> None:
        """See `StreamsTar`."""
        await stream_by_exec(self, absolute(source, self.workdir), add, max_bytes=max_bytes)

    # -- life ------------------------------------------------------------------------------------

    async def check(self) -> None:
        """See `Sandbox.check`."""
        self._require_open()
        if self._holder is not None:
            self._holder.entered([])

    async def close(self) -> None:
        """See `Sandbox.close`."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._gone = True
        if self._holder is not None:
            self._holder.kill()
            for process in self._running:
                process.wake()
            for stream in self._streams:
                stream.wake()
            await self._holder.close()
        for process in list(self._running):
            process.kill()
        for stream in list(self._streams):
            await stream.close()
        if self._holder is None:
            await self._sweep.kill(self._env[proctable.SESSION_VARIABLE])
        if not remove_if_small(self.directory):
            await asyncio.to_thread(remove_directory, self.directory)

    def abandon(self) -> None:
        """Last resort at the interpreter's exit, when no loop runs any more: kill and remove, synchronously."""
        if self._gone and not self.directory.exists():
            return
        self._gone = True
        if self._holder is not None:
            self._holder.kill()
        else:
            proctable.kill_sessions({self._env[proctable.SESSION_VARIABLE].encode()})
        remove_directory(self.directory)


async def _opened(path: str, flags: int, work: Callable[[BinaryIO], T], *, size: int = 0) -> T:
    """What `work` gives for the file, in a thread if there is much to move. OSError for what is no regular file: on a
    pipe that an agent has put there the loop would wait for ever."""
    irregular = OSError(errno.EINVAL, "Not a regular file", path)
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK, 0o644)
    except OSError as error:
        raise irregular if error.errno == errno.ENXIO else error from None  # a pipe without a reader
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise IsADirectoryError(errno.EISDIR, "Is a directory", path) if stat.S_ISDIR(found.st_mode) else irregular

    def do() -> T:
        with os.fdopen(descriptor, "wb" if flags & os.O_WRONLY else "rb") as file:
            return work(file)

    return do() if max(size, found.st_size) <= _ON_LOOP_MAX else await asyncio.to_thread(do)


async def _feed(process: HostProcess, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        await process.write(data)
        process.close_stdin()


def _why_not_started(error: OSError, program: str, directory: str) -> str:
    if error.filename == directory and not Path(directory).is_dir():
        return f"cannot start in {directory}: {error.strerror}\n"
    return f"{program}: {error.strerror}\n"


def _limit_arguments(spec: SandboxSpec, *, confined: bool) -> list[str]:
    """What prlimit can hold: data memory of each process, and, in a user namespace, the number of processes."""
    limits = []
    if spec.memory_mb is not None:
        limits.append(f"--data={spec.memory_mb << 20}")
    if spec.pids is not None and confined:
        limits.append(f"--nproc={spec.pids}")
    return limits


def remove_if_small(directory: Path) -> bool:
    """Remove the directory of a sandbox in which hardly anything was written; otherwise False, some of it still there.

    A handful of system calls on the loop cost less than a thread that walks the tree.
    """
    path = str(directory)
    try:
        with os.scandir(f"{path}/tmp") as entries:  # the kept shell's state file
            for entry in itertools.islice(entries, FEW):
                os.unlink(entry.path)
        os.rmdir(f"{path}/tmp")
        os.rmdir(f"{path}/home")
        os.unlink(f"{path}/{OWNER_FILE}")
        os.rmdir(path)
    except OSError:
        return False
    return True


def remove_directory(directory: Path) -> None:
    """Remove a sandbox's directory, also where what ran in it left directories without write permission."""

    def open_up(function: object, path: str, _: object) -> None:
        with contextlib.suppress(OSError):
            Path(path).parent.chmod(0o700)
            Path(path).chmod(0o700)
            if stat.S_ISDIR(os.lstat(path).st_mode):
                shutil.rmtree(path, ignore_errors=True)
            else:
                Path(path).unlink()

    shutil.rmtree(directory, onerror=open_up)
    if directory.exists():
        shutil.rmtree(directory, ignore_errors=True)
