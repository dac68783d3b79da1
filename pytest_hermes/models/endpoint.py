"""Where a model is asked and with which key: one place that reads the environment."""

from __future__ import annotations

import dataclasses
import functools
import ipaddress
import os
import urllib.parse
import urllib.request
from collections.abc import Mapping

from pytest_hermes.errors import ConfigurationError
from pytest_hermes.shown import SHORTEST_SECRET

OPENAI_URL = "https://api.openai.com/v1"
OPENROUTER_URL = "https://openrouter.ai/api/v1"


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """A base URL and its key. `shown` is the URL for messages: never a password, never a query."""

    base_url: str
    api_key: str | None = dataclasses.field(default=None, repr=False)

    @functools.cached_property
    def shown(self) -> str:
        parts = urllib.parse.urlsplit(self.base_url)
        return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    def url(self, path: str) -> str:
        """The URL of `path` below the base; a query of the base URL (`?api-version=...`) is kept."""
        if "?" not in self.base_url:
            return f"{self.base_url}/{path}"
        parts = urllib.parse.urlsplit(self.base_url)
        return urllib.parse.urlunsplit(parts._replace(path=parts.path.rstrip("/") + "/" + path))

    def hide(self, text: str) -> str:
        """`text` without the key, should an endpoint have echoed it; a placeholder like `none` is no key."""
        return text.replace(self.api_key, "***") if self.api_key and len(self.api_key) >= SHORTEST_SECRET else text

    def proxy(self) -> str | None:
        """The proxy that the environment (`HTTPS_PROXY`, `NO_PROXY`, ...) names for this URL; never for loopback."""
        parts = urllib.parse.urlsplit(self.base_url)
        host = parts.hostname or ""
        if _is_loopback(host) or urllib.request.proxy_bypass(host):
            return None
        proxies = urllib.request.getproxies()
        return proxies.get(parts.scheme) or proxies.get("all")


def resolve(
    base_url: str | None = None, api_key: str | None = None, *, environ: Mapping[str, str] | None = None
) -> Endpoint:
    """The endpoint to use: what is given, else the environment.

    Base URL: the argument, `OPENAI_BASE_URL`, OpenRouter when only its key is set, OpenAI. Key: the argument,
    `OPENROUTER_API_KEY` for OpenRouter hosts, `OPENAI_API_KEY`. Other hosts may do without a key; OpenAI and OpenRouter
    cannot. Raises ConfigurationError.
    """
    found = os.environ if environ is None else environ
    openrouter_key, openai_key = found.get("OPENROUTER_API_KEY") or None, found.get("OPENAI_API_KEY") or None
    url = base_url or found.get("OPENAI_BASE_URL")
    if not url:
        url = OPENROUTER_URL if openrouter_key and not openai_key and not api_key else OPENAI_URL
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"base URL {url!r} is not an http(s) URL such as http://localhost:8000/v1")
    is_openrouter = _is_host(parts.hostname, "openrouter.ai")
    key = api_key or (openrouter_key if is_openrouter else None) or openai_key
    if key is None and (is_openrouter or _is_host(parts.hostname, "api.openai.com")):
        variable = "OPENROUTER_API_KEY" if is_openrouter else "OPENAI_API_KEY"
        raise ConfigurationError(
            f"no API key for {parts.scheme}://{parts.hostname}: set {variable}, or give --hermes-base-url for a server "
            "of your own (--model=scripted needs neither)"
        )
    if key is not None and (key != key.strip() or not key.isprintable() or not key.isascii()):
        raise ConfigurationError("the API key holds white space or characters that no HTTP header can carry")
    return Endpoint(url.rstrip("/") if not parts.query else url, key)


def _is_host(host: str, domain: str) -> bool:
    return host == domain or host.endswith("." + domain)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
