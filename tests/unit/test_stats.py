"""Statistics against values computed elsewhere and against their definitions."""

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hermes.stats import pass_at_k, wilson


@pytest.mark.parametrize(
    ("passed", "total", "low", "high"),
    [
        # scipy.stats.binomtest(passed, total).proportion_ci(method="wilson")
        (8, 10, 0.4901624715366418, 0.9433178485456248),
        (0, 8, 0.0, 0.32440756488388023),
        (8, 8, 0.6755924351161198, 1.0),
        (45, 100, 0.35614537979511984, 0.5475539700255787),
    ],
)
def test_wilson_values(passed, total, low, high):
    assert wilson(passed, total) == pytest.approx((low, high), abs=1e-12)


def test_wilson_of_nothing_is_everything():
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_share_and_is_symmetric(case):
    passed, total = case
    low, high = wilson(passed, total)
    assert 0 <= low <= passed / total <= high <= 1
    other_low, other_high = wilson(total - passed, total)
    assert math.isclose(low, 1 - other_high, abs_tol=1e-12)
    assert math.isclose(high, 1 - other_low, abs_tol=1e-12)


@pytest.mark.parametrize(("passed", "total"), [(-1, 3), (4, 3)])
def test_wilson_refuses_impossible_counts(passed, total):
    with pytest.raises(ValueError, match="not within"):
        wilson(passed, total)


@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 6))
def test_pass_at_k_is_the_share_of_k_subsets_with_a_pass(passed, failed, k):
    attempts = [True] * passed + [False] * failed
    if len(attempts) < k:
        assert pass_at_k(passed, len(attempts), k) is None
        return
    subsets = list(combinations(attempts, k))
    assert pass_at_k(passed, len(attempts), k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
