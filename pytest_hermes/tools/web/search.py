"""A search at a service: one request, retried when the service asks for it, and errors that never show the key."""

from __future__ import annotations

import asyncio
import json
import urllib.parse
from typing import TYPE_CHECKING, Any

from pytest_hermes.errors import HermesError
from pytest_hermes.models.answers import excerpt
from pytest_hermes.models.failures import AttemptFailed
from pytest_hermes.models.retry import RetryPolicy, retry_after_s
from pytest_hermes.tools.tool import ToolFailure
from pytest_hermes.tools.web.fetch import WebClient, read_body
from pytest_hermes.tools.web.providers import Hit, Service

if TYPE_CHECKING:
    import aiohttp

SEARCH_TIMEOUT_S = 30.0
MAX_ANSWER_BYTES = 5_000_000
MAX_DESCRIPTION_CHARS = 1_000
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
            return [_shown(hit, service) for hit in (await _answer(client, service, query, limit))[:limit]]
    except TimeoutError:
        reason = f"no answer within {timeout_s:g} s"
    except (HermesError, ToolFailure, aiohttp.ClientError, OSError, ValueError) as error:
        reason = str(error)  # ValueError: a base URL or key that HTTP cannot carry
    # Masked before it is cut: of a key across the cut, a part would stay.
    raise ToolFailure(f"Search with {service.provider.name} failed: {masked(reason, service)[:500]}", success=False)


def _shown(hit: Hit, service: Service) -> Hit:
    title, url, text = (masked(part, service) for part in (hit.title, hit.url, hit.description))
    if len(text) > MAX_DESCRIPTION_CHARS:
        text = f"{text[: MAX_DESCRIPTION_CHARS - 3]}..."
    return Hit(title, url, text)


async def _answer(client: WebClient, service: Service, query: str, limit: int) -> list[Hit]:
    call = service.provider.call(service.key, query, limit)
    # The user chose this server, often one on this machine, so its address is not judged.
    session = client.session(allow_private=True)

    async def attempt() -> list[Hit]:
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
            raise AttemptFailed(
                HermesError(_refused(service, response, body, truncated)),
                retry=response.status == 429 or response.status >= 500,
                after_s=retry_after_s(response.headers, RETRY.now()),
                rate_limited=response.status == 429,
            )

    hits, _ = await RETRY.run(attempt)
    return hits


def _hits(service: Service, body: bytes) -> list[Hit]:
    try:
        answer: Any = json.loads(body)
        return list(service.provider.hits(answer))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ToolFailure(f"the answer is not a list of results: {_excerpt(service, body)}") from None


def _refused(service: Service, response: aiohttp.ClientResponse, body: bytes, truncated: bool) -> str:
    if truncated:
        return f"the answer is larger than {MAX_ANSWER_BYTES // 1_000_000} MB"
    provider, status = service.provider, response.status
    hint = _HINTS.get((provider.name, status), "")
    if not hint and status in (401, 403) and provider.key_variables:
        hint = f"Check {' or '.join(provider.key_variables)}."
    if 300 <= status < 400:
        hint = f"It redirects; set {provider.url_variable} to where it leads."
    return f"HTTP {status}. {hint} {_excerpt(service, body)}".replace("  ", " ").strip()


def _excerpt(service: Service, body: bytes) -> str:
    return excerpt(masked(body.decode("utf-8", "replace"), service)[:2_000], 200)


def masked(text: str, service: Service) -> str:
    """`text` without the service's key, which an answer may repeat, and without a password in its URL.

    Also as JSON and URLs spell them.
    """
    from yarl import URL

    secrets = {service.key}
    try:
        base = URL(service.base_url)
        secrets |= {base.password or "", base.raw_password or ""}
    except ValueError:
        secrets.add(service.base_url)
    spelled = {spelling for secret in secrets if secret for spelling in _spellings(secret)}
    for spelling in sorted(spelled, key=len, reverse=True):
        text = text.replace(spelling, "***")
    return text


def _spellings(secret: str) -> set[str]:
    quoted = json.dumps(secret)[1:-1]
    urls = {urllib.parse.quote(secret), urllib.parse.quote(secret, safe=""), urllib.parse.quote_plus(secret)}
    return {secret, quoted, quoted.replace("/", "\\/"), *urls}
