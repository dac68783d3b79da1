"""Parts of the browser tools that need no browser: the proxy's rule, addresses, DevTools methods, what is missing."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pytest_hermes.models.chat import ChatClient
from pytest_hermes.tools.browser import cdp
from pytest_hermes.tools.browser.address import checked_address
from pytest_hermes.tools.browser.executable import find_browser, why_unavailable
from pytest_hermes.tools.browser.proxy import GuardedProxy, Passage
from pytest_hermes.tools.browser.vision import describer
from pytest_hermes.tools.tool import ToolFailure
from pytest_hermes.tools.toolbox import ToolSettings


@asynccontextmanager
async def served() -> AsyncIterator[tuple[int, list[str]]]:
    """A loopback server and the requests that reached it."""
    seen: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(f"{request.method} {request.path_qs} {request.headers.get('Host')}")
        assert "Proxy-Authorization" not in request.headers
        body = await request.read()
        return web.Response(text=f"{len(body)} bytes came", headers={"Connection": "keep-alive"})

    app = web.Application(client_max_size=10_000_000)
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1], seen
    finally:
        await runner.cleanup()


@asynccontextmanager
async def proxied() -> AsyncIterator[GuardedProxy]:
    proxy = GuardedProxy()
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.aclose()


async def spoken(proxy: GuardedProxy, request: bytes, passage: Passage | None = None) -> bytes:
    """What the proxy answers to raw bytes, to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.url.rpartition(":")[2]))
    if passage is not None:
        key = base64.b64encode(f"{passage.name}:{passage.password}".encode())
        request = request.replace(b"\r\n", b"\r\nProxy-Authorization: Basic " + key + b"\r\n", 1)
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


def test_a_request_with_credentials_is_passed_on_and_its_connection_closed() -> None:
    async def main() -> None:
        async with served() as (port, seen), proxied() as proxy:
            passage = proxy.admit(allow_private=True)
            body = b"x" * 3_000_000
            head = f"POST http://127.0.0.1:{port}/a?b=c HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n\r\n"
            answer = await spoken(proxy, head.encode() + body, passage)
            assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"3000000 bytes came")
            assert b"\r\nConnection: close\r\n" in answer and b"keep-alive" not in answer.lower()
            assert seen == ["POST /a?b=c here"]
            inner = b"GET /in HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"
            tunnel = await spoken(proxy, f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode() + inner, passage)
            assert tunnel.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")

    asyncio.run(main())


@pytest.mark.parametrize("request_line", ["GET http://127.0.0.1:{port}/ HTTP/1.1", "CONNECT 127.0.0.1:{port} HTTP/1.1"])
def test_strangers_and_wrong_passwords_are_turned_away(request_line: str) -> None:
    async def main() -> None:
        async with served() as (port, seen), proxied() as proxy:
            raw = f"{request_line.format(port=port)}\r\n\r\n".encode()
            passage = proxy.admit(allow_private=True)
            other = Passage(allow_private=True, lookup=passage.lookup)
            other.name = passage.name
            for who in (None, other):
                assert (await spoken(proxy, raw, who)).startswith(b"HTTP/1.1 407")
            proxy.dismiss(passage)
            assert (await spoken(proxy, raw, passage)).startswith(b"HTTP/1.1 407")
            assert proxy.refused_strangers == 3 and seen == []

    asyncio.run(main())


@pytest.mark.parametrize("method", ["GET http://{name}:{port}/ HTTP/1.1", "CONNECT {name}:{port} HTTP/1.1"])
def test_a_name_that_rebinds_to_this_machine_is_not_connected_to(method: str) -> None:
    answers = [["93.184.216.34", "127.0.0.1"], ["127.0.0.1"], ["::ffff:127.0.0.1"], ["169.254.169.254"]]

    async def lookup(host: str, port: int) -> Sequence[str]:
        return answers.pop(0)

    async def main() -> None:
        async with served() as (port, seen), proxied() as proxy:
            passage = proxy.admit(allow_private=False, lookup=lookup)
            while answers:
                raw = f"{method.format(name='rebind.example', port=port)}\r\nHost: rebind.example\r\n\r\n".encode()
                assert await spoken(proxy, raw, passage) == b""
            assert seen == [] and len(passage.refused) == 4
            assert all("only public addresses" in reason for reason in passage.refused), passage.refused

    asyncio.run(main())


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"GET ftp://127.0.0.1/ HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"CONNECT :: HTTP/1.1\r\n\r\n",
        b"CONNECT h:99999999 HTTP/1.1\r\n\r\n",
        b"CONNECT [::1 HTTP/1.1\r\n\r\n",
        b"\xff\xfe \x00 HTTP/1.1\r\n\r\n",
        b"GET http://[x]/ HTTP/1.1\r\n\r\n",
    ],
)
def test_broken_requests_end_their_own_connection_only(raw: bytes) -> None:
    async def main() -> None:
        async with served() as (port, _), proxied() as proxy:
            passage = proxy.admit(allow_private=True)
            assert await spoken(proxy, raw, passage) == b""
            good = f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: h\r\n\r\n".encode()
            assert (await spoken(proxy, good, passage)).startswith(b"HTTP/1.1 200")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("given", "opened"),
    [
        ("http://127.0.0.1:8000/a b", "http://127.0.0.1:8000/ab"),
        ("127.0.0.1:8000/x", "http://127.0.0.1:8000/x"),
        ("127.0.0.1", "https://127.0.0.1"),
        (" HTTP://127.0.0.1 ", "HTTP://127.0.0.1"),
        ("about:blank", "about:blank"),
    ],
)
def test_addresses_are_completed(given: str, opened: str) -> None:
    assert asyncio.run(checked_address(given, allow_private=True)) == opened


