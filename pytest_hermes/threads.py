"""Blocking code beside the engine's loop, in a daemon thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """The function's result; what it raises, StopIteration included, arrives as it was raised.

    On cancellation the thread is left to itself; being a daemon it does not keep the process alive. An executor would:
    its threads are joined when the interpreter ends.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    outcome: list[Any] = []

    def note() -> None:
        if not ended.done():
            ended.set_result(None)

    def work() -> None:
        try:
            outcome.extend((function(*arguments), None))
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            outcome.extend((None, error))
        try:
            loop.call_soon_threadsafe(note)
        except RuntimeError:
            return  # the engine has gone meanwhile, and with it whoever waited

    threading.Thread(target=work, name=f"hermes-{getattr(function, '__name__', 'call')}", daemon=True).start()
    await ended
    result, error = outcome
    if isinstance(error, StopIteration):
        raise RuntimeError(f"StopIteration: {error}") from error
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]
