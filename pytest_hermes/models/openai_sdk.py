"""The chat client over the openai SDK (`--hermes-client=openai`): for Azure and other endpoints that need it.

The SDK brings the transport and the authentication; retries and errors are ours (`retry.py`, `failures.py`), so both
clients behave alike. Its low-level `post` is used: the typed `create` costs 2 to 25 ms of CPU a call.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pytest_hermes.errors import ConfigurationError, ModelAnswerInvalid, ModelUnavailable
from pytest_hermes.models import failures
from pytest_hermes.models.answers import completion
from pytest_hermes.models.endpoint import Endpoint, resolve
from pytest_hermes.models.failures import AttemptFailed
from pytest_hermes.models.pricing import Price, priced
from pytest_hermes.models.protocol import Completion, Conversation, Sampling
from pytest_hermes.models.retry import RetryPolicy, retry_after_s

if TYPE_CHECKING:
    import openai

AZURE_API_VERSION = "2024-10-21"
"""Used when OPENAI_API_VERSION is not set."""


class OpenAISDKClient:
    """A `ChatModel` over `openai.AsyncOpenAI`, or `AsyncAzureOpenAI` where the base URL is an Azure resource.

    Azure: base URL `https://<resource>.openai.azure.com` (or `AZURE_OPENAI_ENDPOINT`), key from `AZURE_OPENAI_API_KEY`,
    `model` is the deployment. Everything else as `ChatClient`.
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
        self.name = model
        url = base_url or os.environ.get("AZURE_OPENAI_ENDPOINT")
        self._azure = url is not None and (urlsplit(url).hostname or "").endswith(".openai.azure.com")
        if self._azure:
            api_key = api_key or os.environ.get("AZURE_OPENAI_API_KEY")
            if not api_key:
                raise ConfigurationError(f"no API key for {url}: set AZURE_OPENAI_API_KEY")
        self.endpoint: Endpoint = resolve(url if self._azure else base_url, api_key)
        self._timeout_s = timeout_s
        self._retry = retry or RetryPolicy(max_retries=max_retries)
        self._headers = dict(default_headers or {})
        self._prices = prices
        self._sdk: openai.AsyncOpenAI | None = None

    async def complete(
        self,
        conversation: Conversation,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        sampling: Sampling = Sampling(),
        timeout_s: float | None = None,
    ) -> Completion:
        """See `ChatModel.complete`. ModelUnavailable too when `timeout_s` runs out during the call or its retries."""
        body: dict[str, Any] = {"model": self.name, "messages": list(conversation.messages)}
        if tools:
            body["tools"] = list(tools)
        if sampling.temperature is not None:
            body["temperature"] = sampling.temperature
        if sampling.max_tokens is not None:
            body["max_tokens"] = sampling.max_tokens
        body.update(sampling.extra_body)
        try:
            async with asyncio.timeout(timeout_s):
                answer, retries = await self._retry.run(lambda: self._attempt(body))
        except TimeoutError as error:
            raise ModelUnavailable(f"no answer from {self.endpoint.shown} within {timeout_s:.0f} s") from error
        usage = priced(self.name, answer.usage, self._prices)
        return Completion(answer.message, answer.finish_reason, usage, answer.latency_s, retries, answer.model)

    async def aclose(self) -> None:
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

    async def _attempt(self, body: dict[str, Any]) -> Completion:
        import openai

        where, began = self.endpoint.shown, time.perf_counter()
        try:
            answer = await self._client().post("/chat/completions", body=body, cast_to=object)
        except openai.APITimeoutError as error:
            raise failures.unreachable(f"nothing within {self._timeout_s:.0f} s", where=where) from error
        except openai.APIStatusError as error:
            raise self._refusal(error.status_code, error.response.content, error.response.headers) from error
        except openai.APIConnectionError as error:
            raise failures.unreachable(f"cannot connect ({error.__cause__ or error})", where=where) from error
        except (openai.APIResponseValidationError, ValueError) as error:
            raise failures.invalid(ModelAnswerInvalid(f"the answer is not JSON ({error})"), where=where) from error
        latency_s = time.perf_counter() - began
        try:
            if not isinstance(answer, dict):
                raise ModelAnswerInvalid(f"the answer is not a JSON object: {str(answer)[:200]}")
            if inside := failures.error_inside(answer):
                raise self._refusal(*inside, {})
            return completion(answer, latency_s=latency_s)
        except ModelAnswerInvalid as error:
            raise failures.invalid(error, where=where) from error

    def _refusal(self, status: int, body: bytes | Mapping[str, Any], headers: Mapping[str, str]) -> AttemptFailed:
        failed = failures.refusal(status, body, where=self.endpoint.shown, model=self.name)
        failed.after_s = retry_after_s(headers, self._retry.now())
        failed.error.args = (self.endpoint.hide(str(failed.error)),)
        return failed
