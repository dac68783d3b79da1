"""Which rollout starts first: long ones alone, long and short in turn under workers, nothing reordered otherwise."""

from __future__ import annotations

import pytest

MIXED = """
    import pytest
    benchmark = Benchmark(
        "bench",
        tasks=[write(f"{level}-{n}", "a", difficulty=level) for level in ("easy", "hard") for n in (1, 2)],
        verify=verify,
    )

    @pytest.fixture(scope="module", params=["p", "q"])
    def flavour(request): return request.param

    @benchmark.parametrize
    def test_task(rollout): rollout.check()

    @benchmark.parametrize
    def test_flavoured(flavour, rollout): rollout.check()
"""


def order(result: pytest.RunResult) -> list[str]:
    return [line.split("::")[1] for line in result.outlines if "::" in line and line.startswith("test_")]


def test_a_listing_keeps_the_benchmarks_order(bench):
    bench.write(body=MIXED)
    listed = order(bench.run("--collect-only", "-q").result)
    assert listed[:4] == [f"test_task[{name}]" for name in ("easy-1", "easy-2", "hard-1", "hard-2")]


def test_alone_the_long_ones_start_first(bench):
    bench.write(body=MIXED)
    run = bench.run("--hermes-concurrency=2", "-k", "test_task")
    started = sorted((row["started"], row["task_id"]) for row in run.rows.values())
    assert {name for _, name in started[:2]} == {"hard-1", "hard-2"}


def test_workers_get_long_and_short_in_turn_within_groups(bench):
    bench.write(body=MIXED)
    bench.pytester.makeconftest(
        """
        import pytest

        @pytest.hookimpl(trylast=True, wrapper=True)
        def pytest_collection_modifyitems(config, items):
            result = yield
            if hasattr(config, "workerinput"):
                with open(f"order-{config.workerinput['workerid']}", "w") as out:
                    out.write("\\n".join(item.name for item in items))
            return result
        """
    )
    bench.run("-n", "2")
    orders = [(bench.pytester.path / f"order-gw{n}").read_text().splitlines() for n in (0, 1)]
    assert orders[0] == orders[1]
    assert orders[0][:4] == [f"test_task[{name}]" for name in ("hard-1", "easy-2", "hard-2", "easy-1")]
    flavours = [name.split("[")[1][0] for name in orders[0] if name.startswith("test_flavoured")]
    assert flavours == ["p"] * 4 + ["q"] * 4
