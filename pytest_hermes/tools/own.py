"""Users' own tools: `@tool` makes one of a typed function, its schema derived from signature and docstring.

    @tool(toolset="words")
    def count_words(text: Annotated[str, "Text to count in"], unique: bool = False) -> int:
        "Count the words of a text."

A plain function runs in a thread. An `async def` runs on the engine's loop and may take the rollout's `Workspace` as
its first parameter. A dict is the result as it is; text becomes `{"output": ...}`, any other JSON value
`{"result": ...}`; exceptions become `{"error": ...}`.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from pytest_hermes.errors import ConfigurationError
from pytest_hermes.shown import named
from pytest_hermes.threads import in_thread
from pytest_hermes.tools.arguments import not_json
from pytest_hermes.tools.registry import BUILTIN, COMPOSED, TOOLSETS
from pytest_hermes.tools.tool import Result, Schema, Tool, ToolFailure
from pytest_hermes.tools.workspace import Workspace

Function = TypeVar("Function", bound=Callable[..., Any])
_ATTRIBUTE = "__hermes_tool__"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SIMPLE: Mapping[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}


@overload
def tool(function: Function, /) -> Function: ...


@overload
def tool(
    *,
    toolset: str | None = None,
    name: str | None = None,
    description: str | None = None,
    reads_only: bool = False,
) -> Callable[[Function], Function]: ...


def tool(
    function: Any = None,
    /,
    *,
    toolset: str | None = None,
    name: str | None = None,
    description: str | None = None,
    reads_only: bool = False,
) -> Any:
    """Make a tool of a function, which stays as it is and may still be called. A bound method comes back as a function.

    `toolset` is the name to choose it by; `name` and `description` default to the function's name and docstring;
    `reads_only`: calls of one turn may run at the same time. Raises ConfigurationError for a signature that no model
    could be told of, and for names of built-in tools and sets.
    """

    def decorated(function: Any) -> Any:
        made = _tool_from(function, name, description, toolset, reads_only)
        if inspect.ismethod(function):  # takes no attributes, and its function is that of every other object too
            function = _unbound(function)
        setattr(function, _ATTRIBUTE, made)
        return function

    return decorated if function is None else decorated(function)


def own_tool(given: object) -> Tool:
    """A `Tool` itself, the one of a decorated function, or a new one of a plain function. Raises ConfigurationError."""
    if isinstance(given, Tool):
        check_tool(given)
        return given
    made = getattr(given, _ATTRIBUTE, None)
    if isinstance(made, Tool):
        return made
    if not (inspect.isfunction(given) or inspect.ismethod(given)):
        raise ConfigurationError(f"{given!r} is not a tool: give a function, one with @tool, or a Tool")
    return _tool_from(given, None, None, None, False)


def own_tools(given: object, where: str) -> tuple[Tool, ...]:
    """Tools of a list of them. Raises ConfigurationError, also for two of one name."""
    if not isinstance(given, list | tuple):
        raise ConfigurationError(f"{where}: tools={given!r} is not a list of functions or tools")
    found: dict[str, Tool] = {}
    for entry in given:
        try:
            made = own_tool(entry)
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from error
        if found.setdefault(made.name, made) is not made:
            raise ConfigurationError(f"{where}: two tools are called {made.name!r}")
    return tuple(found.values())


def is_tool(value: object) -> bool:
    """Whether a module's attribute is a tool or a function with @tool."""
    return isinstance(value, Tool) or isinstance(getattr(value, _ATTRIBUTE, None), Tool)


def check_tool(made: Tool, where: str | None = None) -> None:
    """Raise ConfigurationError for a tool that no endpoint takes, or with a name that is a built-in one."""
    where = where or f"tool {made.name!r}"
    if not _is_name(made.name):
        raise ConfigurationError(
            f"{where}: a name has 1 to 64 letters, digits, `_` and `-`; choose one with @tool(name=...)"
        )
    if made.name in BUILTIN:
        raise ConfigurationError(f"{where}: a built-in tool has this name; choose one with @tool(name=...)")
    if made.name in TOOLSETS or made.name in COMPOSED:
        raise ConfigurationError(f"{where}: a built-in tool set has this name; choose one with @tool(name=...)")
    if made.toolset is not None and (not _is_name(made.toolset) or made.toolset in {*BUILTIN} - {*TOOLSETS}):
        raise ConfigurationError(f"{where}: toolset={made.toolset!r} cannot be the name of a tool set")
    if made.toolset in TOOLSETS or made.toolset in COMPOSED:
        raise ConfigurationError(f"{where}: toolset={made.toolset!r} is a built-in tool set; choose another")
    if not isinstance(made.description, str):
        raise ConfigurationError(f"{where}: description={made.description!r} is not text")
    if not made.description.strip():
        raise ConfigurationError(f"{where}: description={made.description!r} is blank. The model reads it: write one")
    if reason := not_json(made.description):
        raise ConfigurationError(f"{where}: its description is not JSON: {reason}")
    if not (isinstance(made.parameters, dict) and isinstance(made.parameters.get("properties"), dict)):
        raise ConfigurationError(f"{where}: its parameters are no schema of an object with properties")
    if reason := not_json(made.parameters):
        raise ConfigurationError(f"{where}: its parameters are not JSON: {reason}")


def _is_name(given: object) -> bool:
    return isinstance(given, str) and _NAME.fullmatch(given) is not None


# -- from a signature to a schema ------------------------------------------------------------------------


