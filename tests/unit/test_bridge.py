"""Synchronous calls inside coroutines, and ToolContext used that way on the engine's loop and on a foreign one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_hermes import bridge
from pytest_hermes.bridge import drive
from pytest_hermes.sandbox.labels import Owner
from pytest_hermes.sandbox.local import LocalProvider
from pytest_hermes.sandbox.protocol import Sandbox, SandboxRequest
from pytest_hermes.task import SandboxSpec
from pytest_hermes.tool_context import ToolContext
from pytest_hermes.tools.toolbox import Toolbox

name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="outside")


def call(value: Any = None, after: Awaitable[Any] | None = None) -> Any:
    """A synchronous function that waits for `after` (default: one turn of the loop) and gives `value`."""

    async def work() -> Any:
        await (after or asyncio.sleep(0))
        if isinstance(value, BaseException):
            raise value
        return value

    return bridge.wait(lambda: asyncio.ensure_future(work()))


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 30))


# -- the bridge alone ------------------------------------------------------------------------------------


def test_calls_and_awaits_in_turn() -> None:
    async def body() -> list[Any]:
        seen = [call(1), await asyncio.sleep(0, 2), call(3), call(4)]
        with pytest.raises(KeyError, match="five"):
            call(KeyError("five"))
        with pytest.raises(ValueError, match="six"):
            await asyncio.wait_for(failing(), 5)
        return seen

    async def failing() -> None:
        await asyncio.sleep(0)
        raise ValueError("six")

    async def main() -> None:
        assert await drive(body()) == [1, 2, 3, 4]
        assert await asyncio.create_task(drive(body())) == [1, 2, 3, 4]

    run(main())


def test_the_loop_goes_on_while_a_call_waits() -> None:
    async def main() -> None:
        gate = asyncio.Event()
        waiting = asyncio.create_task(drive(body(gate)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        gate.set()
        assert await waiting == "opened"

    async def body(gate: asyncio.Event) -> Any:
        return call("opened", gate.wait())

    run(main())


def test_the_task_and_its_context_variables_are_the_same_throughout() -> None:
    async def body() -> None:
        task = asyncio.current_task()
        name.set("body")
        assert call(name.get()) == "body"
        assert name.get() == "body"
        await asyncio.sleep(0)
        call()
        assert name.get() == "body" and asyncio.current_task() is task
        contextvars.copy_context().run(name.set, "copied")
        assert name.get() == "body"

    async def main() -> None:
        name.set("main")
        await asyncio.gather(*(asyncio.create_task(drive(body())) for _ in range(5)))
        assert name.get() == "main"
        await drive(body())
        assert name.get() == "body"  # as for any await in the same task

    run(main())


def test_tasks_made_in_a_driven_coroutine_are_driven_too() -> None:
    async def child(number: int) -> Any:
        first = call(number)
        await asyncio.sleep(0)
        (deeper,) = await asyncio.gather(grandchild(number))
        return first + deeper

    async def grandchild(number: int) -> Any:
        return call(10 * number)

    async def body() -> Any:
        made = asyncio.create_task(child(1), name="by hand")
        assert made.get_name() == "by hand" and "child" in repr(made)
        gathered = await asyncio.gather(child(2), child(3))
        async with asyncio.TaskGroup() as group:
            grouped = [group.create_task(child(number)) for number in (4, 5)]
        bounded = await asyncio.wait_for(child(6), 5)
        return [await made, *gathered, *(task.result() for task in grouped), bounded]

    async def main() -> None:
        assert await drive(body()) == [11, 22, 33, 44, 55, 66]
        assert asyncio.get_running_loop().get_task_factory() is None

    run(main())


def test_other_tasks_of_the_loop_are_not_driven_and_a_factory_of_its_own_is_kept() -> None:
    made = []

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> Any:
        made.append(type(coroutine).__name__)
        return asyncio.Task(coroutine, loop=loop, **more)

    async def outsider() -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        assert not bridge.is_driven()
        await asyncio.create_task(asyncio.sleep(0))

    async def body() -> None:
        call()
        await asyncio.create_task(asyncio.sleep(0))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(factory)
        other = asyncio.create_task(outsider())
        await drive(body())
        await other
        assert loop.get_task_factory() is factory
        loop.set_task_factory(None)

    run(main())
    assert made.count("Driven") == 1 and made.count("coroutine") == 3  # outsider, its child and the call's own work


def test_a_driven_coroutine_may_drive_another_one() -> None:
    async def inner() -> Any:
        first = call(1)
        await asyncio.sleep(0)
        return first + call(1)

    async def outer() -> Any:
        call()
        result = await drive(inner())
        await asyncio.sleep(0)
        return result + call(1)

    assert run(drive(outer())) == 3


def test_calls_from_async_generators_and_context_managers() -> None:
    @contextlib.asynccontextmanager
    async def resource() -> Any:
        yield call("made")
        call("closed")

    async def numbers() -> Any:
        for number in range(3):
            yield call(number)

    async def body() -> Any:
        async with resource() as made:
            return [made, *[number async for number in numbers()]]

    assert run(drive(body())) == ["made", 0, 1, 2]


def test_cancellation_reaches_the_waiting_call_and_what_it_waits_for() -> None:
    seen = []

    async def body(gate: asyncio.Event) -> None:
        try:
            call(None, gate.wait())
        except asyncio.CancelledError:
            seen.append("call cancelled")
            seen.append(call("cleaned up"))  # the call after a cancellation works
            raise

    async def main() -> None:
        gate = asyncio.Event()
        task = asyncio.create_task(drive(body(gate)))
        while not gate._waiters:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not gate._waiters  # type: ignore[attr-defined]

    run(main())
    assert seen == ["call cancelled", "cleaned up"]


def test_a_timeout_around_a_call_is_a_timeout_error() -> None:
    async def body() -> Any:
        try:
            async with asyncio.timeout(0.01):
                call(None, asyncio.Event().wait())
        except TimeoutError:
            return call("on")

    assert run(drive(body())) == "on"


def test_a_task_cancelled_before_its_start_leaves_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    async def body() -> None:
        child = asyncio.create_task(asyncio.sleep(60))
        child.cancel()
        await asyncio.wait([child])
        assert child.cancelled()

    run(drive(body()))
    assert not recwarn.list


def test_closing_ends_the_coroutine_where_it_stands() -> None:
    seen: list[Any] = []

    async def body(how: str) -> None:
        try:
            if how == "in a call":
                call(None, asyncio.get_running_loop().create_future())
            await asyncio.sleep(60)
        finally:
            seen.append(how)
            with pytest.raises(RuntimeError, match="being closed"):
                call()

    async def main() -> None:
        for how in ("in a call", "in an await"):
            driven = drive(body(how))
            driven.send(None)
            driven.close()
            driven.close()
            assert seen.pop() == how

    run(main())


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_errors_that_end_the_process_pass_through(error: type[BaseException]) -> None:
    async def body() -> None:
        call()
        raise error("stop")

    with pytest.raises(error, match="stop"):
        asyncio.run(drive(body()))  # type: ignore[arg-type]


def test_outside_a_driven_coroutine_waiting_says_so() -> None:
    with pytest.raises(RuntimeError, match="outside a driven coroutine"):
        call()


# -- ToolContext -----------------------------------------------------------------------------------------


class Engine:
    """A loop in a thread with sandboxes on it, as the engine has."""

    def __init__(self, root: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.provider = LocalProvider(confine="off", root=root)
        self.contexts: list[ToolContext] = []

    def wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def context(self) -> ToolContext:
        async def make() -> Sandbox:
            labels = Owner.here(run="bridge-test").labels()
            return await self.provider.create(SandboxRequest(SandboxSpec(), labels, "bridge", 600, 600))

        sandbox = self.wait(make())
        self.contexts.append(ToolContext(Toolbox(sandbox, ["terminal"]), sandbox, self.loop))
        return self.contexts[-1]

    def close(self) -> None:
        for ctx in self.contexts:
            ctx.cleanup()
        self.wait(self.provider.aclose())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path / "sandboxes")
    try:
        yield engine
    finally:
        engine.close()


class Bound:
    """A client that belongs to the loop it was made on: an echo server's connection."""

    @classmethod
    async def connected(cls) -> Bound:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                writer.write(line)
            writer.close()

        client = cls()
        client.server = await asyncio.start_server(echo, "127.0.0.1", 0)
        client.reader, client.writer = await asyncio.open_connection(*client.server.sockets[0].getsockname())
        client.lock = asyncio.Lock()
        return client

    server: asyncio.Server
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    lock: asyncio.Lock

    async def ask(self, text: str) -> str:
        async with self.lock:
            self.writer.write(f"{text}\n".encode())
            return (await self.reader.readline()).decode().strip()

    async def aclose(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()
        self.server.close()


Reward = Callable[[ToolContext, Bound], Coroutine[Any, Any, float]]


async def compute_reward(ctx: ToolContext, client: Bound) -> float:
    first = ctx.terminal("echo one >f; sleep 0.2; cat f")["output"].strip()
    heard = await client.ask(first)
    assert ctx.terminal(f"echo {heard} two >>f; sleep 0.2")["exit_code"] == 0
    lines = ctx.read_file("f")["content"]
    (again,) = await asyncio.gather(asyncio.wait_for(client.ask("bye"), 10))
    return 1.0 if (lines, again) == ("1|one\n2|one two", "bye") else 0.0


async def ticks_until(work: Awaitable[Any]) -> tuple[int, Any]:
    """How often the loop came round, with a millisecond's pause each time, until the work was done."""
    task, ticks = asyncio.ensure_future(work), 0
    while not task.done():
        await asyncio.sleep(0.001)
        ticks += 1
    return ticks, task.result()


@pytest.mark.parametrize("loop", ["the engine's own", "an environment's own"])
def test_a_bound_client_is_awaited_between_calls_and_the_loop_goes_on(engine: Engine, loop: str) -> None:
    contexts = [engine.context() for _ in range(21)]

    async def rewards_of_all() -> tuple[int, list[float]]:
        client = await Bound.connected()
        work = asyncio.gather(*(drive(compute_reward(ctx, client)) for ctx in contexts))
        ticks, rewards = await ticks_until(work)
        await client.aclose()
        return ticks, rewards

    ticks, rewards = engine.wait(rewards_of_all()) if "engine" in loop else asyncio.run(rewards_of_all())
    assert rewards == [1.0] * 21
    assert ticks >= 20  # 0.4 s of commands in a row: a blocked loop would have come round a handful of times


@pytest.mark.parametrize("where", ["engine", "environment"])
def test_concurrent_calls_of_child_tasks_run_side_by_side(engine: Engine, where: str) -> None:
    ctx = engine.context()

    async def look(number: int) -> str:
        return ctx.terminal(f"echo {number} >arrived.{number}; until [ $(ls arrived.* | wc -l) = 4 ]; do :; done; pwd")[
            "output"
        ]

    async def verify() -> set[str]:
        async with asyncio.TaskGroup() as group:  # each waits for the other three: one after the other never ends
            tasks = [group.create_task(look(number)) for number in range(4)]
        return {task.result() for task in tasks}

    driven = drive(verify())
    seen = engine.wait(driven) if where == "engine" else asyncio.run(driven)  # type: ignore[arg-type]
    assert seen == {f"{ctx.sandbox.workdir}\n"}


def test_many_threads_with_loops_of_their_own_and_plain_threads_at_once(engine: Engine) -> None:
    ctx = engine.context()

    async def by_coroutine(number: int) -> str:
        output: str = ctx.terminal(f"echo {number}")["output"]
        await asyncio.sleep(0)
        return output + await asyncio.to_thread(lambda: ctx.terminal(f"echo {number}")["output"])

    def work(number: int) -> bool:
        if number % 2:
            return ctx.terminal(f"echo {number}")["output"] == f"{number}\n"
        return asyncio.run(drive(by_coroutine(number))) == f"{number}\n{number}\n"  # type: ignore[arg-type]

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert all(pool.map(work, range(36)))


@pytest.mark.parametrize("where", ["engine", "environment"])
def test_a_cancelled_call_ends_its_command_and_the_next_one_works(engine: Engine, where: str) -> None:
    ctx = engine.context()
    seen = {}

    async def verify() -> None:
        try:
            ctx.terminal("echo $$ >started; exec sleep 4729")
        except asyncio.CancelledError:
            seen["after"] = ctx.terminal("echo on")["output"]
            seen["left"] = ctx.terminal("ps -eo args | grep -c '[s]leep 4729'")["output"]
            raise

    async def main() -> None:
        task = asyncio.create_task(drive(verify()))
        path = Path(ctx.sandbox.workdir, "started")
        while not path.exists():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    if where == "engine":
        engine.wait(main())
    else:
        asyncio.run(main())
    assert seen == {"after": "on\n", "left": "0\n"}


def test_a_keyboard_interrupt_on_an_environments_loop_ends_the_command(engine: Engine) -> None:
    ctx = engine.context()
    started = Path(ctx.sandbox.workdir, "started")

    async def environment() -> None:
        task = asyncio.create_task(drive(verify()))
        while not started.exists():
            await asyncio.sleep(0.01)
        signal.raise_signal(signal.SIGINT)
        await task

    async def verify() -> None:
        ctx.terminal("touch started; exec sleep 4730")

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(environment())
    assert ctx.terminal("echo on")["output"] == "on\n"
    assert ctx.terminal("ps -eo args | grep -c '[s]leep 4730'")["output"] == "0\n"


def test_a_lost_sandbox_is_raised_in_the_coroutine(engine: Engine) -> None:
    from pytest_hermes.errors import SandboxLost

    ctx = engine.context()

    async def verify() -> None:
        engine_loop_work = ctx.sandbox.close()
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(engine_loop_work, engine.loop))
        with pytest.raises(SandboxLost):
            ctx.terminal("true")

    asyncio.run(drive(verify()))  # type: ignore[arg-type]
