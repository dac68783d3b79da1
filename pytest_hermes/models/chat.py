"""The default chat client: OpenAI-compatible `/chat/completions` over one kept aiohttp session per event loop.

It costs about 0.2 ms of CPU a call, whatever the length of the conversation (`conversation.py` keeps it encoded),
where the openai SDK's typed call costs 2 to 25 ms.
"""

from __future__ import annotations

import asyncio
import copy
import ssl as ssl_module
import weakref
from collections.abc import Mapping

import aiohttp

from pytest_hermes.models import failures
from pytest_hermes.models.client import HttpChatModel, Response
from pytest_hermes.models.endpoint import resolve
from pytest_hermes.models.pricing import Price
from pytest_hermes.models.retry import RetryPolicy

CONNECTIONS = 1000
"""Connections of one session: more than any run has in flight, fewer than the usual limit of open files."""
CONNECT_S = 30.0


class ChatClient(HttpChatModel):
    """A `ChatModel` at an OpenAI-compatible endpoint (OpenAI, OpenRouter, vLLM, SGLang, llama.cpp, Ollama, ...).

    `base_url` and `api_key` default to the environment (`endpoint.resolve`). `ssl` is what aiohttp takes: True, False
    (no verification) or an SSLContext. Clients made by `at()` share their connections.
    """

    def __init__(
        self,
        base_url: str | None = None,
        model: str = "",
        api_key: str | None = None,
        *,
        timeout_s: float = 600.0,
        max_retries: int = 4,
        default_headers: Mapping[str, str] | None = None,
        ssl: ssl_module.SSLContext | bool = True,
        prices: Mapping[str, Price] | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        super().__init__(
            resolve(base_url, api_key), model, timeout_s=timeout_s, max_retries=max_retries, prices=prices, retry=retry
        )
        self._proxy = self.endpoint.proxy()
        self._ssl = ssl
        self._headers = {"Content-Type": "application/json", "User-Agent": "pytest-hermes"}
        if self.endpoint.api_key and "@" not in self.endpoint.base_url:
            self._headers["Authorization"] = f"Bearer {self.endpoint.api_key}"
        self._headers.update(default_headers or {})
        self._sessions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = (
            weakref.WeakKeyDictionary()
        )

    def at(self, base_url: str) -> ChatClient:
        """This client at another base URL, with the same key and settings, sharing its connections."""
        other = copy.copy(self)
        other.endpoint = resolve(base_url, self.endpoint.api_key)
        other._proxy = other.endpoint.proxy()
        return other

    async def aclose(self) -> None:
        """Close the connections of the running loop."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None:
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS, ttl_dns_cache=300, ssl=self._ssl),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=CONNECT_S),
            )
            self._sessions[loop] = session
        return session

    async def _send(self, path: str, payload: bytes | None) -> Response:
        where = self.endpoint.shown
        try:
            async with self._session().request(
                "GET" if payload is None else "POST",
                self.endpoint.url(path),
                data=payload,
                headers=self._headers,
                proxy=self._proxy,
                allow_redirects=False,
            ) as response:
                return Response(response.status, response.headers, await response.read())
        except aiohttp.ClientConnectorCertificateError as error:
            raise failures.unreachable(f"its certificate is not trusted: {error}", where=where, retry=False) from error
        except aiohttp.ConnectionTimeoutError as error:
            raise failures.unreachable(f"cannot connect within {CONNECT_S:g} s", where=where) from error
        except TimeoutError as error:
            raise failures.unreachable(f"nothing within {self._timeout_s:g} s", where=where) from error
        except aiohttp.InvalidURL as error:
            raise failures.unreachable("the base URL is not valid", where=where, retry=False) from error
        except (aiohttp.ClientError, OSError) as error:
            raise failures.unreachable(_reason(error), where=where) from error


def _reason(error: BaseException) -> str:
    """Why a connection failed, in a few words."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return failures.CANNOT_CONNECT.format(error.os_error.strerror or error.os_error)
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the answer broke off"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "it closed the connection without an answer"
    return f"{type(error).__name__}: {error}"
