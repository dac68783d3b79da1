"""The tools that a model was given: which names it may call, and of what types their parameters are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pytest_hermes.tool_call_parsers.json_text import Malformed, lenient

OMITTED = object()
"""Stands for a parameter that is left out."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_BOOLEANS = {"true": True, "True": True, "false": False, "False": False}
_MAX_SCHEMAS = 200
_MAX_DIGITS = 4000
_PYTHON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}


class Tools:
    """OpenAI tool schemas by name; what is no schema is passed over."""

    def __init__(self, schemas: Iterable[Any] | None = None) -> None:
        self._parameters: dict[str, Mapping[str, Any]] = {}
        for schema in schemas if isinstance(schemas, Iterable) else ():
            function = schema.get("function", schema) if isinstance(schema, Mapping) else None
            if isinstance(function, Mapping) and isinstance(name := function.get("name"), str):
                parameters = function.get("parameters")
                self._parameters[name] = parameters if isinstance(parameters, Mapping) else {}

    def __bool__(self) -> bool:
        return bool(self._parameters)

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    @property
    def names(self) -> Iterable[str]:
        """The known names."""
        return self._parameters.keys()

    def properties(self, name: str) -> Mapping[str, Any]:
        """The schemas of a tool's parameters; empty for an unknown tool."""
        found = self._parameters.get(name, {}).get("properties")
        return found if isinstance(found, Mapping) else {}

    def lacks(self, name: str, arguments: Mapping[str, Any]) -> list[str]:
        """The required parameters of a tool that `arguments` does not have."""
        required = self._parameters.get(name, {}).get("required")
        known = required if isinstance(required, list) else []
        return [key for key in known if isinstance(key, str) and key not in arguments]

    def typed(self, name: str, key: str, text: str) -> Any:
        """The value that an untyped text stands for, by the parameter's schema; `OMITTED` for an empty non-string.

        The text itself where the schema says string or nothing, and where the text does not fit.
        """
        types = _types(self.properties(name).get(key), self._parameters.get(name, {}), [_MAX_SCHEMAS])
        if not types:
            return text
        word = text.strip()
        if "string" in types:
            return None if word == "null" and "null" in types else text
        if not word:
            return OMITTED
        if word in ("null", "None"):
            return None
        for wanted in ("integer", "number", "boolean", "object", "array"):
            if wanted in types and (value := _read(word, wanted)) is not OMITTED:
                return value
        return text


def _types(schema: Any, root: Mapping[str, Any], left: list[int]) -> set[str]:
    """The JSON types that a schema allows; empty where it does not say. It looks at so many schemas as are `left`."""
    left[0] -= 1
    if not isinstance(schema, Mapping) or left[0] < 0:
        return set()
    if isinstance(reference := schema.get("$ref"), str) and reference.startswith("#/"):
        target: Any = root
        for part in reference[2:].split("/"):
            target = target.get(part) if isinstance(target, Mapping) else None
        return _types(target, root, left)
    types = schema.get("type")
    if isinstance(types, str):
        return {types}
    if isinstance(types, list):
        return {entry for entry in types if isinstance(entry, str)}
    found: set[str] = set()
    for union in ("anyOf", "oneOf", "allOf"):
        if isinstance(members := schema.get(union), list):
            found.update(*(_types(member, root, left) for member in members))
    values = schema.get("enum", [schema["const"]] if "const" in schema else ())
    if isinstance(values, list):
        found.update(_PYTHON_TYPES.get(type(value), "null") for value in values)
    return found


def _read(word: str, wanted: str) -> Any:
    """The value of a word as a type, or OMITTED if it is none."""
    if wanted == "boolean":
        return _BOOLEANS.get(word, OMITTED)
    if wanted in ("integer", "number"):
        if not _NUMBER.fullmatch(word) or len(word) > _MAX_DIGITS:
            return OMITTED
        if word.lstrip("+-").isdigit():
            return int(word)
        number = float(word)
        if number.is_integer() and abs(number) < 1e15:
            return int(number)
        return OMITTED if wanted == "integer" or number in (float("inf"), float("-inf")) else number
    try:
        value = lenient(word)
    except Malformed:
        return OMITTED
    return value if isinstance(value, dict if wanted == "object" else list) else OMITTED
