"""Formats with JSON calls between two tags: hermes, qwen and longcat's first layout."""

from __future__ import annotations

import re

from pytest_hermes.tool_call_parsers.json_calls import read_objects
from pytest_hermes.tool_call_parsers.json_text import Scanner
from pytest_hermes.tool_call_parsers.parser import Block, Source, ToolCallParser

_AFTER_BARE = re.compile(r"(?:\s|<\|im_end\|>|<\|endoftext\|>|</s>)*+\Z")


class TaggedJsonParser(ToolCallParser):
    """`<tag>` one or more JSON calls `</tag>`; the closing tag may be missing. A text that is nothing but such an
    object is a call if it names a known tool."""

    opener = "<tool_call>"
    closer = "</tool_call>"

    def __init_subclass__(cls) -> None:
        cls.start = re.escape(cls.opener)
        thoughts = (re.escape(tag) for pair in cls.thinks for tag in pair)
        cls._scanner = Scanner("|".join((re.escape(cls.opener), re.escape(cls.closer), *thoughts)))
        cls._close = re.compile(rf"\s*+{re.escape(cls.closer)}")
        cls._either = re.compile(f"(?P<closes>{re.escape(cls.closer)})|{re.escape(cls.opener)}")

    _scanner: Scanner
    _either: re.Pattern[str]
    _close: re.Pattern[str]

    def read(self, source: Source, start: re.Match[str], *, is_wrapped: bool) -> Block:
        return self.read_json(source, start.end())

    def read_json(self, source: Source, at: int) -> Block:
        """Read the JSON calls after an opening tag."""
        found = read_objects(source, at, self._scanner)
        if not found.calls:
            end = found.end if found.truncated else source.skip(self._close, found.end)
            is_cut = found.truncated or end == len(source.text) == found.end
            is_block = is_cut or bool(found.reason) or self._is_closed(source, found.end)
            return Block(end, [], (found.reason or _nothing(is_cut)) if is_block else "", is_cut)
        if found.truncated:
            return Block(found.end, found.calls, found.reason, True)
        following = source.search(self._either, found.end)
        end = following.end() if following is not None and following["closes"] else found.end
        return Block(end, found.calls, found.reason)

    def _is_closed(self, source: Source, at: int) -> bool:
        """Whether the block is closed, and its opening tag not only mentioned in prose."""
        following = source.search(self._either, at)
        return following is not None and following["closes"] is not None

    def read_bare(self, source: Source, at: int) -> Block | None:
        if not source.tools:
            return None
        found = read_objects(source, at, self._scanner)
        end = found.end
        if source.text.startswith(self.closer, end):
            end += len(self.closer)
        is_all = bool(found.calls) and not found.reason and not found.truncated
        if not (is_all and _AFTER_BARE.match(source.text, end)):
            return None
        return Block(end, found.calls) if all(call.name in source.tools for call in found.calls) else None


def _nothing(is_cut: bool) -> str:
    return "the text ends after the opening tag" if is_cut else "there is no JSON object after the opening tag"


class HermesParser(TaggedJsonParser):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Hermes models and Qwen 2.5 and 3 write it."""

    name = "hermes"


class QwenParser(TaggedJsonParser):
    """The hermes grammar under the name that Qwen configurations use."""

    name = "qwen"
    aliases = ("qwen25", "qwen2_5", "qwen3", "qwen3_json")
