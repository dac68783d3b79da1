"""Terminal-Bench 2: 89 hard tasks in a terminal, each with an image and a test script of its own.

pytest benchmarks/terminalbench_2 --model=NAME -n 32
"""

from pathlib import Path

from pytest_hermes.benchmark import Benchmark
from pytest_hermes.datasets.dataset import rows
from pytest_hermes.verification import run_test_script

NOT_ON_MODAL = "its machine is not what the task needs; the hermes environment left it out there too"

benchmark = Benchmark(
    "terminalbench_2",
    tasks=rows("NousResearch/terminal-bench-2"),
    verify=run_test_script,
    defaults=Path(__file__).with_name("default.yaml"),
    backend_skips={"modal": dict.fromkeys(("qemu-startup", "qemu-alpine-ssh", "crack-7z-hash"), NOT_ON_MODAL)},
)


@benchmark.parametrize
def test_task(rollout):
    rollout.check()
