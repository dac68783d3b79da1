"""The engine's fixtures without the engine: what the same suite does in plain pytest.

Loaded with `-p no:hermes -p engine_off`. Parametrisation and marks are as the plugin makes them; a "rollout" is decided
by the task's own data, without a model, a sandbox or a thread.
"""

from __future__ import annotations

import pytest

from pytest_hermes.benchmark import Benchmark
from pytest_hermes.collection import TaskAttempt
from pytest_hermes.config import Settings
from pytest_hermes.task import slug


def pytest_addoption(parser):
    for name in ("--model", "--hermes-concurrency", "--hermes-run-dir", "--hermes-local-confine"):
        parser.addoption(name)


def pytest_configure(config):
    config.addinivalue_line("markers", "hermes: as the plugin's")


def pytest_generate_tests(metafunc):
    mark = metafunc.definition.get_closest_marker("hermes")
    if mark is None or "benchmark" not in mark.kwargs:
        return
    benchmark: Benchmark = mark.kwargs["benchmark"]
    parameters = []
    for task in benchmark.load(Settings()):
        marks = [getattr(pytest.mark, f"difficulty_{slug(task.difficulty)}")] if task.difficulty else []
        parameters.append(pytest.param(TaskAttempt(task, 1), id=task.id, marks=marks))
    metafunc.parametrize("_hermes_job", parameters, indirect=True)


@pytest.fixture
def _hermes_job(request):
    return getattr(request, "param", None)


class Rollout:
    def __init__(self, passes):
        self.passes = passes

    def check(self):
        if not self.passes:
            pytest.fail("below the threshold", pytrace=False)


@pytest.fixture
def rollout(_hermes_job):
    task = _hermes_job.task
    if task.error:
        pytest.fail(task.error, pytrace=False)
    return Rollout(task.data["want"] == task.data["script"][0]["arguments"]["command"].split()[1])


class Context:
    def terminal(self, command):
        return {"output": "1\n"}


@pytest.fixture
def ctx(_hermes_job):
    return Context()
