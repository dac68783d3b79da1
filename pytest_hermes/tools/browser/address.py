"""The addresses that may be opened in a tab: http and https of allowed hosts, and about:blank."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from pytest_hermes.tools.tool import ToolFailure
from pytest_hermes.tools.web.addresses import check_host
from pytest_hermes.tools.web.fetch import MAX_URL_CHARS

BLANK = "about:blank"
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d{1,5}(?:[/?#]|$)")


async def checked_address(url: str, *, allow_private: bool) -> str:
    """`url` as it is to be opened (https where no scheme is given). Raises ToolFailure.

    This gives early and clear answers; what holds is the proxy, which judges every connection.
    """
    if len(url) > MAX_URL_CHARS:
        raise ToolFailure(f"url has {len(url)} characters, {MAX_URL_CHARS} at most: {url[:80]!r}...")
    text = re.sub(r"[\x00-\x20]+", "", url)
    if not text:
        raise ToolFailure("url is empty. Give an address such as https://example.com/.")
    if text.lower() == BLANK:
        return BLANK
    if _HOST_AND_PORT.match(text):
        text = f"http://{text}"
    elif not _SCHEME.match(text):
        text = f"https://{text.lstrip('/')}"
    try:
        place = urlsplit(text)
        port = place.port
    except ValueError as error:
        raise ToolFailure(f"{text[:200]!r} is no address: {str(error)[:200]}.") from None
    if place.scheme not in ("http", "https"):
        raise ToolFailure(f"{place.scheme}: addresses cannot be opened, only http, https and {BLANK}.")
    if not place.hostname:
        raise ToolFailure(f"{text[:200]!r} names no host.")
    await check_host(place.hostname, port or (443 if place.scheme == "https" else 80), allow_private=allow_private)
    return text
