"""The synchronous face of a rollout's sandbox: what verifiers, test bodies and reward functions call.

Methods and result keys are those of hermes environments. Every call runs on the engine's loop and waits for its end: a
thread blocks, a coroutine that is driven (`bridge`) waits as in an `await`. Calls at once run side by side. The tools
here are fresh ones over the same sandbox: files and processes of the agent are there, its shell state (cwd, variables,
functions, PATH) is not. Results are whole (1 MB of a command's output) and never stored in the sandbox. A lost sandbox
is raised; what goes wrong with files in a living one is in the result.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import json
import os
import posixpath
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_hermes import bridge, transfers
from pytest_hermes.tools.terminal import run_command
from pytest_hermes.tools.toolbox import Toolbox
from pytest_hermes.tools.toolsets import Selection

if TYPE_CHECKING:
    from pytest_hermes.sandbox.protocol import Sandbox

OUTPUT_WINDOW = 1_000_000
READ_LINES = 2_000
_UNBOUNDED = 1 << 40

T = TypeVar("T")


class ToolContext:
    """See the module docstring. `sandbox` is the rollout's, `task_id` names it.

    Successive `terminal` calls share one shell of their own, so `cd` and `export` hold from call to call; a call made
    while another one runs gets a further shell, which starts in the sandbox's working directory.
    """

    def __init__(
        self, toolbox: Toolbox, sandbox: Sandbox, loop: asyncio.AbstractEventLoop, *, task_id: str | None = None
    ) -> None:
        self.sandbox = sandbox
        self.task_id = task_id or sandbox.id
        self._agent_tools = toolbox
        self._loop = loop
        self._idle: list[tuple[int, Toolbox]] = []
        self._made = 0
        self._lock = threading.Lock()

    # -- commands and tools --------------------------------------------------------------------------

    def terminal(self, command: str, timeout: float = 180) -> dict[str, Any]:
        """Run a command: `{"output", "exit_code", "error"}`; exit code 124 after `timeout` seconds."""
        return self._with_tools(lambda tools: run_command(tools.workspace, command, timeout_s=timeout))

    def read_file(self, path: str) -> dict[str, Any]:
        """The first 2,000 lines of a file, numbered, as the tool `read_file` gives them."""
        return self._tool("read_file", {"path": path, "limit": READ_LINES})

    def write_file(self, path: str, content: str) -> dict[str, Any]:
        return self._tool("write_file", {"path": path, "content": content})

    def search(self, query: str, path: str = ".") -> dict[str, Any]:
        """Lines that match a regular expression, as the tool `search_files` gives them."""
        return self._tool("search_files", {"pattern": query, "path": path})

    def call_tool(self, name: str, args: Mapping[str, Any] | str | None = None) -> str:
        """Any tool by name; its JSON result. `process` and `todo` see the agent's processes and list."""
        return self._with_tools(lambda tools: tools.call(name, args))

    def _tool(self, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.call_tool(name, args))
        return result

    # -- web and browser -----------------------------------------------------------------------------

    def web_search(self, query: str) -> dict[str, Any]:
        """As the tool of this name; `{"error": reason}` where it cannot work."""
        return self._tool("web_search", {"query": query})

    def web_extract(self, urls: Sequence[str] | str) -> dict[str, Any]:
        """As the tool of this name, for one address or several; `{"error": reason}` where it cannot work."""
        return self._tool("web_extract", {"urls": [urls] if isinstance(urls, str) else list(urls)})

    def browser_navigate(self, url: str) -> dict[str, Any]:
        """As the tool of this name, in the agent's browser; `{"error": reason}` where it cannot work."""
        return self._tool("browser_navigate", {"url": url})

    def browser_snapshot(self) -> dict[str, Any]:
        """The page that the agent's browser shows, as the tool of this name; `{"error": reason}` likewise."""
        return self._tool("browser_snapshot", {})

    # -- transfers -----------------------------------------------------------------------------------

    def upload_file(self, local: str | os.PathLike[str], remote: str) -> dict[str, Any]:
        """Copy a file into the sandbox, mode kept: `{"exit_code": 0, "output": "", "bytes": n}`, or -1 and `error`."""
        return self._wait(lambda: transfers.upload_file(self.sandbox, Path(local), self._place(remote)))

    def upload_dir(self, local: str | os.PathLike[str], remote: str) -> list[dict[str, Any]]:
        """Copy a directory into `remote`; one result per file as in `upload_file`, with its `path`.

        Links to files become files; links to directories and broken ones are results with an error.
        """
        return self._wait(lambda: transfers.upload_directory(self.sandbox, Path(local), self._place(remote)))

    def download_file(self, remote: str, local: str | os.PathLike[str]) -> dict[str, Any]:
        """Copy a file out of the sandbox: `{"success": True, "bytes": n}`, or False and `error`."""
        return self._wait(lambda: transfers.download_file(self.sandbox, self._place(remote), Path(local)))

    def download_dir(self, remote: str, local: str | os.PathLike[str]) -> list[dict[str, Any]]:
        """Copy a directory out of the sandbox into `local`; one result per file, with its `path`.

        Members that would leave `local` (by name or by link) are refused one by one.
        """
        return self._wait(lambda: transfers.download_directory(self.sandbox, self._place(remote), Path(local)))

    def _place(self, remote: str) -> str:
        if remote == "~" or remote.startswith("~/"):
            remote = posixpath.join(self.sandbox.home, remote[2:])
        return posixpath.normpath(posixpath.join(self.sandbox.workdir, remote))

    # -- waiting -------------------------------------------------------------------------------------

    def cleanup(self) -> None:
        """End the shells of this context; later calls start new ones. Idempotent.

        Sandbox, background processes and browser are the rollout's, and end with it: a further verifier, the test body
        or the artifacts may still want them.
        """
        self._wait(self.aclose)

    async def aclose(self) -> None:
        """`cleanup` for callers on the engine's loop."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, tools in idle:
            await tools.aclose()

    def _with_tools(self, use: Callable[[Toolbox], Coroutine[Any, Any, T]]) -> T:
        number, tools = self._take()
        try:
            return self._wait(lambda: use(tools))
        finally:
            with self._lock:
                self._idle.append((number, tools))

    def _take(self) -> tuple[int, Toolbox]:
        """The oldest idle tools, so that successive calls share one shell; new ones if all are busy."""
        with self._lock:
            if self._idle:
                oldest = min(self._idle, key=lambda entry: entry[0])
                self._idle.remove(oldest)
                return oldest
            self._made += 1
            number = self._made
        settings = dataclasses.replace(
            self._agent_tools.settings,
            default_result_size_chars=_UNBOUNDED,
            turn_budget_chars=_UNBOUNDED,
            tool_result_overrides={},
            context_window_tokens=None,
        )
        return number, Toolbox(
            self.sandbox,
            Selection((), (), own=self._agent_tools.selection.own),
            settings=settings,
            output_window=OUTPUT_WINDOW,
            state=self._agent_tools.state,
            answers_all=True,
        )

    def _wait(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a coroutine run on the engine's loop. An exception that strikes this thread or task while it
        waits (KeyboardInterrupt, an alarm, a cancellation) cancels the coroutine, which ends the remote command."""
        if self._loop.is_closed() or not self._loop.is_running():
            raise RuntimeError("ToolContext was used after its rollout's engine had stopped.")
        if bridge.is_driven():
            return bridge.wait(lambda: self._future(start))
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            raise RuntimeError(
                "ToolContext is synchronous and was called on the engine's own event loop from a callback or a task "
                "that no verifier started, so it would block that loop for ever. Call it in the verifier's coroutine, "
                "from a thread (await asyncio.to_thread(...)), or await the toolbox or sandbox instead."
            )
        future: concurrent.futures.Future[T] = asyncio.run_coroutine_threadsafe(start(), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _future(self, start: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
        """The coroutine at work on the engine's loop, as a future of the running one."""
        if asyncio.get_running_loop() is self._loop:
            return self._loop.create_task(start())
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(start(), self._loop))
