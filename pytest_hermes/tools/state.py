"""What the tools of one rollout keep beside its sandbox: background processes, the task list, a browser.

The agent's tools and the verifier's share one; it lives as long as the sandbox does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pytest_hermes.tools.process import ProcessTable
from pytest_hermes.tools.todo import TodoList
from pytest_hermes.tools.tool import ToolFailure

T = TypeVar("T")


class RolloutState:
    """One per rollout; lives on the engine's loop."""

    def __init__(self) -> None:
        self.processes = ProcessTable()
        self.todos = TodoList()
        self._parts: dict[Callable[[], Any], Any] = {}
        self._is_closed = False

    def part(self, kind: Callable[[], T]) -> T:
        """The rollout's one object of `kind`, made on first use; its `async aclose()`, if any, is called at the end.

        Raises ToolFailure after that: nobody would close a new one.
        """
        if self._is_closed:
            raise ToolFailure("The rollout has ended, and its tools with it.")
        if kind not in self._parts:
            self._parts[kind] = kind()
        part: T = self._parts[kind]
        return part

    async def aclose(self) -> None:
        """Close the parts, the newest first, each even if another cannot be closed. Idempotent."""
        self._is_closed = True
        try:
            while self._parts:
                _, part = self._parts.popitem()
                close = getattr(part, "aclose", None)
                if close is not None:
                    await close()
        finally:
            if self._parts:
                await self.aclose()
