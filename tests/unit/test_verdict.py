"""What a verifier says besides its reward: details, and whether it passes."""

from __future__ import annotations

import json

import pytest

from pytest_hermes import Benchmark, Task
from pytest_hermes.artifacts.records import rollout_of, row_of
from pytest_hermes.benchmark import Verdict, as_verdict
from pytest_hermes.errors import ConfigurationError, VerifierError
from pytest_hermes.failures import TaskFailed
from pytest_hermes.rollout import Rollout

TASK = Task(id="t", prompt="do it")
DETAILS = {"yc.status": "BANKRUPT", "yc.seed": 1, "yc.composite": 0.5, "yc.survived": False, "yc.terminal_reason": None}


def rollout(verdict: Verdict | None, **changes: object) -> Rollout:
    made = Rollout("bench", TASK, 1, "t.py::test[t]", 0.75, "hermes", "m", outcome="failed", verdict=verdict)
    made.reward = verdict.reward if verdict else None
    made.verifier = {"exit_code": None}
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_details_are_what_the_verifier_gave():
    assert as_verdict(Verdict(0.5, details=dict(DETAILS))).details == DETAILS
    assert rollout(Verdict(0.5, details=dict(DETAILS))).details == DETAILS
    assert rollout(None).details == {}


@pytest.mark.parametrize(
    ("details", "why"),
    [
        ({"a": [1]}, "details: 'a' holds a list, not a string, number, bool or None"),
        ({"a": float("nan")}, "details: 'a' is nan, which JSON cannot hold"),
        ({"a b": 1}, "details: 'a b' is no name"),
        ({"": 1}, "details: '' is no name"),
        ({1: 1}, "details: 1 is no name"),
        ({"hermes.reward": 1}, "details: 'hermes.reward' is no name"),
        ("x", "details are of type str, not dict"),
    ],
)
def test_details_that_rows_cannot_hold(details, why):
    with pytest.raises(VerifierError) as raised:
        as_verdict(Verdict(1.0, details=details))
    assert why in str(raised.value) and "\n" not in str(raised.value)


def test_passed_is_a_truth_value():
    with pytest.raises(VerifierError, match="passed='yes' is neither True, False nor None"):
        as_verdict(Verdict(1.0, passed="yes"))


@pytest.mark.parametrize("passed", [True, False, None])
def test_both_come_back_from_a_row(passed):
    made = rollout(Verdict(0.5, details=dict(DETAILS), passed=passed))
    row = json.loads(json.dumps(row_of(made, "r", "main")))
    assert row["details"] == DETAILS
    assert rollout_of(row, TASK) == made


def test_rows_of_earlier_versions_have_neither():
    made = rollout(Verdict(0.5))
    row = json.loads(json.dumps(row_of(made, "r", "main")))
    del row["details"], row["verdict_passed"]
    assert rollout_of(row, TASK) == made


def test_a_verdict_that_says_so_decides_over_the_threshold():
    rollout(Verdict(0.1, passed=True)).check()
    with pytest.raises(TaskFailed, match=r"^bankrupt: reward 0.9, failed \(t\)"):
        rollout(Verdict(0.9, passed=False), cause="bankrupt").check()
    with pytest.raises(TaskFailed, match=r"^bankrupt: reward 0.9, failed \(t\)"):
        rollout(Verdict(0.9, passed=False, cause="bankrupt")).check()


def test_a_threshold_that_is_given_is_compared_with_the_reward():
    rollout(Verdict(0.9, passed=False)).check(0.8)
    with pytest.raises(TaskFailed, match=r"reward 0.1 < 0.8"):
        rollout(Verdict(0.1, passed=True)).check(0.8)


@pytest.mark.parametrize("path", ["", "package.module", "package:", "a b:c", ":f", "package.module:f()", "1a:b"])
def test_a_section_is_an_import_path(path):
    with pytest.raises(ConfigurationError, match=r"benchmark b: section=.* is not an import path"):
        Benchmark("b", tasks=[TASK], verify=lambda v: 1.0, section=path)
