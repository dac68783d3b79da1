"""What all formats share: the walk over the text from marker to marker, drafts in thoughts, content, ids, errors.

A format says what its markers look like and reads one block at a time (`read`); everything else is here. The walk looks
at each character a bounded number of times, whatever the text.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pytest_hermes.tool_call_parsers.schema import Tools

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageToolCall

EXCERPT_CHARS = 200
MAX_ERRORS = 50
THINK = ("<think>", "</think>")


@dataclasses.dataclass(frozen=True)
class ParseError:
    """A block that looks like a call and is none: characters `start` to `end` of the text, and why."""

    start: int
    end: int
    reason: str
    excerpt: str


class Call(NamedTuple):
    """A call as it was read; `arguments` is JSON text, or what the model wrote instead. `id` is the model's own, until
    `find` has given one to each call."""

    name: str
    arguments: str
    id: str | None = None


@dataclasses.dataclass(frozen=True)
class Findings:
    """All that was found in a model's raw output, in plain types."""

    content: str | None
    """The text before the first call, stripped; the whole text, unchanged, where there is no call."""
    calls: tuple[Call, ...] = ()
    reasoning: str | None = None
    """What stands in think blocks; it is in the content as well."""
    trailing: str | None = None
    """The text after the last call; it is not in the content."""
    errors: tuple[ParseError, ...] = ()
    truncated: bool = False
    """The text ends in the middle of a call."""


@dataclasses.dataclass(frozen=True)
class ParseOutcome:
    """`Findings` with the calls in openai's types; `tool_calls` is None where there is none."""

    content: str | None
    tool_calls: list[ChatCompletionMessageToolCall] | None
    reasoning: str | None = None
    trailing: str | None = None
    errors: tuple[ParseError, ...] = ()
    truncated: bool = False


class Block(NamedTuple):
    """What was read at a marker. Reading goes on at `end`."""

    end: int
    calls: list[Call]
    reason: str = ""
    """Why something in it is no call."""
    truncated: bool = False
    begin: int | None = None
    """Where its markup begins, if before the marker."""
    is_open: bool = False
    """The section goes on: the next block needs no marker of its own."""


class Source:
    """A text that is being parsed, the tools that were offered, and searches that are not repeated."""

    def __init__(self, text: str, tools: Tools) -> None:
        self.text = text
        self.tools = tools
        self.indent = len(text) - len(text.lstrip())
        """Where the first character stands that is no white space."""
        self._found: dict[re.Pattern[str], tuple[int, re.Match[str] | None]] = {}
        self._spent = 0

    def search(self, pattern: re.Pattern[str], at: int) -> re.Match[str] | None:
        """The first match from `at` on. Searches of a pattern that go forward cost one pass over the text in all."""
        start, match = self._found.get(pattern, (len(self.text) + 1, None))
        if not (start <= at and (match is None or at <= match.start())):
            match = pattern.search(self.text, at)
            self._found[pattern] = (at, match)
        return match

    def skip(self, pattern: re.Pattern[str], at: int) -> int:
        """The end of the pattern's match at `at`, or `at` itself."""
        match = pattern.match(self.text, at)
        return at if match is None else match.end()

    def may_spend(self, characters: int) -> bool:
        """Whether reading so many characters in vain still leaves the whole linear."""
        self._spent += characters
        return self._spent <= 4 * len(self.text) + 1000


class _Item(NamedTuple):
    """A call or an error, and where it stands."""

    start: int
    end: int
    calls: list[Call]
    reason: str


def openai_id() -> str:
    """A new call id as OpenAI's look."""
    return f"call_{secrets.token_hex(12)}"


