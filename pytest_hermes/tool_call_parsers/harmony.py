"""gpt-oss (harmony): messages with channels, of which those to `functions.name` are calls.

<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>
"""

from __future__ import annotations

import re

from pytest_hermes.tool_call_parsers.named_json import Head, NamedJsonParser
from pytest_hermes.tool_call_parsers.parser import Block, Source


class HarmonyParser(NamedJsonParser):
    """See the module docstring; the recipient may stand before or behind the channel, `<|start|>assistant` may be
    missing. The analysis channel is the reasoning."""

    name = "gpt_oss"
    aliases = ("harmony", "gptoss", "openai")
    thinks = (("<|channel|>analysis<|message|>", "<|end|>"),)
    orphan_closes_thought = False
    # The last alternative: a prompt that ends with the assistant's own start tag.
    start = (
        r"(?:<\|start\|>assistant|<\|channel\|>)(?=(?:[^<]|<\|channel\|>){0,300}?\bto=functions\.)"
        r"|\A(?=\s*+to=functions\.)"
    )
    stop = r"<\|(?:call|end|return|start|channel)\|>"
    end = r"<\|(?:call|end)\|>"

    _header = re.compile(r"[^<]{0,300}+(?:<\|(?:channel|constrain)\|>[^<]{0,300}+){0,4}+")
    _recipient = re.compile(r"\bto=functions\.([^\s<>{}\[\]\"']+)")

    def head(self, source: Source, at: int) -> Head | Block:
        header = self._header.match(source.text, at)
        assert header is not None
        recipient = self._recipient.search(header[0])
        if not source.text.startswith("<|message|>", header.end()):
            is_cut = header.end() == len(source.text)
            return Block(at, [], "the text ends in the middle of a call" if is_cut else "it has no message", is_cut)
        if recipient is None:
            return Block(at, [])
        return Head(recipient[1], header.end() + len("<|message|>"))
