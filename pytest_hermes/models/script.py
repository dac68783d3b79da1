"""Scripts of the scripted model: what it answers turn by turn, and the faults before an answer.

A script is a list of turns, or a function from the request to one turn. A turn is one of

    {"content": "text"}                                      an answer without a tool call
    {"tool": "terminal", "arguments": {"command": "ls"}}     one call; a string as `arguments` is sent as it is
    {"tools": [{"tool": ..., "arguments": ...}, ...]}        several calls in one turn
    {"message": {...}, "finish_reason": "stop"}              the assistant message itself

with, where wanted, `content`, `reasoning`, `finish_reason`, `usage` (merged into the reported one), `delay_s`, and on
the last turn `repeat: true` (it answers every later turn too). A fault stands before the turn whose first requests it
hits, `times` of them (1), counted over all rollouts that use the script:

    {"status": 429, "headers": {"Retry-After": "0"}, "body": {...}, "times": 2}
    {"fault": "disconnect" | "truncate" | "garbage" | "empty" | "hang", "times": 1}
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_hermes.errors import ConfigurationError

Player = Callable[[Mapping[str, Any]], Mapping[str, Any]]
Script = Sequence[Mapping[str, Any]] | Player
"""Turns, or a function from the request (a chat completion request body) to one turn."""

FAULTS = ("disconnect", "truncate", "garbage", "empty", "hang")
_WHAT = {"content", "tool", "tools", "message", "reasoning", "finish_reason"}
_ANSWER = _WHAT | {"arguments", "usage", "delay_s", "repeat"}
_FAULT = {"status", "headers", "body", "fault", "times", "delay_s"}


@dataclasses.dataclass(frozen=True)
class Turn:
    """One answer and the faults that come before it."""

    answer: Mapping[str, Any] | None
    faults: tuple[Mapping[str, Any], ...] = ()


def compile_script(script: Iterable[Mapping[str, Any]], *, source: str = "script") -> list[Turn]:
    """The turns of a script, checked. ConfigurationError names the turn and the key that is wrong."""
    turns: list[Turn] = []
    faults: list[Mapping[str, Any]] = []
    for number, entry in enumerate(script, 1):
        where = f"{source}, turn {number}"
        if not isinstance(entry, Mapping):
            raise ConfigurationError(f"{where}: expected a mapping such as {{content: done}}, found {entry!r}")
        is_fault = "status" in entry or "fault" in entry
        for key in entry:
            allowed = _FAULT if is_fault else _ANSWER
            if key not in allowed:
                close = difflib.get_close_matches(str(key), sorted(allowed), 1)
                hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(allowed))}"
                raise ConfigurationError(f"{where}: unknown key {key!r}; {hint}")
        if is_fault:
            if "fault" in entry and entry["fault"] not in FAULTS:
                raise ConfigurationError(f"{where}: unknown fault {entry['fault']!r}; known: {', '.join(FAULTS)}")
            faults.append(entry)
            continue
        if not entry.keys() & _WHAT:
            raise ConfigurationError(f"{where}: nothing to answer; give content, tool, tools or message")
        turns.append(Turn(entry, tuple(faults)))
        faults = []
    if faults:
        turns.append(Turn(None, tuple(faults)))
    return turns


def message_of(turn: Mapping[str, Any], index: int) -> tuple[dict[str, Any], str]:
    """The assistant message of a turn and its finish reason. Calls get the ids `call_t<index>_<n>`."""
    if "message" in turn:
        message = {"role": "assistant", **turn["message"]}
        default = "tool_calls" if message.get("tool_calls") else "stop"
        return message, turn.get("finish_reason", default)
    calls = [turn] if "tool" in turn else turn.get("tools", ())
    message = {"role": "assistant", "content": turn.get("content")}
    if turn.get("reasoning"):
        message["reasoning_content"] = turn["reasoning"]
    if not calls:
        return message, turn.get("finish_reason", "stop")
    message["tool_calls"] = [
        {
            "id": f"call_t{index}_{number}",
            "type": "function",
            "function": {"name": call["tool"], "arguments": _arguments(call.get("arguments", {}))},
        }
        for number, call in enumerate(calls)
    ]
    return message, turn.get("finish_reason", "tool_calls")


def _arguments(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclasses.dataclass(frozen=True)
class ScriptFile:
    """Scripts by task id, and one for every other task."""

    tasks: Mapping[str, Sequence[Mapping[str, Any]]] = dataclasses.field(default_factory=dict)
    default: Sequence[Mapping[str, Any]] | None = None

    def script_for(self, task_id: str) -> Sequence[Mapping[str, Any]] | None:
        return self.tasks.get(task_id, self.default)


def read_script_file(path: str | Path) -> ScriptFile:
    """A script file: YAML or JSON `{default: [...], tasks: {task_id: [...]}}`, or a list that serves every task."""
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"script file {path}: {error.strerror}") from error
    try:
        value = json.loads(text) if str(path).endswith(".json") else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigurationError(f"script file {path} is not readable: {error}") from error
    if isinstance(value, list):
        value = {"default": value}
    if not isinstance(value, dict) or not value or value.keys() - {"default", "tasks"}:
        raise ConfigurationError(f"script file {path}: expected `default: [turns]` and/or `tasks: {{id: [turns]}}`")
    tasks, default = value.get("tasks") or {}, value.get("default")
    for name, script in [*tasks.items(), ("default", default or [])]:
        if not isinstance(script, list):
            raise ConfigurationError(f"script file {path}: the script of {name!r} is not a list of turns")
        compile_script(script, source=f"{path}: {name}")
    return ScriptFile({str(name): script for name, script in tasks.items()}, default)
