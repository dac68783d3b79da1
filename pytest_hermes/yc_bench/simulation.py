"""`Simulation`: a rollout's YC-Bench world, served by one helper process in its sandbox (`simulator.py`).

The helper is started before the agent acts and runs `yc-bench` commands as forked children, with the bytes and exit
codes that processes of their own give (`likeness.py` says whether, for an installation). One request runs at a time.

A command is executed at most once: whatever happens to the helper, no request is sent again. Once the helper has
ended, or cannot be trusted to be at a request's end, `is_alive` is False for good and every request is refused with
`SimulationEnded`. Its answers come from a sandbox that the agent may have been at: they are checked like foreign data.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pytest_hermes.errors import InfrastructureError, SandboxStartError
from pytest_hermes.sandbox.output import OutputWindow
from pytest_hermes.sandbox.proctable import EXEC_VARIABLE
from pytest_hermes.sandbox.protocol import Sandbox, Stream
from pytest_hermes.sandbox.shell import TIMEOUT_EXIT_CODE, ShellResult
from pytest_hermes.yc_bench.answers import Beginning, Drained, State, beginning_of, integer, state_of, tail
from pytest_hermes.yc_bench.install import Installation

log = logging.getLogger(__name__)

KILLED_EXIT_CODE = 137
_HEADER_MAX = 1_500_000
_BODY_MAX = 1_000_000
_ABORT_WAIT_S = 5.0
_GRACE_S = 10.0
"""A helper that has not ended a command this long after its time-out is stopped or gone wrong."""
_START_WAIT_S = 60.0
PROGRAMS = ("zygote", "simulator")
_LOADER = """
import sys, types
def text():
    size, content = int(read.readline()), b""
    while len(content) < size:
        more = read.read(size - len(content))
        if not more:
            sys.exit(1)
        content += more
    return content.decode()
with open(0, "rb", 0, closefd=False) as read:
    for name in sys.argv[1:]:
        module = sys.modules[name] = types.ModuleType(name)
        exec(compile(text(), f"<{name}>", "exec"), module.__dict__)
