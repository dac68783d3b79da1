"""A semaphore across processes: at most `count` holders of a name on this machine (and this user) at any time.

A place is an flock on one of `count` files, so a process that dies gives its place back whatever killed it. Used for
sandbox starts (a container daemon gets slower, not faster, with more at once) and for verifiers.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

_FIRST_WAIT_S = 0.005
_LONGEST_WAIT_S = 0.05


def runtime_directory() -> Path:
    """This user's directory for locks: `$XDG_RUNTIME_DIR/pytest-hermes`, else one below the temporary directory."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.access(base, os.W_OK):
        path = Path(base, "pytest-hermes")
    else:
        path = Path(tempfile.gettempdir(), f"pytest-hermes-{os.getuid()}")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


class Slots:
    """`async with slots.slot():` holds one of `count` places of `name` in `directory`.

    Within a process waiters are served in order, and only the first of them asks the kernel: flock can be tried or
    waited for in a thread, and a thread cannot be cancelled, so it is tried every few hundredths of a second.
    """

    def __init__(self, directory: Path, name: str, count: int) -> None:
        if count < 1:
            raise ValueError(f"{name}: {count} places would let nothing start")
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._paths = [directory / f"{name}-{number}.lock" for number in range(count)]
        self._first = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        async with self._first:
            descriptor = await self._acquire()
        try:
            yield
        finally:
            os.close(descriptor)

    async def _acquire(self) -> int:
        wait_s = _FIRST_WAIT_S
        order = list(self._paths)
        while True:
            random.shuffle(order)
            for path in order:
                descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(descriptor)
                else:
                    return descriptor
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))
            wait_s = min(_LONGEST_WAIT_S, wait_s * 2)
