"""What an agent leaves behind: the seed's `AgentResult`, with usage, timing and the reason it stopped."""

from __future__ import annotations

import dataclasses
from typing import Any

from pytest_hermes.models.protocol import Message, Usage

NOT_RUN = "not_run"
"""The stop reason of an agent that never began: what comes before it failed."""


@dataclasses.dataclass
class ToolError:
    """A tool call that failed. `arguments` is cut to 200 characters, `tool_result` to 500."""

    turn: int
    tool_name: str
    arguments: str
    error: str
    tool_result: str = ""


@dataclasses.dataclass
class TurnRecord:
    """One model call and the tool calls it led to. Seconds."""

    turn: int
    model_s: float = 0.0
    tools_s: float = 0.0
    retries: int = 0
    finish_reason: str | None = None
    usage: Usage = dataclasses.field(default_factory=Usage)
    reward: float | None = None
    """What the turn itself earned, where the benchmark's episode says so (dense reward)."""


@dataclasses.dataclass
class AgentResult:
    """The whole conversation and how it ended.

    The first six fields are those of hermes environments. `stop_reason` is one of `finished`, `ended` (the benchmark's
    episode is over), `max_turns`, `timeout`, `context_overflow`, `length` (the answer was cut at the token limit),
    `loop` (identical calls without end), `error`;
    `not_run` where the rollout ended before its agent began.
    """

    messages: list[Message]
    managed_state: dict[str, Any] | None = None
    turns_used: int = 0
    finished_naturally: bool = False
    reasoning_per_turn: list[str | None] = dataclasses.field(default_factory=list)
    tool_errors: list[ToolError] = dataclasses.field(default_factory=list)
    stop_reason: str = "finished"
    usage: Usage = dataclasses.field(default_factory=Usage)
    turns: list[TurnRecord] = dataclasses.field(default_factory=list)
    tool_schemas: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    error: str | None = None
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
