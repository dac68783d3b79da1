"""The one table: every error of ours has a row, and rows are found by type."""

import inspect

import pytest

from pytest_hermes import errors
from pytest_hermes.outcome import TABLE, Policies

ERRORS = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, errors.HermesError)]


@pytest.mark.parametrize("error_type", [e for e in ERRORS if e is not errors.HermesError], ids=lambda e: e.__name__)
def test_every_error_has_a_row_of_its_own(error_type):
    assert error_type in TABLE


def test_causes_are_distinct():
    causes = [policy.cause for policy in TABLE.values()]
    assert len(causes) == len(set(causes))


@pytest.mark.parametrize("error_type", [e for e in ERRORS if issubclass(e, errors.InfrastructureError)])
def test_infrastructure_never_has_a_valid_reward(error_type):
    assert not TABLE[error_type].valid_reward


def test_an_unknown_error_takes_its_base_class_row():
    class NewSandboxTrouble(errors.SandboxLost):
        pass

    assert Policies().of(NewSandboxTrouble("x")).cause == "sandbox_lost"
    assert Policies().of(KeyError("x")).cause == "internal_error"


def test_overrides_change_one_row_only():
    policies = Policies({"ModelRateLimited": {"retry": False}})
    assert not policies.of(errors.ModelRateLimited("x")).retry
    assert policies.of(errors.ModelUnavailable("x")).retry


@pytest.mark.parametrize(
    ("overrides", "message"),
    [({"SandboxLst": {}}, "unknown error 'SandboxLst'"), ({"SandboxLost": {"retries": 1}}, "unknown field 'retries'")],
)
def test_overrides_with_typos_are_refused(overrides, message):
    with pytest.raises(errors.ConfigurationError, match=message):
        Policies(overrides)
