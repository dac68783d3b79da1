"""A search at a service: one request, retried when the service asks for it, and errors that never show the key."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

from pytest_hermes.models.retry import RetryPolicy, retry_after_s
from pytest_hermes.tools.tool import ToolFailure
from pytest_hermes.tools.web.fetch import WebClient, read_body
from pytest_hermes.tools.web.providers import Hit, Service

if TYPE_CHECKING:
    import aiohttp

SEARCH_TIMEOUT_S = 30.0
MAX_ANSWER_BYTES = 5_000_000
RETRY = RetryPolicy(max_retries=2, base_s=0.5, cap_s=8.0, retry_after_limit_s=15.0)
_HINTS = {
    ("searxng", 403): "Is the format json allowed in the instance's settings.yml (search: formats)?",
}


async def search(
    client: WebClient, service: Service, query: str, limit: int, *, timeout_s: float = SEARCH_TIMEOUT_S
) -> list[Hit]:
    """At most `limit` results, retries included within `timeout_s`. Raises ToolFailure with `success: false`."""
    import aiohttp

    try:
        async with asyncio.timeout(timeout_s):
            return (await _answer(client, service, query, limit))[:limit]
    except TimeoutError:
        reason = f"no answer within {timeout_s:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: a base URL or key that HTTP cannot carry
        reason = str(error)
    except ToolFailure as failure:
        reason = str(failure)
    raise ToolFailure(masked(f"Search with {service.provider.name} failed: {reason[:500]}", service), success=False)


async def _answer(client: WebClient, service: Service, query: str, limit: int) -> list[Hit]:
    call = service.provider.call(service.key, query, limit)
    # The user chose this server, often one on this machine, so its address is not judged.
    session = client.session(allow_private=True)
    for retries in range(RETRY.max_retries + 1):
        async with session.request(
            call.method,
            service.base_url + call.path,
            headers=call.headers,
            params=call.params,
            json=call.json,
            allow_redirects=False,  # a key goes to nobody else
        ) as response:
            body, truncated = await read_body(response, MAX_ANSWER_BYTES)
            if response.status == 200 and not truncated:
                return _hits(service, body)
            wait_s = _wait_s(response, retries)
            if wait_s is None:
                raise ToolFailure(_refused(service, response, body, truncated))
        await asyncio.sleep(wait_s)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _wait_s(response: aiohttp.ClientResponse, retries: int) -> float | None:
    """Seconds until the next attempt, None if there shall be none."""
    if retries == RETRY.max_retries or not (response.status == 429 or response.status >= 500):
        return None
    after_s = retry_after_s(response.headers, time.time())
    if after_s is not None and not after_s <= RETRY.retry_after_limit_s:
        return None
    return RETRY.wait_s(retries, after_s, rate_limited=response.status == 429)


def _hits(service: Service, body: bytes) -> list[Hit]:
    try:
        answer: Any = json.loads(body)
        return list(service.provider.hits(answer))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ToolFailure(f"the answer is not a list of results: {_excerpt(body)}") from None


def _refused(service: Service, response: aiohttp.ClientResponse, body: bytes, truncated: bool) -> str:
    if truncated:
        return f"the answer is larger than {MAX_ANSWER_BYTES // 1_000_000} MB"
    provider, status = service.provider, response.status
    hint = _HINTS.get((provider.name, status), "")
    if not hint and status in (401, 403) and provider.key_variables:
        hint = f"Check {' or '.join(provider.key_variables)}."
    if 300 <= status < 400:
        hint = f"It redirects; set {provider.url_variable} to where it leads."
    return f"HTTP {status}. {hint} {_excerpt(body)}".replace("  ", " ").strip()


def _excerpt(body: bytes) -> str:
    return " ".join(body[:2_000].decode("utf-8", "replace").split())[:200]


def masked(text: str, service: Service) -> str:
    """`text` without the service's key, which an answer may repeat, and without a password in its URL."""
    from yarl import URL

    secrets: list[str | None] = [service.key]
    try:
        base = URL(service.base_url)
        secrets += [base.password, base.raw_password]
    except ValueError:
        secrets.append(service.base_url)
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return text
