"""`web_search` against loopback servers that speak each service's wire, and what their failures look like."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from pytest_hermes.tools.tool import ToolFailure
from pytest_hermes.tools.web.fetch import WebClient
from pytest_hermes.tools.web.providers import PROVIDERS, Service, choose
from pytest_hermes.tools.web.search import MAX_ANSWER_BYTES, MAX_DESCRIPTION_CHARS, search

KEY = "key-secret-0123456789"
Answer = Callable[[web.Request], web.Response]


class Wire:
    """A search service: checks what it is sent as the real one does, then answers in its own shape."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, Any]]] = []
        self.answers: list[Answer] = []
        self.stopped = asyncio.Event()

    async def serve(self, request: web.Request) -> web.Response:
        sent = await request.json() if request.can_read_body else dict(request.query)
        self.requests.append((request.method, request.path, sent))
        if self.answers:
            return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])(request)
        match request.path:
            case "/search" if request.method == "GET":
                if sent.get("format") != "json":
                    return web.Response(status=403)
                return web.json_response({"query": sent["q"], "results": found("content", 30)})
            case "/search" if request.headers.get("x-api-key") == KEY:
                texts = [{**item, "highlights": ["one", "two"]} for item in found("text", sent["numResults"])]
                return web.json_response({"results": texts})
            case "/search" if request.headers.get("Authorization") == f"Bearer {KEY}":
                if not 0 <= sent["max_results"] <= 20:
                    return web.json_response({"detail": {"error": "max_results"}}, status=400)
                return web.json_response({"results": found("content", sent["max_results"])})
            case "/v2/search" if request.headers.get("Authorization") in (f"Bearer {KEY}", None):
                return web.json_response({"success": True, "data": {"web": found("description", sent["limit"])}})
            case "/res/v1/web/search" if request.headers.get("X-Subscription-Token") == KEY:
                if int(sent["count"]) > 20:
                    return web.json_response({"error": {"detail": "count"}}, status=422)
                return web.json_response({"web": {"results": found("description", int(sent["count"]))}})
        return web.json_response({"error": f"Invalid API key {KEY}"}, status=401)


def found(field: str, count: int) -> list[dict[str, Any]]:
    return [
        {"title": f"Title &amp; {n}", "url": f"https://a.example/{n}", field: f"About\n{n}", "score": 1.0 / (n + 1)}
        for n in range(count)
    ]


@contextlib.asynccontextmanager
async def wired(name: str = "tavily", key: str = KEY) -> AsyncIterator[tuple[Wire, Callable[..., Any]]]:
    wire, client = Wire(), WebClient()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", wire.serve)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    service = Service(PROVIDERS[name], f"http://127.0.0.1:{runner.addresses[0][1]}", key)

    async def ask(limit: int = 5, query: str = "a query & more", **more: Any) -> list[Any]:
        return await search(client, service, query, limit, **more)

    try:
        yield wire, ask
    finally:
        wire.stopped.set()
        await client.aclose()
        await runner.cleanup()


@pytest.mark.asyncio
@pytest.mark.parametrize("name", PROVIDERS)
async def test_every_service_is_spoken_to_in_its_own_way(name: str) -> None:
    async with wired(name) as (wire, ask):
        hits = await ask(3)
        assert [(hit.title, hit.url) for hit in hits] == [(f"Title & {n}", f"https://a.example/{n}") for n in range(3)]
        assert hits[1].description == ("one ... two" if name == "exa" else "About 1")
        (_, _, sent) = wire.requests[0]
        assert sent.get("query", sent.get("q")) == "a query & more"
        assert len(await ask(100)) == {"tavily": 20, "brave": 20, "searxng": 30}.get(name, 100)


@pytest.mark.asyncio
async def test_ones_own_firecrawl_needs_no_key() -> None:
    async with wired("firecrawl", key="") as (_, ask):
        assert len(await ask(2)) == 2


