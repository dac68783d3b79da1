"""From the arguments of a model's tool call to values that satisfy the tool's schema, or an error the model can act on.

Harmless differences are mended ("5" for an integer, "true" for a boolean, a number for a string, a list written as a
JSON string, null for "not given", numbers outside minimum and maximum clamped); anything else is refused by name.
Supports the part of JSON schema that tools here use: object, array, string, integer, number, boolean, enum, required,
minimum, maximum, default.
"""

from __future__ import annotations

import copy
import difflib
import json
import math
from collections.abc import Mapping
from typing import Any

from pytest_hermes.tools.tool import Schema, ToolFailure

_NAMES_SHOWN = 20


def parse_arguments(arguments: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments object of a call as the wire had it; `None` and blank text mean `{}`. Raises ToolFailure."""
    if arguments is None:
        return {}
    if isinstance(arguments, Mapping):
        return dict(arguments)
    if not isinstance(arguments, str):
        raise ToolFailure(_not_an_object(arguments))
    if not arguments or arguments.isspace():
        return {}
    try:
        value = json.loads(arguments)
    except RecursionError:
        raise ToolFailure("Invalid JSON in tool arguments: nested too deeply. Please retry with valid JSON.") from None
    except ValueError as error:
        raise ToolFailure(f"Invalid JSON in tool arguments: {error}. Please retry with valid JSON.") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ToolFailure(_not_an_object(value))
    return value


def validate(parameters: Schema, arguments: Mapping[str, Any], tool: str) -> dict[str, Any]:
    """`arguments` with defaults filled in and harmless differences mended. Raises ToolFailure for the rest.

    Names that the schema does not have are ignored, unless they look like a misspelt one that was not given.
    """
    properties: Mapping[str, Schema] = parameters["properties"]
    values: dict[str, Any] = {}
    for name, schema in properties.items():
        given = arguments.get(name)
        if given is None:
            if "default" in schema:
                values[name] = copy.deepcopy(schema["default"])  # the tool may change it
        else:
            values[name] = _fit(given, schema, f"{tool}: {name}")
    missing = [name for name in parameters.get("required", ()) if name not in values or arguments.get(name) is None]
    unknown = [name for name in arguments if name not in properties]
    if missing:
        found = ", ".join(_short(name) for name in [*arguments][:_NAMES_SHOWN]) or "none"
        if len(arguments) > _NAMES_SHOWN:
            found += f" and {len(arguments) - _NAMES_SHOWN} more"
        raise ToolFailure(
            f"{tool}: missing required argument {', '.join(map(repr, missing))}. Arguments given: {found}. "
            f"Send every one of: {', '.join(parameters['required'])}."
        )
    for name in unknown[:_NAMES_SHOWN]:
        absent = [known for known in properties if arguments.get(known) is None]
        if close := difflib.get_close_matches(str(name)[:100], absent, n=1, cutoff=0.75):
            raise ToolFailure(f"{tool}: unknown argument {_short(name)}; did you mean '{close[0]}'?")
    return values


def _fit(value: Any, schema: Schema, where: str) -> Any:
    kind = schema.get("type")
    if kind == "string":
        value = _string(value, where)
    elif kind == "integer":
        value = _integer(value, where)
    elif kind == "number":
        value = _number(value, where)
    elif kind == "boolean":
        value = _boolean(value, where)
    elif kind == "array":
        value = _array(value, schema, where)
    elif kind == "object":
        if not isinstance(value, Mapping):
            raise ToolFailure(_expected(where, "an object", value))
        value = validate(schema, value, where) if "properties" in schema else dict(_plain(value, where))
    if "enum" in schema and value not in schema["enum"]:
        raise ToolFailure(f"{where} must be one of {', '.join(map(repr, schema['enum']))}, got {_short(value)}.")
    if "minimum" in schema:
        value = max(value, schema["minimum"])
    if "maximum" in schema:
        value = min(value, schema["maximum"])
    return value


def _string(value: Any, where: str) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise ToolFailure(_expected(where, "a string", value))
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ToolFailure(
            f"{where}: the character at position {error.start} is a lone surrogate (U+{ord(value[error.start]):04X}), "
            f"which no file or command can hold. Send the whole character."
        ) from None
    return value


def _integer(value: Any, where: str) -> int:
    if isinstance(value, str) and len(value) < 30:
        try:
            value = float(value) if "." in value or "e" in value.lower() else int(value)
        except ValueError:
            pass
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ToolFailure(_expected(where, "an integer", value))
    return max(-(2**53), min(value, 2**53))


def _number(value: Any, where: str) -> float:
    if isinstance(value, str) and len(value) < 30:
        try:
            value = float(value)
        except ValueError:
            pass
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-(2**53), min(value, 2**53))
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise ToolFailure(_expected(where, "a finite number", value))


def _boolean(value: Any, where: str) -> bool:
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if not isinstance(value, bool):
        raise ToolFailure(_expected(where, "true or false", value))
    return value


def _array(value: Any, schema: Schema, where: str) -> list[Any]:
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            pass
    if not isinstance(value, list):
        raise ToolFailure(_expected(where, "an array", value))
    items = schema.get("items")
    if items is None:
        _plain(value, where)
        return value
    return [_fit(item, items, f"{where}[{index}]") for index, item in enumerate(value)]


def _plain(value: Any, where: str) -> Any:
    """A value of which the schema says no more than its kind: anything that can go into JSON again."""
    if reason := not_json(value):
        raise ToolFailure(f"{where} cannot be used: {reason}.")
    return value


def not_json(value: Any) -> str | None:
    """Why `value` cannot be sent as JSON, or None if it can."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return "it has a lone surrogate in it, which is no character"
    except RecursionError:
        return "it is nested too deeply"
    except (ValueError, TypeError) as error:
        return "it has inf or nan in it" if str(error).startswith("Out of range float") else str(error)
    return None


_KINDS = {str: "a string", bool: "a boolean", int: "an integer", float: "a number", list: "an array", dict: "an object"}


def _kind(value: Any) -> str:
    return "null" if value is None else _KINDS.get(type(value), type(value).__name__)


def _expected(where: str, what: str, value: Any) -> str:
    return f"{where} must be {what}, got {_kind(value)}: {_short(value)}."


def _not_an_object(value: Any) -> str:
    return (
        f'Tool arguments must be a JSON object such as {{"name": value}}, got {_kind(value)}: {_short(value)}. '
        f"Please retry with an object."
    )


def _short(value: Any) -> str:
    """`value` for a message, at most about 80 characters, cheap for huge values."""
    if isinstance(value, str):
        return repr(value[:80]) + ("…" if len(value) > 80 else "")
    if isinstance(value, (list, dict)):
        return f"{len(value)} entries"
    if isinstance(value, int) and value.bit_length() > 256:
        return "a huge number"
    return repr(value)[:80]
