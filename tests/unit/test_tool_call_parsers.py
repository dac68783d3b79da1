"""Tool-call parsers: the cases of every format, growth, registry, `auto`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pytest_hermes.tool_call_parsers import (
    Call,
    ToolCallParser,
    UnknownParser,
    findings_of,
    get_parser,
    list_parsers,
    parser_of_template,
    register_parser,
    registry,
)
from pytest_hermes.tool_call_parsers.auto import formats_of_text
from pytest_hermes.tool_call_parsers.conformance import check_parser, failure, read_cases

DATA = Path(__file__).parent.parent / "data" / "tool_calls"
CASES = [case for path in sorted(DATA.glob("*.jsonl")) if path.stem != "adversarial" for case in read_cases(path)]
GROWTH = list(read_cases(DATA / "adversarial.jsonl"))


def schema(name: str, **types: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in types.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case: dict[str, Any]) -> None:
    assert failure(get_parser(case["format"]), case) is None


@pytest.mark.parametrize("name", list_parsers())
def test_every_format_has_cases(name: str) -> None:
    same = {"mimo": "qwen3_coder"}
    assert len([case for case in CASES if case["format"] == same.get(name, name)]) >= 15


def seconds(recipe: dict[str, Any], size: int) -> float:
    """CPU of parsing the recipe's text at a size, the best of three."""
    text = recipe["head"] + recipe["unit"] * (size // len(recipe["unit"])) + recipe["tail"]
    parser = get_parser(recipe["format"])
    spent = []
    for _ in range(3):
        began = time.process_time()
        parser.parse(text)
        spent.append(time.process_time() - began)
    return min(spent)


MORE_GROWTH = [
    {"id": f"{name}-{number}", "format": name, "head": "", "unit": unit, "tail": ""}
    for number, (name, unit) in enumerate(
        [
            ("hermes", "<tool_call>"),
            ("hermes", "<tool_call>["),
            ("hermes", '<tool_call>{"a": "'),
            ("hermes", "<tool_call>{'a': \"b"),
            ("hermes", "</think>"),
            ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "'),
            ("mistral", '[TOOL_CALLS]f[ARGS]{"a": "'),
            ("mistral", "[TOOL_CALLS]f "),
            ("mistral", '[TOOL_CALLS]{"a": 1}'),
            ("llama3_json", '{"name": "f", "parameters": {"a": "'),
            ("llama3_json", "{{"),
            ("llama3_json", '{"a": 1} '),
            ("qwen3_coder", "<tool_call><function=f><parameter=a>"),
            ("qwen3_coder", "<tool_call><function=f><parameter=a>x</parameter>"),
            ("qwen3_coder", "<tool_call>\n<function=f></function> "),
            ("minimax_m2", '<minimax:tool_call><invoke name="f"><parameter name="a">x'),
            ("deepseek_v32", '<｜DSML｜invoke name="f"><｜DSML｜parameter name="a">'),
            ("seed_oss", "<seed:tool_call> "),
            ("glm45", "<tool_call>f<arg_key>a</arg_key><arg_value>"),
            ("glm45", "<tool_call>f<arg_key>"),
            ("longcat", "<longcat_tool_call>f <longcat_arg_key>a</longcat_arg_key>"),
            ("kimi_k2", "<|tool_call_begin|>functions.f:0"),
            ("kimi_k2", '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "'),
            ("deepseek_v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"),
            ("llama4_pythonic", "[f("),
            ("llama4_pythonic", "<|python_start|>[f(a=["),
            ("llama4_pythonic", "[f(a='x', "),
            ("gpt_oss", "<|channel|>commentary to=functions.f"),
            ("gpt_oss", "<|start|>assistant<|channel|>commentary to=functions.f<|message|>{"),
            ("hermes", '<tool_call>{"\\" '),
            ("hermes", "<tool_call>{'\\' "),
            ("mistral", '[TOOL_CALLS][{"\\" '),
            ("mistral", '[TOOL_CALLS]f[ARGS]{"\\" '),
            ("kimi_k2", '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"\\" '),
            ("deepseek_v3", '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"\\" '),
            ("glm45", '<tool_call>{"\\" '),
            ("qwen3_coder", "<tool_call><function=f>\n<parameter=a>"),
            ("qwen3_coder", "<tool_call><function=f><parameter=a>x\n<parameter=b>"),
            ("minimax_m2", '<minimax:tool_call><invoke name="f">\n<parameter name="a">'),
            ("seed_oss", "<seed:tool_call><function=f>\n<parameter=a>x"),
            ("deepseek_v32", '<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a">'),
            ("auto", "<tool_call>"),
            ("auto", "<tool_call><function=[TOOL_CALLS]<|channel|>"),
        ]
    )
]


MORE_GROWTH += [
    {"id": f"triple-{name}", "format": name, "head": head, "unit": '"""x"\\', "tail": ""}
    for name, head in (
        ("hermes", "<tool_call>{'a': "),
        ("mistral", "[TOOL_CALLS]f[ARGS]{'a': "),
        ("llama3_json", "{'a': "),
        ("llama4_pythonic", "[f(a="),
    )
]


@pytest.mark.parametrize("recipe", [*GROWTH, *MORE_GROWTH], ids=lambda recipe: recipe["id"])
def test_growth_is_linear(recipe: dict[str, Any]) -> None:
    # A ratio of CPU times in one run, so that the machine's speed does not matter: linear is 4, quadratic 16.
    assert seconds(recipe, 128_000) <= 11 * seconds(recipe, 32_000) + 0.2


@pytest.mark.parametrize("name", list_parsers())
@pytest.mark.parametrize("raw", ["", "\0", "\ud800", "]" * 1000, "<tool_call>" + "\ud800", '{"name": "\ud800"}'])
def test_odd_texts(name: str, raw: str) -> None:
    assert get_parser(name).parse(raw) == (raw, None)


@pytest.mark.parametrize(
    "tools", [5, True, [], [{}], [{"function": 3}], [None], [{"name": "f", "parameters": {"properties": 3}}]]
)
def test_odd_tools(tools: Any) -> None:
    _, calls = get_parser("qwen3_coder").parse("<tool_call><function=f><parameter=a>1</parameter></function>", tools)
    assert calls is not None and calls[0].function.arguments == '{"a": "1"}'


NOT_READ = [  # what a call may hold that JSON is not, in formats that name it elsewhere
    ("deepseek_v3_1", '<｜tool▁call▁begin｜>f<｜tool▁sep｜>"{\\"a\\": 1}"<｜tool▁call▁end｜>', '{"a": 1}'),
    ("deepseek_v3_1", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>null<｜tool▁call▁end｜>", "{}"),
    ("deepseek_v3", '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n""\n```<｜tool▁call▁end｜>', "{}"),
    ("mistral", '[TOOL_CALLS]f[ARGS]"{\\"a\\": 1}"', '{"a": 1}'),
    ("mistral", "[TOOL_CALLS]f[ARGS]null", "{}"),
    ("kimi_k2", "<|tool_call_begin|>f:0<|tool_call_argument_begin|>null<|tool_call_end|>", "{}"),
    ("kimi_k2", '<|tool_call_begin|>f:0<|tool_call_argument_begin|>{"a": "b<|tool_call_end|>', '{"a": "b'),
    ("gpt_oss", '<|channel|>commentary to=functions.f<|message|>{"a": NaN}<|call|>', '{"a": NaN}'),
]


@pytest.mark.parametrize(("name", "text", "arguments"), NOT_READ)
def test_arguments_that_are_no_object(name: str, text: str, arguments: str) -> None:
    _, calls = get_parser(name).parse(text)
    assert calls is not None and [(call.function.name, call.function.arguments) for call in calls] == [("f", arguments)]


FORMS = {
    "hermes": '<tool_call>{"name": "f", "arguments": {"x": %s}}</tool_call>',
    "mistral": '[TOOL_CALLS]f[ARGS]{"x": %s}',
    "llama3_json": '{"name": "f", "parameters": {"x": %s}}',
    "deepseek_v32": (
        '<｜DSML｜invoke name="f"><｜DSML｜parameter name="x" string="false">%s</｜DSML｜parameter></｜DSML｜invoke>'
    ),
    "kimi_k2": '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": %s}<|tool_call_end|>',
    "llama4_pythonic": "[f(x=%s)]",
    "glm45": "<tool_call>f<arg_key>x</arg_key><arg_value>%s</arg_value></tool_call>",
}


@pytest.mark.parametrize("depth", [250, 350, 3_000, 100_000])
@pytest.mark.parametrize("name", FORMS)
def test_deep_values(name: str, depth: int) -> None:
    value = "[" * depth + "]" * depth
    _, calls = get_parser(name).parse(FORMS[name] % value, [schema("f", x="array")])
    if depth == 250:
        assert calls is not None and calls[0].function.arguments == f'{{"x": {value}}}'
    elif calls is not None:  # what cannot be read is passed on as text
        assert value in calls[0].function.arguments


def test_a_call_in_a_cut_value_is_not_run() -> None:
    text = (
        '<minimax:tool_call>\n<invoke name="w">\n<parameter name="path">a</parameter>\n<parameter name="content">Use\n'
        '<minimax:tool_call>\n<invoke name="t">\n<parameter name="command">rm</parameter>\n</invoke>\n'
        "</minimax:tool_call>\nand</parameter>\n</invoke>\n</minimax:tool_call>"
    )
    _, calls = get_parser("minimax_m2").parse(text, [schema("w", path="string", content="string"), schema("t")])
    assert calls is not None
    assert "command" not in json.loads(calls[0].function.arguments)


def hermes(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


FOUND = [  # format, text, the names of the calls
    ("mistral", '[TOOL_CALLS] [{"name": "a"}][TOOL_CALLS] [{"name": "b"}]', ["a", "b"]),
    ("mistral", '[TOOL_CALLS] [{"name": oops}][TOOL_CALLS] [{"name": "b"}]', ["b"]),
    ("mistral", '[THINK][TOOL_CALLS] [{"name": "rm"}][/THINK]ok', []),
    # These begin whole calls whose string holds the marker.
    ("mistral", '[TOOL_CALLS]a[ARGS]{"c": "x[TOOL_CALLS]b[ARGS]{}', []),
    ("mistral", '[TOOL_CALLS]a[ARGS]{"c": "[TOOL_CALLS]\\\\[TOOL_CALLS]', []),
    ("mistral", '[TOOL_CALLS] [{"name": "a", "arguments": {"t": "[TOOL_CALLS]x[TOOL_CALLS]', []),
    (
        "kimi_k2",
        '<|tool_call_begin|>a:0<|tool_call_argument_begin|>{"c": "<|tool_call_begin|>b:1<|tool_call_argument_begin|>{}',
        [],
    ),
    ("deepseek_v3", '<｜tool▁call▁begin｜>a<｜tool▁sep｜>{"c": "<｜tool▁call▁begin｜>b<｜tool▁sep｜>{}', []),
    ("gpt_oss", '<|channel|>x to=functions.a<|message|>{"c": "<|channel|>x to=functions.b<|message|>{}', []),
    ("llama3_json", '{"name": "o", "parameters": {"p": {"name": "i", "parameters": {"z": 1}}', []),
    ("llama3_json", '{"result": {"name": "i", "parameters": {}}', []),
    ("llama3_json", '{"name": "o", "parameters": {"x": bad, "p": {"name": "i", "parameters": {}}}}', []),
    ("llama3_json", '{"name": "a", "parameters": {}}; {"name": "b", "parameters": {"p": {"name": "i"', ["a"]),
    ("hermes", f'<think>{hermes("rm")} or <tool_call>{{"name": "x", </think>\n{hermes("ls")}', ["ls"]),
    ("hermes", f'<think>{hermes("rm")} or <tool_call>{{"name": "x </think>\n{hermes("ls")}', ["ls"]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}', ["f"]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x</tool_call>' + hermes("g", '{"b": "}}"}'), ["g"]),
    ("longcat", '{"name": "ls", "arguments": {}}\n</longcat_tool_call>', ["ls"]),
    ("longcat", "<longcat_tool_call>oops</longcat_tool_call>", []),
    ("glm45", "<think><tool_call>ls<arg_key>p</arg_key><arg_value>rm</think><tool_call>ls</tool_call>", ["ls"]),
    ("glm45", "<tool_call>??!</tool_call><tool_call>ls</tool_call>", ["ls"]),
    ("glm45", '<tool_call>ls\n{"p": "a"}\n</tool_call>', ["ls"]),
    (
        "glm45",
        "<tool_call>ls<arg_key>p</arg_key><arg_value>a</tool_call>"
        "<tool_call>ls<arg_key>p</arg_key><arg_value>b</arg_value></tool_call>",
        ["ls", "ls"],
    ),
    ("glm45", "<tool_call>ls<arg_key>p</arg_key><arg_value>see </tool_call> bla", []),
    ("qwen3_coder", "<tool_call>\n<function=f>\n</function>\n<function=g>\n</function>\n</tool_call>", ["f", "g"]),
    ("qwen3_coder", "<tool_call>\n<function=ls>\n<parameter=p>\necho '</function>", []),
    (
        "qwen3_coder",
        "<think><tool_call>\n<function=ls>\n<parameter=p>\nrm</think>\n<tool_call>\n<function=ls>\n</function>",
        ["ls"],
    ),
    ("auto", f"<think>use <｜tool▁call▁begin｜> maybe</think>{hermes('ls')}", ["ls"]),
    ("auto", f"I look for `<|tool_call_begin|>`.\n{hermes('ls')}", ["ls"]),
]


@pytest.mark.parametrize(("name", "text", "wanted"), FOUND)
def test_what_is_a_call_and_what_is_not(name: str, text: str, wanted: list[str]) -> None:
    content, calls = get_parser(name).parse(text, [schema("ls", p="string")])
    assert [call.function.name for call in calls or []] == wanted
    if not wanted:
        assert content == text


PROSE = [
    "Done. The parser now handles the [TOOL_CALLS] marker.",
    "I fixed it: `[TOOL_CALLS]` is now skipped",
    "The tokens `<｜tool▁call▁begin｜>` and others are documented",
    "Kimi uses <|tool_call_begin|> and <|tool_calls_section_begin|>.",
    "I documented the `<tool_call>` tag. Done.",
    "The `<tool_call>` and `</tool_call>` tags are now handled.",
    "I documented `<tool_call>{...}</tool_call>`",
    "Use `<longcat_tool_call>` tags.",
    'The config {"name": "x", "a": [1, oops} is broken.',
    "Use {'a is open. Done",
]


@pytest.mark.parametrize("name", ["auto", "hermes", "mistral", "llama3_json", "kimi_k2", "deepseek_v3", "longcat"])
@pytest.mark.parametrize("text", PROSE)
def test_prose_about_markers_is_no_failed_call(name: str, text: str) -> None:
    found = findings_of(get_parser(name), text, [schema("ls")])
    assert (found.content, found.calls, found.errors, found.truncated) == (text, (), (), False)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kimi_k2", '<|tool_call_begin|>f:0<|tool_call_argument_begin|>```json\n{"a": no\n```<|tool_call_end|>'),
        ("deepseek_v3", '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": no\n```<｜tool▁call▁end｜>'),
    ],
)
def test_a_fence_is_no_argument(name: str, text: str) -> None:
    _, calls = get_parser(name).parse(text)
    assert calls is not None and calls[0].function.arguments == '{"a": no'


