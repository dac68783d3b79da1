"""The tool-calling agent loop: ask the model, run the tools it calls, answer, until it stops calling or may not go on.

How a run ends, and what the caller sees:

| ends by | `stop_reason` | how |
| --- | --- | --- |
| an answer without tool calls | `finished` | returned, `finished_naturally` |
| the benchmark's episode is over | `ended` | returned, `finished_naturally` |
| the same, cut at the token limit | `length` | returned |
| `max_turns` model calls | `max_turns` | returned |
| identical calls with identical results (or that cannot be read), `loop_limit` turns in a row | `loop` | returned |
| the conversation no longer fits | `context_overflow` | raises ContextOverflow |
| `deadline_s` used up during a model call | `timeout` | raises AgentTimeout |
| the endpoint, the sandbox or a tool's own code fails | `error` | raises what failed |
| cancellation | `timeout` past `deadline_s`, else `error` | CancelledError |

Whatever happens, `partial_result()` is the whole conversation so far.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_hermes.agents.markup import Markup, told, unread
from pytest_hermes.agents.result import AgentResult, ToolError, TurnRecord
from pytest_hermes.agents.rounds import History
from pytest_hermes.agents.tool_calls import error_in, normalised, with_notice
from pytest_hermes.errors import AgentTimeout, ConfigurationError, ContextOverflow, ModelUnavailable
from pytest_hermes.models.answers import reasoning_of
from pytest_hermes.models.protocol import ChatModel, Completion, Message, Sampling
from pytest_hermes.models.server_model import ChatServer, ServerModel, as_model

if TYPE_CHECKING:
    from pytest_hermes.episode import Episode
    from pytest_hermes.tool_call_parsers import Findings, Parser
    from pytest_hermes.tools.toolbox import Toolbox

EMPTY_ANSWER = "(no answer)"
NUDGE = "Your last answer was empty. Go on with the task: call a tool, or say in words that you are done."
INTERRUPTED = json.dumps({"error": "interrupted: the rollout ended before this call did"})
WAITING_S = 5.0
"""A turn whose tools took this long is waiting for something, not looping."""


class HermesAgentLoop:
    """One agent for one rollout (`Agent`), with the constructor of hermes environments.

    `server` is a `ChatModel` or anything with `async chat_completion(**kwargs)`. `toolbox` runs the calls; its schemas
    and names are used unless `tool_schemas` and `valid_tool_names` narrow them. `deadline_s` counts from the start of
    `run()`; a model call never waits longer than what is left of it. `history_keep_rounds` keeps the system message,
    the first user message and that many last rounds (an assistant message with its tool results) in what is SENT;
    older ones go in blocks, when twice as many have gathered, so that a provider's prefix cache stays of use. The
    result always has every message. `tool_call_parser` (an object or a name; None or `none` for none) is asked when an
    answer has text and no structured calls; calls that it cannot read are answered with the reason.
    `loop_limit` identical turns in a row end the run (0: never); two turns before, the model is told. An `episode` is
    told of every turn with tool calls, and may speak to the model, reward the turn, or end the run.
    `budget_config` is accepted for hermes environments: the toolbox has the budget.
    """

    def __init__(
        self,
        server: ChatModel | ChatServer,
        tool_schemas: list[dict[str, Any]] | None = None,
        valid_tool_names: set[str] | frozenset[str] | None = None,
        max_turns: int = 30,
        task_id: str | None = None,
        temperature: float | None = 1.0,
        max_tokens: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
        budget_config: Any = None,
        *,
        toolbox: Toolbox | None = None,
        system_prompt: str | None = None,
        deadline_s: float | None = None,
        history_keep_rounds: int | None = None,
        tool_call_parser: Parser | str | None = None,
        loop_limit: int = 5,
        parallel_tool_calls: bool = True,
        episode: Episode | None = None,
    ) -> None:
        self.server = server
        self.model = as_model(server)
        self.max_turns = max_turns
        self.task_id = task_id or str(uuid.uuid4())
        self.budget_config = budget_config
        self.deadline_s = deadline_s
        self._sampling = Sampling(temperature, max_tokens, dict(extra_body or {}))
        self._given_schemas, self._given_names = tool_schemas, valid_tool_names
        self._toolbox = toolbox
        self._system_prompt = system_prompt
        self._keep_rounds = history_keep_rounds
        self._markup = Markup(tool_call_parser)
        self._loop_limit = 0 if episode is not None and episode.breaks_loops else loop_limit
        self._parallel = parallel_tool_calls
        self._episode = episode
        self._begin([])

    def _begin(self, messages: Sequence[Message], toolbox: Toolbox | None = None) -> None:
        self._box = toolbox or self._toolbox
        schemas = self._given_schemas if self._given_schemas is not None else self._box.schemas if self._box else []
        names = self._given_names if self._given_names is not None else self._box.names if self._box else ()
        if schemas and self._box is None and messages:
            raise ConfigurationError("the agent loop has tool schemas but no toolbox to run calls with; give toolbox=")
        self._schemas, self._names = schemas, frozenset(names)
        self._history = History(messages, self._keep_rounds)
        self._result = AgentResult(messages=[], tool_schemas=list(schemas), stop_reason="error")
        self._started = time.monotonic()
        self._open: list[tuple[dict[str, Any], str | None]] = []
        self._ids: set[str] = set()
        self._same, self._last_signature = 0, ""

    async def run(self, messages: str | Sequence[Message], toolbox: Toolbox | None = None) -> AgentResult:
        """Work on a prompt, or on a message list (which is never changed), until done. Errors: module docstring."""
        start: list[Message] = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        if self._system_prompt and not any(message.get("role") == "system" for message in start):
            start.insert(0, {"role": "system", "content": self._system_prompt})
        self._begin(start, toolbox)
        try:
            self._result.stop_reason = await self._turns()
        except asyncio.CancelledError:
            self._result.stop_reason = "timeout" if self._out_of_time() else "error"
            raise
        except (ContextOverflow, AgentTimeout) as error:
            self._result.stop_reason = "timeout" if isinstance(error, AgentTimeout) else "context_overflow"
            self._result.error = str(error)
            raise
        except Exception as error:
            self._result.error = f"{type(error).__name__}: {error}"
            raise
        return self.partial_result()

    def partial_result(self) -> AgentResult:
        """Everything up to now, also while running; calls that have not ended are answered as interrupted."""
        result = dataclasses.replace(self._result, messages=[dict(message) for message in self._history.messages])
        for call, outcome in self._open:
            result.messages.append(_tool_message(call, INTERRUPTED if outcome is None else outcome))
        state = getattr(self.server, "get_state", None)
        if callable(state) and isinstance(self.model, ServerModel):
            result.managed_state = state()
        return result

    async def _turns(self) -> str:
        nudged = False
        for turn in range(1, self.max_turns + 1):
            answer = await self._ask(turn)
            message, calls, findings = self._read(answer)
            cut = answer.finish_reason == "length"
            if findings is not None:
                self._note_unread(turn, findings)
            if calls:
                nudged = False
                self._history.append(message)
                looping = await self._run_tools(turn, calls, unread(findings) if findings is not None else "")
                if self._episode is not None and await self._episode_over(turn, self._episode):
                    self._result.finished_naturally = True
                    return "ended"
                if looping:
                    return "loop"
                continue
            if findings is not None and findings.errors:
                nudged = False
                self._history.append(message)
                self._history.append({"role": "user", "content": told(findings, is_cut=cut)})
                if self._counted(repr(message["content"]), 0.0):
                    return "loop"
                continue
            if cut or nudged or _has_text(message):
                self._history.append(message)
                self._result.finished_naturally = not cut
                return "length" if cut else "finished"
            nudged = True
            self._history.append(message, sent={**message, "content": EMPTY_ANSWER})
            self._history.append({"role": "user", "content": NUDGE})
        return "max_turns"

    async def _ask(self, turn: int) -> Completion:
        """One model call, within what is left of the deadline; its record is added to the result."""
        while True:
            left = self._left()
            if self._out_of_time():
                raise AgentTimeout(f"the agent's {self.deadline_s:g} s are used up after {turn - 1} turns")
            try:
                answer = await self.model.complete(
                    self._history.sent(), tools=self._schemas, sampling=self._sampling, timeout_s=left
                )
                break
            except ContextOverflow:
                if not self._history.shorten():
                    raise
            except ModelUnavailable as error:
                if self._out_of_time():
                    raise AgentTimeout(f"the agent's {self.deadline_s:g} s ended during model call {turn}") from error
                raise
        result = self._result
        result.turns.append(TurnRecord(turn, answer.latency_s, 0.0, answer.retries, answer.finish_reason, answer.usage))
        result.turns_used = turn
        result.usage = result.usage.plus(answer.usage)
        return answer

    def _read(self, answer: Completion) -> tuple[Message, list[dict[str, Any]], Findings | None]:
        """The assistant message to keep, its calls in the wire's form with ids that are there and unique, and what was
        found in its text, if that is where they come from."""
        wire = answer.message
        content, raw_calls = wire.get("content"), wire.get("tool_calls")
        findings = self._markup.find(content, self._schemas) if not raw_calls else None
        if findings is not None and findings.calls:
            content, raw_calls = findings.content, [call._asdict() for call in findings.calls]
        calls = normalised(raw_calls, self._ids)
        message: Message = {"role": "assistant", "content": content}
        reasoning = reasoning_of(wire)
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        if wire.get("reasoning_details"):
            # Providers that sign their reasoning want it back unchanged with the tool results.
            message["reasoning_details"] = wire["reasoning_details"]
        if wire.get("refusal"):
            message["refusal"] = wire["refusal"]
        if calls:
            message["tool_calls"] = calls
        self._result.reasoning_per_turn.append(reasoning)
        return message, calls, findings

    def _note_unread(self, turn: int, findings: Findings) -> None:
        for error in findings.errors:
            self._result.tool_errors.append(ToolError(turn, "", error.excerpt, f"not read: {error.reason}"))

    async def _run_tools(self, turn: int, calls: list[dict[str, Any]], not_read: str = "") -> bool:
        """Run one turn's calls and append their results in call order. True when the run has come into a loop.

        `not_read` says why a further call of the turn could not be read.
        """
        began = time.perf_counter()
        self._open = [(call, None) for call in calls]
        names = [call["function"]["name"] for call in calls]
        if len(calls) > 1 and self._parallel and self._box is not None and self._box.parallel_safe(names):
            try:
                async with asyncio.TaskGroup() as group:
                    for position, call in enumerate(calls):
                        group.create_task(self._call(turn, position, call))
            except BaseExceptionGroup as failed:
                raise failed.exceptions[0] from failed.exceptions[0].__cause__
        else:
            for position, call in enumerate(calls):
                await self._call(turn, position, call)
        results = [outcome or "" for _, outcome in self._open]
        took_s = time.perf_counter() - began
        self._result.turns[-1].tools_s = took_s
        looping = self._looping(calls, results, took_s)
        if self._box is not None:
            triples = [(call["id"], name, text) for call, name, text in zip(calls, names, results, strict=True)]
            results = await self._box.fit_turn(triples)
        if self._loop_limit > 2 and self._same == self._loop_limit - 2:
            results[-1] = with_notice(
                results[-1],
                f"{self._same} turns in a row made the same call with the same result. Change the approach, or say "
                f"that you are done: after {self._loop_limit} such turns the run ends.",
            )
        if not_read:
            results[-1] = with_notice(results[-1], f"A further tool call of this turn could not be read: {not_read}.")
        for call, text in zip(calls, results, strict=True):
            self._history.append(_tool_message(call, text))
        self._open = []
        return looping

    async def _episode_over(self, turn: int, episode: Episode) -> bool:
        from pytest_hermes.episode import asked

        said = await asked(episode, turn)
        self._result.turns[-1].reward = said.reward
        if said.message is not None:
            self._history.append({"role": "user", "content": said.message})
        return said.is_over

    async def _call(self, turn: int, position: int, call: dict[str, Any]) -> None:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        if self._box is None or (self._given_names is not None and name not in self._given_names):
            result = json.dumps({"error": f"Unknown tool '{name}'. Available tools: {sorted(self._names)}"})
        else:
            result = await self._box.call(name, arguments, call_id=call["id"])
        self._open[position] = (call, result)
        if error := error_in(result):
            self._result.tool_errors.append(ToolError(turn, name, arguments[:200], error, result[:500]))

    def _looping(self, calls: list[dict[str, Any]], results: list[str], took_s: float) -> bool:
        signature = repr([(call["function"], result) for call, result in zip(calls, results, strict=True)])
        return self._counted(signature, took_s)

    def _counted(self, signature: str, took_s: float) -> bool:
        """Count turns that are the same as the one before; True at the limit."""
        if took_s >= WAITING_S:
            self._same, self._last_signature = 0, ""
        elif signature == self._last_signature:
            self._same += 1
        else:
            self._same, self._last_signature = 1, signature
        return 0 < self._loop_limit <= self._same

    def _left(self) -> float | None:
        """Seconds left of the deadline; None without one."""
        return None if self.deadline_s is None else self._started + self.deadline_s - time.monotonic()

    def _out_of_time(self) -> bool:
        left = self._left()
        return left is not None and left <= 0.05


def _has_text(message: Message) -> bool:
    content = message.get("content") or message.get("refusal")
    return bool(content.strip() if isinstance(content, str) else content)


def _tool_message(call: dict[str, Any], result: str) -> Message:
    return {"role": "tool", "tool_call_id": call["id"], "content": result}
