"""YC-Bench: the agent runs a simulated company, one preset and seed per item.

pytest benchmarks/yc_bench --model=NAME -n 9
"""

from pathlib import Path

from pytest_hermes.benchmark import Benchmark
from pytest_hermes.yc_bench.company import company
from pytest_hermes.yc_bench.judge import judge
from pytest_hermes.yc_bench.tasks import tasks, unavailable

benchmark = Benchmark(
    "yc_bench",
    tasks=tasks,
    verify=judge,
    pass_threshold=0.5,  # what surviving alone is worth; the verdict says who passes
    defaults=Path(__file__).with_name("default.yaml"),
    toolsets=("terminal",),
    parallel_tools=False,
    unavailable=unavailable,
    episode=company,
    section="pytest_hermes.yc_bench.report:section",
)


@benchmark.parametrize
def test_run(rollout):
    rollout.check()
