"""The host's process table, read from /proc: who carries a marker in its environment, who belongs to a shell.

Used where sandboxes share the harness's kernel and can be seen from it (local, confined or not). Backends that are
only reached by commands use the script in `killing.py`, which follows the same rules.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

EXEC_VARIABLE = "HERMES_EXEC"
SESSION_VARIABLE = "HERMES_SESSION"
_ROUNDS = 20
_EXEC_WAIT_S = 0.2
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD among the flags of /proc/<pid>/stat."""
_TICKS = os.sysconf("SC_CLK_TCK")


class ProcessStat(NamedTuple):
    pid: int
    parent: int
    session: int
    started_s: float
    """Seconds after boot, to a hundredth."""
    state: str
    is_kernel: bool


def read_stat(pid: int) -> ProcessStat | None:
    """One process's line of the table, or None once it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - hundreds of these a sweep
            fields = file.read().rpartition(b") ")[2].split()
    except OSError:
        return None
    if len(fields) < 20:
        return None
    is_kernel = bool(int(fields[6]) & _KERNEL_THREAD)
    return ProcessStat(pid, int(fields[1]), int(fields[3]), int(fields[19]) / _TICKS, fields[0].decode(), is_kernel)


def read_environ(pid: int) -> bytes:
    """The environment a process was started with, NUL-separated; empty when it is gone or not ours to see."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            return b"\0" + file.read()
    except OSError:
        return b""


def pids() -> list[int]:
    """Every process id that is in the table now; empty where there is no /proc."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    except FileNotFoundError:
        return []


def boot_uptime_s() -> float:
    """Seconds since boot on the clock that process start times are kept in."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _send(victims: Iterable[int]) -> None:
    for pid in victims:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def kill_until_none(find: Callable[[], list[int]]) -> None:
    """Kill what `find` returns, again and again until it finds nothing: killed processes may have just forked."""
    for _ in range(_ROUNDS):
        victims = find()
        if not victims:
            return
        _send(victims)


def process_namespace(pid: int) -> str:
    """Identity of the process namespace that `pid` is in; empty when it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115
    except OSError:
        return ""


def children(pid: int) -> list[int]:
    """The living children of a process."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:  # noqa: PTH123
            return [int(word) for word in file.read().split()]
    except OSError:
        return [other for other in pids() if (stat := read_stat(other)) is not None and stat.parent == pid]


def environs() -> dict[int, bytes]:
    """The environment of every process but this one, by pid, each read once, so that all rules judge the same one.

    In the middle of an `execve` a process shows none at all; those are read again until they have one.
    """
    found = {pid: read_environ(pid) for pid in pids()}
    found.pop(os.getpid(), None)
    deadline = time.monotonic() + _EXEC_WAIT_S
    for pid, environ in found.items():
        while len(environ) < 2 and _is_becoming(pid):
            os.sched_yield()
            environ = found[pid] = read_environ(pid)
            if time.monotonic() > deadline:
                break
    return found


def _is_becoming(pid: int) -> bool:
    """Whether a process that shows no environment may yet: no kernel thread, not dead, and no command line either."""
    stat = read_stat(pid)
    if stat is None or stat.is_kernel or stat.state in "ZX":
        return False
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
            return not file.read(1)
    except OSError:
        return False


