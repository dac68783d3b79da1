"""GLM's layout, and LongCat's second: a name, then pairs of tagged keys and values, without types.

<tool_call>name
<arg_key>key</arg_key>
<arg_value>value</arg_value>
</tool_call>
"""

from __future__ import annotations

import re
from typing import Any

from pytest_hermes.tool_call_parsers.json_calls import read_value
from pytest_hermes.tool_call_parsers.json_text import dumps
from pytest_hermes.tool_call_parsers.parser import Block, Call, Source
from pytest_hermes.tool_call_parsers.schema import OMITTED
from pytest_hermes.tool_call_parsers.tagged_json import TaggedJsonParser

_NAME = re.compile(r"[\w.:/\-]*\w[\w.:/\-]*")
_JSON = re.compile(r"\s*+(?:```[A-Za-z]*+\s*+)?[\[{]")


class KeyValueParser(TaggedJsonParser):
    """See the module docstring; a JSON body between the tags is read as well."""

    skips_thoughts = True
    prefix = ""
    """Before `arg_key` and `arg_value` in the tags."""
    names_alone = True
    """A name between the tags is a call without arguments, whether or not it is known."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        opener, closer = re.escape(cls.opener), re.escape(cls.closer)
        key, value = f"{cls.prefix}arg_key>", f"{cls.prefix}arg_value>"
        space = r"(?:\s|\\n)*+"
        cls._tag = re.compile(
            f"(?P<key><{key})|(?P<key_end></{key})|(?P<value><{value})|(?P<value_end></{value})|(?P<closes>{closer})|"
            f"(?P<opens>{opener})"
        )
        # The real end of a value is the one that the next tag follows, or the end of the text.
        cls._value_end = re.compile(f"</{value}(?={space}(?:<{key}|{closer}|{opener}|<\\||\\Z))")
        # A value whose end is missing: the tags of the next pair, or of the next call with its first pair.
        cls._pair = re.compile(f"<{key}(?P<key>[^<>]*+)</{key}{space}<{value}")
        cls._next_call = re.compile(f"{closer}{space}{opener}{space}(?P<name>[^\\s<>]++){space}<{key}")
        cls._block_end = re.compile(rf"{closer}(?={space}(?:{opener}|<\||\Z))")
        cls._stray = re.compile(f"{space}(?:</{key}{space}|</{value}{space})*+")
        cls._value_start = re.compile(f"{space}(?:</{key}{space})*+(?:<{value})?+")

    _tag: re.Pattern[str]
    _value_end: re.Pattern[str]
    _pair: re.Pattern[str]
    _next_call: re.Pattern[str]
    _block_end: re.Pattern[str]
    _stray: re.Pattern[str]
    _value_start: re.Pattern[str]

    def read(self, source: Source, start: re.Match[str], *, is_wrapped: bool) -> Block:
        if _JSON.match(source.text, start.end()):
            return self.read_json(source, start.end())
        return _Reading(self, source, start.end()).block()

    def read_bare(self, source: Source, at: int) -> Block | None:
        return super().read_bare(source, at) if self.prefix else None


class _Reading:
    """The reading of one block."""

    def __init__(self, grammar: KeyValueParser, source: Source, at: int) -> None:
        self.grammar, self.source, self.text = grammar, source, source.text
        self.at = at
        self.arguments: dict[str, Any] = {}

    def tag(self) -> tuple[str, str, int]:
        """The text up to the next tag, that tag's kind ("" for the end of the text), and its end."""
        match = self.source.search(self.grammar._tag, self.at)
        if match is None:
            return self.text[self.at :], "", len(self.text)
        return self.text[self.at : match.start()], match.lastgroup or "", match.end()

    def block(self) -> Block:
        words, kind, end = self.tag()
        words = words.replace("\\n", "\n")
        name, _, rest = words.strip().partition("\n")
        name = name.strip()
        if kind == "opens" and name in self.source.tools and self._is_key(end):
            kind = "key"  # the tag of a tool call stands where that of a key should
        if kind == "key_end":
            name, key = self._glued(name, rest.strip())
            if key:
                self.at = end
                return self._pairs(name, key)
        if _NAME.fullmatch(name) and rest.lstrip().startswith("{"):
            return self._json_arguments(name)
        if not _NAME.fullmatch(name) or rest.strip():
            reason = "there is no tool's name after the opening tag" if kind else "the text ends there"
            return Block(self.at, [], reason, not kind)
        if kind in ("", "opens"):
            self.at = end if not kind else end - len(self.grammar.opener)
            return self._unclosed(name, is_cut=not kind)
        if kind == "closes" and (self.grammar.names_alone or name in self.source.tools):
            return self._made(name, end)
        if kind == "closes":
            return Block(end, [], "there is neither a JSON object nor a known tool's name between the tags")
        if kind in ("value", "key"):
            self.at = end
            return self._pairs(name, None) if kind == "key" else Block(end, [], f"a value of {name} has no key")
        self.at = self.source.skip(self.grammar._stray, end)
        return self._more(name)

    def _is_key(self, at: int) -> bool:
        match = self.source.search(self.grammar._tag, at)
        return match is not None and match.lastgroup == "key_end" and bool(self.text[at : match.start()].strip())

    def _glued(self, name: str, rest: str) -> tuple[str, str]:
        """A name and a first key whose opening tag is missing."""
        if rest:
            return name, rest
        tools = self.source.tools
        for known in sorted((known for known in tools.names if name.startswith(known)), key=len, reverse=True):
            if (key := name[len(known) :].strip()) in tools.properties(known):
                return known, key
        first, _, last = name.rpartition(" ")
        return (first.strip(), last) if first else (name, "")

    def _pairs(self, name: str, key: str | None) -> Block:
        """Read pairs from behind a key's opening tag, or, with `key`, from behind that key."""
        while True:
            if key is None:
                key, kind, end = self.tag()
                if kind == "value":  # the key's closing tag is missing
                    end -= len(f"<{self.grammar.prefix}arg_value>")
                elif kind != "key_end":
                    if kind == "":
                        return Block(self.at, [], "the text ends in the middle of a call", True)
                    return Block(end if kind == "key" else self.at, [], f"a key of {name} is not closed")
                self.at = end
            self.at = self.source.skip(self.grammar._value_start, self.at)
            close = self.source.search(self.grammar._value_end, self.at)
            if (missing := self._missing_end(name, key.strip(), close)) is not None:
                self._put(name, key.strip(), self.text[self.at : missing])
                self.at = missing
            elif close is None:
                block = self._open_value(name, key.strip())
                if block is not None:
                    return block
            else:
                self._put(name, key.strip(), self.text[self.at : close.start()])
                self.at = close.end()
            block, key = self._next(name), None
            if block is not None:
                return block

    def _missing_end(self, name: str, current: str, close: re.Match[str] | None) -> int | None:
        """Where the value of `current` ends if its own end is missing and the one that follows belongs to another."""
        known = self.source.tools
        before = len(self.text) if close is None else close.start()
        following = self.source.search(self.grammar._next_call, self.at)
        if following is not None and following.start() < before and (not known or following["name"] in known):
            return following.start()
        pair = self.source.search(self.grammar._pair, self.at)
        if pair is not None and pair.start() < before:
            key = pair["key"].strip()
            if key in known.properties(name) and key != current and key not in self.arguments:
                return pair.start()
        return None

    def _json_arguments(self, name: str) -> Block:
        """`name` and a JSON object, as GLM 4 writes it."""
        at = self.text.index("{", self.at)
        value, end, reason, truncated = read_value(self.text, at, self.grammar._scanner)
        if reason or not isinstance(value, dict):
            return Block(at, [], reason or "the arguments are no object", truncated)
        end = self.source.skip(self.grammar._close, end)
        return Block(end, [Call(name, dumps(value))])

    def _open_value(self, name: str, key: str) -> Block | None:
        """A value that is never closed: the block's own end ends it."""
        close = self.source.search(self.grammar._block_end, self.at)
        if close is None:
            return Block(self.at, [], "the text ends in the middle of a call", True)
        self._put(name, key, self.text[self.at : close.start()])
        self.at = close.start()
        return None

    def _put(self, name: str, key: str, text: str) -> None:
        value = self.source.tools.typed(name, key, text)
        if value is not OMITTED:
            self.arguments[key] = value

    def _next(self, name: str) -> Block | None:
        """After a pair: None for one more pair, else the end of the block."""
        self.at = self.source.skip(self.grammar._stray, self.at)
        match = self.grammar._tag.match(self.text, self.at)
        kind = match.lastgroup if match is not None else None
        if match is not None and kind == "key":
            self.at = match.end()
            return None
        if match is not None and kind == "closes":
            return self._made(name, match.end())
        return self._unclosed(name, is_cut=kind is None and self.at == len(self.text))

    def _more(self, name: str) -> Block:
        block = self._next(name)
        return self._pairs(name, None) if block is None else block

    def _unclosed(self, name: str, *, is_cut: bool) -> Block:
        """The closing tag is missing: a call only if the schema says that nothing is missing but that."""
        tools = self.source.tools
        if name not in tools:
            return Block(self.at, [], f"the call of {name} has no closing tag", is_cut)
        if missing := tools.lacks(name, self.arguments):
            reason = f"the call of {name} has no closing tag and lacks {', '.join(map(str, missing))}"
            return Block(self.at, [], reason, is_cut)
        return self._made(name, self.at)

    def _made(self, name: str, end: int) -> Block:
        return Block(end, [Call(name, dumps(self.arguments))])


class Glm45Parser(KeyValueParser):
    """GLM 4.5 and 4.6."""

    name = "glm45"
    aliases = ("glm4", "glm46", "glm4_moe", "glm")


class Glm47Parser(KeyValueParser):
    """GLM 4.7, which writes no line breaks between the tags; both names read both."""

    name = "glm47"
    aliases = ("glm5", "glm47_moe")


class LongcatParser(KeyValueParser):
    """LongCat Flash: JSON between its tags, and the pairs of LongCat 2."""

    name = "longcat"
    aliases = ("longcat_flash",)
    names_alone = False
    opener = "<longcat_tool_call>"
    closer = "</longcat_tool_call>"
    prefix = "longcat_"
    thinks = (("<longcat_think>", "</longcat_think>"), ("<think>", "</think>"))