@pytest.mark.parametrize(
    "url",
    [
        *("", "file:///etc/passwd", "data:text/html,x", "javascript:alert(1)", "chrome://version", "about:config"),
        *("view-source:http://127.0.0.1", "blob:http://x/y", "ftp://x/", "http://", "http://[::1", "fi\nle:///etc"),
    ],
)
def test_other_addresses_are_refused_also_where_private_ones_are_allowed(url: str) -> None:
    with pytest.raises(ToolFailure):
        asyncio.run(checked_address(url, allow_private=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f.1", "[::1]", "10.1.2.3", "169.254.169.254"])
def test_private_addresses_are_refused_unless_allowed(host: str) -> None:
    with pytest.raises(ToolFailure, match=r"env\.allow_private_urls"):
        asyncio.run(checked_address(f"http://{host}/", allow_private=False))


@pytest.mark.parametrize(
    "method",
    [
        *("Target.createTarget", "Target.createBrowserContext", "Target.attachToTarget", "Browser.close", "IO.read"),
        *("DOM.setFileInputFiles", "Input.dispatchDragEvent", "Page.setDownloadBehavior", "Storage.getCookies"),
        *("Network.loadNetworkResource", "Fetch.enable", "Tracing.start", "", "evaluate", "Page.", "Page.a b"),
    ],
)
def test_devtools_methods_beyond_the_page_are_refused(method: str) -> None:
    with pytest.raises(ToolFailure, match="browser_cdp"):
        cdp.check(method)


def test_devtools_parameters_have_a_depth() -> None:
    flat: dict[str, Any] = {"a": [{"b": [1, {"c": {}}]}] * 1000}
    cdp.check_depth(flat)
    deep: dict[str, Any] = {}
    for _ in range(150):
        deep = {"a": [deep]}
    with pytest.raises(ToolFailure, match="nested deeper than 100 levels"):
        cdp.check_depth(deep)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = ToolSettings(browser_executable=str(tmp_path / "none"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert "browser_executable" in (why_unavailable(settings) or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "own"))
    assert "apt-get install chromium" in (why_unavailable(ToolSettings()) or "")
    (tmp_path / "own" / "chromium-1").mkdir(parents=True)
    assert why_unavailable(ToolSettings()) is None and find_browser(None) is None
    program = tmp_path / "chromium"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_browser(None) == str(program)

    def nothing(name: str) -> Any:
        return None

    monkeypatch.setattr("importlib.util.find_spec", nothing)
    assert "pip install 'pytest-hermes[browser]'" in (why_unavailable(settings) or "")


async def _one_answer(body: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """What `describer` gives where the endpoint answers `body`, and the requests that the endpoint saw."""
    seen: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(await request.json())
        return web.json_response(body)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    model = ChatClient(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", "eyes")
    try:
        return await describer(model)(b"\x89PNG picture", "What is it?"), seen
    finally:
        await model.aclose()
        await runner.cleanup()


def test_a_vision_model_gets_the_question_and_the_picture() -> None:
    message = {"role": "assistant", "content": "a form"}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "model": "eyes"}
    told, (request,) = asyncio.run(_one_answer(body))
    assert told == "a form" and request["model"] == "eyes"
    (asked,) = request["messages"]
    text, image = asked["content"]
    assert asked["role"] == "user" and text == {"type": "text", "text": "What is it?"}
    url = image["image_url"]["url"]
    assert url.startswith("data:image/png;base64,") and base64.b64decode(url.partition(",")[2]) == b"\x89PNG picture"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([{"type": "text", "text": "a "}, {"type": "text", "text": "form"}], "a form"),
        ([{"type": "reasoning", "summary": "hm"}, {"type": "text", "text": "a form"}, "!"], "a form!"),
        ([{"type": "text", "text": None}], "The vision model gave no answer."),
        ([], "The vision model gave no answer."),
        (None, "The vision model gave no answer."),
    ],
)
def test_an_answer_in_parts_is_told_as_their_text(content: Any, told: str) -> None:
    message = {"role": "assistant", "content": content}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "model": "eyes"}
    assert asyncio.run(_one_answer(body))[0] == told
