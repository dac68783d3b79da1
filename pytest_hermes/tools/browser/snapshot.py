"""A page as text: one line per element with role, name, states and value, and `@eN` for what can be acted upon.

The script `page.js` walks each frame (shadow trees included) in a script world of its own and stops at a budget, so
neither a page's size nor its scripts decide what a snapshot costs. A reference means one element of one document: it
keeps its number as long as the element lives and never comes to mean another one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.resources
import json
from typing import TYPE_CHECKING, Any

from pytest_hermes.tools.tool import ToolFailure

if TYPE_CHECKING:
    from playwright.async_api import ElementHandle, Frame

ENGINE = "hermes"
COMPACT_CHARS = 15_000
FULL_CHARS = 80_000
MAX_FRAMES = 30
FRAME_TIMEOUT_S = 5.0
MAX_REFS = 20_000


def page_script() -> str:
    return importlib.resources.files(__package__).joinpath("page.js").read_text(encoding="utf-8")


async def ask(frame: Frame, command: str) -> Any:
    """What `page.js` answers to a command in this frame. Raises Playwright's errors."""
    holder = await frame.query_selector(f"{ENGINE}={command}")
    if holder is None:
        raise ToolFailure("The page changed while it was read. Call browser_snapshot again.")
    try:
        return json.loads(await holder.text_content() or "{}")
    finally:
        await holder.dispose()


DOCUMENT_GONE = ("different document", "destroyed", "detached", "Cannot find context", "not attached to the DOM")
"""Words of the driver for an element whose document was just replaced."""


@dataclasses.dataclass(frozen=True)
class Ref:
    """An element that was shown: its document (`token`), its number there, and what kind of control it is."""

    frame: Frame
    token: str
    id: int
    kind: str
    label: str


@dataclasses.dataclass
class Snapshot:
    """`text` and what it has: the numbers of its references in order, and a note if something was left out."""

    text: str
    title: str
    refs: list[int]
    note: str | None


class References:
    """The rollout's `@eN` numbers, in the order in which elements were first shown."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, int], int] = {}
        self._refs: dict[int, Ref] = {}
        self._last = 0

    def number(self, ref: Ref) -> int:
        key = (ref.token, ref.id)
        if key not in self._numbers:
            self._last += 1
            self._numbers[key] = self._last
            if len(self._refs) >= MAX_REFS:
                oldest = self._refs.pop(next(iter(self._refs)))
                self._numbers.pop((oldest.token, oldest.id), None)
        number = self._numbers[key]
        self._refs[number] = ref
        return number

    def find(self, text: str) -> tuple[int, Ref]:
        """The reference that the model wrote (`@e5`, `e5`, `[@e5]`). Raises ToolFailure if it was never shown."""
        plain = text.strip().strip("[]").removeprefix("ref=").removeprefix("@")
        if not plain.startswith("e") or not plain[1:].isdecimal() or len(plain) > 12:
            raise ToolFailure(f"{text[:80]!r} is no element reference. Use one like @e5 from the latest snapshot.")
        number = int(plain[1:])
        if number not in self._refs:
            raise ToolFailure(f"There is no element @e{number}. Call browser_snapshot for the current references.")
        return number, self._refs[number]

    async def element(self, text: str) -> tuple[str, Ref, ElementHandle]:
        """The living element of a reference, with the reference as `@eN`. Raises ToolFailure if it is gone."""
        from playwright.async_api import Error

        number, ref = self.find(text)
        found = None
        if not ref.frame.is_detached():
            try:
                found = await ref.frame.query_selector(f"{ENGINE}=element;{ref.token};{ref.id}")
            except Error as error:
                if not any(sign in str(error) for sign in DOCUMENT_GONE):
                    raise  # those say that the document was just replaced
        if found is None:
            raise ToolFailure(
                f"@e{number} ({ref.label[:80]}) is not on the page any more: the page has changed since the snapshot. "
                "Call browser_snapshot for the current references."
            )
        return f"@e{number}", ref, found

    def of_frames(self, numbers: list[int]) -> dict[Frame, list[tuple[int, int]]]:
        """The given references by frame, as (id in its document, number)."""
        frames: dict[Frame, list[tuple[int, int]]] = {}
        for number in numbers:
            ref = self._refs[number]
            frames.setdefault(ref.frame, []).append((ref.id, number))
        return frames

    def label(self, number: int) -> str:
        return self._refs[number].label


async def take(frame: Frame, references: References, *, full: bool) -> Snapshot:
    """The snapshot of a page, given its main frame. Raises Playwright's errors."""
    reader = _Reader(references, full, FULL_CHARS if full else COMPACT_CHARS)
    top = await reader.read(frame, "")
    notes = []
    if reader.is_cut:
        notes.append(
            f"The snapshot was cut: the page is larger than {reader.budget} characters ({top['elements']} elements, "
            f"{top['height']} px high, scrolled to {top['scrolled']} px). "
            + ("Use browser_scroll to come to later parts" if full else "Use full=true, browser_scroll")
            + " or browser_console with an expression."
        )
    if top["above"]:
        notes.append("What the page was scrolled past is left out.")
    text = "\n".join(reader.lines) or "(empty page)"
    return Snapshot(text, top["title"], reader.refs, " ".join(notes) or None)


class _Reader:
    def __init__(self, references: References, full: bool, budget: int) -> None:
        self.references = references
        self.full = full
        self.budget = budget
        self.left = budget
        self.lines: list[str] = []
        self.refs: list[int] = []
        self.is_cut = False
        self.frames = 0

    async def read(self, frame: Frame, indent: str) -> dict[str, Any]:
        """Add the lines of a frame and of those inside it; its answer."""
        self.frames += 1
        answer: dict[str, Any] = await ask(frame, f"snapshot;{int(self.full)};{self.left}")
        self.is_cut = self.is_cut or answer["cut"]
        self.left -= answer["used"]
        for depth, head, element, tail, kind, child in answer["lines"]:
            mark = ""
            if element:
                number = self.references.number(Ref(frame, answer["token"], element, kind, head))
                self.refs.append(number)
                mark = f" [@e{number}]"
            self.lines.append(f"{indent}{'  ' * depth}- {head}{mark}{tail}")
            if child >= 0 and self.left > 0 and self.frames < MAX_FRAMES:
                await self._inside(frame, child, indent + "  " * (depth + 1))
        return answer

    async def _inside(self, frame: Frame, child: int, indent: str) -> None:
        from playwright.async_api import Error

        try:
            async with asyncio.timeout(FRAME_TIMEOUT_S):
                holder = await frame.query_selector(f"{ENGINE}=frame;{child}")
                inner = await holder.content_frame() if holder else None
                if inner is not None:
                    await self.read(inner, indent)
        except (Error, TimeoutError, ToolFailure):
            self.lines.append(f"{indent}- (this frame could not be read: it went away or does not answer)")
