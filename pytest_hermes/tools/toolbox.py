"""The tools of one rollout: their schemas, and `call`, which does exactly what a model's tool call does."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_hermes.errors import EpisodeError, HermesError, SandboxKilled, SandboxLost
from pytest_hermes.shown import named, shown
from pytest_hermes.tools.arguments import not_json, parse_arguments, validate
from pytest_hermes.tools.budget import ResultBudget
from pytest_hermes.tools.registry import BUILTIN
from pytest_hermes.tools.state import RolloutState
from pytest_hermes.tools.terminal import OUTPUT_WINDOW_CHARS
from pytest_hermes.tools.tool import Result, Tool, ToolFailure
from pytest_hermes.tools.toolsets import Selection, find_tool, select_tools
from pytest_hermes.tools.workspace import Workspace

if TYPE_CHECKING:
    from pytest_hermes.sandbox.protocol import Sandbox

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ToolSettings:
    """Settings of the tools. Sizes in characters; `context_window_tokens` scales the result budget where known.

    `tool_pool_size` is accepted for hermes configurations: tools here are coroutines and need no thread pool.
    """

    terminal_timeout_s: float = 120
    max_foreground_timeout_s: float = 600
    default_result_size_chars: int = 100_000
    turn_budget_chars: int = 200_000
    preview_size_chars: int = 1_500
    tool_result_overrides: Mapping[str, int] = dataclasses.field(default_factory=dict)
    context_window_tokens: int | None = None
    tool_pool_size: int = 128
    web_backend: str | None = None
    allow_private_urls: bool = False
    browser_executable: str | None = None
    browser_timeout_s: float = 30
    browser_dialog_timeout_s: float = 30
    describe_image: Callable[[bytes, str], Awaitable[str]] | None = None
    """Asks a vision model about a PNG, for `browser_vision`."""


@dataclasses.dataclass(frozen=True)
class ToolCallRecord:
    """One call as it was made. `started_s` is the time of day (seconds since the epoch)."""

    name: str
    arguments: str | Mapping[str, Any] | None
    result_length: int
    duration_s: float
    error: str | None
    started_s: float


class Toolbox:
    """The enabled tools over one sandbox. Lives on the engine's loop; shells start when first needed.

    `schemas` are OpenAI function schemas, `names` the names a model may call, `calls` what it has called. `state` is
    what the rollout's tools share; whoever made the first toolbox closes it at the rollout's end. `toolsets` are names
    or a selection made before; with `answers_all`, `call` does any known tool, also one that `schemas` does not show.
    Raises ConfigurationError for an unknown tool set and for a named tool that cannot work on this machine.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        toolsets: Selection | Sequence[str] | None,
        *,
        settings: ToolSettings = ToolSettings(),
        disabled_toolsets: Sequence[str] = (),
        output_window: int = OUTPUT_WINDOW_CHARS,
        state: RolloutState | None = None,
        answers_all: bool = False,
    ) -> None:
        if not isinstance(toolsets, Selection):
            toolsets = select_tools(toolsets, disabled_toolsets, settings=settings)
        self.selection = toolsets
        self._answers_all = answers_all
        self._tools = {tool.name: tool for tool in toolsets.tools}
        self.schemas: list[dict[str, Any]] = [tool.schema for tool in self._tools.values()]
        self.names: frozenset[str] = frozenset(self._tools)
        if answers_all:
            self.names |= {*BUILTIN, *(tool.name for tool in toolsets.own)}
        self.calls: list[ToolCallRecord] = []
        self.sandbox = sandbox
        self.settings = settings
        pinned = frozenset(name for name, tool in self._tools.items() if tool.pages_itself)
        self._budget = ResultBudget(settings, pinned)
        self.state = state or RolloutState()
        self.workspace: Workspace = Workspace(sandbox, settings, self.state, output_window)
        self.workspace.page_chars = min(self.workspace.page_chars, self._budget.result_chars)

    async def call(self, name: str, arguments: str | Mapping[str, Any] | None, *, call_id: str | None = None) -> str:
        """Do one tool call and return the JSON string that the model sees; mistakes are `{"error": ...}`.

        Raises only SandboxLost, SandboxKilled, EpisodeError and CancelledError; such calls are recorded as well.
        """
        started, clock = time.time(), time.perf_counter()
        text, error = "", None
        try:
            result, text = await self._answer(name, arguments)
            error = str(result["error"]) if result.get("error") else None
            return await self._budget.fit(self.workspace, call_id, name, text)
        except BaseException as raised:
            error = named(raised)
            raise
        finally:
            self.calls.append(ToolCallRecord(name, arguments, len(text), time.perf_counter() - clock, error, started))

    async def _answer(self, name: str, arguments: str | Mapping[str, Any] | None) -> tuple[Result, str]:
        """The result and its JSON, whatever the tool did."""
        try:
            result = await self._result(name, arguments)
            try:
                return result, _encoded(result)
            except (TypeError, ValueError, RecursionError) as error:
                result = {"error": f"The tool returned what is not JSON: {not_json(result) or error}"}
        except (SandboxLost, SandboxKilled, EpisodeError, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - a model must get an answer to every call; logged and recorded
            # SystemExit or pytest's own: the engine's loop would end with it
            if isinstance(error, HermesError):  # its message says it all; a traceback is for what nobody expected
                _log.warning("tool %s failed: %s", name, named(error))
            else:
                _log.warning("tool %s failed\n%s", name, shown(traceback.format_exc()))
            result = {"error": f"Tool execution failed: {named(error)}"}
        return result, _encoded(result)

    async def _result(self, name: str, arguments: str | Mapping[str, Any] | None) -> Result:
        try:
            tool = self._tools.get(name) or (self._further(name) if self._answers_all else None)
            if tool is None:
                return {"error": f"Unknown tool '{str(name)[:200]}'. Available tools: {sorted(self.names)}"}
            values = validate(tool.accepts or tool.parameters, parse_arguments(arguments), name)
            result = await tool.run(self.workspace, values)
        except ToolFailure as failure:
            result = failure.result()
        if not isinstance(result, dict):
            return {"error": f"The tool returned {type(result).__name__}, not a dict"}
        return result

    def _further(self, name: str) -> Tool | None:
        """A tool that was not chosen. Raises ToolFailure if it cannot work here."""
        tool = find_tool(name, self.selection.own)
        if tool is not None and tool.unavailable is not None and (reason := tool.unavailable(self.settings)):
            raise ToolFailure(f"{name} cannot work here: {reason}")
        return tool

    def parallel_safe(self, names: Sequence[str]) -> bool:
        """May these calls of one turn run at the same time? Only what does not change files or shells may."""
        return all(name not in self._tools or self._tools[name].reads_only for name in names)

    async def fit_turn(self, results: list[tuple[str, str, str]]) -> list[str]:
        """The results of one turn, given as (call id, tool name, result), within the budget of a turn."""
        return await self._budget.fit_turn(self.workspace, results)

    async def aclose(self) -> None:
        """End the kept shells. Background processes go on, the sandbox stays. Idempotent."""
        await self.workspace.aclose()


def _encoded(result: Result) -> str:
    text = json.dumps(result, ensure_ascii=False, allow_nan=False)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate from the model's own words would break the next request
        return text.encode("utf-8", "replace").decode()
    return text
