"""The tool set `web` as a model calls it: a real sandbox, loopback pages, and what a machine without keys says."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pytest_hermes.errors import ConfigurationError
from pytest_hermes.sandbox.labels import Owner
from pytest_hermes.sandbox.local import LocalProvider
from pytest_hermes.sandbox.protocol import SandboxRequest
from pytest_hermes.task import SandboxSpec
from pytest_hermes.tools.toolbox import Toolbox, ToolSettings

pytest.importorskip("trafilatura")

LONG = "\n".join(f"line {number}" for number in range(20_000))
VARIABLES = ("TAVILY_API_KEY", "EXA_API_KEY", "FIRECRAWL_API_KEY", "FIRECRAWL_API_URL", "SEARXNG_URL")


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "BRAVE_API_KEY", "BRAVE_SEARCH_API_KEY"):
        monkeypatch.delenv(name, raising=False)


async def serve(request: web.Request) -> web.Response:
    if request.path == "/search":
        hits = [{"title": "One", "url": "https://a.example/1", "content": "first"}] * 9
        return web.json_response({"results": hits})
    if request.path == "/long":
        return web.Response(text=LONG)
    if request.path == "/gone":
        return web.Response(status=410)
    return web.Response(text="<title>A page</title><p>Some words.</p>", content_type="text/html")


Call = Callable[..., Any]


@contextlib.asynccontextmanager
async def browsing(root: Path, **settings: Any) -> AsyncIterator[tuple[str, Call]]:
    """(URL of the server, what calls a tool as a model does)."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    provider = LocalProvider(confine="off", root=root)
    try:
        owner = Owner.here(run="web-test").labels()
        sandbox = await provider.create(SandboxRequest(SandboxSpec(), owner, "web", 600, 600))
        toolbox = Toolbox(sandbox, ["web_extract", "file"], settings=ToolSettings(**settings), answers_all=True)

        async def call(name: str, **arguments: Any) -> Any:
            return json.loads(await toolbox.call(name, json.dumps(arguments)))

        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}", call
        finally:
            await toolbox.aclose()
            await toolbox.state.aclose()
            await sandbox.close()
    finally:
        await provider.aclose()
        await runner.cleanup()


@pytest.mark.asyncio
async def test_pages_are_read_together_and_fail_one_by_one(tmp_path: Path) -> None:
    async with browsing(tmp_path, allow_private_urls=True) as (url, call):
        urls = [f"{url}/page", f"{url}/gone", "file:///etc/passwd"]
        page, gone, file = (await call("web_extract", urls=urls))["results"]
        assert page == {"url": urls[0], "title": "A page", "content": "Some words.", "error": None}
        assert gone == {"url": urls[1], "title": "", "content": "", "error": "HTTP 410 Gone."}
        assert file["error"].startswith("'file:///etc/passwd': only absolute http")


@pytest.mark.asyncio
async def test_a_long_page_loses_its_middle_and_is_kept_whole_in_the_sandbox(tmp_path: Path) -> None:
    async with browsing(tmp_path, allow_private_urls=True) as (url, call):
        (page,) = (await call("web_extract", urls=[f"{url}/long"], char_limit=1))["results"]  # 2,000 is the least
        assert page["content"].startswith("line 0\n") and page["content"].endswith("line 19999")
        assert 2_000 < len(page["content"]) < 2_300
        assert f"of {len(LONG):,} characters left out" in page["content"]
        path = page["content"].partition("the whole text is in ")[2].partition(":")[0]
        part = await call("read_file", path=path, offset=10_001, limit=1)
        assert part["content"].startswith("10001|line 10000")


@pytest.mark.asyncio
async def test_private_addresses_need_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lookup = socket.getaddrinfo

    def rebinding(host: Any, *rest: Any, **more: Any) -> Any:
        return lookup("127.0.0.1" if host == "public.example" else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    async with browsing(tmp_path) as (url, call):
        urls = [url, url.replace("127.0.0.1", "localhost"), url.replace("127.0.0.1", "public.example")]
        for page in (await call("web_extract", urls=urls))["results"]:
            assert page["content"] == "" and page["error"].startswith("Refused: ")
    async with browsing(tmp_path, allow_private_urls=True) as (url, call):
        (page,) = (await call("web_extract", urls=[url.replace("127.0.0.1", "public.example")]))["results"]
        assert page["content"] == "Some words."


@pytest.mark.asyncio
async def test_arguments_that_cannot_be_served_are_answered(tmp_path: Path) -> None:
    async with browsing(tmp_path) as (_, call):
        assert "6 URLs given, 5 at most" in (await call("web_extract", urls=["http://a.example"] * 6))["error"]
        assert "urls is empty" in (await call("web_extract", urls=[]))["error"]
        assert "must be an array" in (await call("web_extract", urls="http://a.example"))["error"]


@pytest.mark.asyncio
async def test_a_search_gives_numbered_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with browsing(tmp_path) as (url, call):
        unset = await call("web_search", query="x")
        assert "TAVILY_API_KEY" in unset["error"] and "SEARXNG_URL" in unset["error"]
        monkeypatch.setenv("SEARXNG_URL", url)
        result = await call("web_search", query="x", limit=2)
        one = {"title": "One", "url": "https://a.example/1", "description": "first"}
        assert result == {"success": True, "data": {"web": [{**one, "position": 1}, {**one, "position": 2}]}}
        assert len((await call("web_search", query="x"))["data"]["web"]) == 5
        empty = await call("web_search", query=" ")
        assert empty == {"success": False, "error": "web_search: the query is empty. Say what to look for."}
        monkeypatch.setenv("SEARXNG_URL", f"{url}/gone?")
        assert (await call("web_search", query="x"))["success"] is False


@pytest.mark.asyncio
async def test_a_search_that_cannot_work_stops_the_run_before_it_begins(tmp_path: Path) -> None:
    async with browsing(tmp_path):
        with pytest.raises(ConfigurationError, match="TAVILY_API_KEY"):
            Toolbox(object(), ["web_search"])  # type: ignore[arg-type]


@pytest.mark.skipif(importlib.util.find_spec("trafilatura") is None, reason="needs the extra web")
def test_choosing_the_tools_imports_no_http_and_no_parser() -> None:
    program = (
        "import sys; from pytest_hermes.tools.registry import TOOLS; from pytest_hermes.tools.toolbox import "
        "ToolSettings; [TOOLS[name].unavailable(ToolSettings()) for name in ('web_search', 'web_extract')]; "
        "print(sorted({'aiohttp', 'trafilatura', 'pypdf', 'lxml', 'yarl'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
