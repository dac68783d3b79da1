"""A row as a person reads it: how it ended, the conversation, what the verifier said."""

from __future__ import annotations

import json
from typing import Any

from pytest_hermes.agents.result import NOT_RUN
from pytest_hermes.shown import ending

TAIL_CHARS = 4000
"""Rows hold so much of a verifier's output at most; what is that long was cut."""


def render_row(row: dict[str, Any]) -> list[str]:
    """Lines, without colour; control characters are the caller's to remove."""
    reward = "none" if row["reward"] is None else f"{row['reward']:g}"
    lines = [
        f"=== {row['task_id']}, attempt {row['attempt']}: {row['outcome']}, reward {reward}"
        + (f", cause {row['cause']}" if row["cause"] else "")
    ]
    if row["error"]:
        lines.append(row["error"])
    lines.append(f"{row['node_id']}; {_agent(row)}")
    lines += _tools(row)
    for message in row["messages"]:
        lines += _message(message)
    metadata = {key: value for key, value in (row.get("agent_metadata") or {}).items() if value not in (None, {}, [])}
    if metadata:
        lines.append(f"--- agent: {json.dumps(metadata, ensure_ascii=False)[:2000]}")
    verifier = row["verifier"] or {}
    if verifier.get("output") or verifier.get("exit_code") is not None:
        output = verifier.get("output") or ""
        tail = ending(output, TAIL_CHARS, was_cut=len(output) >= TAIL_CHARS)
        lines += [f"--- verifier (exit code {verifier.get('exit_code')})", tail.rstrip()]
    lines += [f"evidence: {sign}" for sign in verifier.get("evidence") or ()]
    if row.get("traceback"):
        lines += ["--- traceback", row["traceback"].rstrip()]
    return lines


def _agent(row: dict[str, Any]) -> str:
    """Whether and how long the agent ran. Turns are model calls: agents without a model have none."""
    ran = row["messages"] or (row.get("clocks") or {}).get("agent_s")
    if row["stop_reason"] == NOT_RUN or not ran:
        return "the agent did not run"
    if not row["model"]:
        return f"agent {row['agent']}, without a model; stopped: {row['stop_reason']}"
    turns = row["turns"]
    return f"{turns} {'turn' if turns == 1 else 'turns'}, stopped: {row['stop_reason']}"


def _tools(row: dict[str, Any]) -> list[str]:
    chosen = row.get("toolsets") or {}
    if not chosen:
        return []
    names = [schema["function"]["name"] for schema in row.get("tools") or ()]
    origin = f"drawn from {chosen['distribution']}" if chosen["distribution"] else "tool sets"
    lines = [f"{origin}: {', '.join(chosen['sets']) or 'none'} ({', '.join(names) or 'no tools'})"]
    return lines + [f"left out: {name} ({reason})" for name, reason in chosen["left_out"].items()]


def _message(message: dict[str, Any]) -> list[str]:
    lines = [f"--- {message.get('role')}"]
    if message.get("reasoning_content"):
        lines.append(f"(reasoning) {message['reasoning_content']}")
    content = message.get("content")
    if content:
        lines.append(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        lines.append(f"-> {function.get('name')}({function.get('arguments')})")
    return lines
