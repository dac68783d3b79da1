"""The calendar of the simulation: working hours between two moments, and paydays."""

from __future__ import annotations

import datetime

from pytest_hermes.yc_bench.books import Moment

WORKDAY_START = datetime.time(9)
CLOSING_HOUR, MIDNIGHT = 18, 24


def business_hours(start: Moment, end: Moment, closing: int) -> float:
    """Hours of weekdays from nine to `closing` between two moments."""

    def since_the_first_monday(moment: Moment) -> float:
        weeks, day = divmod(moment.toordinal() - 1, 7)
        opened = moment.replace(hour=WORKDAY_START.hour, minute=0, second=0, microsecond=0)
        today = (moment - opened).total_seconds() / 3600.0 if day < 5 else 0.0
        return (weeks * 5 + min(day, 5)) * (closing - WORKDAY_START.hour) + min(
            max(today, 0.0), closing - WORKDAY_START.hour
        )

    return since_the_first_monday(end) - since_the_first_monday(start)


def payday(moment: Moment) -> Moment:
    """The first business day of its month, when the work day starts."""
    day = moment.replace(day=1)
    while day.weekday() >= 5:
        day += datetime.timedelta(days=1)
    return Moment.combine(day.date(), WORKDAY_START)
