"""What a refused or broken call means: from a status and a body to one error of `pytest_hermes.errors`.

Every client goes through `refusal()` (the endpoint answered something else than a completion) and `unreachable()` (it
did not answer), so an error row reads the same whichever client is used. Whether to try again is decided here too;
how long to wait is `retry.py`'s business.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

from pytest_hermes.errors import (
    ContextOverflow,
    HermesError,
    ModelAnswerInvalid,
    ModelError,
    ModelNotFound,
    ModelRateLimited,
    ModelRejected,
    ModelUnauthorized,
    ModelUnavailable,
)
from pytest_hermes.models.answers import excerpt

RETRIED_STATUS = frozenset({408, 409, 425, 429})
"""Refusals that may pass, besides every 5xx."""

OVERFLOW = re.compile(
    r"context_length_exceeded|context_window_exceeded|exceed_context_size|model_max_prompt_tokens_exceeded"
    r"|maximum context length|maximum prompt length"  # OpenAI, vLLM, SGLang, OpenRouter, Mistral; xAI
    r"|exceeds? the (?:model'?s )?(?:available |maximum )?context (?:window|length|size)"  # OpenAI, llama.cpp
    r"|longer than the model'?s context length"  # SGLang
    r"|prompt is too long|input is too long for requested model"  # Anthropic, Bedrock
    r"|input length and `?max_tokens`? exceed context limit"  # Anthropic
    r"|input token count .{0,40}exceeds the maximum number of tokens"  # Gemini
    r"|`inputs` tokens \+ `max_new_tokens` must be"  # TGI
    r"|exceeded model token limit|prompt exceeds max length|context window exceeds limit"  # Kimi, GLM, MiniMax
    r"|context (?:length|size|window) (?:was |is |has been )?exceeded"
    r"|reduce the length of (?:the|your) (?:messages|prompt|input)",
    re.IGNORECASE,
)
NOT_FOUND = re.compile(
    r"model_not_found|model_not_exist|not a valid model|unknown model|invalid model|no such model"
    r"|no endpoints found for|model\b[^\n]{0,160}?(?:does not exist|not found|not exist|is not available)",
    re.IGNORECASE,
)
QUOTA = re.compile(r"insufficient_quota|billing_hard_limit|exceeded your current quota", re.IGNORECASE)

CANNOT_CONNECT = "cannot connect ({}). Is it running, is the URL right?"


@dataclasses.dataclass(eq=False)
class AttemptFailed(Exception):
    """One attempt of a call failed with `error`; `retry` says whether another may succeed, `after_s` when at best."""

    error: HermesError
    retry: bool = False
    after_s: float | None = None
    rate_limited: bool = False


def message_of(body: bytes | str | Mapping[str, Any]) -> tuple[str, str]:
    """The human message and the machine code(s) in an error body of any usual shape."""
    if isinstance(body, Mapping):
        value: Any = body
    else:
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return excerpt(body), ""
    if isinstance(value, list) and value:  # Gemini wraps the object in a list
        value = value[0]
    if not isinstance(value, Mapping):
        return excerpt(str(value)), ""
    error = value.get("error", value)
    if not isinstance(error, Mapping):
        return excerpt(str(error)), ""
    message = error.get("message") or error.get("detail") or value.get("message") or value.get("detail")
    metadata = error.get("metadata")
    if isinstance(metadata, Mapping) and metadata.get("raw"):  # OpenRouter: what the provider behind it said
        message = f"{message}: {metadata['raw']}"
    codes = " ".join(str(error[key]) for key in ("code", "type", "status") if error.get(key) is not None)
    return excerpt(message if isinstance(message, str) else json.dumps(message or dict(error))), codes


def refusal(
    status: int, body: bytes | str | Mapping[str, Any], *, where: str, model: str, should_retry: bool | None = None
) -> AttemptFailed:
    """The error for an answer that refuses. `should_retry` is the endpoint's own word (`x-should-retry`)."""
    message, codes = message_of(body)
    said = f"{message} ({codes})" if codes and codes not in message else message
    told = f"{codes} {message}"
    retry = status in RETRIED_STATUS or status >= 500
    if should_retry is not None:
        retry = should_retry
    error: HermesError
    if status in (400, 413, 422, 500) and OVERFLOW.search(told):
        return AttemptFailed(ContextOverflow(f"the conversation does not fit the context window of {model!r}: {said}"))
    if status in (401, 403):
        error = ModelUnauthorized(
            f"{where} refuses the API key (HTTP {status}): {said}. Set OPENAI_API_KEY (OPENROUTER_API_KEY for "
            "OpenRouter) to a key that may use this model.",
            status=status,
        )
    elif status in (400, 404) and NOT_FOUND.search(told):
        error = ModelNotFound(f"{where} does not know the model {model!r} (HTTP {status}): {said}", status=status)
    elif status == 429:
        if QUOTA.search(told):
            retry = False
        error = ModelRateLimited(f"{where} limits the rate of requests for {model!r} (HTTP 429): {said}", status=status)
    elif status >= 500 or status in RETRIED_STATUS:
        error = ModelUnavailable(f"{where} failed to answer (HTTP {status}): {said}", status=status)
    elif 300 <= status < 400:
        error = ModelRejected(
            f"{where} redirects elsewhere (HTTP {status}): {said}. Give that base URL.", status=status
        )
    elif status == 404:
        error = ModelRejected(
            f"{where} has no chat completions (HTTP 404): {said}. Check the base URL; most end in /v1.", status=status
        )
    else:
        error = ModelRejected(f"{where} rejects the request to {model!r} (HTTP {status}): {said}", status=status)
    return AttemptFailed(error, retry=retry, rate_limited=status == 429)


def error_inside(answer: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]] | None:
    """The error that some gateways put into an answer with status 200: (status, error body), or None."""
    error = answer.get("error")
    choices = answer.get("choices")
    if not error and isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        error = choices[0].get("error")
    if not error:
        return None
    code = error.get("code") if isinstance(error, Mapping) else None
    if isinstance(code, str) and code.isdigit():
        code = int(code)
    status = code if isinstance(code, int) and 400 <= code < 600 else 502
    return status, {"error": error}


def unreachable(reason: str, *, where: str, retry: bool = True) -> AttemptFailed:
    """The error for an endpoint that gives no answer at all."""
    return AttemptFailed(ModelUnavailable(f"no answer from {where}: {reason}"), retry=retry)


def invalid(error: ModelAnswerInvalid, *, where: str) -> AttemptFailed:
    """The error for an answer that is no completion; another attempt may give one."""
    return AttemptFailed(ModelAnswerInvalid(f"{where}: {error}"), retry=True)


def counted(error: HermesError, attempts: int) -> HermesError:
    """The same error, saying after how many attempts it is raised."""
    if not isinstance(error, ModelError):
        return error
    error.attempts = attempts
    if attempts > 1:
        error.args = (f"{error.args[0]} [after {attempts} attempts]", *error.args[1:])
    return error
