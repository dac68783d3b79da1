"""Which format a text is in, or a model will write: by the markers in the text, or in the model's chat template."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from pytest_hermes.tool_call_parsers.bare_json import Llama3JsonParser
from pytest_hermes.tool_call_parsers.harmony import HarmonyParser
from pytest_hermes.tool_call_parsers.key_value import Glm45Parser, LongcatParser
from pytest_hermes.tool_call_parsers.named_json import DeepSeekV3Parser, KimiK2Parser, MistralParser
from pytest_hermes.tool_call_parsers.parser import Findings, ToolCallParser
from pytest_hermes.tool_call_parsers.pythonic import Llama4PythonicParser
from pytest_hermes.tool_call_parsers.schema import Tools
from pytest_hermes.tool_call_parsers.tagged_json import HermesParser
from pytest_hermes.tool_call_parsers.xml_parameters import (
    DeepSeekV32Parser,
    MinimaxM2Parser,
    Qwen3CoderParser,
    SeedOssParser,
)

Kind = type[ToolCallParser]
DISTINCT: tuple[tuple[str, Kind], ...] = (
    ("<｜tool▁calls▁begin｜>", DeepSeekV3Parser),
    ("<｜tool▁call▁begin｜>", DeepSeekV3Parser),
    ("<｜DSML｜", DeepSeekV32Parser),
    ("<|tool_calls_section_begin|>", KimiK2Parser),
    ("<|tool_call_section_begin|>", KimiK2Parser),
    ("<|tool_call_begin|>", KimiK2Parser),
    ("[TOOL_CALLS]", MistralParser),
    ("<longcat_tool_call>", LongcatParser),
    ("<minimax:tool_call>", MinimaxM2Parser),
    ("<seed:tool_call>", SeedOssParser),
    ("<|python_tag|>", Llama3JsonParser),
    ("<|python_start|>", Llama4PythonicParser),
    ("<|channel|>", HarmonyParser),
)
"""Markers that one format alone writes."""
TEMPLATE_ONLY: tuple[tuple[str, Kind], ...] = (
    ("<function=", Qwen3CoderParser),
    ("<arg_key>", Glm45Parser),
    ("<longcat_arg_key>", LongcatParser),
    ("<tool_call>", HermesParser),
    ('"parameters": {', Llama3JsonParser),
)
"""What chat templates show beyond that, the most telling first."""
_MARKERS = dict(DISTINCT)
_FIRST = re.compile("|".join(map(re.escape, (*_MARKERS, "<tool_call>", "<function="))))
_JSON = re.compile(r"\s*+(?:```[A-Za-z]*+\s*+)?[\[{]")
_FUNCTION = re.compile(r"\s*+<function=")
_KEY_VALUE = re.compile(r"\s*+[^\s<>{}\[\]\"'`,]++(?:\s|\\n)*+(?:<arg_key>|</tool_call>|</arg_)")


def formats_of_text(text: str) -> list[Kind]:
    """The formats that a text may be in, by its markers, in the order in which they appear."""
    found: dict[Kind, None] = {}
    for marker in _FIRST.finditer(text):
        kind = _MARKERS.get(marker[0])
        if marker[0] == "<function=":
            kind = Qwen3CoderParser
        elif kind is None:
            kind = _of_tool_call(text, marker.end())
        if kind is not None:
            found[kind] = None
    return list(found)


def _of_tool_call(text: str, at: int) -> Kind | None:
    """Three formats write `<tool_call>`: what follows tells them apart."""
    if _JSON.match(text, at):
        return HermesParser
    if _FUNCTION.match(text, at):
        return Qwen3CoderParser
    return Glm45Parser if _KEY_VALUE.match(text, at) else None


def parser_of_template(template: str) -> str | None:
    """The name of the parser for a model, by the markers in its chat template (the Jinja text); None without any."""
    for marker, kind in (*DISTINCT, *TEMPLATE_ONLY):
        if marker in template:
            return kind.name
    return None


class AutoParser(ToolCallParser):
    """Parses each text in the format that its markers show: the first of them that finds a call there.

    A text without markers is a call only where tools are known and it is nothing but a JSON object that names one (or
    begins with such calls in Python's syntax).
    """

    name = "auto"
    start = "(?!)"

    def __init__(self, make_id: Callable[[], str] | None = None) -> None:
        super().__init__(make_id)
        self._parsers: dict[Kind, ToolCallParser] = {}
        self._make = make_id

    def find(self, raw: str, tools: Iterable[Any] | None = None) -> Findings:
        schemas = list(tools) if isinstance(tools, Iterable) else []
        kinds = formats_of_text(raw)
        found = []
        for kind in kinds or ([HermesParser, Llama4PythonicParser] if Tools(schemas) else []):
            found.append(self._parser(kind).find(raw, schemas))
            if found[-1].calls or found[-1].truncated:
                return found[-1]  # in a value that is cut off, calls of another format are text
        telling = [findings for findings in found if findings.errors or findings.truncated]
        return (telling or found or [super().find(raw, schemas)])[0]

    def _parser(self, kind: Kind) -> ToolCallParser:
        if kind not in self._parsers:
            self._parsers[kind] = kind(self._make)
        return self._parsers[kind]
