"""OpenThoughts-TBLite: 100 tasks in the form of Terminal-Bench 2 with difficulties that spread models well.

pytest benchmarks/tblite --model=NAME -n 32
"""

from pathlib import Path

from pytest_hermes.benchmark import Benchmark
from pytest_hermes.datasets.dataset import rows
from pytest_hermes.verification import run_test_script

benchmark = Benchmark(
    "tblite",
    tasks=rows("NousResearch/openthoughts-tblite"),
    verify=run_test_script,
    defaults=Path(__file__).with_name("default.yaml"),
)


@benchmark.parametrize
def test_task(rollout):
    rollout.check()
