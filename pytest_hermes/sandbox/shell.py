"""`ShellSession`: one kept bash per rollout, over any sandbox with a two-way stream.

Working directory, exported variables, functions and aliases persist from command to command. Whatever ends the shell
(`exit`, `set -e`, `exec`, a kill, a time-out) ends only that command: the next bash starts from the saved state.
Nothing is forked per command: a command is one write and one read on an open stream.

How a command runs: `eval` with stdin from /dev/null and both outputs on the stream, then one record `RS marker status
cwd RS` whose marker is random per command and known to no variable, so output cannot pass for it. Builtins write the
state to a file in the sandbox after commands that may have changed it and at the shell's own end. `HERMES_EXEC` is
exported anew per command, so that a time-out kills that command's processes and no earlier background job.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import time

from pytest_hermes.errors import SandboxStartError
from pytest_hermes.sandbox.output import OutputWindow
from pytest_hermes.sandbox.protocol import ExecResult, Sandbox, Stream
from pytest_hermes.sandbox.shell_script import (
    ABORT_SIGNAL,
    MARK,
    command_line,
    exec_script,
    prelude,
)

TIMEOUT_EXIT_CODE = 124
_INLINE_MAX = 64_000
"""bash reads its script from a pipe byte by byte; a longer command travels by file."""
_ABORT_WAIT_S = 1.0
_START_WAIT_S = 60.0
_RECORD_MAX = 16_384


@dataclasses.dataclass(frozen=True)
class ShellResult:
    """How one command ended. `output` is stdout and stderr merged, cut to `max_output` of `output_bytes` in all.

    `exit_code` is 124 exactly when `timed_out` says so or the command itself gave 124. `restarted`: the command ended
    the shell, and a new one with the saved state has taken its place.
    """

    exit_code: int
    output: bytes
    timed_out: bool
    output_bytes: int
    cwd: str
    restarted: bool = False


class _Pending:
    """A command that runs: where its output goes, and the record that will end it."""

    def __init__(self, mark: str, window: OutputWindow) -> None:
        self.needle = MARK + mark.encode() + b" "
        self.window = window
        self.held = b""
        self.done: asyncio.Future[tuple[int, str] | None] = asyncio.get_running_loop().create_future()
        """Status and text of the record, or None when the shell ended without one."""

    def feed(self, data: bytes) -> bytes | None:
        """Take output; once the record is whole, what came after it."""
        data = self.held + data
        at = data.find(self.needle)
        if at < 0:
            # The record's beginning may be the end of this chunk.
            start = data.rfind(MARK, max(0, len(data) - len(self.needle) + 1))
            keep = len(data) if start < 0 else start
            self.window.add(data[:keep])
            self.held = data[keep:]
            return None
        end = data.find(MARK, at + len(self.needle))
        if end < 0:
            self.window.add(data[:at])
            self.held = data[at:]
            return None
        self.window.add(data[:at])
        self.held = b""
        status, _, text = data[at + len(self.needle) : end].decode(errors="surrogateescape").partition(" ")
        if not self.done.done():
            self.done.set_result((int(status), text))
        return data[end + 1 :]


class _Shell:
    """One running bash. Its output is always drained, so background jobs never block on a full pipe."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.pid = 0
        self.ended = asyncio.Event()
        self._pending: _Pending | None = None
        self._between = OutputWindow(_RECORD_MAX)
        self._reader = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        try:
            while data := await self.stream.read():
                if self._pending is not None:
                    rest = self._pending.feed(data)
                    if rest is None:
                        continue
                    self._pending, data = None, rest
                self._between.add(data)
        except OSError:
            pass
        finally:
            self.ended.set()
            if self._pending is not None and not self._pending.done.done():
                self._pending.done.set_result(None)

    async def send(self, script: bytes, mark: str, window: OutputWindow) -> _Pending:
        """Write one command; what background jobs wrote since the last one comes first in its output."""
        if self._between.total:
            window.add(self._between.value())
            self._between = OutputWindow(_RECORD_MAX)
        pending = self._pending = _Pending(mark, window)
        if self.ended.is_set():
            pending.done.set_result(None)
        with contextlib.suppress(OSError):
            await self.stream.write(script)
        return pending

    async def ends_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.ended.wait(), seconds)
        return self.ended.is_set()

    def forget(self) -> None:
        """Let go of a command whose end will not be waited for; its held back bytes belong to its output."""
        if self._pending is not None:
            self._pending.window.add(self._pending.held)
            self._pending = None

    async def close(self) -> None:
        with contextlib.suppress(OSError):
            await self.stream.close()
        self._reader.cancel()
        await asyncio.wait([self._reader])


