"""Formats that write a call's name before its arguments: mistral, deepseek, kimi."""

from __future__ import annotations

import re
import secrets
import string
from typing import Any, NamedTuple

from pytest_hermes.tool_call_parsers.json_calls import arguments_text, read_objects
from pytest_hermes.tool_call_parsers.json_text import FENCE, STRING, Malformed, Scanner, dumps, lenient, loads
from pytest_hermes.tool_call_parsers.parser import Block, Call, Source, ToolCallParser

_NAME = re.compile(r"[^\s\[\]{}<>()\"'`,;:=\\]+")
_CUT = "the text ends in the middle of a call"
_CUT_NAME = re.compile(r"\s*+[\w.:\-]*+\s*+")
"""What may stand behind a marker at the end of a text that is cut; behind one that prose mentions stands more."""
_SPACE = re.compile(r"\s*+")
_COMPLETE = re.compile(rf"{STRING}|null\b", re.DOTALL)


class Head(NamedTuple):
    """What stands before the arguments, which begin at `at`."""

    name: str
    at: int
    id: str | None = None


class NamedJsonParser(ToolCallParser):
    """A marker, a head with the name, the arguments as a JSON object, an end marker that may be missing."""

    stop: str
    """Pattern of the markers that end arguments outside of their strings."""
    end: str
    """Pattern of the markers that belong to a call that has ended."""
    separator = r"(?!)"
    """Pattern of the marker between head and arguments, for formats whose heads have one."""

    def __init_subclass__(cls) -> None:
        if hasattr(cls, "stop"):
            thoughts = (re.escape(tag) for pair in cls.thinks for tag in pair)
            cls._scanner = Scanner("|".join((cls.stop, *thoughts)))
            cls._stop = re.compile(cls.stop)
            cls._separator = re.compile(f"(?P<separates>{cls.separator})|{cls.stop}")
            cls._start = re.compile(cls.start)
            cls._closed = re.compile(rf"(?!{cls.start})(?:{cls.stop})(?=\s*+(?:{cls.stop}|\Z))")
            cls._end = re.compile(rf"(?:\s*+(?:```\s*+)?(?:{cls.end}))*+")

    _scanner: Scanner
    _stop: re.Pattern[str]
    _start: re.Pattern[str]
    _closed: re.Pattern[str]
    _separator: re.Pattern[str]
    _end: re.Pattern[str]

    def head(self, source: Source, at: int) -> Head | Block:
        """Read what stands before the arguments, or say why this is no call."""
        raise NotImplementedError

    def read(self, source: Source, start: re.Match[str], *, is_wrapped: bool) -> Block:
        head = self.head(source, start.end())
        return head if isinstance(head, Block) else self.read_arguments(source, head)

    def call(self, source: Source, head: Head, arguments: Any) -> Call | None:
        """The call with these arguments, a value or the raw text; None for no call."""
        text = arguments if isinstance(arguments, str) else dumps(arguments)
        return Call(head.name, text, head.id) if head.name else None

    def _until_separator(self, source: Source, at: int) -> re.Match[str] | Block:
        """The separator that ends a head, or what there is without one: a call that is cut off, or prose."""
        found = source.search(self._separator, at)
        if found is not None and found["separates"] is not None:
            return found
        is_cut = found is None and _CUT_NAME.fullmatch(source.text, at) is not None
        return Block(at if found is None else found.start(), [], _CUT if is_cut else "", is_cut)

    def read_arguments(self, source: Source, head: Head) -> Block:
        """Read the arguments behind a head."""
        text, at = source.text, source.skip(_SPACE, head.at)
        if text.startswith("```", at):
            at = source.skip(_SPACE, source.skip(FENCE, at))
        if not text.startswith("{", at):
            return self._without_object(source, head, at)
        span = self._scanner.span(text, at)
        body = text[at : span.end]
        if span.state == "cut":
            return self._unended(source, head, at)
        arguments: Any
        end = span.end
        try:
            arguments = lenient(body)
        except Malformed:
            # Its name is known, so the loop can answer what is wrong. A marker in what cannot be read is a marker.
            marker = self._stop.search(body) if source.may_spend(len(body)) else None
            arguments = _raw(body if marker is None else body[: marker.start()])
            end = span.end if marker is None else at + marker.start()
        call = self.call(source, head, arguments)
        end = source.skip(self._end, self._junk(source, end))
        return Block(end, [call]) if call is not None else Block(end, [], "the call has no name")

    def _unended(self, source: Source, head: Head, at: int) -> Block:
        """Arguments in which a string, or the text, does not end. A marker there may be part of that string, so nothing
        behind is read, unless the call's own end comes first: then they are broken, but whole."""
        closed, opener = source.search(self._closed, at), source.search(self._start, at)
        if closed is None or (opener is not None and opener.start() < closed.start()):
            return Block(len(source.text), [], _CUT, True)
        if not source.may_spend(len(source.text) - at):
            return Block(len(source.text), [], _CUT, True)
        call = self.call(source, head, _raw(source.text[at : closed.start()]))
        end = source.skip(self._end, closed.start())
        return Block(end, [call]) if call is not None else Block(end, [], "the call has no name")

    def _without_object(self, source: Source, head: Head, at: int) -> Block:
        """Arguments that are no object: none at all, a string that holds one, or text up to the end marker."""
        stop = source.search(self._stop, at)
        if (encoded := _COMPLETE.match(source.text, at)) is not None:
            raw, end = encoded[0], encoded.end()
        elif stop is not None:
            raw, end = _raw(source.text[at : stop.start()]), stop.start()
        else:
            return Block(at, [], _CUT, True)
        arguments: Any = raw
        if raw in ("", "null"):
            arguments = {}
        elif raw[0] == '"':
            try:
                arguments = arguments_text(loads(raw))  # a string that holds an object
            except Malformed:
                arguments = raw
        call = self.call(source, head, arguments)
        end = source.skip(self._end, end)
        return Block(end, [call]) if call is not None else Block(end, [], "the call has no name")

    def _junk(self, source: Source, at: int) -> int:
        """Past what stands between the arguments and the end marker: a brace too many, the same object again."""
        stop = source.search(self._stop, at)
        return at if stop is None or source.text[at : stop.start()].strip(" \t\r\n}`") else stop.start()