def test_schemas_that_branch_or_circle_are_left_in_time() -> None:
    circle: dict[str, Any] = {}
    circle["anyOf"] = [circle] * 6
    for types in ({"anyOf": [{"$ref": "#/properties/a"}] * 30}, circle):
        tools = [{"function": {"name": "f", "parameters": {"properties": {"a": types}, "required": [["a"], {}]}}}]
        _, calls = get_parser("glm45").parse("<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value>", tools)
        assert calls is not None and calls[0].function.arguments == '{"a": "1"}'


def test_lone_surrogates_are_not_passed_on() -> None:
    _, calls = get_parser("hermes").parse('<tool_call>{"name": "f\\ud83d", "arguments": "x\\ud83d"}</tool_call>')
    assert calls is not None and (calls[0].function.name, calls[0].function.arguments) == ("f?", "x?")


def test_types_come_from_any_form_of_schema() -> None:
    parameters = {
        "type": "object",
        "$defs": {"count": {"type": "integer"}},
        "properties": {
            "ref": {"$ref": "#/$defs/count"},
            "union": {"anyOf": [{"type": "null"}, {"type": "number"}]},
            "choice": {"enum": [1, 2]},
            "word": {"enum": ["1", "2"]},
            "list": {"type": ["array", "null"]},
            "free": {},
            "circle": {"$ref": "#/properties/circle"},
        },
    }
    values = {"ref": "3", "union": "2.50", "choice": "2", "word": "2", "list": "null", "free": "7", "circle": "8"}
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    _, calls = get_parser("qwen3_coder").parse(f"<tool_call>\n<function=f>\n{body}</function>\n</tool_call>", tools)
    assert calls is not None
    assert json.loads(calls[0].function.arguments) == {
        "ref": 3, "union": 2.5, "choice": 2, "word": "2", "list": None, "free": "7", "circle": "8"
    }  # fmt: skip