@pytest.mark.asyncio
async def test_nothing_found_is_an_empty_list() -> None:
    for name, answer in {"brave": {}, "firecrawl": {"success": True, "data": {}}, "searxng": {"results": []}}.items():
        async with wired(name) as (wire, ask):
            wire.answers = [lambda _, answer=answer: web.json_response(answer)]
            assert await ask() == []


def refusal(status: int, body: str = "", **headers: str) -> Answer:
    return lambda _: web.Response(status=status, text=body, headers=headers)


@pytest.mark.asyncio
@pytest.mark.parametrize("name", PROVIDERS)
async def test_a_refused_key_is_named_but_never_shown(name: str) -> None:
    async with wired(name) as (wire, ask):
        wire.answers = [refusal(401, f"no such key {KEY}, {KEY}")]
        with pytest.raises(ToolFailure, match=f"Search with {name} failed: HTTP 401") as failure:
            await ask()
        assert KEY not in json.dumps(failure.value.result())
        assert all(variable in str(failure.value) for variable in PROVIDERS[name].key_variables)
        assert failure.value.result()["success"] is False
        assert len(wire.requests) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("status", [200, 401])
async def test_no_part_of_a_key_stays_where_an_error_is_cut(status: int) -> None:
    async with wired() as (wire, ask):
        for before in (*range(150, 205), *range(1_975, 2_005)):
            wire.answers = [refusal(status, ("x" * 170).ljust(before) + KEY + " after")]
            with pytest.raises(ToolFailure) as failure:
                await ask()
            assert KEY[:5] not in json.dumps(failure.value.result())


@pytest.mark.asyncio
@pytest.mark.parametrize("name", PROVIDERS)
async def test_results_that_repeat_the_key_do_not_show_it(name: str) -> None:
    key = "key/secret+0123456789"
    leaks = f"{key} key%2Fsecret%2B0123456789 end"
    hit = {"title": leaks, "url": f"https://a.example/?k={leaks}", "score": 1.0}
    hit |= dict.fromkeys(("content", "text", "description"), leaks) | {"highlights": [leaks]}
    answer = {"results": [hit], "success": True, "data": {"web": [hit]}, "web": {"results": [hit]}}
    async with wired(name, key=key) as (wire, ask):
        wire.answers = [lambda _: web.json_response(answer)]
        (shown,) = await ask()
        assert "0123456789" not in repr(shown)
        assert (shown.title, shown.url) == ("*** *** end", "https://a.example/?k=*** *** end")
        assert shown.description == "*** *** end"
        hit |= dict.fromkeys(("content", "text", "description"), "x" * (MAX_DESCRIPTION_CHARS - 10) + key)
        hit["highlights"] = [hit["text"]]
        (shown,) = await ask()
        assert "key" not in shown.description


@pytest.mark.asyncio
async def test_what_passes_is_tried_again() -> None:
    busy = [refusal(429, **{"Retry-After": "0"}), refusal(503, **{"Retry-After": "0"})]
    async with wired() as (wire, ask):
        wire.answers = [*busy, lambda _: web.json_response({"results": found("content", 2)})]
        assert len(await ask()) == 2
        assert len(wire.requests) == 3


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "wait", "attempts"), [(429, "0", 3), (502, "0", 3), (429, "3600", 1), (400, "0", 1)]
)
async def test_what_does_not_pass_is_given_up(status: int, wait: str, attempts: int) -> None:
    async with wired() as (wire, ask):
        wire.answers = [refusal(status, "slow down", **{"Retry-After": wait})]
        with pytest.raises(ToolFailure, match=f"HTTP {status}. slow down"):
            await ask()
        assert len(wire.requests) == attempts


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "body",
    ["<html>Bad gateway</html>", "[]", "null", '{"results": 5}', '{"results": [5]}', '{"results": [{}]}', "[" * 99_999],
)
async def test_garbage_is_no_result(body: str) -> None:
    async with wired() as (wire, ask):
        wire.answers = [refusal(200, body)]
        if body == "[]":
            body = r"\[\]"
        with pytest.raises(ToolFailure, match="the answer is not a list of results"):
            await ask()