module.main()
"""
"""Takes modules from stdin, byte by byte no further than they go. Not by file: the agent could read and change it."""


class SimulationEnded(InfrastructureError):
    """The helper has ended; nothing was sent to it."""


class SimulationError(InfrastructureError):
    """The helper could not do what it was asked: begin a simulation, run out its clock."""


class _Request:
    """A request under way: where output goes, and the header of the frame that will end it (None: the helper died)."""

    def __init__(self, number: int, window: OutputWindow) -> None:
        self.number = number
        self.window = window
        self.done: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()


class Simulation:
    """A running helper; made by `start`."""

    def __init__(
        self,
        sandbox: Sandbox,
        stream: Stream,
        installation: Installation,
        *,
        database: str,
        script: str,
        env: Mapping[str, str],
        marker: str,
    ) -> None:
        self._sandbox = sandbox
        self._stream = stream
        self._installation = installation
        self._script = script
        self._env = env
        self._marker = marker
        self._lock = asyncio.Lock()
        self._mark = secrets.token_hex(16)
        self._numbers = 0
        self._request: _Request | None = None
        self._ready = asyncio.Event()
        self._noise = OutputWindow(4_000)
        self._is_over = False
        self._aborting: asyncio.Future[None] | None = None
        self.backend = sandbox.backend
        self.database = database
        """Absolute path in the sandbox."""
        self.pid = 0
        """The helper's, as the sandbox numbers its processes."""
        self._reader = asyncio.ensure_future(self._drain_stream())

    @classmethod
    async def start(
        cls,
        sandbox: Sandbox,
        installation: Installation,
        *,
        database: str,
        experiment: str | None = None,
        script: str | None = None,
        env: Mapping[str, str] | None = None,
        isolated: bool = False,
        timeout_s: float = _START_WAIT_S,
    ) -> Simulation:
        """Start a helper in `sandbox`, whose environment, with `env` on top, should be what the agent's shell has.

        `database` is an absolute path; `experiment` a preset as `Installation.preset_argument` gives it, None where the
        environment has it; `script` the path by which the shell finds the command, which tracebacks show.

        `isolated` is for after the agent: `python -I` takes no import from where the agent could write.
        Raises SandboxStartError; NotImplementedError where the backend has no two-way stream.
        """
        marker = secrets.token_hex(16)
        added = {**(env or {}), "DATABASE_URL": url_of(database)}
        if experiment is not None:
            added["YC_BENCH_EXPERIMENT"] = experiment
        # -P: like a script, and unlike -c, imports nothing from the current directory.
        names = [f"{__package__}.{name}" for name in PROGRAMS]
        argv = [str(installation.python), "-I" if isolated else "-P", "-c", _LOADER, *names]
        stream = await sandbox.open_stream(argv, env={**added, EXEC_VARIABLE: marker})
        simulation = cls(
            sandbox,
            stream,
            installation,
            database=database,
            script=script or str(installation.script),
            env=added,
            marker=marker,
        )
        try:
            async with asyncio.timeout(timeout_s):
                await simulation._hello()
        except TimeoutError:
            await asyncio.shield(simulation._end())
            raise SandboxStartError(f"{sandbox.id}: yc-bench's helper is not ready within {timeout_s:g} s") from None
        except BaseException:
            await asyncio.shield(simulation._end())
            raise
        return simulation

    @property
    def is_alive(self) -> bool:
        """Whether requests can be made."""
        return not self._is_over

    # -- requests ------------------------------------------------------------------------------------

    async def run(
        self, argv: Sequence[str], *, cwd: str | None = None, timeout_s: float | None = None, max_output: int = 100_000
    ) -> ShellResult:
        """Run `yc-bench ARGV` to its end, or to `timeout_s`: then it is killed, and what it wrote is returned with exit
        code 124. Exit code 137, and `is_alive` False, if the helper died under it: it may have been executed.

        OSError if `cwd` cannot be entered: nothing was executed. SimulationEnded if the helper is gone already.
        Cancellation kills the command.
        """
        return await self._run(argv, cwd or self._sandbox.workdir, timeout_s, OutputWindow(max_output))

    async def _run(
        self,
        argv: Sequence[str],
        where: str,
        timeout_s: float | None,
        window: OutputWindow,
        env: Mapping[str, str] | None = None,
    ) -> ShellResult:
        started = time.monotonic()
        fields = {"argv": list(argv), "cwd": where, "env": env or {}, "timeout_s": timeout_s}
        answer = await self._ask("run", fields, None if timeout_s is None else timeout_s + _GRACE_S, window)
        if answer is None:
            # One that does not answer (stopped by the agent, say) was given its time, and was killed then.
            timed_out = timeout_s is not None and time.monotonic() - started >= timeout_s
            code = TIMEOUT_EXIT_CODE if timed_out else KILLED_EXIT_CODE
            return ShellResult(code, window.value(), timed_out, window.total, where)
        if isinstance(answer.get("error"), str):
            raise OSError(integer(answer.get("errno")), str(answer["error"]))
        timed_out = answer.get("timed_out") is True
        code = TIMEOUT_EXIT_CODE if timed_out else integer(answer.get("exit_code"), KILLED_EXIT_CODE)
        return ShellResult(code, window.value(), timed_out, window.total, where)

    async def state(self, database: str | None = None) -> State:
        """Where the simulation in `database` (default: the helper's own) stands."""
        answer = await self._ask("state", {"database": database or self.database}, _GRACE_S)
        if answer is None:
            return State(error="yc-bench's helper died while it read the database")
        try:
            return state_of(answer)
        except (KeyError, TypeError, ValueError) as error:
            return State(error=f"not as yc-bench writes it: {type(error).__name__}: {error}")

    async def init(
        self,
        *,
        mode: Literal["sim_init", "preset"],
        seed: int,
        start_date: str,
        company_name: str,
        horizon_years: int,
        timeout_s: float = 60.0,
    ) -> Beginning:
        """Begin a simulation in the helper's own database, which must not hold one; `start_date` is MM/DD/YYYY.

        `sim_init` gives the world of the command `yc-bench sim init`, `preset` that of `yc-bench run`: on 0.1.0 the
        former takes no distributions from the preset. Raises SimulationError with what yc-bench said.
        """
        fields: dict[str, Any] = {
            "database": self.database,
            "mode": mode,
            "seed": seed,
            "start_date": start_date,
            "company_name": company_name,
            "horizon_years": horizon_years,
            "timeout_s": timeout_s,
        }
        answer = await self._ask("init", fields, 2 * timeout_s + _GRACE_S) or {"error": "its helper died"}
        if "error" in answer:
            raise SimulationError(f"yc-bench could not begin a simulation: {tail(answer['error'])}")
        try:
            return beginning_of(answer)
        except (KeyError, TypeError, ValueError) as error:
            raise SimulationError(f"yc-bench began a simulation that cannot be read: {error}") from error

    async def drain(
        self, database: str | None = None, *, max_resumes: int = 5_000, timeout_s: float = 300.0
    ) -> Drained:
        """Run the clock of `database` (default: the helper's own) out, by `sim resume` until it has a terminal reason.

        Where an installation refuses to resume while no task is active, its engine goes on to the horizon.
        """
        fields = {"database": database or self.database, "max_resumes": max_resumes, "timeout_s": timeout_s}
        answer = await self._ask("drain", fields, timeout_s + _GRACE_S)
        if answer is None:
            return Drained(0, None, "yc-bench's helper died")
        reason = answer.get("terminal_reason")
        error = tail(answer.get("error", ""))
        return Drained(integer(answer.get("resumes")), reason if isinstance(reason, str) else None, error)

    async def agrees_with_process(self, argv: Sequence[str], *, env: Mapping[str, str], timeout_s: float) -> bool:
        """Whether a command, with `env` besides, gives the same bytes and exit code here as in a process of its own."""
        real = await self._sandbox.exec(
            ["sh", "-c", 'exec "$0" "$@" 2>&1', self._script, *argv], timeout_s=timeout_s, env={**self._env, **env}
        )
        window = OutputWindow(1_000_000)
        own = await self._run(argv, self._sandbox.workdir, timeout_s, window, env)
        return (real.exit_code, real.stdout) == (own.exit_code, own.output)

    async def aclose(self) -> None:
        """End the helper and what it runs. Idempotent."""
        await asyncio.shield(self._end())

    # -- the helper ------------------------------------------------------------------------------------

    async def _hello(self) -> None:
        for name in PROGRAMS:
            source = await asyncio.to_thread(Path(__file__).with_name(f"{name}.py").read_bytes)
            await self._write(b"%d\n" % len(source) + source)
        await self._write(_line({"script": self._script, "mark": self._mark}))
        await self._ready.wait()
        if self._is_over:
            code = await self._stream.exit_code()
            said = tail(self._noise.value().decode(errors="replace").strip())
            raise SandboxStartError(f"{self._sandbox.id}: yc-bench's helper ended at once (exit {code}): {said}")

    async def _ask(
        self, do: str, fields: Mapping[str, Any], wait_s: float | None, window: OutputWindow | None = None
    ) -> dict[str, Any] | None:
        """The header of the answer; None if the helper died under the request."""
        async with self._lock:
            if self._aborting is not None:
                await asyncio.shield(self._aborting)
            if self._is_over:
                raise SimulationEnded(f"{self._sandbox.id}: yc-bench's helper has ended")
            self._numbers += 1
            request = self._request = _Request(self._numbers, window or OutputWindow(0))
            try:
                async with asyncio.timeout(wait_s):
                    await self._write(_line({"do": do, "id": request.number, **fields}))
                    answer = await asyncio.shield(request.done)
            except TimeoutError:
                await asyncio.shield(self._end())
                return None
            except BaseException:
                self._aborting = asyncio.ensure_future(self._abort(request))
                await asyncio.shield(self._aborting)
                raise
            finally:
                if self._aborting is None or self._aborting.done():
                    self._request = None
            if answer is None:
                await asyncio.shield(self._end())
            return answer

    async def _abort(self, request: _Request) -> None:
        """End the running request; a helper that does not listen is ended with it."""
        await self._write(_line({"do": "cancel", "id": request.number}))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(request.done), _ABORT_WAIT_S)
        if not request.done.done() or request.done.result() is None:
            await self._end()
        self._request = None

    async def _write(self, data: bytes) -> None:
        """Send; a helper that has ended is noticed by its reader."""
        with contextlib.suppress(OSError):
            await self._stream.write(data)

    async def _drain_stream(self) -> None:
        """Take frames until the helper ends, or sends what is none."""
        buffer = bytearray()
        try:
            while data := await self._stream.read():
                buffer += data
                while self._take(buffer):
                    pass
        except (OSError, ValueError) as error:
            log.warning("%s: yc-bench's helper: %s", self._sandbox.id, error)
        finally:
            if not self._ready.is_set():
                self._noise.add(bytes(buffer))
            self._is_over = True
            self._ready.set()
            if self._request is not None and not self._request.done.done():
                self._request.done.set_result(None)

    def _take(self, buffer: bytearray) -> bool:
        """Take one frame off the buffer, if it holds one. ValueError for what is none."""
        end = buffer.find(b"\n")
        if end < 0:
            if len(buffer) > _HEADER_MAX:
                raise ValueError("a header without an end")
            return False
        if not self._ready.is_set():
            # Whatever imports print comes before the first frame.
            line = bytes(buffer[: end + 1])
            del buffer[: end + 1]
            if self._mark.encode() in line and line.startswith(b'{"kind": "ready"'):
                self.pid = integer(json.loads(line).get("pid"))
                self._ready.set()
            else:
                self._noise.add(line)
            return True
        header = json.loads(buffer[:end])
        size = header.get("bytes") if isinstance(header, dict) else None
        if type(size) is not int or not 0 <= size <= _BODY_MAX:
            raise ValueError("a frame without a size")
        if len(buffer) < end + 1 + size:
            return False
        body = bytes(buffer[end + 1 : end + 1 + size])
        del buffer[: end + 1 + size]
        request = self._request
        if request is None or header.get("id") != request.number:
            raise ValueError("an answer to no request")
        if header.get("kind") == "output":
            request.window.add(body)
        elif not request.done.done():
            request.done.set_result(header)
        return True

    async def _end(self) -> None:
        """Kill the helper and every child of it."""
        self._is_over = True
        with contextlib.suppress(OSError):
            await self._stream.close()
        self._reader.cancel()
        await asyncio.wait([self._reader])
        await self._sandbox.kill_marked(self._marker)


def url_of(database: str) -> str:
    return f"sqlite:///{database}"


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
