"""Formats with a tag around each parameter: qwen3_coder, seed_oss, minimax_m2 and DeepSeek's DSML.

<tool_call>
<function=name>
<parameter=key>
value
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pytest_hermes.tool_call_parsers.json_text import Malformed, dumps, lenient
from pytest_hermes.tool_call_parsers.parser import THINK, Block, Call, Source, ToolCallParser
from pytest_hermes.tool_call_parsers.schema import OMITTED

_SPACE = re.compile(r"\s*+")


class XmlParametersParser(ToolCallParser):
    """See the module docstring. Every pattern is of one tag; groups `name`, `key` and `string` say what is in it."""

    wrapper = r"<tool_call>"
    wrapper_end = r"</tool_call>"
    function = r"<function=(?P<name>[^<>\n]*+)>"
    function_end = r"</function>"
    parameter = r"<parameter=(?P<key>[^<>\n]*+)>"
    parameter_end = r"</parameter>"
    trims_newline = True
    """One line break after a parameter's tag and one before its end are markup."""
    skips_thoughts = True
    needs_known_name = True
    """Without the wrapper, only known names are calls."""
    end_of_text = r"<\|im_end\|>|<\|endoftext\|>"

    def __init_subclass__(cls) -> None:
        cls.section = cls.wrapper
        cls.start = cls.function
        any_function, any_parameter = (re.sub(r"\(\?P<\w+>", "(?:", tag) for tag in (cls.function, cls.parameter))
        ends = rf"{cls.function_end}|{cls.wrapper_end}|{any_function}|{cls.wrapper}|{cls.end_of_text}|\Z"
        cls._parameter = re.compile(rf"\s*+{cls.parameter}", re.DOTALL)
        cls._function_end = re.compile(rf"\s*+(?:{cls.function_end})?+\s*+(?P<ends>{cls.wrapper_end})?+")
        # A value ends at the end tag that the next tag follows. Where the end tag is missing, at a parameter's tag that
        # begins a line, or at the end of the call.
        cls._own_end = re.compile(
            rf"(?P<closed>{cls.parameter_end}(?=\s*+(?:{any_parameter}|{ends})))"
            rf"|(?P<ended>{cls.function_end}(?=\s*+(?:{cls.wrapper_end}|{cls.wrapper}|{any_function}))"
            rf"|(?<=\n){cls.wrapper_end}(?=\s*+{cls.wrapper}))",
            re.DOTALL,
        )
        cls._next_tag = re.compile(rf"(?<=\n){cls.parameter}")
        cls._opener = re.compile(f"{any_function}|{cls.wrapper}")
        cls._goes_on = re.compile(rf"\s*+(?:{cls.function_end}|{cls.wrapper_end}|{any_function}|{cls.wrapper})")

    _parameter: re.Pattern[str]
    _function_end: re.Pattern[str]
    _own_end: re.Pattern[str]
    _goes_on: re.Pattern[str]
    _opener: re.Pattern[str]
    _next_tag: re.Pattern[str]

    def read(self, source: Source, start: re.Match[str], *, is_wrapped: bool) -> Block:
        text, at, arguments = source.text, start.end(), dict[str, Any]()
        name = start["name"].strip().strip("\"'")
        if not name:
            return Block(at, [], "the call has no name")
        if not is_wrapped and self.needs_known_name and name not in source.tools:
            return Block(at, [])
        while (tag := self._parameter.match(text, at)) is not None:
            begin = tag.end()
            end = self._end_of_value(source, name, begin, arguments)
            if end is None:
                return Block(begin, [], "the text ends in the middle of a call", True)
            at = end.end() if end.re is self._own_end and end["closed"] is not None else end.start()
            value = self._value(source, name, tag, text[begin : end.start()])
            if value is not OMITTED:
                arguments[tag["key"].strip().strip("\"'")] = value
        if self._goes_on.match(text, at) is None:
            is_cut = source.skip(_SPACE, at) == len(text)
            reason = "the text ends in the middle of a call" if is_cut else f"the call of {name} is not closed"
            return Block(at, [], reason, is_cut)
        closing = self._function_end.match(text, at)
        assert closing is not None
        return Block(closing.end(), [Call(name, dumps(arguments))], is_open=is_wrapped and closing["ends"] is None)

    def _end_of_value(
        self, source: Source, name: str, begin: int, arguments: Mapping[str, Any]
    ) -> re.Match[str] | None:
        """What ends the value that starts at `begin`: its own end, or a tag that can be that of the next parameter.

        The latter is not looked for behind the tag of a function: from there on, all is an example in the value.
        """
        known = source.tools.properties(name)
        opener, own = source.search(self._opener, begin), source.search(self._own_end, begin)
        until = min([one.start() for one in (opener, own) if one is not None], default=len(source.text))
        for tag in self._next_tag.finditer(source.text, begin, until):
            key = tag["key"].strip().strip("\"'")
            if key not in arguments and (not known or key in known):
                return tag
        return own

    def _value(self, source: Source, name: str, tag: re.Match[str], text: str) -> Any:
        if self.trims_newline:
            text = text.removeprefix("\n")
            text = text.removesuffix("\n")
        return source.tools.typed(name, tag["key"].strip().strip("\"'"), text)


