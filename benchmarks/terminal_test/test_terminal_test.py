"""Small tasks in a terminal, for a first look and for smoke tests: no image, no network, and no key with the built-in
scripted model.

pytest benchmarks/terminal_test --model=scripted
"""

from pathlib import Path

from pytest_hermes.benchmark import Benchmark

from .catalog import load
from .verify import verify

benchmark = Benchmark(
    "terminal_test",
    tasks=lambda settings: load(),
    verify=verify,
    defaults=Path(__file__).with_name("default.yaml"),
)


@benchmark.parametrize
def test_task(rollout):
    rollout.check()