@pytest.mark.asyncio
async def test_a_huge_answer_is_not_read_to_its_end() -> None:
    async with wired() as (wire, ask):
        wire.answers = [refusal(200, "x" * (MAX_ANSWER_BYTES + 1))]
        with pytest.raises(ToolFailure, match="larger than 5 MB"):
            await ask()


@pytest.mark.asyncio
async def test_keys_are_not_sent_on_to_where_a_service_redirects() -> None:
    async with wired("searxng") as (wire, ask):
        wire.answers = [refusal(301, Location="https://elsewhere.example/")]
        with pytest.raises(ToolFailure, match="It redirects; set SEARXNG_URL"):
            await ask()
        wire.answers = [refusal(403)]
        with pytest.raises(ToolFailure, match="format json"):
            await ask()


@pytest.mark.asyncio
async def test_a_silent_service_is_given_up() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = WebClient()
    try:
        with pytest.raises(ToolFailure, match=r"no answer within 0\.2 s"):
            await search(client, Service(PROVIDERS["exa"], url, KEY), "q", 5, timeout_s=0.2)
    finally:
        await client.aclose()
        server.close()
        await server.wait_closed()
    with pytest.raises(ToolFailure, match="Search with exa failed"):
        await search(client, Service(PROVIDERS["exa"], url, KEY), "q", 5)
    await client.aclose()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "url", ["http://user:hunter2@127.0.0.1:1", "http://u:hunter2@[::1", "http://u:hunter%32@127.0.0.1:1"]
)
async def test_what_cannot_be_reached_shows_no_secret(url: str) -> None:
    client = WebClient()
    try:
        for key in (KEY, f"{KEY}\nX-Evil: 1"):
            with pytest.raises(ToolFailure, match="Search with brave failed") as failure:
                await search(client, Service(PROVIDERS["brave"], url, key), "q", 5)
            assert "hunter" not in str(failure.value) and KEY not in str(failure.value)
    finally:
        await client.aclose()


def test_the_service_is_chosen_by_name_or_by_the_keys_present() -> None:
    def chosen(backend: str | None, **environ: str) -> tuple[str, str, str] | str:
        service = choose(backend, environ)
        return service if isinstance(service, str) else (service.provider.name, service.base_url, service.key)

    assert chosen(None, TAVILY_API_KEY=" k ") == ("tavily", "https://api.tavily.com", "k")
    assert chosen(None, EXA_API_KEY="k", BRAVE_API_KEY="b") == ("exa", "https://api.exa.ai", "k")
    assert chosen("brave", EXA_API_KEY="k", BRAVE_SEARCH_API_KEY="b") == ("brave", "https://api.search.brave.com", "b")
    assert chosen(None, SEARXNG_URL="http://localhost:8080/") == ("searxng", "http://localhost:8080", "")
    assert chosen(None, FIRECRAWL_API_URL="http://localhost:3002") == ("firecrawl", "http://localhost:3002", "")
    assert chosen(None, TAVILY_API_KEY="k", TAVILY_BASE_URL="http://x/") == ("tavily", "http://x", "k")
    assert (
        chosen("tavily", TAVILY_API_KEY=" ", TAVILY_BASE_URL="http://x")
        == "env.web_backend is tavily: set TAVILY_API_KEY"
    )
    assert chosen(None, SEARXNG_URL="localhost:8080") == "SEARXNG_URL is not an http:// or https:// URL"
    assert chosen("searxng") == "env.web_backend is searxng: set SEARXNG_URL"
    assert chosen("gogle") == (
        "env.web_backend: no search service 'gogle'; there are tavily, exa, firecrawl, searxng, brave"
    )
    assert chosen(None) == (
        "no search service: set one of TAVILY_API_KEY, EXA_API_KEY, FIRECRAWL_API_KEY, SEARXNG_URL, BRAVE_API_KEY"
    )
    assert KEY not in repr(choose(None, {"EXA_API_KEY": KEY}))