def started_by_shell(shell_pid: int, not_before_s: float) -> list[int]:
    """Every process that `shell_pid` started at or after `not_before_s` (boot uptime), whatever its environment.

    A subshell that was forked and never exec'd shows the shell's own first environment, so it has no marker. It counts
    when it is in the shell's session or descends from the shell, unless an older process than `not_before_s` lies
    between: then it belongs to an earlier command's background job.
    """
    table = {pid: stat for pid in pids() if (stat := read_stat(pid)) is not None}
    shell = table.get(shell_pid)
    if shell is None:
        return []

    def is_new(stat: ProcessStat) -> bool:
        # One tick of slack: start times are rounded down.
        return stat.started_s >= not_before_s - 1 / _TICKS

    def belongs(stat: ProcessStat) -> bool:
        current, seen = stat, 0
        while seen < len(table):
            if current.pid == shell_pid:
                return True
            if not is_new(current):
                return False
            parent = table.get(current.parent)
            if parent is None or parent.session != shell.session:
                return current.session == shell.session
            current, seen = parent, seen + 1
        return False

    return [
        stat.pid
        for stat in table.values()
        if stat.pid != shell_pid and stat.state != "Z" and is_new(stat) and belongs(stat)
    ]


def kill_marked(
    marker: str, *, shell_pid: int | None = None, not_before_s: float = 0.0, namespace_of: int | None = None
) -> None:
    """`Sandbox.kill_marked` for processes of this host; `shell_pid` is the number that the shell has on the host, and
    `not_before_s` the boot uptime at which its command was sent.

    With `namespace_of`, only what runs in that process's namespace: an `nsenter` outside carries the marker too, but
    must live to reap its child, or the child stays a zombie that keeps the namespace from ending.
    """
    namespace = None if namespace_of is None else process_namespace(namespace_of)
    needle = b"\0" + f"{EXEC_VARIABLE}={marker}".encode() + b"\0"
    foreign = b"\0" + f"{EXEC_VARIABLE}=".encode()

    def find() -> list[int]:
        started = [] if shell_pid is None else started_by_shell(shell_pid, not_before_s)
        # Read after the family: what gets its marker between the two is found by the marker.
        table = environs()
        found = {pid for pid, environ in table.items() if needle in environ}
        found.update(pid for pid in started if foreign not in table.get(pid, foreign))
        return [pid for pid in found if namespace in (None, process_namespace(pid))]

    kill_until_none(find)


class SessionSweep:
    """Kills everything that carries a closed sandbox's `HERMES_SESSION`, many sandboxes in one pass over /proc.

    A pass costs milliseconds whatever the number of sandboxes, so after one the next waits: passes take a tenth of the
    loop's time at most, and sandboxes that close meanwhile share one.
    """

    _REST = 9.0

    def __init__(self) -> None:
        self._waiting: dict[bytes, asyncio.Future[None]] = {}
        self._next_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def kill(self, session: str) -> None:
        """Returns once nothing on this host carries `HERMES_SESSION=<session>`."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting.setdefault(session.encode(), loop.create_future())
        if self._timer is None:
            self._timer = loop.call_later(max(0.0, self._next_at - loop.time()), self._run, loop)
        await asyncio.shield(waiting)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        waiting, self._waiting = self._waiting, {}
        began = loop.time()
        kill_sessions(set(waiting))
        self._next_at = loop.time() + self._REST * (loop.time() - began)
        for future in waiting.values():
            if not future.done():
                future.set_result(None)


def kill_sessions(sessions: set[bytes]) -> None:
    """Kill every process that carries one of these `HERMES_SESSION` values."""
    needle = b"\0" + SESSION_VARIABLE.encode() + b"="

    def find() -> list[int]:
        found = []
        for pid, environ in environs().items():
            at = environ.find(needle)
            if at >= 0:
                value = environ[at + len(needle) :].partition(b"\0")[0]
                if value in sessions:
                    found.append(pid)
        return found

    kill_until_none(find)


def host_pid(inner_pid: int, *, namespace_of: int) -> int | None:
    """The host's number of the process that is `inner_pid` in the process namespace of host process `namespace_of`."""
    namespace = process_namespace(namespace_of)
    for pid in pids():
        if not namespace or process_namespace(pid) != namespace:
            continue
        try:
            with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123
                line = next(line for line in file if line.startswith(b"NSpid:"))
        except (OSError, StopIteration):
            continue
        if int(line.split()[-1]) == inner_pid:
            return pid
    return None
