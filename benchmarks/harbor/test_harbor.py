"""Any directory of Harbor-format tasks.

pytest benchmarks/harbor --hermes-tasks DIR --hermes-sandbox=docker --model=NAME
"""

from pathlib import Path

from pytest_hermes.benchmark import Benchmark
from pytest_hermes.config import Settings
from pytest_hermes.datasets.harbor import load_tasks
from pytest_hermes.errors import ConfigurationError
from pytest_hermes.task import Task
from pytest_hermes.verification import run_test_script


def tasks(settings: Settings) -> list[Task]:
    if not settings.env.tasks_dir:
        raise ConfigurationError(
            "benchmark harbor: no tasks given. Use --hermes-tasks DIR (or env.tasks_dir), a directory whose"
            " sub-directories hold task.toml, instruction.md, environment/ and tests/test.sh"
        )
    return load_tasks(Path(settings.env.tasks_dir), settings)


benchmark = Benchmark(
    "harbor",
    tasks=tasks,
    verify=run_test_script,
    defaults=Path(__file__).with_name("default.yaml"),
)


@benchmark.parametrize
def test_task(rollout):
    rollout.check()
