"""Statistics against values computed elsewhere and against their definitions."""

import math
import statistics
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hermes.stats import (
    Z_95,
    clustered_interval,
    clustered_standard_error,
    pass_at_k,
    pass_hat_k,
    t_95,
    t_interval,
    wilson,
)


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


attempts_of_tasks = st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=6)


@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 6))
def test_pass_hat_k_is_the_share_of_k_subsets_that_all_pass(passed, failed, k):
    attempts = [True] * passed + [False] * failed
    if len(attempts) < k:
        assert pass_hat_k(passed, len(attempts), k) is None
        return
    subsets = list(combinations(attempts, k))
    assert pass_hat_k(passed, len(attempts), k) == pytest.approx(sum(map(all, subsets)) / len(subsets))


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_one_attempt_of_both_kinds_is_the_mean(case):
    passed, total = case
    assert pass_at_k(passed, total, 1) == pytest.approx(passed / total)
    assert pass_hat_k(passed, total, 1) == pytest.approx(passed / total)


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n), st.integers(1, n))))
def test_all_of_k_is_never_more_likely_than_one_of_k(case):
    passed, total, k = case
    assert 0 <= pass_hat_k(passed, total, k) <= passed / total + 1e-12
    assert passed / total - 1e-12 <= pass_at_k(passed, total, k) <= 1
    assert pass_hat_k(passed, total, k) == pytest.approx(1 - pass_at_k(total - passed, total, k))


@pytest.mark.parametrize("estimate", [pass_at_k, pass_hat_k])
@pytest.mark.parametrize(("passed", "total", "k"), [(3, 2, 1), (-1, 2, 1), (1, 2, 0)])
def test_impossible_attempts_are_refused(estimate, passed, total, k):
    with pytest.raises(ValueError, match="in 2"):
        estimate(passed, total, k)


def test_pass_at_k_of_many_attempts_is_exact():
    assert pass_at_k(1, 10_000, 5_000) == pytest.approx(0.5)
    assert pass_hat_k(9_999, 10_000, 5_000) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("tasks", "error"),
    [
        # two tasks of two equal attempts say no more than two attempts: sqrt(2/1 * (1 + 1)) / 4
        ([[1, 1], [0, 0]], 0.5),
        # mean 0.5; sums of deviations 0, 1, -1: sqrt(3/2 * 2) / 6
        ([[1, 0], [1, 1], [0, 0]], math.sqrt(3) / 6),
        # unequal numbers: mean 3/5; sums 0.8, -0.8 (attempts 1 1 / 1 0 0): sqrt(2/1 * 1.28) / 5
        ([[1, 1], [1, 0, 0]], 0.32),
        # part scores: mean 0.5; sums 0.5, -0.25, -0.25: sqrt(3/2 * 0.375) / 3
        ([[1.0], [0.25], [0.25]], 0.25),
    ],
)
def test_clustered_error_by_hand(tasks, error):
    assert clustered_standard_error(tasks) == pytest.approx(error)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30))
def test_with_one_attempt_a_task_the_clustered_error_is_the_ordinary_one(values):
    ordinary = statistics.stdev(values) / math.sqrt(len(values))
    assert clustered_standard_error([[value] for value in values]) == pytest.approx(ordinary, abs=1e-12)


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), min_size=2, max_size=8), st.integers(1, 4))
def test_copies_of_attempts_tell_nothing_new(tasks, copies):
    once = clustered_standard_error(tasks)
    assert clustered_standard_error([task * copies for task in tasks]) == pytest.approx(once, abs=1e-12)


@given(st.integers(1, 4).flatmap(lambda k: st.lists(st.lists(st.booleans(), min_size=k, max_size=k), min_size=2)))
def test_with_equally_many_attempts_it_is_the_ordinary_error_of_the_tasks_means(tasks):
    means = [[sum(task) / len(task)] for task in tasks]
    assert clustered_standard_error(tasks) == pytest.approx(clustered_standard_error(means), abs=1e-12)


@given(attempts_of_tasks)
def test_the_clustered_error_differs_from_millers_equation_only_by_the_factor_for_few_tasks(tasks):
    if len(tasks) < 2:
        return
    values = [float(value) for task in tasks for value in task]
    n, mean = len(values), sum(values) / len(values)
    naive = sum((value - mean) ** 2 for value in values) / (n - 1) / n
    pairs = sum(
        (a - mean) * (b - mean) for task in tasks for i, a in enumerate(task) for j, b in enumerate(task) if i != j
    )
    miller = naive + pairs / n**2
    within = sum((value - mean) ** 2 for value in values) / n**2
    ours = clustered_standard_error(tasks) ** 2
    assert ours == pytest.approx((miller - naive + within) * len(tasks) / (len(tasks) - 1), abs=1e-12)


@pytest.mark.parametrize("tasks", [[], [[]], [[1, 0]], [[1], []]])
def test_fewer_than_two_tasks_have_no_error(tasks):
    assert clustered_standard_error(tasks) is None


@pytest.mark.parametrize(
    ("tasks", "interval"),
    [
        ([], (0.0, 1.0)),
        ([[1, 0]], wilson(0.5, 1)),
        ([[1, 1], [1, 1]], wilson(2, 2)),  # all passed: as if each task had been tried once
        ([[0, 0], [0], []], wilson(0, 2)),
        ([[1, 1]], wilson(1, 1)),
        ([[1, 0], [1, 1], [0, 0]], (0.0, 1.0)),
        ([[1, 0, 0]] * 4, wilson(4 / 3, 4)),  # so does a share that all tasks have
        ([[1, 1]] * 5 + [[0, 0]] * 5, (0.5 - Z_95 * 0.5 / 3, 0.5 + Z_95 * 0.5 / 3)),
    ],
)
def test_clustered_intervals(tasks, interval):
    assert clustered_interval(tasks) == pytest.approx(interval)


@given(attempts_of_tasks)
def test_the_clustered_interval_holds_the_mean(tasks):
    values = [value for task in tasks for value in task]
    low, high = clustered_interval(tasks)
    assert 0 <= low <= sum(values) / len(values) + 1e-12 and sum(values) / len(values) - 1e-12 <= high <= 1


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [  # NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2
        *((1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (10, 2.228), (29, 2.045)),
        *((30, 2.042), (100, 1.984)),
    ],
)
def test_quantiles_of_t(degrees, quantile):
    assert t_95(degrees) == pytest.approx(quantile, abs=5e-4)


def test_quantiles_of_t_approach_the_normal_one():
    assert t_95(100_000) == pytest.approx(Z_95, abs=5e-5)
    with pytest.raises(ValueError, match="0 degrees"):
        t_95(0)


def test_t_intervals():
    assert t_interval([]) is None and t_interval([0.5]) is None
    assert t_interval([0.5, 0.5, 0.5]) == 0.0
    values = [0.0, 0.0, 0.575095]
    assert t_interval(values) == pytest.approx(4.302652729749468 * statistics.stdev(values) / math.sqrt(3))
