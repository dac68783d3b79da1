"""Properties of the tool-call parsers: they never raise, a call written in a format's syntax comes back as it was, and
no beginning of an output yields a call whose arguments were cut."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_hermes.tool_call_parsers import get_parser, list_parsers

FACTOR = int(os.environ.get("HERMES_TEST_EXAMPLES", "1"))
"""Set it to look for faults with so many times the examples, other ones each time."""
Arguments = dict[str, Any]
Calls = list[tuple[str, Arguments]]
MARKERS = [
    *(
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "[THINK]",
        "[/THINK]",
    ),
    *("<function=f>", "</function>", "<parameter=a>", "</parameter>", "<arg_key>", "</arg_key>", "<arg_value>"),
    *("</arg_value>", "<longcat_tool_call>", "</longcat_tool_call>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    *(
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
    ),
    *("<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>", "<|python_tag|>"),
    *('<invoke name="f">', "</invoke>", '<parameter name="a">', "<minimax:tool_call>", "</minimax:tool_call>"),
    *(
        "<seed:tool_call>",
        "</seed:tool_call>",
        '<｜DSML｜invoke name="f">',
        "</｜DSML｜invoke>",
        "</｜DSML｜parameter>",
    ),
    *(
        '<｜DSML｜parameter name="a" string="true">',
        "<|channel|>",
        "<|message|>",
        "<|call|>",
        "<|end|>",
        "<|start|>assistant",
    ),
    *("<|python_start|>", "<|python_end|>", " to=functions.f ", "functions.f:0", "```json\n", "```", "\\n", "</s>"),
    *(
        '{"name": "f", "arguments": {"a": 1}}',
        '{"name": "',
        '"arguments": {',
        "[f(a=1)]",
        "f(",
        '"',
        "'",
        "{",
        "}",
        "[",
        "]",
    ),
    *("\n", " ", ",", ":", "\\", "f", "1", "true", "None"),
]
fragments = st.lists(st.sampled_from(MARKERS) | st.text(max_size=3), max_size=14).map("".join)
names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,12}", fullmatch=True).filter(lambda name: name != "function")
keys = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True).filter(lambda key: key not in ("name", "function"))
scalars = st.none() | st.booleans() | st.integers(-(10**12), 10**12) | fragments
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=6
)
json_calls = st.lists(st.tuples(names, st.dictionaries(keys, json_values, max_size=3)), min_size=1, max_size=3)
text_calls = st.lists(st.tuples(names, st.dictionaries(keys, fragments, max_size=3)), min_size=1, max_size=3)


def schemas(calls: Calls) -> list[dict[str, Any]]:
    """A tool per name, whose parameters are strings, and all of them required."""
    tools: dict[str, dict[str, Any]] = {}
    for name, arguments in calls:
        known = tools.setdefault(name, {})
        known.update({key: {"type": "string"} for key in arguments})
    return [
        {
            "type": "function",
            "function": {"name": name, "parameters": {"type": "object", "properties": known, "required": [*known]}},
        }
        for name, known in tools.items()
    ]


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def tagged(opener: str, closer: str) -> Callable[[Calls], str]:
    return lambda calls: "\n".join(
        f"{opener}\n{dumped({'name': name, 'arguments': arguments})}\n{closer}" for name, arguments in calls
    )


def deepseek_v3(calls: Calls) -> str:
    inner = "".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{dumped(arguments)}\n```<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def deepseek_v3_1(calls: Calls) -> str:
    inner = "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dumped(arguments)}<｜tool▁call▁end｜>" for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def kimi_k2(calls: Calls) -> str:
    inner = "".join(
        f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{dumped(arguments)}<|tool_call_end|>"
        for number, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def pythonic(calls: Calls) -> str:
    written = (f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})" for name, arguments in calls)
    return f"<|python_start|>[{', '.join(written)}]<|python_end|>"


def harmony(calls: Calls) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{dumped(arguments)}<|call|>"
        for name, arguments in calls
    )


JSON_FORMATS: dict[str, Callable[[Calls], str]] = {
    "hermes": tagged("<tool_call>", "</tool_call>"),
    "qwen": tagged("<tool_call>", "</tool_call>"),
    "longcat": tagged("<longcat_tool_call>", "</longcat_tool_call>"),
    "mistral": lambda calls: "".join(f"[TOOL_CALLS]{name}[ARGS]{dumped(arguments)}" for name, arguments in calls),
    "llama3_json": lambda calls: "; ".join(
        dumped({"name": name, "parameters": arguments}) for name, arguments in calls
    ),
    "deepseek_v3": deepseek_v3,
    "deepseek_v3_1": deepseek_v3_1,
    "kimi_k2": kimi_k2,
    "llama4_pythonic": pythonic,
    "gpt_oss": harmony,
}


def xml(opener: str, function: str, parameter: str, ends: tuple[str, str, str], newline: str) -> Callable[[Calls], str]:
    parameter_end, function_end, closer = ends

    def render(calls: Calls) -> str:
        return "\n".join(
            f"{opener}\n{function % name}\n"
            + "".join(f"{parameter % key}{newline}{v}{newline}{parameter_end}\n" for key, v in arguments.items())
            + f"{function_end}\n{closer}"
            for name, arguments in calls
        )

    return render


def key_value(prefix: str, newline: str = "\n") -> Callable[[Calls], str]:
    def render(calls: Calls) -> str:
        return "".join(
            f"<{prefix}tool_call>{name}{newline}"
            + "".join(
                f"<{prefix}arg_key>{key}</{prefix}arg_key>{newline}<{prefix}arg_value>{v}</{prefix}arg_value>{newline}"
                for key, v in arguments.items()
            )
            + f"</{prefix}tool_call>"
            for name, arguments in calls
        )

    return render


QWEN = ("</parameter>", "</function>", "</tool_call>")
TEXT_FORMATS: dict[str, tuple[Callable[[Calls], str], tuple[str, ...]]] = {
    # What a value may not hold: there the grammar itself is ambiguous.
    "qwen3_coder": (xml("<tool_call>", "<function=%s>", "<parameter=%s>", QWEN, "\n"), ("</p", "</f", "\n<p", "</t")),
    "seed_oss": (
        xml("<seed:tool_call>", "<function=%s>", "<parameter=%s>", (*QWEN[:2], "</seed:tool_call>"), "\n"),
        ("</p", "</f", "\n<p", "</s"),
    ),
    "minimax_m2": (
        xml(
            "<minimax:tool_call>", '<invoke name="%s">', '<parameter name="%s">',
            ("</parameter>", "</invoke>", "</minimax:tool_call>"), "",
        ),
        ("</p", "</i", "\n<p", "</m"),
    ),
    "deepseek_v32": (
        xml(
            "<｜DSML｜function_calls>", '<｜DSML｜invoke name="%s">', '<｜DSML｜parameter name="%s" string="true">',
            ("</｜DSML｜parameter>", "</｜DSML｜invoke>", "</｜DSML｜function_calls>"), "",
        ),
        ("</｜", "\n<｜"),
    ),
    "glm45": (key_value(""), ("</arg_value",)),
    "glm47": (key_value("", ""), ("</arg_value",)),
    "longcat": (key_value("longcat_"), ("</longcat_arg_value",)),
}  # fmt: skip


def found(name: str, text: str, calls: Calls) -> Calls:
    _, made = get_parser(name).parse(text, schemas(calls))
    read = []
    for call in made or []:
        try:
            read.append((call.function.name, json.loads(call.function.arguments)))
        except json.JSONDecodeError:
            pass  # it is answered with what is wrong, and never run
    return read


@pytest.mark.parametrize("name", list_parsers())
@given(text=fragments, with_tools=st.booleans())
@settings(max_examples=100 * FACTOR, deadline=None, derandomize=FACTOR == 1)
def test_never_raises(name: str, text: str, with_tools: bool) -> None:
    tools = schemas([("f", {"a": ""})]) if with_tools else None
    content, calls = get_parser(name).parse(text, tools)
    if calls is None:
        assert content == text
        return
    assert content is None or (content == content.strip() and text.lstrip().startswith(content))
    assert all(call.id and call.function.name.strip() == call.function.name != "" for call in calls)
    for call in calls:
        call.function.arguments.encode()


@pytest.mark.parametrize("name", JSON_FORMATS)
@given(calls=json_calls, content=st.sampled_from(["", "I will look.", "<think>\nfirst\n</think>\n\n"]))
@settings(max_examples=40 * FACTOR, deadline=None, derandomize=FACTOR == 1)
def test_round_trip_of_json(name: str, calls: Calls, content: str) -> None:
    assert found(name, content + JSON_FORMATS[name](calls), calls) == calls


@pytest.mark.parametrize("name", TEXT_FORMATS)
@given(calls=text_calls, content=st.sampled_from(["", "I will look.", "<think>\nfirst\n</think>\n\n"]))
@settings(max_examples=40 * FACTOR, deadline=None, derandomize=FACTOR == 1)
def test_round_trip_of_text(name: str, calls: Calls, content: str) -> None:
    render, ambiguous = TEXT_FORMATS[name]
    values = [value for _, arguments in calls for value in arguments.values()]
    assume(not any(part in f"\n{value}\n" for value in values for part in ambiguous))
    assert found(name, content + render(calls), calls) == calls


@pytest.mark.parametrize("name", [*JSON_FORMATS, *TEXT_FORMATS])
@given(data=st.data())
@settings(max_examples=20 * FACTOR, deadline=None, derandomize=FACTOR == 1)
def test_no_beginning_yields_a_call_that_is_cut(name: str, data: st.DataObject) -> None:
    is_json = name in JSON_FORMATS and name != "longcat"
    calls = data.draw(json_calls if is_json else text_calls)
    if is_json:
        text = JSON_FORMATS[name](calls)
    else:
        render, ambiguous = TEXT_FORMATS[name]
        values = [value for _, arguments in calls for value in arguments.values()]
        assume(not any(part in value for value in values for part in (*ambiguous, "<", "\n")))
        text = render(calls)
    # A name that begins another one may be a whole name without arguments.
    assume(not any(a != b and a.startswith(b) for a, _ in calls for b, _ in calls))
    for end in range(0, len(text), max(1, len(text) // 200)):
        some = found(name, text[:end], calls)
        assert some == calls[: len(some)], text[:end]
