"""What an endpoint wants otherwise than asked, learned from its refusals: another name for the token limit, a lower
limit, no temperature. It holds for all later calls of a client, so a default that a model does not take costs one
request instead of every rollout.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from pytest_hermes.errors import ContextOverflow, HermesError
from pytest_hermes.models.protocol import Sampling

log = logging.getLogger(__name__)

LEAST_ROOM_TOKENS = 256
"""A shorter answer than this is of no use: then the conversation is too long, not the answer that was asked for."""
SHARE_OF_WINDOW = 4
"""Once a window is known, an answer is given at most one part of so many, so that long conversations are not refused
time and again."""

_NO_TEMPERATURE = re.compile(
    r"temperature\b.{0,80}(?:not support|unsupported|only the default)|unsupported.{0,40}\btemperature\b",
    re.IGNORECASE | re.DOTALL,
)
_TOO_MANY = re.compile(
    r"max(?:_completion)?_tokens\b.{0,120}?(?:at most|less than or equal to|<=|maximum (?:value )?(?:is|of)) ?(\d+)",
    re.IGNORECASE | re.DOTALL,
)
_WINDOW = re.compile(
    r"(?:maximum context length (?:is|of)|context limit: [\d,]+ \+ [\d,]+ >|must be <=|context length is(?: only)?) ?"
    r"([\d,]+)",
    re.IGNORECASE,
)
_PROMPT = re.compile(
    r"\(?(?:about )?([\d,]+) (?:tokens )?(?:in the messages|of text input|in the input|input tokens|`inputs` tokens)"
    r"|(?:has|contains|at least) ([\d,]+) input tokens"
    r"|context limit: ([\d,]+) \+",
    re.IGNORECASE,
)


class Concessions:
    """What one client has learned about its endpoint."""

    def __init__(self) -> None:
        self._limit_name = "max_tokens"
        self._most_tokens: int | None = None
        self._sends_temperature = True

    def fields(self, sampling: Sampling, *, room: int | None = None) -> dict[str, Any]:
        """The sampling parameters to send; `room` is what this call's answer may have at most."""
        fields: dict[str, Any] = {}
        if sampling.temperature is not None and self._sends_temperature:
            fields["temperature"] = sampling.temperature
        if sampling.max_tokens is not None:
            bounds = (sampling.max_tokens, self._most_tokens, room)
            fields[self._limit_name] = min(bound for bound in bounds if bound is not None)
        return {**fields, **sampling.extra_body}

    def learn(self, error: HermesError, sampling: Sampling) -> int | None:
        """Take from a refusal what to send instead. Where a conversation fits, though not with the answer asked for:
        the tokens that are left for this answer."""
        said = str(error)
        if isinstance(error, ContextOverflow):
            window, prompt = _number(_WINDOW.search(said)), _number(_PROMPT.search(said))
            if sampling.max_tokens is None or window is None or prompt is None or window - prompt < LEAST_ROOM_TOKENS:
                return None
            self._lower(window // SHARE_OF_WINDOW, sampling)
            return window - prompt
        if (most := _number(_TOO_MANY.search(said))) is not None:
            self._lower(most, sampling)
        elif "max_completion_tokens" in said:
            self._limit_name = "max_completion_tokens"
        elif self._sends_temperature and sampling.temperature is not None and _NO_TEMPERATURE.search(said):
            log.warning("the endpoint takes no temperature of %g: it is not sent", sampling.temperature)
            self._sends_temperature = False
        return None

    def _lower(self, most: int, sampling: Sampling) -> None:
        before = self._most_tokens if self._most_tokens is not None else sampling.max_tokens
        if before is not None and 0 < most < before:
            log.warning("the endpoint has no room for answers of %d tokens: %d are asked for at most", before, most)
            self._most_tokens = most


def _number(found: re.Match[str] | None) -> int | None:
    if found is None:
        return None
    return int(next(group for group in found.groups() if group is not None).replace(",", ""))
