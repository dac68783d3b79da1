"""Llama 4's other layout: a list of calls in Python's syntax, `[f(a=1), g(b="x")]`, whose values are literals."""

from __future__ import annotations

import re
from typing import Any

from pytest_hermes.tool_call_parsers.json_text import ANY_STRING, Malformed, Scanner, dumps, repaired, scalar
from pytest_hermes.tool_call_parsers.parser import Block, Call, Source, ToolCallParser

_NAMED = r"\s*+[A-Za-z_][\w.\-]*+\s*+\("
_CALL = re.compile(r"\s*+(?P<name>[A-Za-z_][\w.\-]*+)\s*+\(")
_KEY = re.compile(r"\s*+(?P<key>[A-Za-z_]\w*+)\s*+=(?!=)\s*+")
_SCALAR = re.compile(
    rf"(?P<string>{ANY_STRING})|(?P<number>-?[0-9][0-9.eE+\-]*+)|(?P<word>[A-Za-z]++)",
    re.DOTALL,
)
_STOP = r"<\|python_(?:start|end)\|>|</?function_calls>|<\|eom_id\|>|<\|eot_id\|>|<\|eom\|>"
_BRACKETS = re.compile(rf"(?P<stop>{_STOP})|{ANY_STRING}|[()]", re.DOTALL)
_COMMA = re.compile(r"\s*+,?+\s*+")
_END = re.compile(r"\s*+(?:\]|\)\])?+\s*+(?:<\|python_end\|>|</function_calls>|<\|eom_id\|>|<\|eot_id\|>|<\|eom\|>)*+")


def _past_call(text: str, at: int) -> int:
    """Behind the bracket that closes the one before `at`."""
    depth = 1
    for token in _BRACKETS.finditer(text, at):
        if token["stop"] is not None:
            return token.start()
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if not depth:
            return token.end()
    return len(text)


class Llama4PythonicParser(ToolCallParser):
    """See the module docstring; `<|python_start|>` and `<|python_end|>` (olmo3: `<function_calls>`) may stand
    around it. Without them it is calls only where the answer begins, and, if tools are known, only if it names them."""

    name = "llama4_pythonic"
    aliases = ("pythonic", "olmo3", "lfm2", "llama_pythonic")
    section = r"<\|python_start\|>|<function_calls>|<\|tool_call_start\|>"
    start = rf"\[(?={_NAMED})|(?:(?<=<\|python_start\|>)|(?<=<function_calls>))(?={_NAMED})"

    _scanner = Scanner(_STOP)

    def read(self, source: Source, start: re.Match[str], *, is_wrapped: bool) -> Block:
        if not (is_wrapped or start.start() <= source.indent or self._opens_answer(source, start.start())):
            return Block(start.end(), [])
        calls: list[Call] = []
        at, reason = start.end(), ""
        while (head := _CALL.match(source.text, at)) is not None:
            try:
                arguments, at = self._arguments(source, head.end())
                calls.append(Call(head["name"], dumps(arguments)))
            except Malformed as error:
                reason = reason or f"the call of {head['name']} cannot be read: {error}"
                at = _past_call(source.text, head.end())
            except EOFError:
                return Block(head.end(), calls, "the text ends in the middle of a call", True)
            at = source.skip(_COMMA, at)
        if not is_wrapped and source.tools and not all(call.name in source.tools for call in calls):
            return Block(start.end(), [])
        if not calls:
            return Block(start.end(), [], reason if is_wrapped else "")
        return Block(source.skip(_END, at), calls, reason)

    def _opens_answer(self, source: Source, at: int) -> bool:
        """Whether nothing but thoughts stands before."""
        before = source.text[max(0, at - 40) : at].rstrip()
        return any(before.endswith(closer) for _, closer in self.thinks)

    def _arguments(self, source: Source, at: int) -> tuple[dict[str, Any], int]:
        """Keyword arguments from behind the bracket to behind its end. Raises Malformed, EOFError at the text's end."""
        text, arguments = source.text, dict[str, Any]()
        while True:
            at = source.skip(_COMMA, at)
            if text.startswith(")", at):
                return arguments, at + 1
            if at >= len(text):
                raise EOFError
            key = _KEY.match(text, at)
            if key is None:
                raise Malformed(f"there is no key at {text[at : at + 20]!r}")
            at = key.end()
            if text.startswith(("{", "["), at):
                span = self._scanner.span(text, at, python=True)
                if span.state == "cut":
                    raise EOFError
                arguments[key["key"]] = repaired(text[at : span.end], python=True)
                at = span.end
            elif (word := _SCALAR.match(text, at)) is not None:
                if word.end() == len(text):
                    raise EOFError
                arguments[key["key"]] = scalar(word.lastgroup or "", word[0], python=True)
                at = word.end()
            elif text.startswith(('"', "'"), at) or at >= len(text):
                raise EOFError
            else:
                raise Malformed(f"{text[at : at + 20]!r} is no literal")