class Qwen3CoderParser(XmlParametersParser):
    """Qwen3-Coder, and Qwen 3.5 and later."""

    name = "qwen3_coder"
    aliases = ("qwen3_code", "qwen3_xml", "qwen3coder", "step3p5", "nanbeige")


class MimoParser(XmlParametersParser):
    """MiMo: the grammar of Qwen3-Coder, values verbatim."""

    name = "mimo"
    trims_newline = False


class SeedOssParser(XmlParametersParser):
    """Seed-OSS: the grammar of Qwen3-Coder in tags of its own."""

    name = "seed_oss"
    aliases = ("seed",)
    wrapper = r"<seed:tool_call>"
    wrapper_end = r"</seed:tool_call>"
    thinks = (("<seed:think>", "</seed:think>"), THINK)


class MinimaxM2Parser(XmlParametersParser):
    """MiniMax M2: `<invoke name="f">` and `<parameter name="k">`, values verbatim."""

    name = "minimax_m2"
    aliases = ("minimax",)
    wrapper = r"<minimax:tool_call>"
    wrapper_end = r"</minimax:tool_call>"
    function = r"<invoke\s+name=(?P<name>[^<>\n]*+)>"
    function_end = r"</invoke>"
    parameter = r"<parameter\s+name=(?P<key>[^<>\n]*+)>"
    trims_newline = False
    end_of_text = r"\[e~\["


class DeepSeekV32Parser(XmlParametersParser):
    """DeepSeek V3.2 and V4 (DSML): `string="true"` marks a value as text, `string="false"` as JSON; without it the
    schema decides."""

    name = "deepseek_v32"
    aliases = ("deepseekv32", "deepseek_v3_2", "deepseek_v4", "deepseekv4", "dsml")
    wrapper = r"<｜DSML｜(?:function_calls|tool_calls)>"
    wrapper_end = r"</｜DSML｜(?:function_calls|tool_calls)>"
    function = r"<｜DSML｜invoke\s+name=\"(?P<name>[^<>\n\"]*+)\"\s*+>"
    function_end = r"</｜DSML｜invoke>"
    parameter = r"<｜DSML｜parameter\s+name=\"(?P<key>[^<>\n\"]*+)\"(?:\s++string=\"(?P<string>true|false)\")?\s*+>"
    parameter_end = r"</｜DSML｜parameter>"
    trims_newline = False
    needs_known_name = False
    end_of_text = r"<｜end▁of▁sentence｜>"

    def _value(self, source: Source, name: str, tag: re.Match[str], text: str) -> Any:
        if tag["string"] == "true":
            return text
        if tag["string"] is None or not text.strip():
            return super()._value(source, name, tag, text)
        try:
            return lenient(text.strip())
        except Malformed:
            return text
