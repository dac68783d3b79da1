"""From the name on the command line to a chat model. Clients are imported when one is made, not before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pytest_hermes.errors import ConfigurationError
from pytest_hermes.models.pricing import read_prices
from pytest_hermes.models.protocol import ChatModel

if TYPE_CHECKING:
    from pytest_hermes.models.retry import RetryPolicy
    from pytest_hermes.models.script import Script
    from pytest_hermes.task import Task

CLIENTS = ("aiohttp", "openai")


def make_model(
    name: str,
    *,
    base_url: str | None = None,
    client: str = "aiohttp",
    api_key: str | None = None,
    timeout_s: float = 600.0,
    max_retries: int = 4,
    default_headers: Mapping[str, str] | None = None,
    prices: Mapping[str, Any] | None = None,
    retry: RetryPolicy | None = None,
    script_for: Callable[[Task], Script | None] | None = None,
) -> ChatModel:
    """The model called `name`: `scripted`, `scripted:FILE`, or any name that the endpoint knows.

    One per run and endpoint: `model_for_task` gives what a rollout uses, `aclose()` on the engine's loop ends it.
    `prices` is `openai.prices` of the configuration (`pricing.read_prices`). Raises ConfigurationError (unknown client,
    no key for a hosted endpoint, unreadable script file).
    """
    table = read_prices(prices)
    if is_scripted(name) and base_url is None:  # with a URL, the model of that name there
        from pytest_hermes.models.retry import RetryPolicy
        from pytest_hermes.models.script import read_script_file
        from pytest_hermes.models.scripted import ScriptedModel

        path = name.partition(":")[2]
        return ScriptedModel(
            read_script_file(path) if path else None,
            script_for=script_for,
            timeout_s=timeout_s,
            prices=table,
            retry=retry or RetryPolicy(max_retries=max_retries, base_s=0.05),
        )
    if not name:
        raise ConfigurationError("no model named: give --model NAME (or --model=scripted)")
    if client == "aiohttp":
        from pytest_hermes.models.chat import ChatClient

        return ChatClient(
            base_url,
            name,
            api_key,
            timeout_s=timeout_s,
            max_retries=max_retries,
            default_headers=default_headers,
            prices=table,
            retry=retry,
        )
    if client == "openai":
        from pytest_hermes.models.openai_sdk import OpenAISDKClient

        return OpenAISDKClient(
            base_url,
            name,
            api_key,
            timeout_s=timeout_s,
            max_retries=max_retries,
            default_headers=default_headers,
            prices=table,
            retry=retry,
        )
    raise ConfigurationError(f"--hermes-client={client}: unknown client; known: {', '.join(CLIENTS)}")


def is_scripted(name: str | None) -> bool:
    """Whether a model name means the scripted model: `scripted` or `scripted:FILE`."""
    return name is not None and (name == "scripted" or name.startswith("scripted:"))


def model_for_task(model: ChatModel, task: Task) -> ChatModel:
    """What a rollout of `task` uses: the scripted model plays each task its own script, others are the same for all."""
    for_task: Callable[[Task], ChatModel] | None = getattr(model, "for_task", None)
    return model if for_task is None else for_task(task)
