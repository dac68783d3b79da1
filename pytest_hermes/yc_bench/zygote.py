"""Runs a console script's commands as forked children, each of which is as a process of its own.

A child is what the script would be: its arguments, directory, environment, standard streams, a `__main__` of its own
that executes the script's own source, the interpreter's way to end. So its output has the same bytes, without the
processor time that imports take. The parent must have one thread, and hold nothing open that children may not share.

Sent as text (`simulation.py`), as is `simulator.py`: nothing but the standard library.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import fcntl
import io
import json
import os
import select
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

Sink = Callable[[bytes], None]

_CHUNK = 65_536
_FLUSH_FAILED = 120
"""What CPython gives when its last flush fails."""


class Wire:
    """The frames, on descriptors that no child keeps."""

    def __init__(self) -> None:
        self.incoming = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 64)
        self.outgoing = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 64)
        self._buffer = b""
        self.is_over = False
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.close(nothing)

    def receive(self) -> None:
        """Take what has come; call it where there is something."""
        data = os.read(self.incoming, _CHUNK)
        self._buffer += data
        self.is_over = self.is_over or not data

    def pop(self) -> dict[str, Any] | None:
        """The next whole request, if there is one."""
        line, found, rest = self._buffer.partition(b"\n")
        if not found:
            return None
        self._buffer = rest
        request: dict[str, Any] = json.loads(line)
        return request

    def next(self) -> dict[str, Any] | None:
        """The next request; None at the end of all."""
        while (request := self.pop()) is None and not self.is_over:
            self.receive()
        return request

    def send(self, kind: str, body: bytes = b"", **header: Any) -> None:
        head = json.dumps({"kind": kind, "bytes": len(body), **header}, default=repr).encode()
        view = memoryview(head + b"\n" + body)
        while view:
            view = view[os.write(self.outgoing, view) :]

    def close(self) -> None:
        os.close(self.incoming)
        os.close(self.outgoing)


class StandardStreams:
    """What the interpreter made of its own standard streams, to be made anew in each child."""

    def __init__(self) -> None:
        self._made = [
            (name, getattr(sys, name).encoding, getattr(sys, name).errors, getattr(sys, name).line_buffering)
            for name in ("stdin", "stdout", "stderr")
        ]

    def renew(self) -> None:
        for number, (name, encoding, errors, line_buffering) in enumerate(self._made):
            binary: Any = open(number, "rb" if number == 0 else "wb", closefd=False)  # noqa: SIM115
            binary.raw.name = f"<{name}>"
            text: Any = io.TextIOWrapper(
                binary,
                encoding=encoding,
                errors=errors,
                newline=None if number == 0 else "\n",
                line_buffering=line_buffering,
            )
            text.mode = "r" if number == 0 else "w"
            setattr(sys, name, text)
            setattr(sys, f"__{name}__", text)


class AsInterpreter:
    """Ends the process as CPython ends after its program, which is the body of the `with`."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: types.TracebackType | None) -> None:
        code = 1
        try:
            for stream in (sys.stderr, sys.stdout):
                if not stream.closed:
                    with contextlib.suppress(OSError):
                        stream.flush()
            # The outermost frame is the one of the `with`, not the program's.
            code = _report(error, trace.tb_next if trace is not None else None)
            for thread in threading.enumerate():
                if thread is not threading.main_thread() and not thread.daemon:
                    thread.join()
            atexit._run_exitfuncs()
            for stream in (sys.stdout, sys.stderr):
                try:
                    if not stream.closed:
                        stream.flush()
                except OSError:
                    code = _FLUSH_FAILED
        finally:
            os._exit(code)


def _report(error: BaseException | None, trace: types.TracebackType | None) -> int:
    """The exit code for how the program ended; what has to be said about it is on stderr."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    sys.excepthook(type(error), error.with_traceback(trace), trace)
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return 1


class Ended:
    """How a child ended. `code` is a shell's: 128 + n for signal n."""

    def __init__(self) -> None:
        self.code = -1
        self.timed_out = False
        self.cancelled = False


