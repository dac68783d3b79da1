"""Synchronous calls inside coroutines: `await drive(coroutine)` lets what runs in it wait without blocking its loop.

Each step of the coroutine runs in a greenlet. A synchronous function in it calls `wait`: that switches to the driver,
which hands the future up to the event loop as an `await` would, and switches back with the result. So the coroutine
stays on its own loop and task, with its context variables, and a cancellation is raised in the waiting call. Tasks that
are created during a step (create_task, gather, TaskGroup, and what those create) are driven as well: a task factory
that is in place for the length of the step alone sees to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Coroutine, Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from greenlet import getcurrent, greenlet

if TYPE_CHECKING:
    import pytest

T = TypeVar("T")


def drive(coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """A coroutine with the course and result of the given one, in which `wait` works."""
    return Driven(coroutine)


def is_driven() -> bool:
    """Whether the caller runs in a driven coroutine of this thread, so that `wait` works."""
    return _enclosing_step() is not None


def wait(start: Callable[[], asyncio.Future[T]]) -> T:
    """The result of the future that `start` gives, called on the running loop, which goes on meanwhile.

    Raises what the future raises, CancelledError when the caller's task is cancelled (the future is, too), and
    RuntimeError outside a driven coroutine or while that is being closed.
    """
    step = _enclosing_step()
    if step is None or step.parent is None:
        raise RuntimeError("wait() was called outside a driven coroutine")
    result: T = step.parent.switch(_Request(start, getcurrent(), step))
    return result


@dataclasses.dataclass(frozen=True)
class _Request:
    """What a waiting greenlet hands to the driver. `sleeper` is `step`, or a greenlet that user code made in it."""

    start: Callable[[], asyncio.Future[Any]]
    sleeper: greenlet
    step: _Step


class _Step(greenlet):
    """Runs one step of a driven coroutine; its parent is the greenlet that drives."""


def _enclosing_step() -> _Step | None:
    current: greenlet | None = getcurrent()
    while current is not None and not isinstance(current, _Step):
        current = current.parent
    return current


class Driven(Coroutine[Any, Any, T]):
    """See `drive`. A coroutine object for tasks and `await`, with the coroutine protocol's methods."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._waiting: tuple[_Request, Generator[Any, None, Any]] | None = None
        """The call that sleeps in the coroutine, and the iterator of the future it waits for."""

    def __await__(self) -> Generator[Any, None, T]:
        return (yield from cast("Generator[Any, None, T]", _Steps(self)))

    def send(self, value: Any) -> Any:
        return self._advance(value, None)

    def throw(
        self,
        error: type[BaseException] | BaseException,
        value: BaseException | object = None,
        traceback: TracebackType | None = None,
    ) -> Any:
        raised = error if isinstance(error, BaseException) else error(*() if value is None else (value,))
        return self._advance(None, raised.with_traceback(traceback) if traceback else raised)

    def close(self) -> None:
        """As for any coroutine: GeneratorExit where it stands. A `wait` on its way out raises RuntimeError."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            request, awaited = waiting
            awaited.close()
            with contextlib.suppress(GeneratorExit, StopIteration):
                _refuse(_enter_again(request, None, GeneratorExit()))
        _refuse(_enter(_Step(lambda _: self._coroutine.close()), None))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)  # cr_code, __qualname__ and so on: what a task's repr shows

    def _advance(self, value: Any, error: BaseException | None) -> Any:
        """One step: what is to be handed up to the loop. StopIteration with the result at the coroutine's end."""
        outcome: Any
        while True:
            if self._waiting is None:
                step = _Step(self._coroutine.send if error is None else self._coroutine.throw)
                outcome = _enter(step, value if error is None else error)
            else:
                request, awaited = self._waiting
                try:
                    return awaited.send(None) if error is None else awaited.throw(error)
                except StopIteration as end:
                    value, error = end.value, None
                except BaseException as raised:  # noqa: BLE001 - the waiting call's to handle
                    error = raised
                self._waiting = None
                outcome = _enter_again(request, value, error)
            if not isinstance(outcome, _Request):
                return outcome
            self._waiting, value, error = (outcome, _awaiting(outcome.start)), None, None


class _Steps(Iterator[Any]):
    """`Driven` for `yield from`."""

    def __init__(self, driven: Driven[Any]) -> None:
        self.send, self.throw, self.close = driven.send, driven.throw, driven.close

    def __next__(self) -> Any:
        return self.send(None)


def _awaiting(start: Callable[[], asyncio.Future[T]]) -> Generator[Any, None, T]:
    future = start()
    try:
        return (yield from future.__await__())
    except BaseException:
        future.cancel()
        raise


def _refuse(outcome: Any) -> None:
    while isinstance(outcome, _Request):
        outcome = _enter_again(outcome, None, RuntimeError("a synchronous call in a coroutine that is being closed"))


def _enter(step: _Step, value: Any) -> Any:
    """Run a new step until it ends or waits."""
    step.gr_context = getcurrent().gr_context
    with _driving_new_tasks():
        return step.switch(value)


def _enter_again(request: _Request, value: Any, error: BaseException | None) -> Any:
    """Go on with a waiting call until its step ends or waits again."""
    request.step.parent = getcurrent()  # where it began may have ended: a step of a coroutine that drives this one
    with _driving_new_tasks():
        return request.sleeper.switch(value) if error is None else request.sleeper.throw(error)


class _Factory:
    """A task factory that drives the coroutines of new tasks and leaves the rest to the loop's own."""

    def __init__(self, before: Callable[..., Any] | None) -> None:
        self.before = before

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Any, /, **more: Any) -> Any:
        driven = coroutine if isinstance(coroutine, Driven) else Driven(coroutine)
        if self.before is not None:
            return self.before(loop, driven, **more)
        return asyncio.Task(driven, loop=loop, **more)


@contextlib.contextmanager
def _driving_new_tasks() -> Iterator[None]:
    """Nothing but this step runs on the loop until it is left, so nobody else's tasks are touched."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # a coroutine that is closed after its loop
        yield
        return
    before: Any = loop.get_task_factory()
    if isinstance(before, _Factory):
        yield
        return
    ours = _Factory(before)
    loop.set_task_factory(ours)
    try:
        yield
    finally:
        if loop.get_task_factory() is ours:
            loop.set_task_factory(before)


@contextlib.contextmanager
def driven_body(item: pytest.Item) -> Iterator[None]:
    """While this lasts, the item's test function, if it is an `async def`, is a driven one."""
    body = getattr(item, "obj", None)
    if not inspect.iscoroutinefunction(body):
        yield
        return

    @functools.wraps(body)
    async def driven(*arguments: Any, **more: Any) -> Any:
        __tracebackhide__ = True
        return await drive(body(*arguments, **more))

    item.obj = driven  # type: ignore[attr-defined]
    try:
        yield
    finally:
        item.obj = body  # type: ignore[attr-defined]