def test_details() -> None:
    text = (
        "<think>plan</think>Look: <tool_call>{bad}</tool_call><tool_call>\n"
        '{"name": "f", "arguments": {}}\n</tool_call>after<tool_call>{"name": "g", "arguments": {"c": "rm -rf /tm'
    )
    outcome = get_parser("hermes").parse_detailed(text)  # type: ignore[attr-defined]
    assert [call.function.name for call in outcome.tool_calls] == ["f"]
    assert outcome.content == "<think>plan</think>Look: <tool_call>{bad}</tool_call>"
    assert outcome.reasoning == "plan" and outcome.truncated
    assert outcome.trailing is not None and outcome.trailing.startswith("after<tool_call>")
    bad, cut = outcome.errors
    assert text[bad.start : bad.end].startswith("<tool_call>{bad}") and "cannot be read" in bad.reason
    assert cut.reason == "the text ends in the middle of a call" and cut.excerpt.startswith("<tool_call>")


def test_ids_can_be_reproduced() -> None:
    numbers = iter(range(10))
    parser = type(get_parser("hermes"))(lambda: f"id{next(numbers)}")  # type: ignore[call-arg]
    _, calls = parser.parse('<tool_call>{"name": "f"}{"name": "g"}</tool_call>')
    assert [call.id for call in calls] == ["id0", "id1"]


