"""JSON as models write it: where a value ends in a text, what it says, and the few repairs that lose nothing.

Everything here is linear in the text that it looks at, and raises nothing but `Malformed`.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple, NoReturn


def _quoted(quote: str) -> str:
    return rf"{quote}[^{quote}\\]*+(?:\\.[^{quote}\\]*+)*+{quote}"


def _triple(quote: str) -> str:
    # One that is never closed goes to the text's end, so that it is looked for once.
    return rf"{quote}{{3}}(?:[^{quote}\\]|\\.|{quote}(?!{quote}{quote}))*+(?:{quote}{{3}}|\\?+\Z)"


TRIPLES = ('"""', "'''")
STRING = _quoted('"')
ANY_STRING = "|".join((_triple('"'), _triple("'"), STRING, _quoted("'")))
"""A string of JSON or Python; the text is matched with DOTALL."""
_FIRST_QUOTE = re.compile(r"""[^"']{0,200}+(["'])""")
FENCE = re.compile(r"```[A-Za-z0-9_-]*+")
"""The line that opens a fence, or the one that closes it."""


class Malformed(ValueError):
    """A text is not the JSON that it should be; says why, in words for the model."""


class Span(NamedTuple):
    """Where a value that starts with a bracket ends: after its last bracket, before a marker, or with the text."""

    end: int
    state: str
    """`closed`: its brackets are balanced; `stopped`: a marker stands outside its strings; `cut`: the text ends."""
    depth: int = 0
    """Brackets that are open at the end."""


def is_python(text: str, start: int = 0) -> bool:
    """Whether the first string of a value is in single quotes: then it is a literal of Python's."""
    first = _FIRST_QUOTE.match(text, start)
    return first is not None and first[1] == "'"


def _is_open(word: str) -> bool:
    """Whether a string that starts with three quotes lacks those at its end."""
    return word.startswith(TRIPLES) and not (len(word) >= 6 and word.endswith(word[:3]))


class Scanner:
    """Finds the end of a JSON value. `stop` is a pattern of markers that end it early, outside of its strings."""

    def __init__(self, stop: str) -> None:
        self.stop = re.compile(stop)
        self._json = re.compile(rf'{stop}|{STRING}|[\[\]{{}}]|"', re.DOTALL)
        self._python = re.compile(rf"""{stop}|{ANY_STRING}|[\[\]{{}}]|["']""", re.DOTALL)

    def span(self, text: str, start: int, *, python: bool = False) -> Span:
        """The span of the value at `start`, which is `{` or `[`. Markers inside its strings are data."""
        tokens = self._python if python or is_python(text, start) else self._json
        depth = 0
        for token in tokens.finditer(text, start):
            word = token[0]
            if word in "[{":
                depth += 1
            elif word in "]}":
                depth -= 1
                if depth <= 0:
                    return Span(token.end(), "closed")
            elif word[0] in "\"'":
                if len(word) == 1 or _is_open(word):  # a string that never ends
                    return Span(len(text), "cut", depth + 1)
            else:
                return Span(token.start(), "stopped", depth)
        return Span(len(text), "cut", depth)


def _no_constant(name: str) -> NoReturn:
    raise Malformed(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise Malformed(f"{text[:40]} is too large a number")
    return number


MAX_DEPTH = 300
"""Python's encoder ends at about a thousand, less what the caller's stack holds."""
_BRACKETS = re.compile(rf"{STRING}|[\[\]{{}}]", re.DOTALL)
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}
# Raw control characters inside strings are taken as they are.
_decoder = json.JSONDecoder(strict=False, parse_constant=_no_constant, parse_float=_finite)


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for token in _BRACKETS.finditer(text):
        depth += _STEPS.get(token[0], 0)
        if depth > MAX_DEPTH:
            raise Malformed(f"nested deeper than {MAX_DEPTH} levels")


def loads(text: str) -> Any:
    """The value of a JSON text in which strings may hold raw line breaks and tabs. Raises Malformed."""
    _check_depth(text)
    try:
        return _decoder.decode(text)
    except Malformed:
        raise
    except json.JSONDecodeError as error:
        raise Malformed(f"{error.msg} at character {error.pos}") from None
    except ValueError as error:  # an integer of thousands of digits
        raise Malformed(str(error)) from None


