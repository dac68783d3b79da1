"""What happens to the arguments of a model's tool call before a tool sees them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hermes.errors import ConfigurationError
from pytest_hermes.tools.arguments import parse_arguments, validate
from pytest_hermes.tools.registry import TOOLS, TOOLSETS
from pytest_hermes.tools.tool import ToolFailure, boolean, integer, object_schema, string
from pytest_hermes.tools.toolbox import ToolSettings
from pytest_hermes.tools.toolsets import select_tools

SCHEMA = object_schema(
    ["command"],
    command=string("c"),
    timeout=integer("t", minimum=1, maximum=600),
    background=boolean("b"),
    mode=string("m", enum=["a", "b"], default="a"),
    words={"type": "array", "items": {"type": "string"}},
)


def chosen(enabled: list[str] | None, *disabled: str) -> list[str]:
    return [tool.name for tool in select_tools(enabled, disabled, settings=ToolSettings()).tools]


@pytest.mark.parametrize("nothing", [None, "", "  \n", "null", {}])
def test_no_arguments_mean_an_empty_object(nothing: object) -> None:
    assert parse_arguments(nothing) == {}  # type: ignore[arg-type]


def test_invalid_json_is_answered_with_the_place_of_the_mistake() -> None:
    with pytest.raises(
        ToolFailure, match=r"^Invalid JSON in tool arguments: .*column 13.*Please retry with valid JSON\.$"
    ):
        parse_arguments('{"command": ls}')


@pytest.mark.parametrize(("text", "kind"), [("[1]", "an array"), ('"ls"', "a string"), ("7", "an integer")])
def test_json_that_is_no_object_is_refused_by_kind(text: str, kind: str) -> None:
    with pytest.raises(ToolFailure, match=f"must be a JSON object .* got {kind}"):
        parse_arguments(text)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000, '{"command": ' + "9" * 6000 + "}"])
def test_json_that_breaks_the_decoder_is_a_failure_of_the_call(text: str) -> None:
    with pytest.raises(ToolFailure, match="Invalid JSON"):
        parse_arguments(text)


def test_harmless_differences_are_mended() -> None:
    given_ = {"command": 5, "timeout": "30", "background": "True", "words": '["x"]', "mode": None, "extra": 1}
    assert validate(SCHEMA, given_, "t") == {
        "command": "5",
        "timeout": 30,
        "background": True,
        "words": ["x"],
        "mode": "a",
    }
    assert validate(SCHEMA, {"command": "x", "timeout": 9999.0}, "t")["timeout"] == 600
    assert validate(SCHEMA, {"command": "x", "timeout": -5}, "t")["timeout"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "missing required argument 'command'. Arguments given: none"),
        ({"cmd": "ls"}, "missing required argument 'command'. Arguments given: 'cmd'"),
        ({"command": None}, "missing required argument 'command'"),
        ({"command": ["ls"]}, "command must be a string, got an array"),
        ({"command": "x", "timeout": "soon"}, "timeout must be an integer, got a string: 'soon'"),
        ({"command": "x", "timeout": 1.5}, "timeout must be an integer, got a number"),
        ({"command": "x", "timeout": True}, "timeout must be an integer, got a boolean"),
        ({"command": "x", "timeout": float("nan")}, "timeout must be an integer"),
        ({"command": "x", "background": "yes"}, "background must be true or false"),
        ({"command": "x", "mode": "c"}, "mode must be one of 'a', 'b', got 'c'"),
        ({"command": "x", "words": [1, {}]}, r"words\[1\] must be a string, got an object"),
        ({"command": "x", "timeoutt": 3}, "unknown argument 'timeoutt'; did you mean 'timeout'"),
        ({"command": "a\ud800"}, r"lone surrogate \(U\+D800\)"),
    ],
)
def test_what_cannot_be_mended_is_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ToolFailure, match=message):
        validate(SCHEMA, arguments, "t")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(sorted({name for tool in TOOLS.values() for name in tool.parameters["properties"]}))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(TOOLS)), st.dictionaries(NAMES | st.text(max_size=8), JSON, max_size=6))
def test_any_object_is_either_fitted_to_the_schema_or_refused(name: str, arguments: dict[str, object]) -> None:
    tool = TOOLS[name]
    try:
        values = validate(tool.accepts or tool.parameters, parse_arguments(json.dumps(arguments)), name)
    except ToolFailure as failure:
        assert str(failure)
        return
    kinds = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict, "number": (int, float)}
    for key, value in values.items():
        assert isinstance(value, kinds[tool.parameters["properties"][key]["type"]])


def test_tool_sets_resolve_to_tools() -> None:
    assert chosen(["terminal"]) == ["terminal", "process"]
    files = ["read_file", "write_file", "patch", "search_files"]
    assert chosen(None) == ["terminal", "process", *files, "todo"]
    assert chosen(["file", "terminal"], "file") == ["terminal", "process"]
    assert {tool for tools in TOOLSETS.values() for tool in tools} == set(TOOLS)


def test_an_unknown_tool_set_names_the_closest() -> None:
    with pytest.raises(ConfigurationError, match=r"'terminl'.* Did you mean 'terminal'"):
        chosen(["terminl"])
    with pytest.raises(ConfigurationError, match="'fil'"):
        chosen(None, "fil")


HERMES_PARAMETERS = {
    "terminal": (
        {"command": "string", "background": "boolean", "timeout": "integer", "workdir": "string", "pty": "boolean"},
        {"command"},
    ),
    "process": (
        {
            "action": "string",
            "session_id": "string",
            "data": "string",
            "timeout": "integer",
            "offset": "integer",
            "limit": "integer",
        },
        {"action"},
    ),
    "read_file": ({"path": "string", "offset": "integer", "limit": "integer"}, {"path"}),
    "write_file": ({"path": "string", "content": "string"}, {"path", "content"}),
    "patch": (
        {
            "mode": "string",
            "path": "string",
            "old_string": "string",
            "new_string": "string",
            "replace_all": "boolean",
            "patch": "string",
        },
        {"mode"},
    ),
    "search_files": (
        {
            "pattern": "string",
            "target": "string",
            "path": "string",
            "file_glob": "string",
            "limit": "integer",
            "offset": "integer",
            "output_mode": "string",
            "context": "integer",
        },
        {"pattern"},
    ),
    "todo": ({"todos": "array", "merge": "boolean"}, set()),
}


@pytest.mark.parametrize("name", sorted({*HERMES_PARAMETERS, *chosen(None)}))
def test_schemas_have_the_parameters_that_hermes_agents_know(name: str) -> None:
    types, required = HERMES_PARAMETERS[name]
    parameters = TOOLS[name].schema["function"]["parameters"]
    assert {key: value["type"] for key, value in parameters["properties"].items()} == types
    assert set(parameters["required"]) == required
    json.dumps(TOOLS[name].schema)


def test_schemas_cost_less_than_half_of_what_hermes_sends() -> None:
    assert len(json.dumps([TOOLS[name].schema for name in chosen(None)])) < 8_000
