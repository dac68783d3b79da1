"""The scripted model (`--model=scripted`, `--model=scripted:FILE`): the real client against the scripted server.

Nothing between the agent loop and the socket differs from a run with a model: no key, no network, no cost. A task's
script is, in this order: `task.data["script"]`, what `script_for` says, the file's entry for its id or default.

`python -m pytest_hermes.models.scripted FILE [--port N]` serves a script file and prints the base URL.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_hermes.errors import ConfigurationError
from pytest_hermes.models.chat import ChatClient
from pytest_hermes.models.pricing import Price
from pytest_hermes.models.protocol import Completion, Conversation, Sampling
from pytest_hermes.models.retry import RetryPolicy
from pytest_hermes.models.script import Script, ScriptFile, read_script_file
from pytest_hermes.models.scripted_server import DEFAULT_KEY, MODEL, ScriptedServer

if TYPE_CHECKING:
    from pytest_hermes.task import Task

__all__ = ["ScriptedModel", "ScriptedServer"]


class ScriptedModel:
    """A `ChatModel` per script on one server, which starts with the first call and ends with `aclose()`.

    `for_task(task)` is the model that plays that task's script; the object itself plays the file's default script.
    """

    def __init__(
        self,
        file: ScriptFile | None = None,
        *,
        script_for: Callable[[Task], Script | None] | None = None,
        timeout_s: float = 600.0,
        prices: Mapping[str, Price] | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.name = MODEL
        self.server = ScriptedServer()
        self._file = file or ScriptFile()
        self._script_for = script_for
        self._timeout_s, self._prices = timeout_s, prices
        self._retry = retry or RetryPolicy(base_s=0.05)
        self._client: ChatClient | None = None
        self._starting: asyncio.Task[ScriptedServer] | None = None
        if self._file.default is not None:
            self.server.add(DEFAULT_KEY, self._file.default)

    def for_task(self, task: Task) -> ScriptOfTask:
        """The model that plays the task's script. ConfigurationError when it has none."""
        script: Script | None = task.data.get("script")
        if script is None and self._script_for is not None:
            script = self._script_for(task)
        if script is None:
            script = self._file.script_for(task.id)
        if script is None:
            raise ConfigurationError(
                f"--model=scripted: task {task.id!r} brings no script. Give one in a file, --model=scripted:FILE "
                "(`tasks: {<task id>: [turns]}` or `default: [turns]`)"
            )
        self.server.add(task.id, script)
        return ScriptOfTask(self, task.id)

    async def complete(
        self,
        conversation: Conversation,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        sampling: Sampling = Sampling(),
        timeout_s: float | None = None,
    ) -> Completion:
        client = await self.client(DEFAULT_KEY)
        return await client.complete(conversation, tools=tools, sampling=sampling, timeout_s=timeout_s)

    async def client(self, key: str) -> ChatClient:
        """The chat client of one script; starts the server if it does not run yet."""
        if self._starting is None:
            self._starting = asyncio.create_task(self.server.start())
        await asyncio.shield(self._starting)
        if self._client is None:
            self._client = ChatClient(
                self.server.url(), MODEL, "scripted", timeout_s=self._timeout_s, prices=self._prices, retry=self._retry
            )
        return self._client.at(self.server.url(key))

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None
        if self._starting is not None:
            await self._starting
            self._starting = None
        await self.server.stop()


class ScriptOfTask:
    """One task's script as a `ChatModel`. Closing it closes nothing: the `ScriptedModel` owns the server."""

    def __init__(self, owner: ScriptedModel, key: str) -> None:
        self.name = owner.name
        self._owner, self._key = owner, key
        self._client: ChatClient | None = None

    async def complete(
        self,
        conversation: Conversation,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        sampling: Sampling = Sampling(),
        timeout_s: float | None = None,
    ) -> Completion:
        self._client = self._client or await self._owner.client(self._key)
        return await self._client.complete(conversation, tools=tools, sampling=sampling, timeout_s=timeout_s)

    async def aclose(self) -> None:
        return None


async def serve(path: str, *, host: str = "127.0.0.1", port: int = 0) -> None:
    """Serve a script file until cancelled; prints one base URL a script."""
    file = read_script_file(path)
    async with ScriptedServer(host=host, port=port) as server:
        for key, script in {DEFAULT_KEY: file.default, **file.tasks}.items():
            if script is not None:
                server.add(key, script)
                print(f"{key}: {server.url(key)}", flush=True)
        print(f"model name: {MODEL}. Ctrl-C stops.", flush=True)
        await asyncio.Event().wait()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pytest_hermes.models.scripted", description=serve.__doc__)
    parser.add_argument("file", help="script file, YAML or JSON")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    arguments = parser.parse_args(argv)
    try:
        asyncio.run(serve(arguments.file, host=arguments.host, port=arguments.port))
    except KeyboardInterrupt:
        pass
    except ConfigurationError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
