"""One container as a sandbox: commands, streams, files, and who ended it. See `docker`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_hermes.errors import SandboxError, SandboxKilled, SandboxLost, TransferError
from pytest_hermes.sandbox import docker_archive, docker_changes
from pytest_hermes.sandbox.docker_client import remove, translated
from pytest_hermes.sandbox.docker_exec import DockerExec, DockerStream, ExecEnd, kill_inside
from pytest_hermes.sandbox.files import (
    absolute,
    pack_by_exec,
    read_by_exec,
    stream_by_exec,
    unpack_by_exec,
    write_by_exec,
)
from pytest_hermes.sandbox.output import OutputWindow
from pytest_hermes.sandbox.proctable import EXEC_VARIABLE
from pytest_hermes.sandbox.protocol import ChangedFile, Command, ExecResult

if TYPE_CHECKING:
    import aiodocker
    from aiodocker.containers import DockerContainer

_ARGUMENT_MAX = 100_000
_BASH_OR_SH = 'if command -v bash >/dev/null 2>&1; then exec bash -c "$0"; else exec sh -c "$0"; fi'
_BASH_OR_SH_FILE = 'if command -v bash >/dev/null 2>&1; then exec bash "$0"; else exec sh "$0"; fi'


_KERNEL_MOUNTS = ("/proc", "/sys", "/dev")


class DockerSandbox:
    """A running container. Made by `DockerProvider.create`; `id` is the container's name.

    Files move over the daemon's archive endpoint, which is fast and needs no program in the image, but looks at the
    image's layers and volumes from outside: what is mounted inside only (`/dev/shm`, other tmpfs, `/proc`) is not
    there, or is the empty directory below. Such places are read and written by commands, as are single files, for which
    that takes no longer and which must not replace what is no file.
    """

    backend = "docker"

    def __init__(
        self,
        client: aiodocker.Docker,
        container: DockerContainer,
        info: Mapping[str, Any],
        *,
        home: str,
    ) -> None:
        self.id: str = info["Name"].lstrip("/")
        self.container_id: str = info["Id"]
        self.workdir: str = info["Config"]["WorkingDir"] or "/"
        self.home = home
        self._hidden = (*_KERNEL_MOUNTS, *(info["HostConfig"].get("Tmpfs") or {}))
        self._hidden += tuple(mount["Destination"] for mount in info["Mounts"] if mount["Type"] == "tmpfs")
        self._client = client
        self._container = container
        self._info = info
        self._layers = docker_changes.Layers.of(info)
        self._started_at = int(time.time()) - 60
        self._streams: set[DockerStream] = set()
        self._closing: asyncio.Task[None] | None = None
        self._closed = False

    # -- commands ------------------------------------------------------------------------------

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
        """See `Sandbox.exec`. What escapes a time-out: a process that erased its own environment (`env -i`)."""
        self._require_open()
        began = time.monotonic()
        stdout, stderr = OutputWindow(max_output), OutputWindow(max_output)
        marker = secrets.token_hex(16)
        start = absolute(cwd or self.workdir, self.workdir)
        timed_out, code = False, None
        starting: asyncio.Future[DockerExec] | None = None
        try:
            async with asyncio.timeout(timeout_s), self._errors("exec"):
                argv = await self._argv(command)
                marked = {**(env or {}), EXEC_VARIABLE: marker}
                starting = asyncio.ensure_future(
                    DockerExec.start(self._container, argv, env=marked, user=user, cwd=start, stdin=stdin is not None)
                )
                end = await self._follow(await asyncio.shield(starting), stdout, stderr, stdin)
            code = end.code
            if not end.started:
                code, reason = _not_started(end.code, stdout.value())
                stdout, stderr = OutputWindow(max_output), OutputWindow(max_output)
                stderr.add(reason)
        except TimeoutError:
            timed_out = True
            await self._kill_shielded(marker, starting)
        except asyncio.CancelledError:
            await self._kill_shielded(marker, starting)
            raise
        if timed_out or (code is not None and code >= 126):
            await self.check()
        return ExecResult(
            code,
            stdout.value(),
            stderr.value(),
            timed_out,
            stdout.total,
            stderr.total,
            duration_s=time.monotonic() - began,
        )

    async def _follow(
        self, running: DockerExec, stdout: OutputWindow, stderr: OutputWindow, stdin: bytes | None
    ) -> ExecEnd:
        feeding = None if stdin is None else asyncio.ensure_future(_feed(running, stdin))
        try:
            return await running.wait(stdout.add, stderr.add)
        finally:
            if feeding is not None:
                feeding.cancel()
            await running.close()

    async def _argv(self, command: Command) -> list[str]:
        if not isinstance(command, str):
            return list(command)
        if len(command) <= _ARGUMENT_MAX:
            return ["sh", "-c", _BASH_OR_SH, command]
        path = f"/tmp/.command-{secrets.token_hex(6)}"
        try:
            await self.write_file(path, command.encode(errors="surrogateescape"))
        except OSError as error:
            raise TransferError(f"docker sandbox {self.id}: a long command needs {path}: {error}") from error
        return ["sh", "-c", _BASH_OR_SH_FILE, path]

    async def open_stream(
        self, argv: Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> DockerStream:
        """See `Sandbox.open_stream`."""
        return await self._open_stream(argv, cwd=cwd, env=env)

    async def _open_stream(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> DockerStream:
        self._require_open()
        start = absolute(cwd or self.workdir, self.workdir)
        async with self._errors("open a stream"):
            running = await DockerExec.start(self._container, argv, env=env or {}, user=user, cwd=start, stdin=True)
        stream = DockerStream(running, self._streams.discard)
        self._streams.add(stream)
        return stream

    async def kill_marked(self, marker: str, *, shell_pid: int | None = None, since_s: float = 0.0) -> None:
        """See `Sandbox.kill_marked`; one exec. Needs `sh` and `grep` in the image."""
        async with self._errors("kill"):
            await kill_inside(self._container, marker, shell_pid, since_s)

    async def _kill_shielded(self, marker: str, starting: asyncio.Future[DockerExec] | None) -> None:
        """Kill, to its end even if the caller is cancelled meanwhile; a container that is gone has nothing to kill."""
        if starting is None:
            return
        killing = asyncio.ensure_future(self._kill_started(marker, starting))
        killing.add_done_callback(lambda task: task.cancelled() or task.exception())
        with contextlib.suppress(SandboxError, SandboxKilled):
            await asyncio.shield(killing)

    async def _kill_started(self, marker: str, starting: asyncio.Future[DockerExec]) -> None:
        """Kill a command that may only be starting: on a busy daemon that takes longer than the command's time."""
        async with self._errors("kill"):
            running = await starting
            try:
                await running.begun()
            finally:
                await running.close()
        await self.kill_marked(marker)

    # -- files -----------------------------------------------------------------------------------

    async def read_file(self, path: str, *, max_bytes: int = 64_000_000) -> bytes:
        """See `Sandbox.read_file`."""
        path = await self._path(path)
        if not self._is_hidden(path):
            with contextlib.suppress(FileNotFoundError):
                async with self._errors(f"read {path}"):
                    return await docker_archive.read(self._client, self.container_id, path, max_bytes=max_bytes)
        return await read_by_exec(self, path, max_bytes=max_bytes)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See `Sandbox.write_file`."""
        await write_by_exec(self, absolute(path, self.workdir), data, mode=mode)

    async def upload_tar(self, archive: bytes, destination: str) -> None:
        """See `Sandbox.upload_tar`."""
        destination = await self._path(destination)
        async with self._errors(f"upload to {destination}"):
            if self._is_hidden(destination) or self._is_hidden(
                await docker_archive.nearest(self._client, self.container_id, destination)
            ):
                await unpack_by_exec(self, archive, destination)
                return
            await docker_archive.send(self._client, self.container_id, archive, destination)

    async def download_tar(self, source: str, *, max_bytes: int = 512_000_000) -> bytes:
        """See `Sandbox.download_tar`."""
        source = await self._path(source)
        if not self._is_hidden(source, below=True):
            with contextlib.suppress(FileNotFoundError):
                async with self._errors(f"download {source}"):
                    return await docker_archive.fetch(self._client, self.container_id, source, max_bytes=max_bytes)
        return await pack_by_exec(self, source, max_bytes=max_bytes)

    async def stream_tar(self, source: str, add: Callable[[bytes], Awaitable[None]], *, max_bytes: int) -> None:
        """See `StreamsTar`."""
        source = await self._path(source)
        if not self._is_hidden(source, below=True):
            with contextlib.suppress(FileNotFoundError):  # the first answer of the daemon: nothing was added then
                async with self._errors(f"download {source}"):
                    await docker_archive.stream(self._client, self.container_id, source, add, max_bytes=max_bytes)
                    return
        as_root = functools.partial(self._open_stream, user="root")
        await stream_by_exec(self, source, add, max_bytes=max_bytes, opened=as_root)

    async def changed_files(self, below: Sequence[str], *, quick: bool = False) -> list[ChangedFile]:
        """See `SeesChanges`."""
        self._require_open()
        async with self._errors("list changes"):
            return await docker_changes.changed(self._client, self.container_id, self._layers, below, quick=quick)

    async def original_files(self, paths: Sequence[str]) -> bytes:
        """See `SeesChanges`."""
        self._require_open()
        async with self._errors("read the image's files"):
            name = f"{self.id}-original-{secrets.token_hex(2)}"
            return await docker_changes.originals(self._client, self._info, name, paths)

    def _is_hidden(self, path: str, *, below: bool = False) -> bool:
        """Whether `path` lies where the daemon does not see what the container sees; with `below`, or has such a place
        in it (but "/": its /proc is nobody's files)."""
        if below and path != "/" and any(mount.startswith(f"{path}/") for mount in self._hidden):
            return True
        return any(path == mount or path.startswith(f"{mount}/") for mount in self._hidden)

    async def _path(self, path: str) -> str:
        # The daemon moves files in and out of stopped containers as well, without a word.
        await self.check()
        return absolute(path, self.workdir)

    # -- life ------------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._closed:
            raise SandboxLost(f"docker sandbox {self.id} is closed")

    @contextlib.asynccontextmanager
    async def _errors(self, doing: str) -> AsyncIterator[None]:
        """Errors of the daemon in our words; a container that does not run any more as what ended it."""
        import aiodocker
        import aiohttp

        try:
            yield
        except (aiodocker.DockerError, aiohttp.ClientError, ConnectionError) as error:
            await self.check()
            raise translated(error, f"docker sandbox {self.id}: {doing}") from error
        except SandboxError:
            await self.check()
            raise

    async def check(self) -> None:
        """See `Sandbox.check`.

        A container that ended by SIGKILL was lost when somebody asked the daemon for it (`docker kill`, a restart of
        the daemon), and killed from inside otherwise: the out-of-memory killer, or `kill -9 -1`.
        """
        import aiodocker
        import aiohttp

        self._require_open()
        try:
            state = (await self._container.show())["State"]
        except (aiodocker.DockerError, aiohttp.ClientError, ConnectionError) as error:
            if isinstance(error, aiodocker.DockerError) and error.status == 404:
                raise SandboxLost(f"docker sandbox {self.id} was removed from outside") from error
            raise translated(error, f"docker sandbox {self.id}") from error
        if state["Running"] and not state.get("Paused"):
            return
        if state.get("Paused"):
            raise SandboxLost(f"docker sandbox {self.id} was paused from outside")
        code = state["ExitCode"]
        if code == 0:
            raise SandboxLost(f"docker sandbox {self.id} reached its greatest age (env.terminal_lifetime)")
        if state.get("OOMKilled"):
            raise SandboxKilled(f"docker sandbox {self.id}: its init process ran out of memory")
        if await self._was_stopped_by_daemon():
            raise SandboxLost(f"docker sandbox {self.id} was stopped from outside (exit code {code})")
        raise SandboxKilled(f"docker sandbox {self.id}: what ran in it ended its init process (exit code {code})")

    async def _was_stopped_by_daemon(self) -> bool:
        """Whether the daemon was asked to kill or stop this container; its event log says so."""
        filters = json.dumps({"container": [self.container_id], "event": ["kill", "stop"]})
        params = {"since": str(self._started_at), "until": f"{time.time():.9f}", "filters": filters}
        async with asyncio.timeout(10), self._client._query("events", params=params) as response:
            return bool((await response.read()).strip())

    async def close(self) -> None:
        """See `Sandbox.close`."""
        if self._closing is None:
            self._closed = True
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for stream in list(self._streams):
            with contextlib.suppress(OSError):
                await stream.close()
        await remove(self._container)


async def _feed(running: DockerExec, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        await running.write(data)
        running.end_input()


def _not_started(code: int, output: bytes) -> tuple[int, bytes]:
    """Exit code and message for what the runtime says, as output, when it cannot start a command."""
    said = output.strip()
    text = said.decode(errors="replace").lower()
    missing = "executable file not found" in text or ("no such file" in text and "chdir" not in text)
    return (127 if missing else code or 126), said + b"\n"
