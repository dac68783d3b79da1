"""What a tool is: a name, an OpenAI function schema and a coroutine over the rollout's workspace.

A tool answers with a dict (the JSON object that the model sees) and reports its caller's mistakes by raising
`ToolFailure`, whose message says what was asked, what was found and what to do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_hermes.tools.toolbox import ToolSettings
    from pytest_hermes.tools.workspace import Workspace

Schema = dict[str, Any]
Result = dict[str, Any]


class ToolFailure(Exception):
    """A tool call that cannot be done as asked; the model gets `{"error": message, **details}`."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.details = details

    def result(self) -> Result:
        return {**self.details, "error": str(self)}


@dataclasses.dataclass(frozen=True)
class Tool:
    """One tool. `run` gets the rollout's workspace and arguments that satisfy `parameters`."""

    name: str
    description: str
    parameters: Schema
    """JSON schema of the arguments object."""
    run: Callable[[Workspace, Mapping[str, Any]], Awaitable[Result]]
    accepts: Schema | None = None
    """What calls are held to, where that is laxer than the `parameters` shown."""
    unavailable: Callable[[ToolSettings], str | None] | None = None
    """Why the tool cannot work with these settings on this machine (a missing key or package), or None."""
    reads_only: bool = False
    """True: calls of one turn may run at the same time as other `reads_only` ones."""
    pages_itself: bool = False
    """True: the tool bounds its own results and the model can ask for the rest, so they are not moved to a file."""
    toolset: str | None = None
    """The set that a user's own tool is chosen by; the sets of built-in tools are in the registry."""

    @property
    def schema(self) -> Schema:
        """The function in the form of the chat completions API."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


def object_schema(required: list[str], **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": required}


def string(description: str, **more: Any) -> Schema:
    return {"type": "string", "description": description, **more}


def integer(description: str, **more: Any) -> Schema:
    return {"type": "integer", "description": description, **more}


def boolean(description: str, default: bool = False) -> Schema:
    return {"type": "boolean", "description": description, "default": default}
