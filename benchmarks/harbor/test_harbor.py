"""Any directory of Harbor-format tasks.

pytest benchmarks/harbor --hermes-tasks DIR --hermes-sandbox=docker --model=NAME
"""

from pathlib import Path

from pytest_hermes.benchmark import Benchmark
from pytest_hermes.config import Settings
from pytest_hermes.datasets.dataset import Provenance, rows
from pytest_hermes.errors import ConfigurationError
from pytest_hermes.task import Task
from pytest_hermes.verification import run_test_script


class GivenTasks:
    """What `--hermes-tasks` or `--hermes-dataset` names; there is no default."""

    def load(self, settings: Settings, run_id: str) -> tuple[list[Task], Provenance]:
        chosen = settings.env.dataset_name or settings.env.tasks_dir
        if not chosen:
            raise ConfigurationError(
                "benchmark harbor: no tasks given. Use --hermes-tasks DIR (or env.tasks_dir), a directory whose"
                " sub-directories hold task.toml, instruction.md, environment/ and tests/test.sh, or --hermes-dataset"
                " SOURCE: a data set of the hub, a parquet or JSONL file of rows, or a Harbor registry file"
            )
        return rows(chosen).load(settings, run_id)


benchmark = Benchmark(
    "harbor",
    tasks=GivenTasks(),
    verify=run_test_script,
    defaults=Path(__file__).with_name("default.yaml"),
)


@benchmark.parametrize
def test_task(rollout):
    rollout.check()
