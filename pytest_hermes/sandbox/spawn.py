"""One child process of the harness, driven by the event loop directly: pidfd for its end, plain pipes for its streams.

Why not asyncio's subprocess: its `wait()` and `communicate()` wait for the end of the pipes, which a process that
escaped the kill can hold for ever, and before Python 3.12 it takes a thread per child. Here the end of the main process
is the end; what is already in the pipes is read, and a pipe that somebody still holds is given a moment, then left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

_CHUNK = 262_144
_EOF_GRACE_S = 0.1


class HostProcess:
    """A started child. `sinks` are called with what it writes: one sink gets stdout and stderr merged, two get each.

    `wait()` gives the exit code, a signal n as 128 + n. Raises what `subprocess.Popen` raises when it cannot start.
    The child leads its own session.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        sinks: Sequence[Callable[[bytes], None]],
        stdin: bool = False,
        kills_group: bool = True,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._kills_group = kills_group
        self._loop = asyncio.get_running_loop()
        merged = len(sinks) == 1
        self._popen = subprocess.Popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            pass_fds=pass_fds,
        )
        self.pid = self._popen.pid
        self._exit: asyncio.Future[int] = self._loop.create_future()
        self._code: int | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._sinks: dict[int, Callable[[bytes], None]] = {}
        self._paused: set[int] = set()
        for pipe, sink in zip((self._popen.stdout, self._popen.stderr), sinks, strict=False):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._sinks[pipe.fileno()] = sink
            self._loop.add_reader(pipe.fileno(), self._readable, pipe.fileno())
        if self._popen.stdin is not None:
            os.set_blocking(self._popen.stdin.fileno(), False)
        self._writable: asyncio.Future[None] | None = None
        self._pidfd: int | None = None
        self._thread_wait: asyncio.Task[None] | None = None
        if hasattr(os, "pidfd_open"):
            self._pidfd = os.pidfd_open(self.pid)
            self._loop.add_reader(self._pidfd, self._exited)
        else:
            self._thread_wait = self._loop.create_task(self._wait_in_thread())

    @property
    def has_exited(self) -> bool:
        return self._code is not None or self._popen.poll() is not None

    async def wait(self) -> int:
        """The exit code, once the main process has ended and its output was read."""
        return await asyncio.shield(self._exit)

    def kill(self) -> None:
        """SIGKILL to the child, and to its process group if `kills_group`."""
        if self._kills_group:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        if self._popen.returncode is None:
            self._popen.kill()

    def wake(self) -> None:
        """SIGCONT to the child."""
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGCONT)

    async def write(self, data: bytes) -> None:
        """Send to stdin; BrokenPipeError once nobody reads it."""
        stdin = self._popen.stdin
        if stdin is None or stdin.closed:
            raise BrokenPipeError("stdin is closed")
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(stdin.fileno(), view) :]
            except BlockingIOError:
                await self._until_writable(stdin.fileno())
                if stdin.closed:
                    raise BrokenPipeError("the process has ended") from None

    async def _until_writable(self, fd: int) -> None:
        self._writable = self._loop.create_future()
        self._loop.add_writer(fd, self._set_writable)
        try:
            await self._writable
        finally:
            self._loop.remove_writer(fd)
            self._writable = None

    def _set_writable(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def close_stdin(self) -> None:
        """End of input for the child."""
        if self._popen.stdin is not None and not self._popen.stdin.closed:
            self._loop.remove_writer(self._popen.stdin.fileno())
            self._popen.stdin.close()
            self._set_writable()

    def pause(self, *, paused: bool) -> None:
        """Stop or go on reading the child's output, so that a slow reader slows the child."""
        for fd in self._sinks:
            if paused and fd not in self._paused:
                self._loop.remove_reader(fd)
                self._paused.add(fd)
            elif not paused and fd in self._paused:
                self._paused.discard(fd)
                self._loop.add_reader(fd, self._readable, fd)

    def dispose(self) -> None:
        """Close every descriptor; a child that still runs is killed first. Idempotent."""
        if not self.has_exited:
            self.kill()
        self.close_stdin()
        for fd in list(self._sinks):
            self._drop(fd)
        if self._code is not None or self._popen.returncode is not None:
            self._finish()

    def _readable(self, fd: int) -> None:
        if self._read_once(fd) and not self._sinks and self._code is not None:
            self._finish()

    def _read_once(self, fd: int) -> bool:
        """Read one chunk; True when there is nothing more to read now."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            self._drop(fd)
            return True
        self._sinks[fd](data)
        return False

    def _drop(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        self._paused.discard(fd)
        del self._sinks[fd]
        for pipe in (self._popen.stdout, self._popen.stderr):
            if pipe is not None and not pipe.closed and pipe.fileno() == fd:
                pipe.close()

    async def _wait_in_thread(self) -> None:
        await asyncio.to_thread(self._popen.wait)
        self._exited()

    def _exited(self) -> None:
        code = self._popen.poll()
        if code is None:
            return
        self._code = 128 - code if code < 0 else code
        self._close_pidfd()
        self.close_stdin()
        self.pause(paused=False)
        for fd in list(self._sinks):
            # Bounded: an escaped child may write for ever; 64 chunks are more than any pipe holds.
            for _ in range(64):
                if self._read_once(fd):
                    break
        if not self._sinks:
            self._finish()
        else:
            self._grace = self._loop.call_later(_EOF_GRACE_S, self._finish)

    def _close_pidfd(self) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _finish(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        self._close_pidfd()
        for fd in list(self._sinks):
            self._drop(fd)
        if not self._exit.done():
            code = self._popen.returncode if self._code is None else self._code
            self._exit.set_result(128 - code if code < 0 else code)