# -- registry ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("qwen3_code", "qwen3_coder"),
        ("Qwen3-Coder", "qwen3_coder"),
        ("qwen3_xml", "qwen3_coder"),
        ("deepseek-v3.1", "deepseek_v3_1"),
        ("DeepSeek_R1", "deepseek_v3"),
        ("glm46", "glm45"),
        ("kimi", "kimi_k2"),
        ("harmony", "gpt_oss"),
        ("HERMES", "hermes"),
    ],
)
def test_aliases(alias: str, name: str) -> None:
    assert type(get_parser(alias)) is type(get_parser(name))


def test_an_unknown_name_says_what_comes_close() -> None:
    with pytest.raises(UnknownParser, match="no tool-call parser 'hermse'\\. Did you mean 'hermes'") as caught:
        get_parser("hermse")
    assert isinstance(caught.value, KeyError)
    with pytest.raises(UnknownParser, match="Known: auto, deepseek_v3, "):
        get_parser("zzzz")


class Shouted(ToolCallParser):
    name = "shouted"
    start = "CALL ([a-z]+)!"

    def read(self, source: Any, start: Any, *, is_wrapped: bool) -> Any:
        from pytest_hermes.tool_call_parsers.parser import Block

        return Block(start.end(), [Call(start[0][5:-1], "{}")])


