"""The tools' parameters are those that agents trained on hermes-agent know; the deliberate differences stand here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_hermes.tools.listing import schema_cost
from pytest_hermes.tools.registry import DEFAULT_TOOLSETS, TOOLS, TOOLSETS

HERMES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "hermes_tools.json").read_text())["tools"]
"""Parameters in hermes-agent 0.19.0, descriptions left out."""

MAY_BE_MISSING = {
    ("terminal", "pty"),  # commands have no terminal
    ("terminal", "notify_on_complete"),  # nothing can be told between the turns of a rollout
    ("terminal", "watch_patterns"),
    ("write_file", "cross_profile"),  # hermes profiles do not exist here
    ("patch", "cross_profile"),
}
SAID_IN_ADDITION: dict[tuple[str, str], dict[str, Any]] = {
    # values that hermes clamps or takes too; the schema says so here
    ("read_file", "limit"): {"minimum": 1},
    ("search_files", "limit"): {"minimum": 1},
    ("search_files", "offset"): {"minimum": 0},
    ("search_files", "context"): {"minimum": 0, "maximum": 50},
    ("web_extract", "char_limit"): {"default": 15_000},
}
SHARED = sorted(set(TOOLS) & set(HERMES))


def bare(schema: Any, names: bool = False) -> Any:
    """A schema without its descriptions; `names`: its keys are names of parameters."""
    if isinstance(schema, dict):
        return {key: bare(value, key == "properties") for key, value in schema.items() if names or key != "description"}
    return [bare(value) for value in schema] if isinstance(schema, list) else schema


def test_tool_names_are_those_of_hermes() -> None:
    assert set(TOOLS) <= set(HERMES)
    for toolset in ("terminal", "file", "todo", "web"):
        assert set(TOOLSETS[toolset]) <= set(SHARED)


@pytest.mark.parametrize("name", SHARED)
def test_parameters_have_the_names_types_choices_defaults_and_bounds_of_hermes(name: str) -> None:
    ours, theirs = bare(TOOLS[name].parameters), HERMES[name]
    assert ours["required"] == theirs["required"]
    missing = {key for tool, key in MAY_BE_MISSING if tool == name} - set(ours["properties"])
    wanted = {key: value for key, value in theirs["properties"].items() if key not in missing}
    for tool, key in SAID_IN_ADDITION:
        if tool == name:
            wanted[key] = {**wanted[key], **SAID_IN_ADDITION[tool, key]}
    assert ours["properties"] == wanted


def test_no_difference_is_listed_that_is_none() -> None:
    assert all(key in HERMES[name]["properties"] for name, key in MAY_BE_MISSING)
    for (name, key), more in SAID_IN_ADDITION.items():
        assert not more.items() <= HERMES[name]["properties"][key].items()


@pytest.mark.parametrize("name", sorted(TOOLS))
def test_schemas_are_what_endpoints_take(name: str) -> None:
    schema = TOOLS[name].schema
    json.dumps(schema, allow_nan=False)
    function = schema["function"]
    assert function["name"] == name and function["description"].strip()
    assert function["parameters"]["type"] == "object"
    for key, parameter in function["parameters"]["properties"].items():
        assert parameter.get("type"), f"{name}.{key} has no type"
        assert parameter.get("description"), f"{name}.{key} has no description"


def test_the_default_schemas_cost_half_of_what_hermes_sends_for_the_same_tools() -> None:
    tools = [TOOLS[name] for toolset in DEFAULT_TOOLSETS for name in TOOLSETS[toolset]]
    assert schema_cost(tools).chars < 7_000  # hermes-agent 0.19: 12,891 for terminal and file alone