class ToolCallParser:
    """Parses one format. Stateless and safe for concurrent use.

    `make_id` makes the ids of calls to which the model gave none; a seeded one makes results reproducible.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    thinks: ClassVar[tuple[tuple[str, str], ...]] = (THINK,)
    """Openers and closers of thoughts. Calls in a closed one are drafts."""
    orphan_closes_thought: ClassVar[bool] = True
    """A closer without an opener closes a thought that began with the text."""
    skips_thoughts: ClassVar[bool] = False
    """A thought ends at the first closer, whatever stands around it: values of this format have no quotes."""
    section: ClassVar[str] = ""
    """Pattern of what may stand before a block, as part of its markup."""
    start: ClassVar[str]
    """Pattern at which a block is read."""

    def __init__(self, make_id: Callable[[], str] | None = None) -> None:
        self._make_id = make_id or self.new_id
        opens = "|".join(re.escape(opener) for opener, _ in self.thinks) or "(?!)"
        closes = "|".join(re.escape(closer) for _, closer in self.thinks) or "(?!)"
        self._thought_end = re.compile(closes)
        section = self.section or "(?!)"
        self._marks = re.compile(
            f"(?P<_opens>{opens})|(?P<_closes>{closes})|(?P<_section>{section})|(?P<_start>{self.start})", re.DOTALL
        )

    @staticmethod
    def new_id() -> str:
        """An id for a call that has none."""
        return openai_id()

    # -- for users -----------------------------------------------------------------------------------

    def parse(
        self, raw: str, tools: Iterable[Any] | None = None
    ) -> tuple[str | None, list[ChatCompletionMessageToolCall] | None]:
        """Content and calls of a model's raw output; `(raw, None)` where there is no call. Never raises.

        `tools` are the OpenAI tool schemas that the model was given.
        """
        outcome = self.parse_detailed(raw, tools)
        return outcome.content, outcome.tool_calls

    def parse_detailed(self, raw: str, tools: Iterable[Any] | None = None) -> ParseOutcome:
        """As `parse`, with everything else that was found."""
        found = self.find(raw, tools)
        calls = [openai_call(call) for call in found.calls] or None
        return ParseOutcome(found.content, calls, found.reasoning, found.trailing, found.errors, found.truncated)

    def find(self, raw: str, tools: Iterable[Any] | None = None) -> Findings:
        """As `parse_detailed`, in plain types: openai is not imported."""
        source = Source(raw, Tools(tools))
        items, thoughts, truncated = self._walk(source)
        reasoning = "\n".join(filter(None, (raw[start:end].strip() for start, end in thoughts))) or None
        wrong = itertools.islice((item for item in items if item.reason), MAX_ERRORS)
        errors = tuple(
            ParseError(item.start, item.end, item.reason, raw[item.start : item.end][:EXCERPT_CHARS]) for item in wrong
        )
        made = [item for item in items if item.calls]
        if not made:
            return Findings(raw, (), reasoning, None, errors, truncated)
        return Findings(
            raw[: made[0].start].strip() or None,
            tuple(self._numbered(call for item in made for call in item.calls)),
            reasoning,
            raw[made[-1].end :].strip() or None,
            errors,
            truncated,
        )

    # -- for formats ---------------------------------------------------------------------------------

    def read(self, source: Source, start: re.Match[str], *, is_wrapped: bool) -> Block:
        """Read the block at a match of `start`. `is_wrapped`: a section marker stands directly before it."""
        raise NotImplementedError

    def read_bare(self, source: Source, at: int) -> Block | None:
        """Read a text without any call from `at`, where its thoughts end: it may be one without markers."""
        return None

    # -- the walk ------------------------------------------------------------------------------------

    def _walk(self, source: Source) -> tuple[list[_Item], list[tuple[int, int]], bool]:
        """Calls and errors in order, the spans of thoughts, and whether the last block is cut off."""
        text, at, truncated = source.text, 0, False
        items: list[_Item] = []
        drafts: list[_Item] = []
        thoughts: list[tuple[int, int]] = []
        thought: int | None = None
        settled = 0
        run = (0, -1)  # markup that directly precedes: start, end
        while (match := self._marks.search(text, at)) is not None:
            at = max(match.end(), match.start() + 1)
            if match["_opens"] is not None:
                thought = match.end() if thought is None else thought
            elif match["_closes"] is not None:
                if thought is not None:
                    thoughts.append((thought, match.start()))
                    drafts, truncated = [], False
                    settled = match.end()
                elif self.orphan_closes_thought:
                    thoughts.append((settled, match.start()))
                    items, truncated = [], False
                    settled = match.end()
                thought = None
            else:
                directly = not text[run[1] : match.start()].strip() if run[1] >= 0 else False
                begin = run[0] if directly else match.start()
                run = (begin, match.end())
                if match["_section"] is not None:
                    continue
                if (
                    thought is not None
                    and self.skips_thoughts
                    and (close := source.search(self._thought_end, at)) is not None
                ):
                    at = close.start()
                    continue
                block = self.read(source, match, is_wrapped=directly)
                if not block.calls and text[match.start() - 1 : match.start()] == "`":
                    block = Block(block.end, [])  # a marker in backticks is only spoken of
                truncated = block.truncated
                at = max(at, block.end)
                if block.calls or block.reason:
                    first = min(begin, match.start() if block.begin is None else block.begin)
                    (items if thought is None else drafts).append(_Item(first, at, block.calls, block.reason))
                if block.calls:
                    run = (at, at) if block.is_open else (0, -1)
        if thought is not None:
            thoughts.append((thought, len(text)))
        items += drafts
        if not any(item.calls for item in items) and (bare := self.read_bare(source, settled)) is not None:
            items.append(_Item(settled if bare.begin is None else bare.begin, bare.end, bare.calls, bare.reason))
        return items, thoughts, truncated

    def _numbered(self, calls: Iterable[Call]) -> Iterator[Call]:
        """The calls, each with an id of its own."""
        taken: set[str] = set()
        for given in calls:
            call = Call(encodable(given.name), encodable(given.arguments), given.id and encodable(given.id))
            identity = call.id if call.id and call.id not in taken else self._make_id()
            while identity in taken:
                identity = openai_id()
            taken.add(identity)
            yield call._replace(id=identity)


def encodable(text: str) -> str:
    """`text` without lone surrogates, which no request could carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def openai_call(call: Call) -> ChatCompletionMessageToolCall:
    """A call in openai's type, whose import takes half a second."""
    from openai.types.chat import ChatCompletionMessageToolCall
    from openai.types.chat.chat_completion_message_tool_call import Function

    function = Function(name=call.name, arguments=call.arguments)
    return ChatCompletionMessageToolCall(id=call.id or openai_id(), type="function", function=function)
