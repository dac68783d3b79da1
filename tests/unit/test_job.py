"""Which limit holds: the task's, the benchmark's, the settings', the package's; scaled, and lowered by a timeout."""

from __future__ import annotations

import pytest

from pytest_hermes.config import EnvSettings, Settings
from pytest_hermes.job import Job
from pytest_hermes.limits import DEFAULTS, Limits
from pytest_hermes.task import Task


def limits(task: Limits = Limits(), benchmark: Limits = Limits(), cap: float | None = None, **env: object) -> Limits:
    settings = Settings(env=EnvSettings(**env))  # type: ignore[arg-type]
    job = Job("b", Task("t", "p", limits=task), 1, "n", settings, None, limits=benchmark, agent_cap_s=cap)
    return job.effective_limits()


def test_a_tasks_own_limits_win_and_the_settings_are_for_tasks_that_declare_none() -> None:
    declared = Limits(agent_s=900.0, verify_s=60.0)
    found = limits(declared, Limits(verify_s=5.0, build_s=7.0), task_timeout=1800.0, test_timeout=180.0)
    assert (found.agent_s, found.verify_s, found.build_s) == (900.0, 60.0, 7.0)
    assert limits(task_timeout=1800.0).agent_s == 1800.0
    assert limits().verify_s == DEFAULTS.verify_s


def test_flat_limits_of_the_settings() -> None:
    declared = Limits(agent_s=900.0, verify_s=60.0, max_turns=5)
    found = limits(declared, task_timeout=1800.0, max_agent_turns=60, limits_from="settings")
    assert (found.agent_s, found.verify_s, found.max_turns) == (1800.0, 60.0, 60), "what they do not say is the task's"


def test_the_multiplier_and_the_cap() -> None:
    declared = Limits(agent_s=100.0, verify_s=10.0, max_turns=5)
    found = limits(declared, cap=120.0, timeout_multiplier=2.0)
    assert (found.agent_s, found.verify_s, found.max_turns) == (120.0, 20.0, 5)


@pytest.mark.parametrize("cap", [None, 0.0])
def test_no_cap(cap: float | None) -> None:
    assert limits(Limits(agent_s=3.0), cap=cap).agent_s == 3.0
