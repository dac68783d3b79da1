"""When a call of a model or search service is tried again, and how long it waits.

It is full-jitter exponential back-off that honours Retry-After.

Full jitter (a uniform draw between 0 and the exponential bound) keeps many rollouts that were refused together from
coming back together (AWS Architecture Blog, "Exponential Backoff And Jitter", 2015).
"""

from __future__ import annotations

import asyncio
import dataclasses
import email.utils
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from pytest_hermes.models.failures import AttemptFailed, counted

Answer = TypeVar("Answer")


@dataclasses.dataclass(frozen=True)
class RetryPolicy:
    """How often and how patiently. The last three fields are seams for tests.

    The n-th retry waits between 0 and `min(cap_s, base_s * 2**n)`; after a 429 without Retry-After the bound is
    `rate_limit_factor` times that, since such limits are counted per minute. A Retry-After is kept as it is said, plus
    up to `base_s` of jitter; one above `retry_after_limit_s` is not waited for: the call fails at once.
    """

    max_retries: int = 4
    base_s: float = 1.0
    cap_s: float = 60.0
    rate_limit_factor: float = 4.0
    retry_after_limit_s: float = 60.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    uniform: Callable[[float, float], float] = random.uniform
    now: Callable[[], float] = time.time

    async def run(self, attempt: Callable[[], Awaitable[Answer]]) -> tuple[Answer, int]:
        """The answer of the first attempt that does not fail, and the number of retries it took.

        `attempt` raises AttemptFailed; its `error` is raised once retries are of no use or used up.
        """
        for retries in range(self.max_retries + 1):
            try:
                return await attempt(), retries
            except AttemptFailed as failed:
                error, after_s = failed.error, failed.after_s
                too_long = failed.retry and after_s is not None and after_s > self.retry_after_limit_s
                if too_long:
                    error.args = (
                        f"{error} It asks to wait {after_s:.0f} s, and a call waits {self.retry_after_limit_s:.0f} s "
                        "at most: lower the concurrency or come back later.",
                    )
                if too_long or not failed.retry or retries == self.max_retries:
                    raise counted(error, retries + 1) from failed.__cause__
                await self.sleep(self.wait_s(retries, after_s, rate_limited=failed.rate_limited))
        raise AssertionError("unreachable: the last attempt returns or raises")

    def wait_s(self, retries: int, after_s: float | None, *, rate_limited: bool) -> float:
        """Seconds to wait before retry number `retries` (from 0)."""
        if after_s is not None:
            return after_s + self.uniform(0.0, min(self.base_s, after_s))
        bound = self.base_s * 2.0**retries * (self.rate_limit_factor if rate_limited else 1.0)
        return self.uniform(0.0, min(self.cap_s, bound))


def retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that a response asks to wait: `retry-after-ms`, or `Retry-After` as seconds or as an HTTP date."""
    if milliseconds := headers.get("retry-after-ms"):
        try:
            return max(0.0, float(milliseconds) / 1000)
        except ValueError:
            pass
    value = headers.get("Retry-After")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    except ValueError:
        return None
