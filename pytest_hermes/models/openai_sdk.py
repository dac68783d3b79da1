"""The chat client over the openai SDK (`--hermes-client=openai`): for Azure and other endpoints that need it.

The SDK brings the transport and the authentication, through its low-level `post` (the typed `create` costs 2 to 25 ms
of CPU a call). Requests, retries and errors are ours, so both clients behave alike.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pytest_hermes.errors import ConfigurationError
from pytest_hermes.models import failures
from pytest_hermes.models.client import HttpChatModel, Response
from pytest_hermes.models.endpoint import resolve
from pytest_hermes.models.pricing import Price
from pytest_hermes.models.retry import RetryPolicy

if TYPE_CHECKING:
    import openai

AZURE_API_VERSION = "2024-10-21"
"""Used when OPENAI_API_VERSION is not set."""


class OpenAISDKClient(HttpChatModel):
    """A `ChatModel` over `openai.AsyncOpenAI`, or `AsyncAzureOpenAI` where the base URL is an Azure resource.

    Azure: base URL `https://<resource>.openai.azure.com` (or `AZURE_OPENAI_ENDPOINT`), key from `AZURE_OPENAI_API_KEY`,
    `model` is the deployment. Bound to the event loop of its first call. Everything else as `ChatClient`.
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
        prices: Mapping[str, Price] | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        url = base_url or os.environ.get("AZURE_OPENAI_ENDPOINT")
        self._azure = url is not None and (urlsplit(url).hostname or "").endswith(".openai.azure.com")
        if self._azure:
            api_key = api_key or os.environ.get("AZURE_OPENAI_API_KEY")
            if not api_key:
                raise ConfigurationError(f"no API key for {url}: set AZURE_OPENAI_API_KEY")
        endpoint = resolve(url if self._azure else base_url, api_key)
        super().__init__(endpoint, model, timeout_s=timeout_s, max_retries=max_retries, prices=prices, retry=retry)
        self._headers = dict(default_headers or {})
        self._sdk: openai.AsyncOpenAI | None = None

    async def aclose(self) -> None:
        """Close the SDK's connections."""
        sdk, self._sdk = self._sdk, None
        if sdk is not None:
            await sdk.close()

    def _client(self) -> openai.AsyncOpenAI:
        if self._sdk is None:
            import openai

            options: dict[str, Any] = {
                "api_key": self.endpoint.api_key or "none",
                "max_retries": 0,
                "timeout": self._timeout_s,
                "default_headers": self._headers,
            }
            if self._azure:
                version = os.environ.get("OPENAI_API_VERSION", AZURE_API_VERSION)
                self._sdk = openai.AsyncAzureOpenAI(
                    azure_endpoint=self.endpoint.base_url, api_version=version, **options
                )
            else:
                self._sdk = openai.AsyncOpenAI(base_url=self.endpoint.base_url, **options)
        return self._sdk

    async def _send(self, path: str, payload: bytes | None) -> Response:
        import openai

        where, client = self.endpoint.shown, self._client()
        whole = openai.HttpxBinaryResponseContent
        try:
            if payload is None:
                answer = await client.get(f"/{path}", cast_to=whole)
            else:
                answer = await client.post(f"/{path}", body=json.loads(payload), cast_to=whole)
        except openai.APITimeoutError as error:
            raise failures.unreachable(f"nothing within {self._timeout_s:g} s", where=where) from error
        except openai.APIStatusError as error:
            return Response(error.status_code, error.response.headers, error.response.content)
        except openai.APIConnectionError as error:
            reason = failures.CANNOT_CONNECT.format(error.__cause__ or error)
            raise failures.unreachable(reason, where=where) from error
        return Response(answer.response.status_code, answer.response.headers, answer.response.content)
