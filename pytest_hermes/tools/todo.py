"""`todo`: the agent's task list, kept for one rollout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_hermes.tools.tool import Result, Schema, Tool, ToolFailure, boolean, object_schema, string
from pytest_hermes.tools.workspace import Workspace

STATUSES = ("pending", "in_progress", "completed", "cancelled")


class TodoList:
    """Items in order of priority, ids unique. A fresh list per rollout."""

    def __init__(self) -> None:
        self._items: list[dict[str, str]] = []

    def replace(self, items: list[dict[str, str]]) -> None:
        """A new plan. Of several items with one id the last one counts, at the place of the first."""
        self._items = list({item["id"]: item for item in items}.values())

    def merge(self, items: list[dict[str, str]]) -> None:
        """Change the given fields of known ids; append unknown ids (content needed, status defaults to pending)."""
        known = {item["id"]: dict(item) for item in self._items}
        for item in items:
            if item["id"] in known:
                known[item["id"]].update(item)
            elif "content" in item:
                known[item["id"]] = {"status": "pending", **item}
            else:
                raise ToolFailure(f"todo: no item with id {item['id']!r}; a new item needs 'content'.")
        self._items = list(known.values())

    def view(self) -> Result:
        counts = {status: sum(item["status"] == status for item in self._items) for status in STATUSES}
        return {
            "todos": [{key: item[key] for key in ("id", "content", "status")} for item in self._items],
            "summary": {"total": len(self._items), **counts},
        }


async def _run(workspace: Workspace, arguments: Mapping[str, Any]) -> Result:
    items = arguments.get("todos")
    if items is not None:
        for index, item in enumerate(items):
            if not item["id"].strip():
                raise ToolFailure(f"todo: todos[{index}].id is empty. Give every item its own id.")
        if arguments["merge"]:
            workspace.state.todos.merge(items)
        else:
            for index, item in enumerate(items):
                if "content" not in item:
                    raise ToolFailure(f"todo: todos[{index}] has no 'content'. Send it, or use merge=true to update.")
            workspace.state.todos.replace([{"status": "pending", **item} for item in items])
    return workspace.state.todos.view()


_FIELDS = {
    "id": string("Unique id of the item"),
    "content": string("What is to be done"),
    "status": string("State of the item", enum=list(STATUSES)),
}


def _parameters(required: list[str]) -> Schema:
    items = {
        "type": "array",
        "description": "Items to write; omit to read the list",
        "items": object_schema(required, **_FIELDS),
    }
    return object_schema([], todos=items, merge=boolean("true: update by id and add; false: replace the list"))


TODO = Tool(
    "todo",
    "Your task list for this session; use it for work of three or more steps.\n"
    "Call it without arguments to read the list. `todos` with merge=false (default) replaces the list, with merge=true "
    "updates items by id and adds new ones. Order is priority; keep one item in_progress, mark items completed as soon "
    "as they are done. Always returns the whole list.",
    _parameters(["id", "content", "status"]),
    _run,
    accepts=_parameters(["id"]),
    reads_only=True,  # touches only its own list, and in the order of the calls
)