def _tool_from(function: Any, name: str | None, description: str | None, toolset: str | None, reads_only: bool) -> Tool:
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise ConfigurationError(f"@tool: {function!r} is a {type(function).__name__}, not a function")
    name = function.__name__ if name is None else name
    where = f"tool {name!r} ({getattr(function, '__module__', '?')}.{function.__qualname__})"
    text = inspect.getdoc(function) if description is None else description
    if text is None or (description is None and not text.strip()):
        raise ConfigurationError(f"{where}: has no docstring, which is what the model reads. Write one")
    parameters, takes_workspace = _parameters(function, where)
    made = Tool(name, text, parameters, _runner(function, takes_workspace), reads_only=reads_only, toolset=toolset)
    check_tool(made, where)
    return made


def _unbound(method: Any) -> Any:
    @functools.wraps(method)
    def function(*arguments: Any, **keywords: Any) -> Any:
        return method(*arguments, **keywords)

    return function


def _parameters(function: Any, where: str) -> tuple[Schema, bool]:
    """The schema of the arguments, and whether the first parameter is the workspace."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # annotations in quotes are the user's code
        raise ConfigurationError(
            f"{where}: its annotations cannot be read ({_unreadable(function)}{named(error)}). Write types, and import "
            "what they name outside of TYPE_CHECKING"
        ) from error
    takes_workspace = False
    properties: dict[str, Schema] = {}
    required = []
    for number, parameter in enumerate(inspect.signature(function).parameters.values()):
        at = f"{where}: parameter {parameter.name!r}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigurationError(f"{at} is *args, **kwargs or positional only; name each parameter")
        if parameter.name not in hints:
            raise ConfigurationError(f"{at} has no type. Annotate it, as `{parameter.name}: str`")
        if hints[parameter.name] is Workspace:
            if number:
                raise ConfigurationError(f"{at}: the Workspace must be the first parameter")
            if not inspect.iscoroutinefunction(function):
                raise ConfigurationError(f"{at}: a Workspace has coroutines; make the function `async def`")
            takes_workspace = True
            continue
        schema = _schema(hints[parameter.name], at)
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif parameter.default is not None:
            if reason := not_json(parameter.default):
                raise ConfigurationError(f"{at}: its default is not JSON: {reason}")
            if not _fits(parameter.default, schema):
                raise ConfigurationError(f"{at}: its default {parameter.default!r} is not of its own type")
            schema = {**schema, "default": copy.deepcopy(parameter.default)}  # calls of the function may change it
        if reason := not_json(schema):
            raise ConfigurationError(f"{at}: its schema is not JSON: {reason}")
        properties[parameter.name] = schema
    return {"type": "object", "properties": properties, "required": required}, takes_workspace


def _unreadable(function: Any) -> str:
    """Which annotation cannot be read, if it can be told."""
    for name, annotation in function.__annotations__.items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            typing.get_type_hints(alone, globalns=getattr(inspect.unwrap(function), "__globals__", None))
        except Exception:  # noqa: BLE001 - the caller tells it
            return "its return type, " if name == "return" else f"parameter {name!r}: "
    return ""


def _schema(hint: Any, at: str) -> Schema:
    """JSON schema of an annotation."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        texts = [extra for extra in inner[1:] if isinstance(extra, str)]
        schema = _schema(inner[0], at)
        return {**schema, "description": texts[0]} if texts else schema
    if origin in (typing.Union, types.UnionType):
        options = [option for option in inner if option is not types.NoneType]
        if len(options) == 1:
            return _schema(options[0], at)
    elif origin is typing.Literal:
        kinds = {type(value) for value in inner}
        if len(kinds) == 1 and (kind := kinds.pop()) in (str, int):
            return {"type": _SIMPLE[kind], "enum": list(inner)}
    elif isinstance(hint, type) and hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    elif hint is list or origin is list:
        return {"type": "array", **({"items": _schema(inner[0], at)} if inner else {})}
    elif hint is dict or (origin is dict and inner[:1] in ((), (str,))):
        return {"type": "object"}
    raise ConfigurationError(
        f"{at}: {hint!r} cannot be told to a model. Use str, int, float, bool, list[...], dict, Literal[...], "
        "`... | None`, or Annotated[one of these, 'description']"
    )


def _fits(value: Any, schema: Schema) -> bool:
    if schema["type"] in ("integer", "number") and isinstance(value, bool):
        return False
    kinds: dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
    kinds |= {"array": list, "object": dict}
    if not isinstance(value, kinds[schema["type"]]) or value not in schema.get("enum", [value]):
        return False
    return "items" not in schema or all(_fits(item, schema["items"]) for item in value)


# -- calling ---------------------------------------------------------------------------------------------


def _runner(function: Any, takes_workspace: bool) -> Callable[[Workspace, Mapping[str, Any]], Any]:
    async def run(workspace: Workspace, arguments: Mapping[str, Any]) -> Result:
        leading = (workspace,) if takes_workspace else ()
        try:
            if inspect.iscoroutinefunction(function):
                value = await function(*leading, **arguments)
            else:
                value = await in_thread(lambda: function(**arguments))
            if inspect.isawaitable(value):  # of a plain function around an asynchronous one
                value = await value
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            # SystemExit or pytest's own: the engine's loop would end with it
            raise ToolFailure(f"Tool execution failed: {named(error)}") from error
        return _result(value)

    return run


def _result(value: Any) -> Result:
    return value if isinstance(value, dict) else {"output" if isinstance(value, str) else "result": value}
