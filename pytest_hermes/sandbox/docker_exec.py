"""One command in a container: its streams, its end, and the kept stream of a shell.

The daemon has no call that ends an exec, and keeps an exec's stream open for seconds while a background child holds it.
So a command is killed from inside, by its marker, and its end is asked for while the stream says nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_hermes.errors import SandboxLost
from pytest_hermes.sandbox.killing import kill_argv

if TYPE_CHECKING:
    from aiodocker.containers import DockerContainer
    from aiodocker.execs import Exec
    from aiodocker.stream import Stream as AttachedStream

_FIRST_POLL_S = 0.05
_LONGEST_POLL_S = 1.0
_EOF_GRACE_S = 0.1
_CHUNK = 65_536
Sink = Callable[[bytes], None]


@dataclasses.dataclass(frozen=True)
class ExecEnd:
    """An exec's exit code. `started` is False when the runtime could not start it and wrote its reason as output."""

    code: int
    started: bool


class DockerExec:
    """A started exec with its attached stream. Connection and daemon errors come through as they are."""

    def __init__(self, handle: Exec, attached: AttachedStream) -> None:
        self._handle = handle
        self._attached = attached

    @classmethod
    async def start(
        cls,
        container: DockerContainer,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        user: str | None = None,
        cwd: str | None = None,
        stdin: bool = False,
    ) -> DockerExec:
        handle = await container.exec(list(argv), stdin=stdin, user=user or "", environment=env, workdir=cwd, tty=False)
        attached = handle.start(detach=False)
        await attached._init()
        return cls(handle, attached)

    async def write(self, data: bytes) -> None:
        """Send to stdin. BrokenPipeError once the connection is gone."""
        try:
            for at in range(0, len(data), _CHUNK):
                await self._attached.write_in(data[at : at + _CHUNK])
        except (RuntimeError, AssertionError, AttributeError) as error:
            raise BrokenPipeError("the exec's stream is closed") from error

    def end_input(self) -> None:
        """Half-close: end of input for the command, its output still to be read."""
        response = self._attached._resp
        transport = response.connection.transport if response is not None and response.connection is not None else None
        if transport is not None and transport.can_write_eof():
            with contextlib.suppress(OSError):
                transport.write_eof()

    async def read(self) -> tuple[int, bytes] | None:
        """The next chunk with its stream (1 stdout, 2 stderr), or None at the end."""
        message = await self._attached.read_out()
        return None if message is None else (message.stream, message.data)

    async def state(self) -> dict[str, Any]:
        return await self._handle.inspect()

    async def begun(self) -> None:
        """Until the daemon has started the command, or could not. It answers before that, and a kill would be early."""
        delay = _FIRST_POLL_S
        while not (state := await self.state())["Running"] and state["ExitCode"] is None:
            await asyncio.sleep(delay)
            delay = min(_LONGEST_POLL_S, delay * 1.5)

    async def wait(self, stdout: Sink, stderr: Sink) -> ExecEnd:
        """Read to the main process's end, also when its streams end before it or are held after it."""
        reading = asyncio.ensure_future(self._read_all(stdout, stderr))
        try:
            delay = _FIRST_POLL_S
            while True:
                done, _ = await asyncio.wait([reading], timeout=delay)
                state = await self.state()
                if not state["Running"] and state["ExitCode"] is not None:
                    break
                if done:
                    reading.result()
                    await asyncio.sleep(delay)
                delay = min(_LONGEST_POLL_S, delay * 1.5)
            if not done:
                done, _ = await asyncio.wait([reading], timeout=_EOF_GRACE_S)
            if done:
                reading.result()
            return ExecEnd(int(state["ExitCode"]), started=int(state.get("Pid") or 0) != 0)
        finally:
            if not reading.done():
                reading.cancel()
                await asyncio.wait([reading])

    async def _read_all(self, stdout: Sink, stderr: Sink) -> None:
        while (chunk := await self.read()) is not None:
            (stderr if chunk[0] == 2 else stdout)(chunk[1])

    async def close(self) -> None:
        await self._attached.close()


async def kill_inside(container: DockerContainer, marker: str, shell_pid: int | None, since_s: float) -> None:
    """Run the kill script as root; see `killing`."""
    loop = asyncio.get_running_loop()
    called = loop.time()
    script = await DockerExec.start(container, kill_argv(marker, shell_pid), env={}, user="root", stdin=True)
    try:
        await script.read()
        age = since_s + loop.time() - called
        await script.write(b"%d\n" % round(age * 100))
        while await script.read() is not None:
            pass
    finally:
        await script.close()


class DockerStream:
    """`Stream` over an exec whose stdin stays open.

    After a write, until something is read, the daemon is asked now and then whether the command still runs: its end
    shows in the stream only seconds later when a background child holds it.
    """

    def __init__(self, running: DockerExec, on_close: Callable[[DockerStream], None]) -> None:
        self._running = running
        self._on_close = on_close
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._reading: asyncio.Future[tuple[int, bytes] | None] | None = None
        self._poll_timer: asyncio.TimerHandle | None = None
        self._polling: asyncio.Task[None] | None = None
        self._ended = False
        self._has_answered = False

    async def write(self, data: bytes) -> None:
        self._has_answered = False
        self._poll_in(_FIRST_POLL_S * 2)
        await self._running.write(data)

    async def read(self) -> bytes:
        import aiohttp

        if self._ended:
            return b""
        self._reading = asyncio.ensure_future(self._running.read())
        try:
            chunk = await self._reading
        except (aiohttp.ClientError, ConnectionError):
            return b""
        except asyncio.CancelledError:
            if self._ended:
                return b""
            raise
        self._has_answered = True
        return b"" if chunk is None else chunk[1]

    def _poll_in(self, delay: float) -> None:
        if self._poll_timer is not None:
            self._poll_timer.cancel()
        self._poll_timer = self._loop.call_later(delay, self._start_poll, delay)

    def _start_poll(self, delay: float) -> None:
        self._poll_timer = None
        if not self._closed:
            self._polling = asyncio.ensure_future(self._poll(delay))

    async def _poll(self, delay: float) -> None:
        import aiodocker
        import aiohttp

        try:
            is_running = (await self._running.state())["Running"]
        except (aiodocker.DockerError, aiohttp.ClientError, ConnectionError):
            is_running = False
        if not is_running:
            await asyncio.sleep(_EOF_GRACE_S)
            self._ended = True
            if self._reading is not None:
                self._reading.cancel()
        elif not self._has_answered and delay < _LONGEST_POLL_S and self._poll_timer is None:
            self._poll_in(delay * 2)

    async def exit_code(self) -> int | None:
        import aiodocker

        try:
            for _ in range(40):
                state = await self._running.state()
                if not state["Running"]:
                    return state["ExitCode"]  # type: ignore[no-any-return]
                await asyncio.sleep(_FIRST_POLL_S)
        except (aiodocker.DockerError, SandboxLost):
            return None
        return None

    async def close(self) -> None:
        """End of input, which ends a shell; the connection is given up."""
        if self._closed:
            return
        self._closed = True
        if self._poll_timer is not None:
            self._poll_timer.cancel()
        if self._polling is not None:
            self._polling.cancel()
        self._running.end_input()
        await self._running.close()
        self._on_close(self)
