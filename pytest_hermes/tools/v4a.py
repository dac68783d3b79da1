"""The V4A patch format: `*** Begin Patch`, sections that add, update, delete and move files, `*** End Patch`.

    *** Update File: path          (optionally followed by *** Move to: new/path)
    @@ text of a line above @@
     context
    -removed
    +added
    *** Add File: path             (every line starts with +)
    *** Delete File: path
    *** Move File: path -> new/path

`parse` reads the text, `plan` computes every file's new content without touching anything, so that a patch is applied
as a whole or not at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Literal

from pytest_hermes.tools.editing import Hunk, apply_hunks
from pytest_hermes.tools.tool import ToolFailure

Action = Literal["add", "update", "delete", "move"]

_SECTIONS: dict[str, Action] = {
    "*** Add File:": "add",
    "*** Update File:": "update",
    "*** Delete File:": "delete",
    "*** Move File:": "move",
}
_FORMAT = (
    "Expected:\n*** Begin Patch\n*** Update File: path\n@@ line above @@\n context\n-removed\n+added\n*** End Patch"
)


@dataclasses.dataclass
class Section:
    """What a patch does to one file."""

    action: Action
    path: str
    new_path: str | None = None
    content: list[str | None] = dataclasses.field(default_factory=list)
    """Lines of an added file; None is a blank line without its `+` (kept only between lines that have one)."""
    hunks: list[Hunk] = dataclasses.field(default_factory=list)


def parse(patch: str) -> list[Section]:
    """The sections of a patch. Text around Begin and End (and their absence) is tolerated. Raises ToolFailure."""
    lines = patch.replace("\r\n", "\n").split("\n")
    numbers = range(len(lines))
    begin = next((number for number in numbers if lines[number].strip() == "*** Begin Patch"), -1)
    end = next(
        (number for number in numbers if number > begin and lines[number].strip() == "*** End Patch"), len(lines)
    )
    sections: list[Section] = []
    hunk: _HunkLines | None = None
    for number in range(begin + 1, end):
        line = lines[number]
        head = next((head for head in _SECTIONS if line.startswith(head)), None)
        if head is not None:
            _finish(sections, hunk)
            hunk = None
            sections.append(_section(_SECTIONS[head], line[len(head) :].strip(), number))
            continue
        section = sections[-1] if sections else None
        if section is None:
            if line.strip():
                raise ToolFailure(
                    f"patch: line {number + 1} is before the first file section: {line[:100]!r}. {_FORMAT}"
                )
        elif section.action == "add":
            _added(section, line, number)
        elif section.action == "update":
            if line.startswith("*** Move to:"):
                section.new_path = line[len("*** Move to:") :].strip().removeprefix("./")
            elif line.startswith("@@"):
                _finish(sections, hunk)
                hunk = _HunkLines(line.strip("@ \t") if line.strip("@ \t") else "", number)
            elif line.strip() == "*** End of File":
                if hunk is not None:
                    hunk.at_end = True
            elif hunk is not None or line.strip():
                hunk = hunk or _HunkLines("", number)
                hunk.take(line, number, section.path)
        elif line.strip():
            raise ToolFailure(
                f"patch: line {number + 1}: nothing may follow a {section.action} section: {line[:100]!r}."
            )
    _finish(sections, hunk)
    if not sections:
        raise ToolFailure(f"patch: no file section found. {_FORMAT}")
    for section in sections:
        if section.action == "update" and not section.hunks and section.new_path is None:
            raise ToolFailure(f"patch: Update File {section.path} has no hunks. {_FORMAT}")
    return sections


class _HunkLines:
    """The lines of a hunk while it is read."""

    def __init__(self, hint: str, number: int) -> None:
        self.hint, self.number, self.at_end = hint, number, False
        self.lines: list[tuple[str, str]] = []

    def take(self, line: str, number: int, path: str) -> None:
        sign = line[:1] or " "  # an empty line is an empty context line
        if sign not in " +-":
            raise ToolFailure(
                f"patch: {path}, line {number + 1}: a line of a hunk starts with ' ', '-' or '+', got {line[:100]!r}."
            )
        self.lines.append((sign, line[1:]))

    def hunk(self) -> Hunk | None:
        lines = list(self.lines)
        while lines and lines[-1] == (" ", ""):  # blank lines between sections
            lines.pop()
        if not any(sign in "+-" for sign, _ in lines):
            return None
        before = tuple(text for sign, text in lines if sign != "+")
        after = tuple(text for sign, text in lines if sign != "-")
        return Hunk(self.hint, before, after, self.at_end)


def _finish(sections: list[Section], lines: _HunkLines | None) -> None:
    hunk = lines and lines.hunk()
    if hunk:
        sections[-1].hunks.append(hunk)


def _section(action: Action, rest: str, number: int) -> Section:
    path, new_path = rest, None
    if action == "move":
        path, arrow, new_path = (part.strip() for part in rest.partition("->"))
        if not arrow or not new_path:
            raise ToolFailure(f"patch: line {number + 1}: write '*** Move File: old -> new', got {rest[:100]!r}.")
    if not path:
        raise ToolFailure(f"patch: line {number + 1} names no file. {_FORMAT}")
    return Section(action, path.removeprefix("./"), new_path and new_path.removeprefix("./"))


def _added(section: Section, line: str, number: int) -> None:
    if line.startswith("+"):
        section.content.append(line[1:])
    elif line.strip():
        raise ToolFailure(
            f"patch: Add File {section.path}, line {number + 1}: every line starts with '+', got {line[:100]!r}."
        )
    elif section.content:
        section.content.append(None)


@dataclasses.dataclass(frozen=True)
class Change:
    """One file before and after the patch; None: not there. `moved_from` carries mode and history along."""

    path: str
    before: str | None
    after: str | None
    moved_from: str | None = None


async def plan(sections: list[Section], read: Callable[[str], Awaitable[str | None]]) -> list[Change]:
    """What the patch does to each file, later sections seeing what earlier ones did. Raises ToolFailure.

    `read` gives a file's text, None where there is none.
    """
    originals: dict[str, str | None] = {}
    texts: dict[str, str | None] = {}
    moved: dict[str, str] = {}

    async def current(path: str) -> str | None:
        if path not in texts:
            originals[path] = texts[path] = await read(path)
        return texts[path]

    for section in sections:
        text = await current(section.path)
        if section.action == "add":
            if text is not None:
                raise ToolFailure(f"patch: Add File {section.path}: it exists already. Use Update File to change it.")
            while section.content and section.content[-1] is None:
                section.content.pop()
            texts[section.path] = "".join((line or "") + "\n" for line in section.content)
            continue
        if text is None:
            raise ToolFailure(f"patch: {section.action.capitalize()} File {section.path}: there is no such file.")
        if section.action == "delete":
            texts[section.path] = None
            continue
        text = apply_hunks(text, section.hunks, path=section.path)
        if section.new_path is None or section.new_path == section.path:
            texts[section.path] = text
            continue
        if await current(section.new_path) is not None:
            raise ToolFailure(f"patch: cannot move {section.path} to {section.new_path}: that file exists already.")
        texts[section.path], texts[section.new_path] = None, text
        moved[section.new_path] = moved.pop(section.path, section.path)
    return [
        Change(path, originals[path], text, moved.get(path) if text is not None else None)
        for path, text in texts.items()
        if text != originals[path]
    ]
