"""What each preset of yc-bench 0.1.0 can give: the bounds by which its books are checked (`tampering.py`)."""

from __future__ import annotations

import dataclasses
import math

from pytest_hermes.yc_bench.books import Contract
from pytest_hermes.yc_bench.business_time import CLOSING_HOUR, business_hours

SHORTEST_DAYS = 7
"""Business days that every task has at least."""


@dataclasses.dataclass(frozen=True)
class PresetRules:
    """What a preset of 0.1.0 can give: bounds of its distributions, none of them can be passed by chance."""

    preset: str
    staff: int
    market: int
    work_per_day: float
    """That a deadline expects."""
    most_prestige: int
    prestige_premium: float
    """What each level above the first adds to a reward, as a share of it."""
    least_work: int
    most_work: int
    """In one domain."""
    most_domains: int = 3
    most_reward_cents: int = 10_000_000
    most_prestige_delta: float = 2.0

    def days(self, work: float) -> int:
        return max(SHORTEST_DAYS, int(work / self.work_per_day))

    def could_pay(self, contract: Contract) -> bool:
        if contract.reward_cents is None or contract.required_prestige is None:
            return True
        levels = max(contract.required_prestige, 1) - 1
        return contract.reward_cents <= self.most_reward_cents * (1.0 + self.prestige_premium * levels) + 1.0

    def could_offer(self, contract: Contract) -> bool:
        """Whether a task that replaced an accepted one can be of these rules."""
        return (
            self.could_pay(contract)
            and (contract.required_prestige is None or contract.required_prestige <= self.most_prestige)
            and (contract.prestige_delta is None or contract.prestige_delta <= self.most_prestige_delta + 1e-3)
            and len(contract.needs) <= self.most_domains
            and all(self.least_work - 1 <= work <= self.most_work + 1 for work in contract.needs.values())
        )

    def could_set(self, contract: Contract) -> bool:
        """Whether these rules gave an accepted task its deadline."""
        if contract.accepted_at is None or contract.deadline is None or not contract.required_quantity:
            return True
        given = business_hours(contract.accepted_at, contract.deadline, CLOSING_HOUR)
        if not math.isfinite(contract.required_quantity):
            return False
        return abs(given - 9.0 * self.days(contract.required_quantity)) < 0.01


RULES = (
    PresetRules("default", 10, 500, 320.0, 10, 0.55, 500, 3000),
    PresetRules("tutorial", 3, 50, 100.0, 1, 0.2, 200, 800, most_domains=1),
    PresetRules("easy", 5, 100, 150.0, 4, 0.3, 300, 1500, most_domains=1),
    PresetRules("fast_test", 5, 100, 200.0, 10, 0.55, 500, 3000),
    PresetRules("medium", 5, 150, 200.0, 7, 0.45, 400, 2000),
    PresetRules("hard", 7, 200, 280.0, 8, 0.55, 500, 2500),
    PresetRules("nightmare", 8, 300, 350.0, 10, 0.7, 600, 3000, most_prestige_delta=2.5),
    PresetRules("challenge", 5, 200, 200.0, 8, 0.55, 200, 2000),
    PresetRules("high_reward", 10, 1000, 320.0, 10, 0.55, 500, 3000, most_reward_cents=20_000_000),
    PresetRules("no preset", 10, 500, 200.0, 10, 0.3, 200, 3000),
)
"""The last are those of a preset that yc-bench does not know, which it takes without a word."""