@pytest.fixture
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_own", {})
    registry.installed.cache_clear()
    yield
    registry.installed.cache_clear()


@pytest.mark.usefixtures("clean_registry")
def test_own_parsers() -> None:
    register_parser("shouted", Shouted, "loud")
    assert "shouted" in list_parsers()
    content, calls = get_parser("Loud").parse("Now CALL help! please")
    assert content == "Now" and calls is not None and calls[0].function.name == "help"
    with pytest.raises(ValueError, match="is there already"):
        register_parser("hermes", Shouted)
    register_parser("hermes", Shouted, replace=True)
    assert isinstance(get_parser("hermes"), Shouted)


@pytest.mark.usefixtures("clean_registry")
def test_installed_parsers(monkeypatch: pytest.MonkeyPatch) -> None:
    group = registry.ENTRY_POINTS
    entries = [
        metadata.EntryPoint("shouted", f"{__name__}:Shouted", group),
        metadata.EntryPoint("broken", "no_such_module_at_all:Parser", group),
        metadata.EntryPoint("hermes", f"{__name__}:Shouted", group),
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: entries)
    with pytest.warns(UserWarning) as told:
        assert get_parser("shouted").parse("CALL x!")[1] is not None
    said = " ".join(str(warning.message) for warning in told)
    assert "broken = no_such_module_at_all:Parser" in said and "built in; left out" in said
    assert not isinstance(get_parser("hermes"), Shouted)


