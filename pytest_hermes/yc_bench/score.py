"""How a run of yc-bench is scored: its books, signs that they were edited, composite score and rewards of single steps.

The composite is that of hermes-agent's YC-Bench environment (with its `survival_weight` and `funds_weight`), the unit
being the company's own initial funds.
"""

from __future__ import annotations

import math

from pytest_hermes.yc_bench.books import Books, Status, read_ledger
from pytest_hermes.yc_bench.tampering import signs_of_tampering

__all__ = ["Books", "Status", "composite", "read_ledger", "signs_of_tampering", "step_reward"]

HUNDREDFOLD = 101
"""1 + final over initial funds, from which on the funds' part is full."""


def composite(
    funds_cents: int,
    survived: bool,
    *,
    initial_funds_cents: int,
    survival_weight: float = 0.5,
    funds_weight: float = 0.5,
) -> float:
    """`survival_weight` if it survived, plus `funds_weight` times the logarithm of the final funds, scaled to [0, 1].

    The logarithmic part is ln(1 + funds / initial) / ln(101), 0 without funds, 1 from a hundredfold on. With weights of
    sum 1 the result is in [0, 1]. Raises ValueError for initial funds that are not positive.
    """
    if initial_funds_cents <= 0:
        raise ValueError(f"initial funds of {initial_funds_cents} cents")
    part = 0.0
    if funds_cents > 0:
        part = min(math.log(1 + funds_cents / initial_funds_cents) / math.log(HUNDREDFOLD), 1.0)
    return survival_weight * (1.0 if survived else 0.0) + funds_weight * part


def step_reward(before_cents: int, after_cents: int, initial_funds_cents: int, went_bankrupt: bool) -> float:
    """What a step earned, in initial funds, and 1 less on the step that goes bankrupt.

    The rewards of a run's steps add up to (final - initial funds) / initial funds, 1 less for a bankrupt run.
    """
    return (after_cents - before_cents) / initial_funds_cents - (1.0 if went_bankrupt else 0.0)
