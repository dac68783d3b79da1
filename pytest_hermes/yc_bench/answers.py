"""What a simulation's helper answers, as data. It comes from a sandbox that the agent may have been at: what is not as
yc-bench writes it is a KeyError, TypeError or ValueError here, never a value of another type.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from typing import Any


@dataclasses.dataclass(frozen=True)
class State:
    """Where a simulation stands. `error` says why it could not be read: then nothing else is known."""

    error: str = ""
    sim_time: datetime | None = None
    horizon_end: datetime | None = None
    funds_cents: int = 0
    bankrupt_at: datetime | None = None
    """When the company went bankrupt; on yc-bench 0.1.0 that is final, whatever was played on."""
    is_horizon_consumed: bool = False
    ledger_entries: int = 0
    ledger_sum_cents: int = 0
    """`funds_cents` less the initial funds, unless somebody wrote into the database."""
    tasks: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """How many there are of each status."""

    @property
    def terminal_reason(self) -> str | None:
        if self.bankrupt_at is not None:
            return "bankruptcy"
        return "horizon_end" if self.is_horizon_consumed else None


@dataclasses.dataclass(frozen=True)
class Beginning:
    """A simulation as it was begun."""

    sim_time: datetime
    horizon_end: datetime
    initial_funds_cents: int
    domains: tuple[str, ...]
    employees: int
    market_tasks: int
    monthly_payroll_cents: int
    output: str
    """What `sim init` said, where it was what began it."""


@dataclasses.dataclass(frozen=True)
class Drained:
    """How the clock ran out. `terminal_reason` is None where it did not; then `error` says why."""

    resumes: int
    terminal_reason: str | None
    error: str = ""


def tail(text: object) -> str:
    """The end of what a program said, as one line."""
    return " ".join(str(text).split())[-500:]


def integer(value: object, default: int = 0) -> int:
    return value if isinstance(value, int) else default


def required(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not an integer")
    return value


def _time(value: object) -> datetime | None:
    return None if value is None else datetime.fromisoformat(str(value))


def state_of(answer: Mapping[str, Any]) -> State:
    if "error" in answer:
        return State(error=tail(answer["error"]) or "not readable")
    return State(
        sim_time=_time(answer["sim_time"]),
        horizon_end=_time(answer["horizon_end"]),
        funds_cents=required(answer["funds_cents"]),
        bankrupt_at=_time(answer["bankrupt_at"]),
        is_horizon_consumed=answer["is_horizon_consumed"] is True,
        ledger_entries=required(answer["ledger_entries"]),
        ledger_sum_cents=required(answer["ledger_sum_cents"]),
        tasks={str(status): required(count) for status, count in answer["tasks"].items()},
    )


def beginning_of(answer: Mapping[str, Any]) -> Beginning:
    state = state_of(answer)
    if state.sim_time is None or state.horizon_end is None:
        raise ValueError("it has no times")
    return Beginning(
        sim_time=state.sim_time,
        horizon_end=state.horizon_end,
        initial_funds_cents=required(answer["initial_funds_cents"]),
        domains=tuple(str(domain) for domain in answer["domains"]),
        employees=required(answer["employees"]),
        market_tasks=required(answer["market_tasks"]),
        monthly_payroll_cents=required(answer["monthly_payroll_cents"]),
        output=str(answer["output"]),
    )
