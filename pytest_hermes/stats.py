"""Statistics of pass rates. Every function names its source and its range."""

from __future__ import annotations

import math

Z_95 = 1.959963984540054
"""0.975 quantile of the standard normal distribution."""


def wilson(passed: int, total: int, z: float = Z_95) -> tuple[float, float]:
    """Score interval of a proportion, (low, high) in [0, 1]; (0, 1) when `total` is 0.

    Wilson, E. B. (1927), JASA 22:209-212. Assumes independent attempts: with several attempts per task it is too
    narrow, and a clustered interval is the right one.
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
    if k < 1 or not 0 <= passed <= total:
        raise ValueError(f"pass@{k} of {passed} in {total}")
    if total < k:
        return None
    return 1.0 - math.comb(total - passed, k) / math.comb(total, k)