def test_neither_openai_nor_anything_heavy_is_imported_to_look_for_calls() -> None:
    code = (
        "import sys; from pytest_hermes.tool_call_parsers import get_parser; "
        "assert get_parser('auto').find('<tool_call>{\"name\": \"f\"}</tool_call>').calls; "
        "print(sorted({'openai', 'pydantic', 'aiohttp', 'pytest'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_a_conformance_check_names_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    good = {"id": "good", "text": "x", "tools": None, "content": "x", "tool_calls": None}
    wrong = {
        "id": "wrong", "text": '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', "tools": None,
        "content": None, "tool_calls": [{"name": "f", "arguments": {"a": 1.0}}],
    }  # fmt: skip
    path.write_text("\n".join(map(json.dumps, (good, wrong))))
    assert check_parser(get_parser("hermes"), path) == ["wrong: f({\"a\": 1}), not f({'a': 1.0})"]


# -- auto ----------------------------------------------------------------------------------------------


WITHOUT_MARKERS = ("llama3_json", "llama4_pythonic")
"""Formats whose calls need no marker and may stand in prose: there `auto` does not look for them."""
KNOWN_TO_AUTO = [
    case
    for case in CASES
    if case["tool_calls"] and (formats_of_text(case["text"]) or case["format"] not in WITHOUT_MARKERS)
]


@pytest.mark.parametrize("case", KNOWN_TO_AUTO, ids=lambda case: case["id"])
def test_auto_finds_what_the_format_finds(case: dict[str, Any]) -> None:
    found = findings_of(get_parser("auto"), case["text"], case["tools"])
    assert [call.name for call in found.calls] == [call["name"] for call in case["tool_calls"]]


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<tool_call>\\n{\"name\": ' }}{% for tool in tools %}", "hermes"),
        ("<tool_call>\\n<function=' + name + '>\\n<parameter=", "qwen3_coder"),
        ("<tool_call>' + tc.name }}<arg_key>{{ k }}</arg_key>", "glm45"),
        ("<seed:tool_call>\\n<function=", "seed_oss"),
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        ("<｜tool▁calls▁begin｜>", "deepseek_v3"),
        ("<｜DSML｜function_calls>", "deepseek_v32"),
        ("<|tool_calls_section_begin|>", "kimi_k2"),
        ("<|start|>assistant<|channel|>commentary", "gpt_oss"),
        ("{{ messages }}", None),
    ],
)
def test_the_parser_of_a_chat_template(template: str, name: str | None) -> None:
    assert parser_of_template(template) == name