class ShellSession:
    """A persistent shell in `sandbox`. Calls of `run` are serialised; make one session per agent.

    Where the sandbox has no two-way stream or no bash, every command is an exec of its own (`sh` is enough) that loads
    and saves the same state.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._lock = asyncio.Lock()
        self._shell: _Shell | None = None
        self._aborting: asyncio.Future[None] | None = None
        self._keeps_shell = True
        self._directory = ""
        self.last_status = 0
        """What the next command sees as `$?`; to be set where a command of the session ran elsewhere."""
        self._state = f".sh-{secrets.token_hex(8)}"
        self.cwd = sandbox.workdir
        """Where the next command starts, as far as is known."""

    async def run(
        self, command: str, *, timeout_s: float | None = None, max_output: int = 100_000, cwd: str | None = None
    ) -> ShellResult:
        """Run one command to its end, or to `timeout_s`: then everything it started is killed and what it wrote so far
        is returned with exit code 124.

        `cwd` is a `cd` before the command, and stays. Cancellation kills the command and leaves the session usable.
        ValueError for a NUL byte; SandboxLost or SandboxKilled when the sandbox is gone.
        """
        for text in (command, cwd or ""):
            if "\0" in text:
                raise ValueError("a command cannot contain a NUL byte: bash would cut it there")
        async with self._lock:
            if self._aborting is not None:
                await asyncio.shield(self._aborting)
                self._aborting = None
            shell = await self._started()
            if shell is None:
                return await self._run_by_exec(command, timeout_s, max_output, cwd)
            return await self._run_in(shell, command, timeout_s, max_output, cwd)

    async def close(self) -> None:
        """End the shell. Background processes live on until the sandbox is closed."""
        shell, self._shell = self._shell, None
        if shell is not None:
            await shell.close()

    # -- the kept shell ----------------------------------------------------------------------------

    async def _started(self) -> _Shell | None:
        """The running shell, started if need be; None where there cannot be one."""
        if self._shell is not None and not self._shell.ended.is_set():
            return self._shell
        if not self._keeps_shell:
            return None
        if self._shell is not None:
            await self._shell.close()
            self._shell = None
        try:
            stream = await self._sandbox.open_stream(["bash", "--noprofile", "--norc"])
        except NotImplementedError:
            self._keeps_shell = False
            return None
        shell = _Shell(stream)
        window, mark = OutputWindow(4_000), secrets.token_hex(16)
        try:
            async with asyncio.timeout(_START_WAIT_S):
                state = f"{self._directory}/{self._state}" if self._directory else ""
                script = prelude(mark, self._state, state, self.cwd, self._sandbox.workdir)
                pending = await shell.send(script.encode(errors="surrogateescape"), mark, window)
                hello = await pending.done
        except TimeoutError:
            await shell.close()
            await self._sandbox.check()
            raise SandboxStartError(f"{self._sandbox.id}: bash does not answer within {_START_WAIT_S:.0f} s") from None
        except BaseException:
            await asyncio.shield(shell.close())
            raise
        if hello is None:
            code = await stream.exit_code()
            await shell.close()
            await self._sandbox.check()
            if code in (126, 127):
                self._keeps_shell = False
                return None
            said = window.value().decode(errors="replace").strip()
            raise SandboxStartError(f"{self._sandbox.id}: bash ended at once (exit {code}): {said}")
        pid, self._directory, self.cwd = hello[1].split("\n", 2)
        shell.pid = int(pid)
        self._shell = shell
        return shell

    async def _run_in(
        self, shell: _Shell, command: str, timeout_s: float | None, max_output: int, cwd: str | None
    ) -> ShellResult:
        file = None
        if len(command) > _INLINE_MAX:
            file = f"{self._directory}/{self._state}.in"
            await self._sandbox.write_file(file, command.encode(errors="surrogateescape"))
        mark, exec_marker = secrets.token_hex(12), secrets.token_hex(12)
        window = OutputWindow(max_output)
        script = command_line(
            command, mark=mark, exec_marker=exec_marker, last_status=self.last_status, cwd=cwd, file=file
        )
        started = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                pending = await shell.send(script.encode(errors="surrogateescape"), mark, window)
                record = await pending.done
        except TimeoutError:
            await self._abort_shielded(shell, exec_marker, started)
            await self._started()
            return ShellResult(TIMEOUT_EXIT_CODE, window.value(), True, window.total, self.cwd, restarted=True)
        except BaseException:
            await self._abort_shielded(shell, exec_marker, started)
            raise
        if record is not None:
            code, where = record
            self.last_status = code
            self.cwd = where or self.cwd
            return ShellResult(code, window.value(), False, window.total, self.cwd)
        shell.forget()
        ended_with = await shell.stream.exit_code()
        self.last_status = 1 if ended_with is None else ended_with
        await self._sandbox.check()
        await self._started()
        return ShellResult(self.last_status, window.value(), False, window.total, self.cwd, restarted=True)

    async def _abort_shielded(self, shell: _Shell, exec_marker: str, started: float) -> None:
        """`_abort`, to its end whatever happens to the caller; the next `run` waits for it."""
        self._aborting = asyncio.ensure_future(self._abort(shell, exec_marker, started))
        await asyncio.shield(self._aborting)
        self._aborting = None

    async def _abort(self, shell: _Shell, exec_marker: str, started: float) -> None:
        """End the running command and the shell with it.

        The shell is stopped first: it neither goes on to the command line's next part when its child dies nor leaves
        the process table, by which what it started is found. Then it goes on, takes the pending signal before anything
        else, saves its state (also a `cd` of the command itself) and exits. A shell that does not listen is killed.
        """
        shell.forget()
        await self._signal(shell, "STOP", ABORT_SIGNAL)
        await self._sandbox.kill_marked(exec_marker, shell_pid=shell.pid, since_s=time.monotonic() - started)
        await self._signal(shell, "CONT")
        with contextlib.suppress(OSError):
            await shell.stream.write(b"exit\n")
        if not await shell.ends_within(_ABORT_WAIT_S):
            await self._signal(shell, "KILL")
            await self._sandbox.kill_marked(exec_marker)
            await shell.ends_within(_ABORT_WAIT_S)
        await shell.close()
        if self._shell is shell:
            self._shell = None

    async def _signal(self, shell: _Shell, *signals: str | int) -> None:
        script = "; ".join(f'kill -{signal} "$0"' for signal in signals)
        await self._sandbox.exec(["sh", "-c", script, str(shell.pid)], user="root")

    # -- without a kept shell ------------------------------------------------------------------------

    async def _run_by_exec(
        self, command: str, timeout_s: float | None, max_output: int, cwd: str | None
    ) -> ShellResult:
        mark = secrets.token_hex(16)
        script = exec_script(command, mark=mark, state=f"/tmp/{self._state}", cwd=cwd or self.cwd)
        result = await self._sandbox.exec(script, timeout_s=timeout_s, max_output=max_output + _RECORD_MAX)
        return self._exec_result(result, mark, max_output)

    def _exec_result(self, result: ExecResult, mark: str, max_output: int) -> ShellResult:
        output, found, record = result.stdout.rpartition(MARK + mark.encode() + b" ")
        code = result.exit_code
        total = result.stdout_bytes
        if found:
            text, _, after = record.partition(MARK)
            status, _, where = text.decode(errors="surrogateescape").partition(" ")
            code, self.cwd = int(status), where
            total -= len(found) + len(text) + 1
            output += after
        else:
            output = result.stdout
        window = OutputWindow(max_output)
        window.add(output)
        if code is None or result.timed_out:
            code = TIMEOUT_EXIT_CODE
        return ShellResult(code, window.value(), result.timed_out, total, self.cwd, restarted=not found)
