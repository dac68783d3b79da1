"""What calls cost where the endpoint does not say: list prices of a few hosted models, as of `PRICES_DATE`.

Prices change: a table is right on its date only. `prices` of the configuration adds to it and wins over it. A model
that is in neither has no cost (None), which is never counted as 0.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from pytest_hermes.errors import ConfigurationError
from pytest_hermes.models.protocol import Usage

PRICES_DATE = "2026-11-29"


@dataclasses.dataclass(frozen=True)
class Price:
    """USD per million tokens. `cached` is what a prompt token read from the provider's cache costs."""

    prompt: float
    completion: float
    cached: float | None = None


PRICES: dict[str, Price] = {
    "scripted": Price(0.0, 0.0),
    "gpt-4o": Price(2.50, 10.00, 1.25),
    "gpt-4o-mini": Price(0.15, 0.60, 0.075),
    "gpt-4.1": Price(2.00, 8.00, 0.50),
    "gpt-4.1-mini": Price(0.40, 1.60, 0.10),
    "gpt-4.1-nano": Price(0.10, 0.40, 0.025),
    "o3": Price(2.00, 8.00, 0.50),
    "o4-mini": Price(1.10, 4.40, 0.275),
    "gpt-5": Price(1.25, 10.00, 0.125),
    "gpt-5-mini": Price(0.25, 2.00, 0.025),
    "gpt-5-nano": Price(0.05, 0.40, 0.005),
    "gpt-5.1": Price(1.25, 10.00),
    "gpt-5.4": Price(2.50, 15.00),
    "claude-opus-5-5": Price(4.00, 20.00, 0.20),
    "claude-opus-5": Price(5.00, 25.00, 0.50),
    "claude-opus-4-7": Price(5.00, 25.00, 0.50),
    "claude-opus-4-6": Price(5.00, 25.00, 0.50),
    "claude-sonnet-5-5": Price(2.00, 10.00, 0.10),
    "claude-sonnet-5": Price(2.00, 10.00, 0.20),
    "claude-sonnet-4-6": Price(3.00, 15.00, 0.30),
    "claude-sonnet-4": Price(3.00, 15.00, 0.30),
    "claude-sonnet-4-5": Price(3.00, 15.00, 0.30),
    "claude-haiku-4-5": Price(1.00, 5.00, 0.10),
    "claude-opus-4-1": Price(15.00, 75.00, 1.50),
    "claude-opus-4-5": Price(5.00, 25.00, 0.50),
    "gemini-2.5-flash": Price(0.30, 2.50, 0.03),
}
"""Standard tier, text tokens. Models whose price depends on the prompt's length are left out on purpose."""


def read_prices(value: Mapping[str, Any] | None) -> dict[str, Price]:
    """`openai.prices` of a configuration, `{model: {prompt: 1.0, completion: 2.0, cached: 0.1}}`, as prices."""
    prices = {}
    for model, given in (value or {}).items():
        if isinstance(given, Price):
            prices[str(model)] = given
            continue
        try:
            price = Price(**{key: float(number) for key, number in dict(given).items()})
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"openai.prices.{model}: expected USD per million tokens as {{prompt: 1.0, completion: 2.0, "
                f"cached: 0.1}} (cached may be left out), found {given!r}"
            ) from error
        prices[str(model)] = price
    return prices


_DATED = re.compile(r"-(?:20\d\d-?\d\d-?\d\d)$")


def price_of(model: str, overrides: Mapping[str, Price] | None = None) -> Price | None:
    """The price of a model: by exact name, without a release date, without a vendor prefix (`openai/gpt-5`)."""
    bare = model.rpartition("/")[2]
    for name in (model, bare, _DATED.sub("", bare), _DATED.sub("", bare).replace(".", "-")):
        for table in (overrides or {}, PRICES):
            if name in table:
                return table[name]
    return None


def cost_of(model: str, usage: Usage, overrides: Mapping[str, Price] | None = None) -> float | None:
    """USD that a call cost: what the provider reported, else tokens times list price, else None.

    Not covered: cache writes, batch and priority tiers, prices by prompt length, audio and images.
    """
    if usage.cost_usd is not None:
        return usage.cost_usd
    price = price_of(model, overrides)
    if price is None or usage.prompt_tokens is None or usage.completion_tokens is None:
        return None
    cached = min(usage.cached_tokens or 0, usage.prompt_tokens)
    cached_price = price.prompt if price.cached is None else price.cached
    fresh = usage.prompt_tokens - cached
    return (fresh * price.prompt + cached * cached_price + usage.completion_tokens * price.completion) / 1e6


def priced(model: str, usage: Usage, overrides: Mapping[str, Price] | None = None) -> Usage:
    """`usage` with its cost filled in where it can be known."""
    cost = cost_of(model, usage, overrides)
    return usage if cost == usage.cost_usd else dataclasses.replace(usage, cost_usd=cost)
