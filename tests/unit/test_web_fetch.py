"""Fetching pages over real loopback HTTP: redirects, limits, refusals, and what becomes of each content type."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hermes.tools.tool import ToolFailure
from pytest_hermes.tools.web.extract import MAX_ELEMENTS, Readable, decoded, extract, readable
from pytest_hermes.tools.web.fetch import MAX_REDIRECTS, Page, WebClient, page_url

pytest.importorskip("trafilatura")

ARTICLE = "".join(f"<p>Paragraph {n} says quite a lot about <a href='/n{n}'>thing {n}</a>.</p>" for n in range(9))


class Site:
    """A web server on a free port. `hits` are the paths that were asked for."""

    def __init__(self) -> None:
        self.hits: list[str] = []
        self.cookies: list[str | None] = []
        self.port = 0
        self.release = asyncio.Event()

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.hits.append(request.path)
        self.cookies.append(request.headers.get("Cookie"))
        if request.path == "/to":
            return web.Response(status=int(request.query.get("as", "302")), headers={"Location": request.query["url"]})
        if request.path == "/loop":
            return web.Response(status=302, headers={"Location": f"/loop?{len(self.hits)}", "Set-Cookie": "a=b"})
        if request.path == "/huge":
            response = web.StreamResponse(headers={"Content-Type": "text/plain"})
            await response.prepare(request)
            with contextlib.suppress(ConnectionError):
                while True:
                    await response.write(b"x" * 65_536)
            return response
        if request.path == "/bomb":
            body = gzip.compress(b"\0" * 3_000_000)
            return web.Response(body=body, headers={"Content-Encoding": "gzip", "Content-Type": "text/plain"})
        if request.path == "/slow":
            response = web.StreamResponse(headers={"Content-Type": "text/plain"})
            await response.prepare(request)
            await response.write(b"begins")
            await self.release.wait()
            return response
        if request.path == "/missing":
            return web.Response(status=404, text="not here")
        return web.Response(text=f"path {request.path}")


@contextlib.asynccontextmanager
async def serving(serve: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", serve)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def visiting(
    names: dict[str, Sequence[str]] | None = None, **limits: float
) -> AsyncIterator[tuple[Site, WebClient]]:
    async def lookup(host: str, port: int) -> Sequence[str]:
        if host not in (names or {}):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return (names or {})[host]

    site = Site()
    async with serving(site.serve) as site.port:
        client = WebClient(lookup, **limits)  # type: ignore[arg-type]
        try:
            yield site, client
        finally:
            site.release.set()
            await client.aclose()


@pytest.mark.asyncio
async def test_redirects_are_followed_to_the_page() -> None:
    async with visiting({"a.example": ["127.0.0.1"]}) as (site, client):
        there = site.url("/end", "a.example.")
        for status in ("301", "302", "303", "307", "308"):
            page = await client.fetch(site.url(f"/to?as={status}&url={there}"), allow_private=True)
            assert (page.body, page.content_type, page.charset) == (b"path /end", "text/plain", "utf-8")
            assert page.url == site.url("/end", "a.example")
        page = await client.fetch(site.url("/to?url=next%3Fa=1%23part"), allow_private=True)
        assert page.body == b"path /next"


@pytest.mark.asyncio
async def test_endless_redirects_end_and_no_cookie_is_kept() -> None:
    async with visiting() as (site, client):
        with pytest.raises(ToolFailure, match=f"More than {MAX_REDIRECTS} redirects"):
            await client.fetch(site.url("/loop"), allow_private=True)
        assert len(site.hits) == MAX_REDIRECTS + 1
        assert set(site.cookies) == {None}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "0x7f.1", "2130706433", "[::1]", "[::ffff:127.0.0.1]", "rebind.example"]
)
async def test_no_request_reaches_a_private_address(host: str) -> None:
    async with visiting({"rebind.example": ["93.184.215.14", "127.0.0.1"]}) as (site, client):
        with pytest.raises(ToolFailure, match="Refused"):
            await client.fetch(site.url("/", host), allow_private=False)
        assert site.hits == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "target",
    ["http://127.0.0.1:{port}/x", "//localhost:{port}/x", "http://0x7f.1:{port}/x", "http://rebind.example:{port}/x"],
)
async def test_each_hop_of_a_redirect_is_checked(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The only public address of this test is the server's own, for as long as the list says so.
    import pytest_hermes.tools.web.addresses as addresses

    judge = addresses.forbidden
    monkeypatch.setattr(addresses, "forbidden", lambda host: None if str(host) == "127.0.0.2" else judge(host))
    async with visiting({"public.example": ["127.0.0.2"], "rebind.example": ["127.0.0.1"]}) as (site, client):
        listening = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.2", 0)
        listening.close()
        await listening.wait_closed()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", site.serve)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.2", 0).start()
        port = runner.addresses[0][1]
        try:
            public = f"http://public.example:{port}"
            assert (await client.fetch(f"{public}/ok", allow_private=False)).body == b"path /ok"
            with pytest.raises(ToolFailure, match="Refused"):
                await client.fetch(f"{public}/to?url={target.format(port=port)}", allow_private=False)
        finally:
            await runner.cleanup()
        assert site.hits == ["/ok", "/to"]


@pytest.mark.asyncio
async def test_a_name_that_changes_its_address_is_judged_at_every_connection() -> None:
    answers = [["127.0.0.1"]]

    async def lookup(host: str, port: int) -> Sequence[str]:
        return answers[0]

    site = Site()
    async with serving(site.serve) as site.port:
        client = WebClient(lookup)
        try:
            await client.fetch(site.url("/", "a.example"), allow_private=True)
            for private in ("10.0.0.1", "::1", "169.254.169.254"):
                answers[0] = [private]
                with pytest.raises(ToolFailure, match="Refused"):
                    await client.fetch(site.url("/", "a.example"), allow_private=False)
        finally:
            await client.aclose()
    assert site.hits == ["/"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://a.example/", "only absolute http"),
        ("file:///etc/passwd", "only absolute http"),
        ("a.example/page", "only absolute http"),
        ("http:///page", "only absolute http"),
        ("", "only absolute http"),
        ("http://user:hunter2@a.example/", "user name or password"),
        ("http://a@127.0.0.1/", "user name or password"),
        ("http://a.example:99999/", "not a URL"),
        ("http://[::1/", "not a URL"),
        ("http://a\\@127.0.0.1/", "not a URL"),
        ("http://a.example/" + "x" * 9_000, "longer than"),
        ("http://unknown.example/", "no address found"),
    ],
)
async def test_what_is_no_public_web_address_is_refused(url: str, message: str) -> None:
    async with visiting() as (_, client):
        with pytest.raises(ToolFailure, match=message) as refused:
            await client.fetch(url, allow_private=False)
    assert "hunter2" not in str(refused.value)


@pytest.mark.asyncio
async def test_redirects_to_other_schemes_are_refused() -> None:
    async with visiting() as (site, client):
        for target in ("file:///etc/passwd", "javascript:alert(1)", "http://u:p@127.0.0.1/", "http://[::1"):
            with pytest.raises(ToolFailure):
                await client.fetch(site.url(f"/to?url={target}"), allow_private=True)
        assert site.hits == ["/to"] * 4


@pytest.mark.asyncio
async def test_a_page_is_cut_at_the_size_limit() -> None:
    async with visiting(max_bytes=100_000) as (site, client):
        for path in ("/huge", "/bomb"):
            page = await client.fetch(site.url(path), allow_private=True)
            assert (len(page.body), page.truncated) == (100_000, True)
        assert (await client.fetch(site.url("/small"), allow_private=True)).truncated is False


@pytest.mark.asyncio
async def test_a_page_that_does_not_end_is_given_up() -> None:
    async with visiting(timeout_s=0.2) as (site, client):
        with pytest.raises(ToolFailure, match=r"within 0\.2 s"):
            await client.fetch(site.url("/slow"), allow_private=True)


@pytest.mark.asyncio
async def test_http_errors_and_dead_servers_are_said() -> None:
    async with visiting() as (site, client):
        with pytest.raises(ToolFailure, match="HTTP 404 Not Found"):
            await client.fetch(site.url("/missing"), allow_private=True)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            with pytest.raises(ToolFailure, match="could not be fetched"):
                await client.fetch(f"http://127.0.0.1:{taken.getsockname()[1]}/", allow_private=True)


@pytest.mark.asyncio
async def test_bytes_that_are_not_http_are_a_failure() -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    client = WebClient()
    try:
        with pytest.raises(ToolFailure, match="could not be fetched"):
            await client.fetch(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", allow_private=True)
    finally:
        await client.aclose()
        server.close()
        await server.wait_closed()


@settings(deadline=None)
@given(st.text(max_size=60), st.booleans())
def test_any_text_is_a_url_or_refused(text: str, web_like: bool) -> None:
    try:
        place = page_url(f"http://{text}" if web_like else text)
    except ToolFailure:
        return
    assert place.scheme in ("http", "https")
    assert place.host and place.user is None and not place.host.endswith(".")


# -- text ------------------------------------------------------------------------------------------------


def page(body: bytes | str, kind: str = "text/html", charset: str | None = None, truncated: bool = False) -> Page:
    body = body.encode() if isinstance(body, str) else body
    return Page("http://a.example/docs/", kind, charset, body, truncated)


def test_html_becomes_markdown_without_the_menu() -> None:
    menu = "<nav><ul>" + "".join(f"<li><a href='/m{n}'>Menu {n}</a></li>" for n in range(30)) + "</ul></nav>"
    code = "<pre><code>def f():\n    return 1</code></pre><script>var secret = 1</script>"
    found = readable(
        page(f"<html><head><title>A &amp; B</title></head><body>{menu}<main>{ARTICLE}{code}</main></body></html>")
    )
    assert found.title == "A & B"
    assert "Paragraph 0 says" in found.text and "Paragraph 8 says" in found.text
    assert "[thing 3](http://a.example/n3)" in found.text
    assert "    return 1" in found.text
    assert "Menu 5" not in found.text and "secret" not in found.text


def test_a_page_of_few_words_keeps_them_all() -> None:
    found = readable(page("<title>T</title><h1>Answer</h1><p>4711</p><style>p {}</style><!-- no -->"))
    assert found == Readable("T", "# Answer\n\n4711")


def test_a_page_of_very_many_elements_is_converted_plainly() -> None:
    links = "".join(f"<li>item <a href='/{n}'>no {n}</a></li>" for n in range(MAX_ELEMENTS))
    text = readable(page(f"<ul>{links}</ul>")).text
    assert text.splitlines() == [f"item no {n}" for n in range(MAX_ELEMENTS)]


@pytest.mark.parametrize(
    ("body", "charset", "text"),
    [
        ("grüße".encode("latin-1"), "iso-8859-1", "grüße"),
        ("“q”".encode("cp1252"), "latin-1", "“q”"),
        ("日本".encode("shift_jis"), "shift_jis", "日本"),
        ("grüße".encode(), None, "grüße"),
        ("grüße".encode("latin-1"), None, "grüße"),
        ("grüße".encode("utf-16"), None, "grüße"),
        ("\ufeffgrüße".encode(), "latin-1", "grüße"),
        (b"<meta charset=koi8-r>" + "мир".encode("koi8-r"), None, "<meta charset=koi8-r>мир"),
        (b"<meta charset='utf-16'>" + "мир".encode(), None, "<meta charset='utf-16'>мир"),
        ("ä".encode(), "no-such-charset", "ä"),
        ("ä".encode(), "punycode", "ä"),
        (b"abc", "zlib", "abc"),
        ("aä".encode()[:-1], None, "a"),
        (b"\xff\xfe"[:1], "utf-8", "\ufffd"),
    ],
)
def test_bytes_are_read_in_the_pages_charset(body: bytes, charset: str | None, text: str) -> None:
    assert decoded(body, charset) == text


@settings(deadline=None)
@given(st.binary(max_size=200), st.none() | st.text(max_size=20))
def test_any_bytes_in_any_charset_become_text(body: bytes, charset: str | None) -> None:
    assert isinstance(decoded(body, charset), str)


def test_text_and_json_stay_as_they_are() -> None:
    for kind in ("text/plain", "text/csv", "application/json", "application/ld+json", "application/xml", ""):
        assert readable(page('{"a": [1,  2]}\n', kind)).text == '{"a": [1,  2]}\n'


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"\x89PNG\r\n\0\0", "image/png"),
        (b"PK\3\4\0", "application/zip"),
        (b"\0\1\2", ""),
        (b"a\0b", "application/octet-stream"),
    ],
)
def test_what_is_no_text_is_refused(body: bytes, kind: str) -> None:
    with pytest.raises(ToolFailure, match="no text to extract"):
        readable(page(body, kind))


def a_pdf(text: str = "") -> bytes:
    from pypdf import PdfWriter
    from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

    writer = PdfWriter()
    sheet = writer.add_blank_page(300, 300)
    kind = {NameObject("/Type"): NameObject("/Font"), NameObject("/Subtype"): NameObject("/Type1")}
    font = DictionaryObject({**kind, NameObject("/BaseFont"): NameObject("/Helvetica")})
    fonts = DictionaryObject({NameObject("/F1"): writer._add_object(font)})
    sheet[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    stream = DecodedStreamObject()
    stream.set_data(f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET".encode())
    sheet[NameObject("/Contents")] = writer._add_object(stream)
    writer.add_metadata({"/Title": "A paper"})
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


@pytest.mark.asyncio
async def test_a_pdf_gives_its_text() -> None:
    body = a_pdf("The answer is 42")
    for kind in ("application/pdf", "application/octet-stream"):
        assert await extract(page(body, kind)) == Readable("A paper", "The answer is 42")
    with pytest.raises(ToolFailure, match="larger than"):
        await extract(page(body, "application/pdf", truncated=True))


@pytest.mark.asyncio
async def test_a_damaged_page_fails_alone() -> None:
    for body in (b"%PDF-1.7 nonsense", a_pdf("x")[:300], b""):
        with pytest.raises(ToolFailure, match="could not be read"):
            await extract(page(body, "application/pdf"))
    for body in (b"", b"<!-- -->", b"<script>render()</script>"):
        with pytest.raises(ToolFailure, match="has no text"):
            await extract(page(body))


@pytest.mark.asyncio
async def test_a_cut_page_says_so() -> None:
    found = await extract(page("word " * 400_000, "text/plain", truncated=True))
    assert found.text.endswith("[the page goes on after 2 MB; not fetched]")


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=300), st.sampled_from(["text/html", "", "application/json"]))
def test_any_bytes_are_read_or_refused(body: bytes, kind: str) -> None:
    try:
        asyncio.run(extract(page(body, kind)))
    except ToolFailure as failure:
        assert str(failure)
