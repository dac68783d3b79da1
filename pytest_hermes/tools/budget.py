"""The result budget: oversize tool results go into a file of the sandbox, the model gets a preview and the path.

Two limits, both in characters: one per result, one over all results of a turn. With a known context window they shrink
to 15 % and 30 % of it (at 4 characters a token, not below 8,000 and 16,000). Tools that page by themselves
(`read_file`) have no limit per result: what they leave out is one call away, a stored copy would only be read again.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from pytest_hermes.tools.tool import ToolFailure

if TYPE_CHECKING:
    from pytest_hermes.tools.toolbox import ToolSettings
    from pytest_hermes.tools.workspace import Workspace

CHARS_PER_TOKEN = 4
RESULT_SHARE, RESULT_FLOOR = 0.15, 8_000
TURN_SHARE, TURN_FLOOR = 0.30, 16_000
OPEN, CLOSE = "<persisted-output>", "</persisted-output>"


class ResultBudget:
    """Keeps results within the limits of `settings`; remembers which file names are taken."""

    def __init__(self, settings: ToolSettings, pinned: frozenset[str]) -> None:
        self._settings = settings
        self._pinned = pinned
        self._names: set[str] = set()
        window = settings.context_window_tokens
        self.result_chars = _scaled(settings.default_result_size_chars, window, RESULT_SHARE, RESULT_FLOOR)
        self.turn_chars = _scaled(settings.turn_budget_chars, window, TURN_SHARE, TURN_FLOOR)

    def limit(self, tool: str) -> int | None:
        """Characters that one result of `tool` may have; None: no limit."""
        return None if tool in self._pinned else self._settings.tool_result_overrides.get(tool, self.result_chars)

    async def fit(self, workspace: Workspace, call_id: str | None, tool: str, result: str) -> str:
        """`result`, stored in the sandbox if it is over the limit of its tool."""
        limit = self.limit(tool)
        if limit is None or len(result) <= limit:
            return result
        return await self._store(workspace, call_id, result)

    async def fit_turn(self, workspace: Workspace, results: list[tuple[str, str, str]]) -> list[str]:
        """The results of one turn (call id, tool, result), the largest stored until all together are within budget.

        Results of pinned tools are stored last, and only if the others do not suffice.
        """
        fitted = [result for _, _, result in results]
        total = sum(map(len, fitted))
        if total <= self.turn_chars:
            return fitted
        order = sorted(range(len(results)), key=lambda at: (results[at][1] in self._pinned, -len(fitted[at])))
        for at in order:
            if total <= self.turn_chars:
                break
            call_id, _, result = results[at]
            if result.startswith(OPEN):
                continue
            stored = await self._store(workspace, call_id, result)
            if len(stored) < len(result):
                total -= len(result) - len(stored)
                fitted[at] = stored
        return fitted

    async def _store(self, workspace: Workspace, call_id: str | None, result: str) -> str:
        text, rest = _body(result)
        preview = text[: self._settings.preview_size_chars]
        if at := preview.rfind("\n") + 1:
            preview = preview[:at] if at > len(preview) // 2 else preview
        size = f"{len(result):,} characters, {len(text.encode(errors='replace')) / 1024:.1f} KB"
        head = f"{OPEN}\nThis tool result was too large ({size}).\n"
        more = "" if preview == text else "\n..."
        shown = f"{rest}Preview (first {len(preview)} chars):\n{preview}{more}\n{CLOSE}"
        name = f"hermes-results/{self._name(call_id)}.txt"
        try:
            path = await workspace.keep(name, text.encode(errors="replace"))
        except ToolFailure as failure:
            return f"{head}It could not be saved ({failure}); what is not shown is lost.\n{shown}"
        return (
            f"{head}Full output saved to: {path}\n"
            f"Use the read_file tool with offset and limit (or search_files) to see parts of it.\n{shown}"
        )

    def _name(self, call_id: str | None) -> str:
        stem = re.sub(r"[^A-Za-z0-9_.-]+", "_", (call_id or "result")[:200]).strip(".")[:100] or "result"
        name, number = stem, 1
        while name in self._names:
            number += 1
            name = f"{stem}-{number}"
        self._names.add(name)
        return name


def _body(result: str) -> tuple[str, str]:
    """What to store of a result, and a line about the rest.

    A JSON object whose bulk is one text (a command's output, say) is stored as that text, so that it has lines.
    """
    try:
        value = json.loads(result)
    except ValueError:
        return result, ""
    if isinstance(value, dict):
        texts = {key: text for key, text in value.items() if isinstance(text, str)}
        if texts:
            key = max(texts, key=lambda name: len(texts[name]))
            rest = json.dumps({name: part for name, part in value.items() if name != key}, ensure_ascii=False)
            if len(rest) <= 1_000:
                return texts[key], f"The file holds the field {key!r}; the other fields: {rest}\n"
        return json.dumps(value, ensure_ascii=False, indent=1), ""
    return result, ""


def _scaled(chars: int, window_tokens: int | None, share: float, floor: int) -> int:
    if window_tokens is None:
        return chars
    return min(chars, max(floor, int(window_tokens * CHARS_PER_TOKEN * share)))
