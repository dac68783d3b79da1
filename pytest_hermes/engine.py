"""The engine: rollouts K at a time on an event loop in a background thread, each started at most once.

pytest's thread submits jobs and waits on handles; everything slow happens on the loop. A finished rollout's row is on
disk before its handle is done. A slot is free again when its rollout has ended; with `hold_slots` (fail-fast runs) only
when the item has been reported, so that nothing starts that -x would have kept from starting.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_hermes.artifacts.records import row_of
from pytest_hermes.artifacts.run_directory import RunDirectory
from pytest_hermes.errors import RunAborted
from pytest_hermes.job import BodyGate, Job
from pytest_hermes.rollout import Rollout, run_rollout

if TYPE_CHECKING:
    from pytest_hermes.services import Services

ABORT_POLL_S = 0.2
CLOSE_LIMIT_S = 120.0


class Handle:
    """One submitted job. `ready` is set when its item can be reported: rollout over, or waiting for the test body."""

    def __init__(self, job: Job, gate: BodyGate | None) -> None:
        self.job = job
        self.gate = gate
        self.done: concurrent.futures.Future[Rollout] = concurrent.futures.Future()
        self.running = False
        self.submitted = time.monotonic()
        self.reported: asyncio.Event | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        return self.done.done() or self.open

    @property
    def open(self) -> bool:
        """The sandbox is alive and the test body may judge."""
        return self.gate is not None and self.gate.ctx is not None


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
        self._closed = False
        self.loop = asyncio.new_event_loop()
        self._slots = asyncio.Semaphore(concurrency)
        self._thread = threading.Thread(target=self._serve, name="hermes-engine", daemon=True)
        self._thread.start()

    # -- called from pytest's thread -----------------------------------------------------------------

    def submit(self, job: Job, gate: BodyGate | None = None) -> Handle:
        """Start a job as soon as a slot is free."""
        handle = Handle(job, gate)
        if gate is not None:
            gate.opened = lambda: self._notify(handle)
        self._handles.add(handle)
        self.loop.call_soon_threadsafe(self._start, handle)
        return handle

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
        if handle.reported is not None:
            self.loop.call_soon_threadsafe(handle.reported.set)

    def cancel(self, handle: Handle) -> None:
        """Stop a rollout that nobody waits for any more."""
        if handle.gate is not None:
            handle.gate.judge(RunAborted("the run was stopped"))
        if handle.task is not None and not handle.done.done():
            self.loop.call_soon_threadsafe(handle.task.cancel)

    def abort(self, reason: str) -> None:
        """Stop the whole run: cancel what is in flight, start nothing more. Returns at once."""
        self.loop.call_soon_threadsafe(self._abort, reason)

    @property
    def in_flight(self) -> list[Handle]:
        """Handles whose rollout is running now."""
        return [handle for handle in list(self._handles) if handle.running]

    def close(self) -> None:
        """Cancel what still runs, wait for its teardown, close connections, end the thread. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            asyncio.run_coroutine_threadsafe(self._close(), self.loop).result(timeout=CLOSE_LIMIT_S)
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(5)
            self.run.close()

    # -- on the loop -----------------------------------------------------------------------------------

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def services(self) -> Services:
        if self._services is None:
            self._services = self._make_services(self.loop)
            self.loop.call_later(ABORT_POLL_S, self._watch_abort_flag)
        return self._services

    def _start(self, handle: Handle) -> None:
        handle.reported = asyncio.Event()
        handle.task = self.loop.create_task(self._one(handle))
        if self.aborted:
            handle.task.cancel()

    async def _one(self, handle: Handle) -> None:
        rollout: Rollout | None = None
        try:
            async with self._slots:
                handle.running = True
                try:
                    queued = time.monotonic() - handle.submitted
                    rollout = await run_rollout(handle.job, self.services(), handle.gate, queued)
                    rollout.record = self._record(rollout)
                finally:
                    handle.running = False
                    self._settle(handle, rollout, None)
                if self.hold_slots and handle.reported is not None and not self.aborted:
                    await handle.reported.wait()
        except asyncio.CancelledError:
            self._settle(handle, rollout, RunAborted(self.aborted or "the run was stopped"))
        except BaseException as error:
            self._settle(handle, rollout, error)
            if not isinstance(error, Exception):
                raise

    def _settle(self, handle: Handle, rollout: Rollout | None, error: BaseException | None) -> None:
        if handle.done.done():
            return
        if rollout is not None:
            handle.done.set_result(rollout)
        elif error is not None:
            handle.done.set_exception(error)
        else:
            return
        self._notify(handle)

    def _record(self, rollout: Rollout) -> str:
        self.run.append(row_of(rollout, self.run.run_id, self.run.worker), self.services().secrets)
        return str(self.run.shard)

    def record_again(self, rollout: Rollout) -> None:
        """Append the row once more, with the test body's judgement. From pytest's thread."""

        async def append() -> None:
            self._record(rollout)

        asyncio.run_coroutine_threadsafe(append(), self.loop).result()

    def _watch_abort_flag(self) -> None:
        if self.aborted or self._closed:
            return
        if self._handles and self.run.abort_flag.exists():
            self._abort(self.run.abort_flag.read_text() or "the run was stopped")
        else:
            self.loop.call_later(ABORT_POLL_S, self._watch_abort_flag)

    def _abort(self, reason: str) -> None:
        self.aborted = reason
        for handle in list(self._handles):
            if handle.task is not None and not handle.done.done():
                handle.task.cancel()
            if handle.reported is not None:
                handle.reported.set()

    async def _close(self) -> None:
        tasks = [handle.task for handle in self._handles if handle.task is not None and not handle.task.done()]
        self.aborted = self.aborted or "the run was stopped"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._services is not None:
            await self._services.aclose()

    def _notify(self, handle: Handle) -> None:
        with self.changed:
            self.became_ready.append(handle)
            self.changed.notify_all()
