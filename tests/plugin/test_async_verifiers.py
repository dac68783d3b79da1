"""`ctx` in `async def` verifiers and test bodies, as a user writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Bench


def test_asynchronous_verifiers_call_ctx(bench: Bench, processes: tuple[str, ...]) -> None:
    """More of them than slots, on the engine's own loop, with tasks of their own and awaits between the calls."""
    bench.write(
        body="""
        import asyncio
        from pytest_hermes import Benchmark

        async def verify(v):
            written = v.ctx.terminal("cat ~/out.txt")["output"].strip()
            await asyncio.sleep(0)
            async def size():
                return v.ctx.terminal("wc -c <out.txt")["output"].strip()
            counted, _ = await asyncio.gather(size(), v.sandbox.exec("true"))
            return {"reward": float(written == v.task.data["want"]), "size": float(counted)}

        asynchronous = Benchmark("asynchronous", tasks=[write(f"t{n}", "right") for n in range(8)], verify=verify)
        wrapped = Benchmark("wrapped", tasks=[write("w", "right")], verify=lambda v: verify(v))

        @asynchronous.parametrize
        def test_all(rollout):
            assert rollout.components == {"size": 6.0}
            rollout.check()

        @wrapped.parametrize
        def test_wrapped(rollout):
            rollout.check()
        """
    )
    run = bench.run(*processes)
    run.result.assert_outcomes(passed=9)
    assert {row["outcome"] for row in run.rows.values()} == {"passed"}


def test_an_asynchronous_verifier_that_hangs_in_ctx_is_ended_by_its_clock(bench: Bench) -> None:
    bench.write(
        body="""
        from pytest_hermes import Benchmark, Limits

        async def verify(v):
            v.ctx.terminal("sleep 600", timeout=600)

        slow = Benchmark("slow", tasks=[write("t", "right")], verify=verify, limits=Limits(verify_s=1))

        @slow.parametrize
        def test_slow(rollout):
            rollout.check()
        """
    )
    run = bench.run()
    assert [row["cause"] for row in run.rows.values()] == ["verifier_timeout"]


def test_a_verifier_that_holds_on_past_its_time_gives_no_reward(bench: Bench) -> None:
    """What it returns after its clock, having swallowed the end, does not count; nor is it waited for."""
    bench.write(
        body="""
        from pytest_hermes import Benchmark, Limits

        async def verify(v):
            for _ in range(2):
                try:
                    v.ctx.terminal("sleep 600", timeout=600)
                except:
                    pass
            return 1.0

        slow = Benchmark("slow", tasks=[write("t", "right")], verify=verify, limits=Limits(verify_s=1))

        @slow.parametrize
        def test_slow(rollout):
            rollout.check()
        """
    )
    run = bench.run()
    assert [(row["cause"], row["reward"]) for row in run.rows.values()] == [("verifier_timeout", 0.0)]


def test_an_asynchronous_body_calls_ctx_and_its_loop_goes_on(bench: Bench, processes: tuple[str, ...]) -> None:
    bench.write(
        body="""
        import asyncio
        import pytest

        @pytest.mark.asyncio
        @pytest.mark.hermes(prompt="write x", script=[
            {"tool": "terminal", "arguments": {"command": "echo x >out.txt"}}, {"content": "done"}])
        async def test_body(ctx, rollout):
            ticks = 0
            async def ticker():
                nonlocal ticks
                while True:
                    await asyncio.sleep(0.001)
                    ticks += 1
            ticking = asyncio.create_task(ticker())
            assert ctx.terminal("sleep 0.5; cat out.txt")["output"] == "x\\n"
            assert ticks > 5
            ticking.cancel()
            assert ctx.terminal("exit 3")["exit_code"] == 3

        @pytest.mark.asyncio
        @pytest.mark.hermes(prompt="write y", script=[{"content": "done"}])
        async def test_fails(ctx, rollout):
            assert ctx.terminal("cat out.txt")["exit_code"] == 0
        """
    )
    run = bench.run(*processes)
    run.result.assert_outcomes(passed=1, failed=1)
    text = run.result.stdout.str()
    assert "bridge.py" not in text and "greenlet" not in text
    run.result.stdout.fnmatch_lines(['*assert ctx.terminal("cat out.txt")*'])
