"""Parsers by name: the built-in ones, those of installed packages, and those that a program registers."""

from __future__ import annotations

import difflib
import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pytest_hermes.tool_call_parsers.auto import AutoParser
from pytest_hermes.tool_call_parsers.bare_json import Llama3JsonParser
from pytest_hermes.tool_call_parsers.harmony import HarmonyParser
from pytest_hermes.tool_call_parsers.key_value import Glm45Parser, Glm47Parser, LongcatParser
from pytest_hermes.tool_call_parsers.named_json import DeepSeekV3Parser, DeepSeekV31Parser, KimiK2Parser, MistralParser
from pytest_hermes.tool_call_parsers.parser import Call, Findings, ToolCallParser
from pytest_hermes.tool_call_parsers.pythonic import Llama4PythonicParser
from pytest_hermes.tool_call_parsers.tagged_json import HermesParser, QwenParser
from pytest_hermes.tool_call_parsers.xml_parameters import (
    DeepSeekV32Parser,
    MimoParser,
    MinimaxM2Parser,
    Qwen3CoderParser,
    SeedOssParser,
)

ENTRY_POINTS = "pytest_hermes.tool_call_parsers"
BUILTIN: tuple[type[ToolCallParser], ...] = (
    AutoParser,
    HermesParser,
    QwenParser,
    LongcatParser,
    MistralParser,
    Llama3JsonParser,
    Llama4PythonicParser,
    Qwen3CoderParser,
    MimoParser,
    SeedOssParser,
    MinimaxM2Parser,
    Glm45Parser,
    Glm47Parser,
    DeepSeekV3Parser,
    DeepSeekV31Parser,
    DeepSeekV32Parser,
    KimiK2Parser,
    HarmonyParser,
)


class Parser(Protocol):
    """What a parser has to have: `parse` as `ToolCallParser.parse`; `find` is used where there is one."""

    def parse(self, raw: str, tools: Any = None) -> tuple[str | None, Any]: ...


Factory = Callable[[], Parser]


def findings_of(parser: Parser, raw: str, tools: Any = None) -> Findings:
    """What a parser finds in a text, also of one that has nothing but `parse`."""
    if isinstance(parser, ToolCallParser):
        return parser.find(raw, tools)
    content, calls = parser.parse(raw, tools=tools)
    made = (Call(call.function.name, call.function.arguments, call.id) for call in calls or ())
    return Findings(content, tuple(made))


class UnknownParser(KeyError):
    """No parser has this name; the message names those that there are."""

    def __str__(self) -> str:
        return str(self.args[0])


def _plain(name: str) -> str:
    """A name as it is compared: any case, `-`, `.` and `_` alike."""
    return name.strip().lower().replace("-", "_").replace(".", "_")


_registered: dict[str, Factory] = {_plain(name): kind for kind in BUILTIN for name in (kind.name, *kind.aliases)}
_own: dict[str, Factory] = {}


def get_parser(name: str) -> Parser:
    """A new parser by name or alias. Raises UnknownParser (a KeyError) with the names that come close."""
    plain = _plain(name)
    factory = _own.get(plain) or _registered.get(plain) or installed().get(plain)
    if factory is None:
        known = list_parsers()
        close = difflib.get_close_matches(plain, [*_registered, *_own, *installed()], n=3, cutoff=0.6)
        hint = f"Did you mean {' or '.join(map(repr, close))}?" if close else f"Known: {', '.join(known)}"
        raise UnknownParser(f"no tool-call parser {name!r}. {hint}")
    return factory()


def list_parsers() -> list[str]:
    """The names of all parsers, without aliases, sorted."""
    return sorted({kind.name for kind in BUILTIN} | set(_own) | set(installed()))


def register_parser(name: str, factory: Factory, *aliases: str, replace: bool = False) -> None:
    """Add a parser: a `ToolCallParser` class, or anything that makes an object with `parse(raw, tools)`.

    Raises ValueError for a name that is taken, unless `replace`.
    """
    for one in (name, *aliases):
        plain = _plain(one)
        if not replace and (plain in _registered or plain in _own):
            raise ValueError(f"a tool-call parser {one!r} is there already; give replace=True to take its place")
        _own[plain] = factory


@functools.cache
def installed() -> Mapping[str, Factory]:
    """Parsers of installed packages, by name. One that cannot be loaded, or has a built-in name, is left out with a
    warning."""
    import importlib.metadata  # takes 30 ms

    found: dict[str, Factory] = {}
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        plain = _plain(entry.name)
        if plain in _registered:
            warnings.warn(
                f"entry point {entry.name} = {entry.value}: a tool-call parser of that name is built in; left out",
                stacklevel=2,
            )
            continue
        try:
            found[plain] = entry.load()
        except Exception as error:  # noqa: BLE001 - an import raises anything; the others are of use without it
            warnings.warn(
                f"entry point {entry.name} = {entry.value} ({ENTRY_POINTS}) cannot be loaded: "
                f"{type(error).__name__}: {error}",
                stacklevel=2,
            )
    return found