class Zygote:
    """Forks children one at a time and waits for them; see the module docstring."""

    def __init__(self, wire: Wire, script: str) -> None:
        self._wire = wire
        self._streams = StandardStreams()
        self._script = script
        self._code = compile(Path(script).read_bytes(), script, "exec")
        self._woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakes = wakes
        # A handler of Python's, even an empty one, is what makes the signal write to the descriptor.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)

    def command(self, arguments: list[str]) -> Callable[[], None]:
        """What a child does for `yc-bench ARGUMENTS`."""

        def program() -> None:
            main: Any = types.ModuleType("__main__")
            main.__file__ = self._script
            main.__builtins__ = builtins
            main.__loader__ = SourceFileLoader("__main__", self._script)
            main.__cached__ = None
            sys.modules["__main__"] = main
            sys.argv = [self._script, *arguments]
            sys.path.insert(0, str(Path(self._script).resolve().parent))
            with AsInterpreter():
                exec(self._code, main.__dict__)

        return program

    def run(
        self,
        program: Callable[[], None],
        sink: Sink,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Ended:
        """Run `program` in a child; what it writes goes to `sink`. OSError if it cannot start in `cwd`."""
        os.chdir(cwd or "/")
        reads, writes = os.pipe2(os.O_CLOEXEC)
        try:
            pid = os.fork()
            if pid == 0:
                with AsInterpreter():
                    self._become(reads, writes, cwd, env or {})
                    program()
            os.close(writes)
            writes = -1
            os.set_blocking(reads, False)
            return self._wait(pid, reads, sink, timeout_s)
        finally:
            os.chdir("/")
            for descriptor in (reads, writes):
                if descriptor >= 0:
                    os.close(descriptor)

    def _become(self, reads: int, writes: int, cwd: str | None, env: Mapping[str, str]) -> None:
        """In the child: leave everything of the parent's behind."""
        with contextlib.suppress(OSError):
            os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(writes, 1)
        os.dup2(writes, 2)
        for descriptor in (reads, writes, self._woken, self._wakes):
            os.close(descriptor)
        self._wire.close()
        self._streams.renew()
        if cwd is not None:
            os.environ["PWD"] = cwd
        os.environ.update(env)

    def _wait(self, pid: int, reads: int, sink: Sink, timeout_s: float | None) -> Ended:
        ended = Ended()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        watched = [reads, self._woken, self._wire.incoming]
        try:
            while True:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                ready, _, _ = select.select(watched, [], [], left)
                if reads in ready and not _forward(reads, sink):
                    watched.remove(reads)
                if self._woken in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._woken, _CHUNK)
                    found, status = os.waitpid(pid, os.WNOHANG)
                    if found:
                        pid = 0
                        ended.code = os.waitstatus_to_exitcode(status)
                        break
                if self._wire.incoming in ready:
                    self._wire.receive()
                    ended.cancelled = self._wire.pop() is not None
                if not ready and left is not None:
                    ended.timed_out = deadline is not None and time.monotonic() >= deadline
                if ended.timed_out or ended.cancelled or self._wire.is_over:
                    break
        finally:
            # Also when nobody takes the output any more: the child must not outlive its command.
            if pid:
                ended.code = _kill(pid)
        # What is in the pipe is the command's; it is not waited for who else may hold it.
        for _ in range(_CHUNK):
            if reads not in watched or not select.select([reads], [], [], 0)[0]:
                break
            if not _forward(reads, sink):
                break
        if ended.code < 0:
            ended.code = 128 - ended.code
        return ended


def _forward(reads: int, sink: Sink) -> bool:
    """Hand on one chunk; False at the end."""
    data = os.read(reads, _CHUNK)
    if data:
        sink(data)
    return bool(data)


def _kill(pid: int) -> int:
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
