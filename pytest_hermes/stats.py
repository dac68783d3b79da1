"""Statistics of pass rates. Every function names its source and its range."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

Z_95 = 1.959963984540054
"""0.975 quantile of the standard normal distribution."""
NO_ERROR = 1e-9
"""A standard error below this is 0 but for rounding."""


def wilson(passed: float, total: int, z: float = Z_95) -> tuple[float, float]:
    """Score interval of a proportion, (low, high) in [0, 1]; (0, 1) when `total` is 0.

    Wilson, E. B. (1927), JASA 22:209-212. Assumes independent attempts: with several attempts per task it is too
    narrow, and `clustered_interval` is the right one.
    """
    if not 0 <= passed <= total:
        raise ValueError(f"passed={passed} is not within 0..total={total}")
    if total == 0:
        return 0.0, 1.0
    share = passed / total
    scale = 1 + z * z / total
    middle = (share + z * z / (2 * total)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    low = 0.0 if passed == 0 else max(0.0, middle - half)
    high = 1.0 if passed == total else min(1.0, middle + half)
    return low, high


def pass_at_k(passed: int, total: int, k: int) -> float | None:
    """Probability that at least one of k attempts passes; None when fewer than k attempts are there.

    Unbiased estimator of Chen et al. (2021), arXiv:2107.03374, section 2.1: 1 - C(n-c, k) / C(n, k).
    """
    _check_attempts(passed, total, k)
    if total < k:
        return None
    return 1.0 - math.comb(total - passed, k) / math.comb(total, k)


def pass_hat_k(passed: int, total: int, k: int) -> float | None:
    """pass^k: probability that all of k attempts pass; None when fewer than k attempts are there.

    Unbiased estimator of Yao et al. (2024, tau-bench), arXiv:2406.12045, section 3: C(c, k) / C(n, k).
    """
    _check_attempts(passed, total, k)
    if total < k:
        return None
    return math.comb(passed, k) / math.comb(total, k)


def _check_attempts(passed: int, total: int, k: int) -> None:
    if k < 1 or not 0 <= passed <= total:
        raise ValueError(f"{k} attempts out of {passed} passed in {total}")


def clustered_standard_error(clusters: Sequence[Sequence[float]]) -> float | None:
    """Standard error of the mean over all values, where those of one cluster (the attempts of a task) go together.

    With the deviations d = value - mean, n values and G clusters that have any:

        sqrt(G / (G - 1) * sum over clusters of (sum of its d)^2) / n

    This is the clustered error of Miller (2024), "Adding Error Bars to Evals", arXiv:2411.00640, section 2.2, with the
    usual factor for few clusters on the whole sum (CR1; Cameron & Miller 2015, JHR 50:317-372), where his equation has
    n / (n - 1) on the squares alone: without it a few tasks of many attempts look far too sure. With one value per
    cluster it is the ordinary standard error; copies of attempts do not make it smaller.
    None for fewer than two clusters: one task says nothing about how tasks differ.
    """
    filled = [cluster for cluster in clusters if cluster]
    if len(filled) < 2:
        return None
    count = sum(len(cluster) for cluster in filled)
    mean = math.fsum(value for cluster in filled for value in cluster) / count
    squares = math.fsum(math.fsum(value - mean for value in cluster) ** 2 for cluster in filled)
    return math.sqrt(len(filled) / (len(filled) - 1) * squares) / count


def clustered_interval(clusters: Sequence[Sequence[float]], z: float = Z_95) -> tuple[float, float]:
    """Interval (low, high) in [0, 1] of the mean of values in [0, 1]: mean -/+ z clustered standard errors.

    Where that error is 0 (all passed, say) or unknown (one cluster) it says nothing about other tasks; the interval is
    then Wilson's with every cluster counted once. The normal quantile is too small for few clusters (below some 20):
    the doubt is larger there than the interval says.
    """
    filled = [cluster for cluster in clusters if cluster]
    values = [value for cluster in filled for value in cluster]
    mean = math.fsum(values) / len(values) if values else 0.0
    error = clustered_standard_error(filled)
    if error is None or error < NO_ERROR:
        return wilson(min(mean, 1.0) * len(filled), len(filled), z)
    return max(0.0, mean - z * error), min(1.0, mean + z * error)


@functools.cache
def t_95(degrees: int) -> float:
    """0.975 quantile of Student's t distribution with that many degrees of freedom (1 or more); to some 1e-12.

    The root of P(|T| <= t) = 0.95, with the finite sums of Abramowitz & Stegun (1964), 26.7.3 and 26.7.4, by bisection.
    """
    if degrees < 1:
        raise ValueError(f"{degrees} degrees of freedom")
    low, high = 1.0, 13.0  # t is 12.706 for 1 degree and falls to `Z_95`
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _within_t(middle, degrees) < 0.95 else (low, middle)
    return (low + high) / 2


def _within_t(t: float, degrees: int) -> float:
    """P(|T| <= t)."""
    angle = math.atan2(t, math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    term, total = (cosine, 0.0) if degrees % 2 else (1.0, 0.0)
    for power in range(2 + degrees % 2, degrees + 1, 2):
        total += term
        term *= (power - 1) / power * cosine**2
    return 2 / math.pi * (angle + sine * total) if degrees % 2 else sine * total


def t_interval(values: Sequence[float]) -> float | None:
    """Half-width of the 95 % interval of the mean of independent values: t times their standard error (Student 1908).

    None for fewer than two values. Not clipped to what the values can be: a wide one says that little is known.
    """
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    squares = math.fsum((value - mean) ** 2 for value in values)
    return t_95(count - 1) * math.sqrt(squares / (count - 1) / count)
