"""Search services: what each one is sent and what its answer means. No input or output here, see `search`.

To add one: a subclass of `SearchProvider`, and its name in `PROVIDERS`.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Mapping
from typing import Any, Protocol


@dataclasses.dataclass(frozen=True)
class Call:
    """One request. `path` is below the service's base URL."""

    method: str
    path: str
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    params: Mapping[str, str] | None = None
    json: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Hit:
    """One result of a search."""

    title: str
    url: str
    description: str


class SearchProvider(Protocol):
    """A search service. It is usable when one of `key_variables` or, if it `works_without_key`, its URL is set."""

    name: str
    key_variables: tuple[str, ...]
    """Environment variables that may hold the key, the first one set counts."""
    url_variable: str
    """Environment variable with the base URL."""
    default_url: str | None
    works_without_key: bool = False
    """A service of one's own at `url_variable` needs no key."""

    def call(self, key: str, query: str, limit: int) -> Call: ...

    def hits(self, answer: Any) -> Iterable[Hit]:
        """The results in an answer's JSON. Raises KeyError, TypeError or AttributeError if it has another shape."""


class Tavily(SearchProvider):
    """https://docs.tavily.com/documentation/api-reference/endpoint/search"""

    name = "tavily"
    key_variables = ("TAVILY_API_KEY",)
    url_variable = "TAVILY_BASE_URL"
    default_url = "https://api.tavily.com"

    def call(self, key: str, query: str, limit: int) -> Call:
        return Call("POST", "/search", _bearer(key), json={"query": query, "max_results": min(limit, 20)})

    def hits(self, answer: Any) -> Iterable[Hit]:
        return [_hit(item, item.get("content")) for item in answer["results"]]


class Exa(SearchProvider):
    """https://docs.exa.ai/reference/search"""

    name = "exa"
    key_variables = ("EXA_API_KEY",)
    url_variable = "EXA_BASE_URL"
    default_url = "https://api.exa.ai"

    def call(self, key: str, query: str, limit: int) -> Call:
        body = {"query": query, "numResults": limit, "contents": {"highlights": True}}
        return Call("POST", "/search", {"x-api-key": key}, json=body)

    def hits(self, answer: Any) -> Iterable[Hit]:
        return [_hit(item, " ... ".join(item.get("highlights") or [])) for item in answer["results"]]


class Firecrawl(SearchProvider):
    """https://docs.firecrawl.dev/api-reference/endpoint/search; one's own server needs no key."""

    name = "firecrawl"
    key_variables = ("FIRECRAWL_API_KEY",)
    url_variable = "FIRECRAWL_API_URL"
    default_url = "https://api.firecrawl.dev"
    works_without_key = True

    def call(self, key: str, query: str, limit: int) -> Call:
        return Call("POST", "/v2/search", _bearer(key) if key else {}, json={"query": query, "limit": limit})

    def hits(self, answer: Any) -> Iterable[Hit]:
        return [_hit(item, item.get("description")) for item in answer["data"].get("web") or []]


class SearXNG(SearchProvider):
    """https://docs.searxng.org/dev/search_api.html; the instance must allow the format `json`."""

    name = "searxng"
    key_variables = ()
    url_variable = "SEARXNG_URL"
    default_url = None
    works_without_key = True

    def call(self, key: str, query: str, limit: int) -> Call:
        return Call("GET", "/search", params={"q": query, "format": "json"})

    def hits(self, answer: Any) -> Iterable[Hit]:
        return [_hit(item, item.get("content")) for item in answer["results"]]


class Brave(SearchProvider):
    """https://api-dashboard.search.brave.com/app/documentation/web-search"""

    name = "brave"
    key_variables = ("BRAVE_API_KEY", "BRAVE_SEARCH_API_KEY")
    url_variable = "BRAVE_BASE_URL"
    default_url = "https://api.search.brave.com"

    def call(self, key: str, query: str, limit: int) -> Call:
        params = {"q": query, "count": str(min(limit, 20)), "text_decorations": "false"}
        headers = {"X-Subscription-Token": key, "Accept": "application/json"}
        return Call("GET", "/res/v1/web/search", headers, params=params)

    def hits(self, answer: Any) -> Iterable[Hit]:
        # The key `web` is left out when nothing was found.
        return [_hit(item, item.get("description")) for item in answer.get("web", {}).get("results") or []]


PROVIDERS: Mapping[str, SearchProvider] = {
    provider.name: provider for provider in (Tavily(), Exa(), Firecrawl(), SearXNG(), Brave())
}
"""By name, in the order in which they are looked for."""


@dataclasses.dataclass(frozen=True)
class Service:
    """A provider that can be used: where it is, and the key (empty: none)."""

    provider: SearchProvider
    base_url: str
    key: str = dataclasses.field(repr=False)


def choose(backend: str | None, environ: Mapping[str, str]) -> Service | str:
    """The service that `env.web_backend` names or, if unset, the first one whose variables are set; else one line that
    says what to set."""
    if backend is None:
        services = (_service(provider, environ) for provider in PROVIDERS.values())
        service = next((service for service in services if service), None)
        missing = f"no search service: set one of {', '.join(map(_variable, PROVIDERS.values()))}"
    elif backend in PROVIDERS:
        service = _service(PROVIDERS[backend], environ)
        missing = f"env.web_backend is {backend}: set {_variable(PROVIDERS[backend])}"
    else:
        return f"env.web_backend: no search service {backend!r}; there are {', '.join(PROVIDERS)}"
    if service is None:
        return missing
    if not service.base_url.lower().startswith(("http://", "https://")):
        return f"{service.provider.url_variable} is not an http:// or https:// URL"
    return service


def _service(provider: SearchProvider, environ: Mapping[str, str]) -> Service | None:
    key = next((key for name in provider.key_variables if (key := environ.get(name, "").strip())), "")
    url = environ.get(provider.url_variable, "").strip()
    if not key and not (url and provider.works_without_key):
        return None
    return Service(provider, (url or provider.default_url or "").rstrip("/"), key)


def _variable(provider: SearchProvider) -> str:
    return provider.key_variables[0] if provider.key_variables else provider.url_variable


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _hit(item: Mapping[str, Any], description: Any) -> Hit:
    text = " ".join(html.unescape(str(description or "")).split())
    return Hit(" ".join(html.unescape(str(item.get("title") or "")).split()), str(item["url"]), text)