def dumps(value: Any) -> str:
    """JSON text that can be encoded as UTF-8."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return json.dumps(value)
    return text


_TOKEN = re.compile(
    rf"""\s*+(?:(?P<string>{ANY_STRING})|(?P<number>-?[0-9][0-9.eE+-]*+)|(?P<word>[A-Za-z]++)|"""
    r"(?P<mark>[\[\]{}:,]))",
    re.DOTALL,
)
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_ESCAPE = re.compile(
    r"\\(?:U(?P<long>[0-9a-fA-F]{8})|u(?P<short>[0-9a-fA-F]{4})|x(?P<byte>[0-9a-fA-F]{2})|(?P<letter>.))", re.DOTALL
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": ""}
_CLOSERS = {"{": "}", "[": "]"}


def repaired(text: str, *, cut: bool = False, python: bool = False) -> Any:
    """The value of a text that is nearly JSON. Raises Malformed where more is wrong than this: Python literals,
    trailing commas, `{{...}}`, brackets missing at the end or too many of them.

    `cut`: the text may have been cut off, so only the brackets of an outermost object whose members are complete and
    whose last one is not a number may be missing. `python`: it is a literal of Python's.
    """
    return _Repair(text, python=python or is_python(text)).value(cut)


def lenient(text: str) -> Any:
    """The value of a JSON text, repaired if need be. Raises Malformed."""
    try:
        return loads(text)
    except Malformed:
        return repaired(text)


class _Repair:
    def __init__(self, text: str, *, python: bool) -> None:
        self.text = text
        self.python = python
        self.at = 0
        self.open: list[tuple[str, Any]] = []
        """Brackets and containers that are not closed yet."""
        self.doubled: list[int] = []
        """Depths at which a brace was written twice."""
        self.key: list[str] = []
        """The keys whose values are being read, one for each open object that waits for one."""
        self.last = ""
        """Kind of the last token."""

    def value(self, cut: bool) -> Any:
        root: list[Any] = []
        expects = "value"
        while match := _TOKEN.match(self.text, self.at):
            kind, word = match.lastgroup or "", match[match.lastgroup or 0]
            self.at = match.end()
            if expects == "value" and word in ("{", "["):
                container: Any = {} if word == "{" else []
                self._put(root, container)
                self.open.append((word, container))
                if len(self.open) > MAX_DEPTH:
                    raise Malformed(f"nested deeper than {MAX_DEPTH} levels")
                expects = "key" if word == "{" else "value"
            elif expects == "key" and word == "{" and not self.open[-1][1] and self.last == "{":
                self.doubled.append(len(self.open))
            elif word in ("}", "]"):
                expects = self._closed(word, expects)
                if not self.open:
                    return self._ended(root)
            elif expects == "value" and kind != "mark":
                self._put(root, scalar(kind, word, python=self.python))
                expects = "separator"
            elif expects == "key" and kind == "string":
                self.key.append(scalar(kind, word, python=self.python))
                expects = "colon"
            elif expects == "colon" and word == ":":
                expects = "value"
            elif expects == "separator" and word == ",":
                expects = "key" if self.open[-1][0] == "{" else "value"
            else:
                raise Malformed(f"unexpected {word[:20]!r} at character {match.start()}")
            self.last = word if kind == "mark" else kind
            if not self.open:
                return self._ended(root)
        if self.text[self.at :].strip(" \t\r\n`"):
            raise Malformed(f"unexpected {self.text[self.at : self.at + 20]!r} at character {self.at}")
        if not self.open or expects not in ("separator", "key") or (expects == "key" and self.last != ","):
            raise Malformed("it ends in the middle")
        if cut and (len(self.open) > 1 or self.last not in ("string", "}", "]") or self.open[0][0] != "{"):
            raise Malformed("it is cut off")
        return root[0]

    def _put(self, root: list[Any], value: Any) -> None:
        if not self.open:
            root.append(value)
        elif self.open[-1][0] == "[":
            self.open[-1][1].append(value)
        else:
            self.open[-1][1][self.key.pop()] = value

    def _closed(self, word: str, expects: str) -> str:
        """What comes after a closing bracket."""
        if word == "}" and self.doubled and self.doubled[-1] == len(self.open):
            self.doubled.pop()
            if (match := _TOKEN.match(self.text, self.at)) and match["mark"] == "}":
                self.at = match.end()
        bracket, container = self.open[-1]
        if word != _CLOSERS[bracket]:
            raise Malformed(f"{word} closes a {bracket} at character {self.at - 1}")
        if expects not in ("separator", "key" if bracket == "{" else "value") or (
            expects == "value" and container and self.last != ","
        ):
            raise Malformed(f"unexpected {word} at character {self.at - 1}")
        self.open.pop()
        return "separator"

    def _ended(self, root: list[Any]) -> Any:
        if self.text[self.at :].strip(" \t\r\n`}],;"):
            raise Malformed(f"unexpected {self.text[self.at : self.at + 20]!r} at character {self.at}")
        return root[0]


def scalar(kind: str, word: str, *, python: bool) -> Any:
    """The value of a literal, of the kind `string`, `number` or `word`. Raises Malformed.

    `python`: a string in double quotes has Python's escapes, too.
    """
    if kind == "string" and _is_open(word):
        raise Malformed("a string is not closed")
    if kind == "string" and word.startswith(TRIPLES):
        return _unescaped(word[3:-3])
    if kind == "string":
        return _unescaped(word[1:-1]) if python or word[0] == "'" else loads(word)
    if kind == "number":
        return loads(word)
    if word in _WORDS:
        return _WORDS[word]
    raise Malformed(f"unexpected {word[:20]!r}")


def _unescaped(text: str) -> str:
    def plain(escape: re.Match[str]) -> str:
        if code := escape["long"] or escape["short"] or escape["byte"]:
            number = int(code, 16)
            return chr(number) if number <= 0x10FFFF else escape[0]
        letter = escape["letter"]
        return _ESCAPES.get(letter, letter if letter in "\\'\"/" else f"\\{letter}")

    return _ESCAPE.sub(plain, text)