def _raw(text: str) -> str:
    """Arguments as the model wrote them, without a fence's end."""
    return text.strip().removesuffix("```").strip()


class MistralParser(NamedJsonParser):
    """`[TOOL_CALLS]` and a JSON list (before tokenizer v11), or `name[CALL_ID]id[ARGS]{...}` with the parts in
    brackets optional (v11 and later), each call behind a marker of its own."""

    name = "mistral"
    thinks = (("[THINK]", "[/THINK]"), ("<think>", "</think>"))
    start = r"\[TOOL_CALLS\]"
    stop = r"\[TOOL_CALLS\]|</s>"
    end = r"(?!)"

    _call_id = re.compile(r"\s*+\[CALL_ID\]\s*+([A-Za-z0-9_-]*+)")
    _args = re.compile(r"\s*+\[ARGS\]\s*+")
    _nothing = re.compile(r"\s*+(?:\Z|\[TOOL_CALLS\]|</s>|<\|im_end\|>)")
    _name_before = re.compile(r"[^\s\[\]{}<>()\"'`,;:=]{1,200}\s*\Z")

    @staticmethod
    def new_id() -> str:
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))

    def read(self, source: Source, start: re.Match[str], *, is_wrapped: bool) -> Block:
        at = source.skip(_SPACE, start.end())
        if source.text.startswith(("[", "{", "```"), at) and not source.text.startswith("[TOOL_CALLS]", at):
            return self._listed(source, start, at)
        return super().read(source, start, is_wrapped=is_wrapped)

    def _listed(self, source: Source, start: re.Match[str], at: int) -> Block:
        found = read_objects(source, at, self._scanner)
        if found.calls or found.nameless is None:
            reason = found.reason if found.calls or found.reason else "there is no call after the marker"
            # Behind an object that does not end, a marker may be part of one of its strings.
            end = len(source.text) if found.truncated else found.end
            return Block(end, found.calls, reason, found.truncated)
        before = source.text[max(0, start.start() - 250) : start.start()]
        name = self._name_before.search(before)
        if name is None or name[0].strip() not in source.tools or not isinstance(found.nameless, dict):
            return Block(found.end, [], found.reason)
        call = Call(name[0].strip(), dumps(found.nameless))
        return Block(found.end, [call], begin=start.start() - len(before) + name.start())

    def head(self, source: Source, at: int) -> Head | Block:
        directly, at = at, source.skip(_SPACE, at)
        match = _NAME.match(source.text, at)
        if match is None:
            is_cut = at == len(source.text)
            return Block(at, [], "there is no call after the marker" if is_cut else "", is_cut)
        name, at = match[0], match.end()
        identity = None
        if (found := self._call_id.match(source.text, at)) is not None:
            identity, at = found[1] or None, found.end()
        arguments = self._args.match(source.text, at)
        if arguments is not None:
            return Head(name, arguments.end(), identity)
        if self._nothing.match(source.text, at):
            if at == len(source.text) and source.tools and name not in source.tools:
                is_call = match.start() == directly  # in prose there is a space before the next word
                return Block(at, [], "the text ends in the middle of a name" if is_call else "", is_call)
            if missing := source.tools.lacks(name, {}):
                return Block(
                    at, [], f"the call of {name} has no {', '.join(map(str, missing))}", at == len(source.text)
                )
            return Block(at, [Call(name, "{}", identity)])
        at = source.skip(_SPACE, at)
        if not source.text.startswith("{", at):
            is_call = match.start() == directly
            return Block(at, [], "the name is followed by neither [ARGS] nor a JSON object" if is_call else "")
        return Head(name, at, identity)


