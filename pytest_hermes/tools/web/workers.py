"""The worker processes that read pages: at most two busy per event loop, kept for the next page, killed when too slow.

Python cannot stop a thread in a parser; a process can be killed. An idle worker belongs to no loop; it ends with the
run (`stop_idle`).
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import weakref
from typing import Any

WORKERS = 2
START_TIMEOUT_S = 60.0
_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TMPDIR", "TZ")
_START = "import sys; sys.path += sys.argv[1:]; from pytest_hermes.tools.web.worker import main; main()"
_slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()


def message(header: dict[str, Any], body: bytes) -> bytes:
    """A message as it is sent, in either direction; see `worker`."""
    head = json.dumps(header).encode()
    return b"".join((struct.pack("!Q", len(head)), head, struct.pack("!Q", len(body)), body))


class WorkerDied(Exception):
    """The worker ended while it read a page."""


class WorkerNotStarted(Exception):
    """No worker can be had: it could not be spawned, ended, or was not ready in time, before it got a page."""


class Worker:
    """One process. `ask` it one thing at a time, from any loop.

    Raises WorkerNotStarted where the machine has no descriptor, process or interpreter for it.
    """

    def __init__(self) -> None:
        if not sys.executable:
            raise WorkerNotStarted("this Python does not know its own interpreter")
        try:
            self._socket, theirs = socket.socketpair()
        except OSError as error:
            raise WorkerNotStarted(str(error)) from error
        # The parent's path comes last, so that a file beside somebody's tests cannot stand for a standard module.
        bytecode = ["-B"] if sys.dont_write_bytecode else []
        path = [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", *bytecode, "-c", _START, *path],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                    cwd="/",
                    start_new_session=True,
                )
            except BaseException as error:
                self._socket.close()
                if isinstance(error, OSError):
                    raise WorkerNotStarted(str(error)) from error
                raise
        self._socket.setblocking(False)
        self.pid = self._process.pid
        self._is_ready = False

    async def ready(self) -> None:
        """Wait until it has imported what it needs. Raises WorkerNotStarted."""
        if self._is_ready:
            return
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._message()
        except TimeoutError as error:
            raise WorkerNotStarted(f"it was not ready within {START_TIMEOUT_S:g} s") from error
        except WorkerDied as error:
            raise WorkerNotStarted("it ended at once") from error
        self._is_ready = True

    async def ask(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """Header and body of the answer. Raises WorkerDied."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, message(header, body))
        except ConnectionError as error:
            raise WorkerDied(str(error)) from error
        return await self._message()

    async def _message(self) -> tuple[dict[str, Any], bytes]:
        try:
            return json.loads(await self._frame()), await self._frame()
        except (ConnectionError, EOFError) as error:
            raise WorkerDied(str(error)) from error

    async def _frame(self) -> bytes:
        (size,) = struct.unpack("!Q", await self._receive(8))
        return await self._receive(size)

    async def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            chunk = await asyncio.get_running_loop().sock_recv(self._socket, min(size - len(received), 262_144))
            if not chunk:
                raise EOFError("the worker ended")
            received += chunk
        return bytes(received)

    def has_ended(self) -> bool:
        """Whether the process is gone; reaps it."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """End the process without waiting for it."""
        self._socket.close()
        self._process.kill()

    def wait(self) -> None:
        """Reap a killed process; blocks for a moment."""
        self._process.wait()


_all: set[Worker] = set()
_idle: list[Worker] = []
_lock = threading.Lock()
"""Held for every look at these two: loops of several threads share them."""


async def ask(header: dict[str, Any], body: bytes, timeout_s: float) -> tuple[dict[str, Any], bytes]:
    """A worker's answer, once one is free. Raises TimeoutError after `timeout_s` of its work, WorkerDied or
    WorkerNotStarted."""
    slots = _slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(WORKERS))
    async with slots:
        worker = _take()
        try:
            await worker.ready()
            async with asyncio.timeout(timeout_s):
                header, body = await worker.ask(header, body)
        except BaseException:  # it may still work on that page, or send its answer
            worker.kill()
            raise
        with _lock:
            is_kept = not header["spent"] and len(_idle) < WORKERS
            if is_kept:
                _idle.append(worker)
        if not is_kept:
            worker.kill()
        return header, body


def _take() -> Worker:
    with _lock:
        _all.difference_update([worker for worker in _all if worker not in _idle and worker.has_ended()])
        while _idle:
            worker = _idle.pop()
            if not worker.has_ended():
                return worker
            worker.kill()
            _all.discard(worker)
        worker = Worker()
        _all.add(worker)
        return worker


def stop_idle() -> None:
    """End the workers that are kept for the next page; blocks for a moment."""
    with _lock:
        ended = list(_idle)
        _idle.clear()
        _all.difference_update(ended)
    _end(ended)


def stop() -> None:
    """End all workers, also those at work; blocks for a moment."""
    with _lock:
        ended = list(_all)
        _idle.clear()
        _all.clear()
    _end(ended)


def _end(workers: list[Worker]) -> None:
    for worker in workers:
        worker.kill()
        worker.wait()


def _forget() -> None:
    global _lock
    _lock = threading.Lock()  # whoever held it is not in this process
    _idle.clear()
    _all.clear()


atexit.register(stop)
os.register_at_fork(after_in_child=_forget)  # a worker answers one process only
