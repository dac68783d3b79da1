"""HTTP for the web tools: one client per rollout, which fetches pages from public addresses only.

Every connection goes to addresses that `check_host` returned, and redirects are followed by hand so that each hop is
checked. What is fetched is bounded in size, time and number of redirects.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from typing import TYPE_CHECKING, Any

from pytest_hermes.tools.tool import ToolFailure
from pytest_hermes.tools.web.addresses import Lookup, check_host, literal, system_lookup

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

FETCH_TIMEOUT_S = 30.0
MAX_BODY_BYTES = 5_000_000
MAX_REDIRECTS = 10
MAX_URL_CHARS = 8_000
HEADERS = {
    "User-Agent": "Mozilla/5.0 (compatible; pytest-hermes)",
    "Accept": "text/html,application/xhtml+xml,text/*;q=0.9,application/json;q=0.9,application/pdf;q=0.8,*/*;q=0.5",
    "Accept-Language": "en;q=0.9,*;q=0.5",
}


@dataclasses.dataclass(frozen=True)
class Page:
    """What a URL led to. `url` is the last hop, `body` decompressed and at most `MAX_BODY_BYTES`."""

    url: str
    content_type: str
    """Media type in lower case without parameters; empty if none was sent."""
    charset: str | None
    body: bytes
    truncated: bool = False


class WebClient:
    """The HTTP sessions of one rollout, made on first use; lives on the engine's loop. No cookies, no proxies."""

    def __init__(
        self, lookup: Lookup = system_lookup, *, timeout_s: float = FETCH_TIMEOUT_S, max_bytes: int = MAX_BODY_BYTES
    ) -> None:
        self._lookup = lookup
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    def session(self, *, allow_private: bool) -> aiohttp.ClientSession:
        """A session whose connections go to checked addresses, or (`allow_private`) to any.

        Names only are checked here, as aiohttp resolves no literals: check those with `check_host` before a request.
        """
        if allow_private not in self._sessions:
            import aiohttp

            self._sessions[allow_private] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    resolver=_resolver(allow_private, self._lookup), use_dns_cache=False, limit=0
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=HEADERS,
            )
        return self._sessions[allow_private]

    async def fetch(self, url: str, *, allow_private: bool) -> Page:
        """The page at `url`, redirects followed. Raises ToolFailure for everything that may go wrong on the way."""
        import aiohttp

        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._follow(url, allow_private)
        except TimeoutError:
            raise ToolFailure(f"No complete answer within {self._timeout_s:g} s.") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # ValueError: headers and redirects that aiohttp or yarl cannot read
            raise ToolFailure(f"The page could not be fetched: {str(error)[:300] or type(error).__name__}.") from None

    async def _follow(self, url: str, allow_private: bool) -> Page:
        from yarl import URL

        place = page_url(url)
        session = self.session(allow_private=allow_private)
        for _ in range(MAX_REDIRECTS + 1):
            if place.host and literal(place.host):
                await check_host(place.host, place.port or 0, allow_private=allow_private)
            async with session.get(place, allow_redirects=False) as response:
                target = response.headers.get("Location")
                if response.status in (301, 302, 303, 307, 308) and target:
                    response.close()
                    place = page_url(place.join(URL(target)), f"redirect of {place.host} to ")
                    continue
                if response.status >= 400:
                    response.close()
                    raise ToolFailure(f"HTTP {response.status} {(response.reason or '')[:100]}".rstrip() + ".")
                body, truncated = await read_body(response, self._max_bytes)
                kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
                return Page(str(place), kind, response.charset, body, truncated)
        raise ToolFailure(f"More than {MAX_REDIRECTS} redirects; the last one led to {str(place)[:200]}.")

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            await session.close()


def page_url(url: str | URL, where: str = "") -> URL:
    """`url` as it may be requested: absolute, http or https, without user name, password and trailing dot.

    Raises ToolFailure; `where` begins its message.
    """
    from yarl import URL

    shown = f"{where}{str(url)[:200]!r}"
    if len(str(url)) > MAX_URL_CHARS:
        raise ToolFailure(f"{shown}...: longer than {MAX_URL_CHARS} characters.")
    try:
        place = URL(url.strip()) if isinstance(url, str) else url
        host, _ = place.host, place.port
    except ValueError as error:
        raise ToolFailure(f"{shown} is not a URL: {str(error)[:200]}.") from None
    if place.scheme not in ("http", "https") or not host:
        raise ToolFailure(f"{shown}: only absolute http:// and https:// URLs can be fetched.")
    if place.user is not None or place.password is not None:
        raise ToolFailure(f"{where}{str(place.origin())!r}: URLs with a user name or password are not fetched.")
    address = literal(host)
    plain = host.rstrip(".") if address is None else str(address)
    return place if plain == host or not plain else place.with_host(plain)


async def read_body(response: aiohttp.ClientResponse, max_bytes: int) -> tuple[bytes, bool]:
    """The decompressed body up to `max_bytes`, and whether there was more (then the connection is dropped)."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(65_536):
        body += chunk
        if len(body) > max_bytes:
            response.close()
            return bytes(body[:max_bytes]), True
    return bytes(body), False


def _resolver(allow_private: bool, lookup: Lookup) -> aiohttp.abc.AbstractResolver:
    from aiohttp.abc import AbstractResolver, ResolveResult

    class CheckedResolver(AbstractResolver):
        """Gives aiohttp the addresses that `check_host` lets through, so that no other lookup comes after it."""

        async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_UNSPEC) -> list[ResolveResult]:
            return [
                ResolveResult(
                    hostname=host,
                    host=address,
                    port=port,
                    family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                    proto=0,
                    flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
                )
                for address in await check_host(host, port, allow_private=allow_private, lookup=lookup)
            ]

        async def close(self) -> None:
            """Nothing is kept."""

    return CheckedResolver()