class DeepSeekV3Parser(NamedJsonParser):
    """DeepSeek V3, R1 and V3.1: `function<sep>name` and a fenced object, or `name<sep>{...}`, between call markers."""

    name = "deepseek_v3"
    aliases = ("deepseekv3", "deepseek_r1", "deepseek")
    section = r"<｜tool▁calls▁begin｜>"
    start = r"<｜tool▁call▁begin｜>"
    stop = r"<｜tool▁calls?▁(?:begin|end)｜>|<｜end▁of▁sentence｜>"
    end = r"<｜tool▁calls?▁end｜>"
    separator = r"<｜tool▁sep｜>"

    _name_line = re.compile(r"\s*+([^\s{`<\"]++)[^\S\n]*+")
    _object = re.compile(r"\s*+(?:```|\{)")

    def head(self, source: Source, at: int) -> Head | Block:
        found = self._until_separator(source, at)
        if isinstance(found, Block):
            return found
        before = source.text[at : found.start()].strip()
        begins = source.skip(_SPACE, found.end())
        if source.text.startswith("{", begins):
            return self._named(before, found.end())
        line = self._name_line.match(source.text, found.end())
        if line is not None and (before in ("", "function") or self._object.match(source.text, line.end())):
            return self._named(line[1], line.end())
        if before in ("", "function"):
            return Block(found.end(), [], "there is no name in the call", begins == len(source.text))
        return self._named(before, found.end())

    def _named(self, name: str, at: int) -> Head | Block:
        return Head(name, at) if _NAME.fullmatch(name) else Block(at, [], "there is no name in the call")


class DeepSeekV31Parser(DeepSeekV3Parser):
    """The same grammar under the name of V3.1; both names read both layouts."""

    name = "deepseek_v3_1"
    aliases = ("deepseek_v31", "deepseekv31", "deepseek_v3.1")


class KimiK2Parser(NamedJsonParser):
    """Kimi K2: `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>` in a section."""

    name = "kimi_k2"
    aliases = ("kimi", "kimi_k2_thinking")
    section = r"<\|tool_calls?_section_begin\|>"
    start = r"<\|tool_call_begin\|>"
    stop = r"<\|tool_call_(?:begin|end)\|>|<\|tool_calls?_section_(?:begin|end)\|>|<\|im_end\|>"
    end = r"<\|tool_call_end\|>|<\|tool_calls?_section_end\|>"
    separator = r"<\|tool_call_argument_begin\|>"

    _identity = re.compile(r"(?:functions[.:])?(?P<name>[^\s:]+):(?P<number>\d+)")
    _sanitised = re.compile(r"(?:functions_)?(?P<name>.+?)_(?P<number>\d+)")

    def head(self, source: Source, at: int) -> Head | Block:
        found = self._until_separator(source, at)
        if isinstance(found, Block):
            return found
        identity = source.text[at : found.start()].strip()
        if match := self._identity.fullmatch(identity):
            return Head(match["name"], found.end(), identity)
        if (match := self._sanitised.fullmatch(identity)) and match["name"] in source.tools:
            return Head(match["name"], found.end())
        bare = identity.removeprefix("functions.")
        if bare in source.tools:
            return Head(bare, found.end())
        return Head("", found.end(), identity)

    def call(self, source: Source, head: Head, arguments: Any) -> Call | None:
        if head.name or not isinstance(arguments, dict):
            return super().call(source, head, arguments)
        name = arguments.get("name")  # an opaque id: the name may be among the arguments
        if not isinstance(name, str) or name not in source.tools:
            return None
        inner = {key: value for key, value in arguments.items() if key != "name"}
        if set(inner) == {"arguments"} and isinstance(inner["arguments"], dict | str):
            return Call(name, arguments_text(inner["arguments"]), head.id)
        return Call(name, dumps(inner), head.id)
