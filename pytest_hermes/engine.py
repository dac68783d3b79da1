"""The engine: rollouts K at a time on an event loop in a background thread, each started at most once.

pytest's thread submits jobs and waits on handles; everything slow happens on the loop. A finished rollout's row is on
disk before its handle is done. A slot is free again when its rollout has ended; with `hold_slots` (fail-fast runs) only
when the item has been reported, so that nothing starts that -x would have kept from starting. A handle that pytest's
thread is about to block on is expedited: it needs no slot, for those that hold one may be waiting for that thread.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_hermes.artifacts.records import append_rollout
from pytest_hermes.artifacts.run_directory import RunDirectory
from pytest_hermes.errors import RunAborted
from pytest_hermes.job import BodyGate, Job
from pytest_hermes.phases import run_rollout
from pytest_hermes.rollout import Rollout

if TYPE_CHECKING:
    from pytest_hermes.services import Services

ABORT_POLL_S = 0.2
CLOSE_LIMIT_S = 120.0


class Handle:
    """One submitted job. Ready when its item can be reported: rollout over, or waiting for the test body."""

    def __init__(self, job: Job, gate: BodyGate | None) -> None:
        self.job = job
        self.gate = gate
        self.done: concurrent.futures.Future[Rollout] = concurrent.futures.Future()
        self.submitted = time.monotonic()
        self.task: asyncio.Task[None] | None = None
        """The rollout while it runs; None while the job waits for a slot."""
        self.holds_slot = False
        self.reported = False

    @property
    def ready(self) -> bool:
        return self.done.done() or self.open

    @property
    def open(self) -> bool:
        """The sandbox is alive and the test body may judge."""
        return self.gate is not None and self.gate.ctx is not None and not self.done.done()


class Engine:
    """See the module docstring. `make_services` is called on the loop, once, when the first job starts."""

    def __init__(
        self,
        run: RunDirectory,
        make_services: Callable[[asyncio.AbstractEventLoop], Services],
        *,
        concurrency: int,
        hold_slots: bool = False,
    ) -> None:
        self.run = run
        self.concurrency = concurrency
        self.hold_slots = hold_slots
        self.changed = threading.Condition()
        """Notified whenever a handle has become ready."""
        self.became_ready: collections.deque[Handle] = collections.deque()
        """Handles in the order in which they became ready; the run loop takes them from here."""
        self.aborted: str | None = None
        self._make_services = make_services
        self._services: Services | None = None
        self._handles: set[Handle] = set()
        self._waiting: collections.deque[Handle] = collections.deque()
        self._free = concurrency
        self._closed = False
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="hermes-engine", daemon=True)
        self._thread.start()

    # -- called from pytest's thread -----------------------------------------------------------------

    def submit(self, job: Job, gate: BodyGate | None = None) -> Handle:
        """Start a job as soon as a slot is free."""
        handle = Handle(job, gate)
        if gate is not None:
            gate.opened = lambda: self._notify(handle)
        self._handles.add(handle)
        self.loop.call_soon_threadsafe(self._enqueue, handle)
        return handle

    def wait_for(self, handle: Handle, on_idle: Callable[[], None] = lambda: None) -> None:
        """Block pytest's thread until the handle is ready, starting it at once if it still waits for a slot."""
        self.loop.call_soon_threadsafe(self._expedite, handle)
        self.wait(lambda: handle.ready, on_idle)

    def wait(self, ready: Callable[[], Any], on_idle: Callable[[], None] = lambda: None) -> Any:
        """Block pytest's thread until `ready()` is truthy; its value. `on_idle` is called about once a second."""
        with self.changed:
            while not (found := ready()):
                if not self._thread.is_alive():
                    raise RuntimeError("the engine's thread has died")
                self.changed.wait(1.0)
                on_idle()
        return found

    def report_done(self, handle: Handle) -> None:
        """The handle's item has been reported (or will never be): forget it."""
        self._handles.discard(handle)
        self.loop.call_soon_threadsafe(self._reported, handle)

    def cancel(self, handle: Handle) -> None:
        """Stop a rollout that nobody waits for any more."""
        self.loop.call_soon_threadsafe(self._cancel, handle)

    def abort(self, reason: str) -> None:
        """Stop the whole run: cancel what is in flight, start nothing more. Returns at once."""
        self.loop.call_soon_threadsafe(self._abort, reason)

    @property
    def in_flight(self) -> list[Handle]:
        """Handles whose rollout is running now."""
        return [handle for handle in list(self._handles) if handle.task is not None and not handle.done.done()]

    def record_again(self, rollout: Rollout) -> None:
        """Append the row once more, with what the test made of it."""
        asyncio.run_coroutine_threadsafe(self._record(rollout), self.loop).result()

    def close(self) -> None:
        """Cancel what still runs, wait for its teardown, close connections, end the thread. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._thread.is_alive():
            closing = asyncio.run_coroutine_threadsafe(self._close(), self.loop)
            with contextlib.suppress(TimeoutError):
                closing.result(timeout=CLOSE_LIMIT_S)
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(5)
        self.run.close()

    # -- on the loop -----------------------------------------------------------------------------------

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue  # a task that an agent spawned wanted the process to end; its rollout hears of it, we go on
            break
        self.loop.close()

    def services(self) -> Services:
        """What rollouts share, made on first use."""
        if self._services is None:
            self._services = self._make_services(self.loop)
            self.loop.call_later(ABORT_POLL_S, self._watch_abort_flag)
        return self._services

    def _enqueue(self, handle: Handle) -> None:
        if self.aborted:
            self._settle(handle, RunAborted(self.aborted))
        elif self._free > 0:
            self._free -= 1
            handle.holds_slot = True
            self._start(handle)
        else:
            self._waiting.append(handle)

    def _expedite(self, handle: Handle) -> None:
        if handle in self._waiting:
            self._waiting.remove(handle)
            self._start(handle)

    def _start(self, handle: Handle) -> None:
        handle.task = self.loop.create_task(self._one(handle))
        handle.task.add_done_callback(lambda task: self._ended(handle, task))

    async def _one(self, handle: Handle) -> None:
        rollout = await run_rollout(
            handle.job, self.services(), handle.gate, queued_s=time.monotonic() - handle.submitted
        )
        await self._record(rollout)
        handle.done.set_result(rollout)

    def _ended(self, handle: Handle, task: asyncio.Task[None]) -> None:
        """The rollout's task is over, whatever way: the handle is done, the slot perhaps free."""
        if task.cancelled():
            self._settle(handle, RunAborted(self.aborted or "the run was stopped"))
        elif (error := task.exception()) is not None:
            self._settle(handle, error)
        self._notify(handle)
        if not self.hold_slots or handle.reported:
            self._release(handle)

    def _settle(self, handle: Handle, error: BaseException) -> None:
        if not handle.done.done():
            handle.done.set_exception(error)
            self._notify(handle)

    def _reported(self, handle: Handle) -> None:
        handle.reported = True
        if handle.done.done():
            self._release(handle)

    def _release(self, handle: Handle) -> None:
        if not handle.holds_slot:
            return
        handle.holds_slot = False
        self._free += 1
        if self._waiting:
            self._enqueue(self._waiting.popleft())

    async def _record(self, rollout: Rollout) -> None:
        """Write the row. Raises ConfigurationError if it cannot be written: then the item says so."""
        append_rollout(self.run, rollout, self.services().secrets)

    def _cancel(self, handle: Handle) -> None:
        if handle in self._waiting:
            self._waiting.remove(handle)
            self._settle(handle, RunAborted("the run was stopped"))
        elif handle.task is not None and not handle.task.done():
            handle.task.cancel()

    def _watch_abort_flag(self) -> None:
        if self.aborted or self._closed:
            return
        if self._handles and self.run.abort_flag.exists():
            self._abort(self.run.abort_flag.read_text() or "the run was stopped")
        else:
            self.loop.call_later(ABORT_POLL_S, self._watch_abort_flag)

    def _abort(self, reason: str) -> None:
        self.aborted = self.aborted or reason
        for handle in list(self._handles):
            self._cancel(handle)

    async def _close(self) -> None:
        running = [handle.task for handle in self._handles if handle.task is not None and not handle.task.done()]
        self._abort("the run was stopped")
        if running:
            await asyncio.wait(running)
        if self._services is not None:
            await self._services.aclose()

    def _notify(self, handle: Handle) -> None:
        with self.changed:
            self.became_ready.append(handle)
            self.changed.notify_all()
