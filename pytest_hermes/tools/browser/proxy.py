"""The browser's only way out: a forward proxy on loopback that connects to addresses it has judged itself.

Chromium resolves no name (it asks this proxy) and the proxy connects to the very addresses that `check_host` allowed,
so a name that changes its address between check and use (DNS rebinding) gains nothing, and redirects, sub-requests,
workers and websockets are all held to the same rule. Each rollout has credentials of its own: other programs of the
machine cannot use the proxy, and what it refuses is told to the rollout that asked.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import secrets
from collections import deque
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from pytest_hermes.tools.tool import ToolFailure
from pytest_hermes.tools.web.addresses import Lookup, check_host, system_lookup

HEAD_BYTES = 262_144
HEAD_TIMEOUT_S = 120.0
CONNECT_TIMEOUT_S = 20.0
CHUNK_BYTES = 65_536
HOP_HEADERS = (b"proxy-", b"connection:", b"keep-alive:", b"upgrade:")

Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Passage:
    """One rollout's credentials for the proxy and the rule that holds for it."""

    def __init__(self, *, allow_private: bool, lookup: Lookup) -> None:
        self.name = secrets.token_hex(8)
        self.password = secrets.token_hex(16)
        self.allow_private = allow_private
        self.lookup = lookup
        self.refused: deque[str] = deque(maxlen=20)
        """Why requests were refused, the newest last; whoever reads it clears it."""


class GuardedProxy:
    """See the module docstring. `refused_strangers` counts requests without credentials: the browser's own."""

    def __init__(self) -> None:
        self.refused_strangers = 0
        self._passages: dict[str, Passage] = {}
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=HEAD_BYTES)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def admit(self, *, allow_private: bool, lookup: Lookup = system_lookup) -> Passage:
        passage = Passage(allow_private=allow_private, lookup=lookup)
        self._passages[passage.name] = passage
        return passage

    def dismiss(self, passage: Passage) -> None:
        self._passages.pop(passage.name, None)

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request; the connection is closed after it."""
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            lines = head[:-4].split(b"\r\n")
            passage = self._passage(lines)
            if passage is None:
                self.refused_strangers += 1
                writer.write(
                    b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=rollout\r\n"
                    b"Content-Length: 0\r\nConnection: close\r\n\r\n"
                )
                await writer.drain()
                return
            method, target, _ = lines[0].decode("latin-1").split(" ", 2)
            try:
                if method == "CONNECT":
                    await self._tunnel(passage, target, (reader, writer))
                else:
                    await self._forward(passage, method, target, lines[1:], (reader, writer))
            except ToolFailure as refusal:
                if ".invalid" not in target:  # such names (RFC 2606) stand in for services of the browser's own
                    passage.refused.append(str(refusal))
        except (OSError, EOFError, ValueError, TimeoutError, asyncio.LimitOverrunError):
            pass  # either side went away or spoke no HTTP: the browser reports the closed connection
        finally:
            writer.close()

    def _passage(self, lines: list[bytes]) -> Passage | None:
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"proxy-authorization":
                with contextlib.suppress(binascii.Error, ValueError):
                    user, _, password = base64.b64decode(value.split()[-1]).decode().partition(":")
                    passage = self._passages.get(user)
                    if passage is not None and secrets.compare_digest(password, passage.password):
                        return passage
        return None

    async def _tunnel(self, passage: Passage, target: str, browser: Pipe) -> None:
        place = urlsplit(f"//{target}")
        async with _connected(passage, place.hostname or "", place.port or 443) as upstream:
            browser[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await _both_ways(browser, upstream, is_http=False)

    async def _forward(self, passage: Passage, method: str, target: str, headers: list[bytes], browser: Pipe) -> None:
        place = urlsplit(target)
        if place.scheme != "http" or not place.hostname:
            raise ToolFailure(f"Refused: {target[:200]} is no http address.")
        path = (place.path or "/") + (f"?{place.query}" if place.query else "")
        kept = [line for line in headers if not line.lower().startswith(HOP_HEADERS)]
        async with _connected(passage, place.hostname, place.port or 80) as upstream:
            head = [f"{method} {path} HTTP/1.1".encode("latin-1"), *kept, b"Connection: close", b"", b""]
            upstream[1].write(b"\r\n".join(head))
            await _both_ways(browser, upstream, is_http=True)


@contextlib.asynccontextmanager
async def _connected(passage: Passage, host: str, port: int) -> AsyncIterator[Pipe]:
    """A connection to the first address of `host` that answers; only judged addresses are tried."""
    addresses = await check_host(host, port, allow_private=passage.allow_private, lookup=passage.lookup)
    for position, address in enumerate(addresses):
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                pipe = await asyncio.open_connection(address, port, limit=HEAD_BYTES)
            break
        except OSError:
            if position == len(addresses) - 1:
                raise
    try:
        yield pipe
    finally:
        pipe[1].close()


async def _closing_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on the head of the answer, told to be the last of its connection: the next request may go elsewhere."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head[:-4].split(b"\r\n")
        if lines[0].split(b" ")[1:2] != [b"100"]:
            break
        writer.write(head)
    kept = [line for line in lines if not line.lower().startswith((b"connection:", b"keep-alive:"))]
    writer.write(b"\r\n".join([*kept, b"Connection: close", b"", b""]))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Copy to the end of `reader` (True), or until `writer` takes no more (False)."""
    while chunk := await reader.read(CHUNK_BYTES):
        try:
            writer.write(chunk)
            await writer.drain()
        except OSError:
            return False
    return True


async def _receive(upstream: asyncio.StreamReader, browser: asyncio.StreamWriter, is_http: bool) -> None:
    if is_http:
        await _closing_answer(upstream, browser)
    await _copy(upstream, browser)


async def _both_ways(browser: Pipe, upstream: Pipe, *, is_http: bool) -> None:
    """Copy until the far side has ended or the browser has gone; a far side that reads no more may still answer."""
    sending = asyncio.create_task(_copy(browser[0], upstream[1]))
    receiving = asyncio.create_task(_receive(upstream[0], browser[1], is_http))
    try:
        await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
        if receiving.done() or not sending.result():
            await receiving
    finally:
        sending.cancel()
        receiving.cancel()
        await asyncio.gather(sending, receiving, return_exceptions=True)
