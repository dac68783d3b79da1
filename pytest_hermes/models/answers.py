"""Reading a chat completion off the wire: the assistant message, why it ended, and what it used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pytest_hermes.errors import ModelAnswerInvalid
from pytest_hermes.models.protocol import Completion, Message, Usage

MAX_NUMBER = 1e12
"""Tokens or USD beyond which a reported number is a mistake."""


def decode(body: bytes | str) -> dict[str, Any]:
    """The JSON object in a response body. ModelAnswerInvalid, with the beginning of the body, if it is none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ModelAnswerInvalid(f"the answer is not JSON ({error}): {excerpt(body)}") from error
    if not isinstance(value, dict):
        raise ModelAnswerInvalid(f"the answer is not a JSON object: {excerpt(body)}")
    return value


def excerpt(body: bytes | str, limit: int = 300) -> str:
    """The beginning of a body on one line, for messages."""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    text = " ".join(text.split())
    return (text[:limit] + "…" if len(text) > limit else text) or "(empty)"


def completion(answer: Mapping[str, Any], *, latency_s: float) -> Completion:
    """The completion in a decoded answer. ModelAnswerInvalid if it has no assistant message."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise ModelAnswerInvalid(f"the answer has no choices with a message: {excerpt(json.dumps(dict(answer)))}")
    finish_reason = choice.get("finish_reason")
    model = answer.get("model")
    return Completion(
        message=message,
        finish_reason=finish_reason if isinstance(finish_reason, str) else None,
        usage=usage(answer.get("usage")),
        latency_s=latency_s,
        model=model if isinstance(model, str) else None,
    )


def usage(value: Any) -> Usage:
    """Token counts in the spellings of OpenAI, OpenRouter, DeepSeek and Anthropic; None where nothing is said.

    `prompt_tokens` counts cached tokens too. Anthropic's native spelling reports them beside `input_tokens`; they are
    added there, so that the sum means the same everywhere.
    """
    if not isinstance(value, Mapping):
        return Usage()
    prompt_details = _mapping(value.get("prompt_tokens_details"))
    completion_details = _mapping(value.get("completion_tokens_details"))
    prompt = _count(value, "prompt_tokens")
    cached = _first(
        _count(prompt_details, "cached_tokens"),
        _count(value, "prompt_cache_hit_tokens"),
        _count(value, "cache_read_input_tokens"),
        _count(value, "cached_tokens"),
    )
    if prompt is None and (fresh := _count(value, "input_tokens")) is not None:
        prompt = fresh + (_count(value, "cache_read_input_tokens") or 0)
        prompt += _count(value, "cache_creation_input_tokens") or 0
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=_first(_count(value, "completion_tokens"), _count(value, "output_tokens")),
        cached_tokens=cached,
        reasoning_tokens=_first(_count(completion_details, "reasoning_tokens"), _count(value, "reasoning_tokens")),
        cost_usd=_number(value, "cost"),
    )


def reasoning_of(message: Message) -> str | None:
    """The model's reasoning, kept apart from its content: `reasoning_content`, `reasoning`, `reasoning_details`."""
    for key in ("reasoning_content", "reasoning"):
        text = message.get(key)
        if isinstance(text, str) and text:
            return text
    details = message.get("reasoning_details")
    for detail in details if isinstance(details, list) else ():
        text = detail.get("text") if isinstance(detail, Mapping) else getattr(detail, "text", None)
        if isinstance(text, str) and text:
            return text
    return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: Mapping[str, Any], key: str) -> int | None:
    number = _number(value, key)
    return None if number is None else int(number)


def _number(value: Mapping[str, Any], key: str) -> float | None:
    """A number that can be a count or an amount; what cannot (NaN, negative, absurd) was not said."""
    number = value.get(key)
    plausible = isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number <= MAX_NUMBER
    return number if plausible else None


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
