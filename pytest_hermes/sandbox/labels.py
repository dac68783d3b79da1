"""Who owns a sandbox, written on it as labels, and the one rule that says whether that owner is dead.

A sandbox may be removed by others only when its owner is dead: on the same machine (host, boot and process namespace
alike) when the owning process is gone or its number now belongs to another process; anywhere else only once the lease
has run out, because a process elsewhere cannot be looked at.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from pytest_hermes.sandbox.proctable import read_stat

PREFIX = "pytest-hermes"
"""Every sandbox carries the label `pytest-hermes=1`; the others are `pytest-hermes.<field>`."""


@dataclasses.dataclass(frozen=True)
class Owner:
    """The process that a sandbox belongs to. `lease_until` is in Unix seconds."""

    run: str
    host: str
    boot: str
    pid_namespace: str
    pid: int
    started: str
    worker: str
    item: str
    lease_until: float

    @classmethod
    def here(cls, *, run: str, worker: str = "main", item: str = "", lease_s: float = 6 * 3600.0) -> Owner:
        """This process as the owner, for `lease_s` seconds."""
        return cls(
            run=run,
            host=socket.gethostname(),
            boot=_boot_id(),
            pid_namespace=_pid_namespace(),
            pid=os.getpid(),
            started=_own_start(os.getpid()),
            worker=worker,
            item=item,
            lease_until=time.time() + lease_s,
        )

    def labels(self) -> dict[str, str]:
        """The labels to put on a sandbox; `Owner.read` takes them back."""
        fields = {
            f"{PREFIX}.{field.name.replace('_', '-')}": str(getattr(self, field.name))
            for field in dataclasses.fields(self)
        }
        return {PREFIX: "1", **fields}

    @classmethod
    def read(cls, labels: Mapping[str, str]) -> Owner | None:
        """The owner that labels name, or None when they are not ours or not whole."""
        try:
            values = {
                field.name: labels[f"{PREFIX}.{field.name.replace('_', '-')}"] for field in dataclasses.fields(cls)
            }
            return cls(
                run=values["run"],
                host=values["host"],
                boot=values["boot"],
                pid_namespace=values["pid_namespace"],
                pid=int(values["pid"]),
                started=values["started"],
                worker=values["worker"],
                item=values["item"],
                lease_until=float(values["lease_until"]),
            )
        except (KeyError, ValueError):
            return None

    def is_dead(self) -> bool:
        """The rule of this module."""
        if (self.host, self.pid_namespace) == (socket.gethostname(), _pid_namespace()):
            if self.boot != _boot_id():
                return True
            return _started(self.pid) != self.started
        return time.time() > self.lease_until


@functools.cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def _pid_namespace() -> str:
    return _pid_namespace_of(os.getpid())


@functools.cache
def _pid_namespace_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115
    except OSError:
        return "unknown"


@functools.cache
def _own_start(pid: int) -> str:
    """As `_started`, for this process: asked once (and again in a forked child)."""
    return _started(pid)


def _started(pid: int) -> str:
    """When a process started, in a form that only compares equal for the same process; `gone` without one."""
    stat = read_stat(pid)
    if stat is None:
        if Path("/proc/self").exists():
            return "gone"
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return "gone"
        except PermissionError:
            pass
        return "unknown"
    return "gone" if stat.state == "Z" else f"{stat.started_s:.2f}"
