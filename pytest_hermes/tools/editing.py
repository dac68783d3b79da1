"""Edits of text: replace a passage, apply the hunks of a V4A patch, show what changed. Pure functions over strings.

A passage is looked for exactly; only if it is nowhere, whole lines are compared with white space relaxed step by step
(trailing, then indentation, then any), and a relaxed match counts only if it is the only one. Errors name the lines
that come close. Line numbers count from 1.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Sequence

from pytest_hermes.tools.tool import ToolFailure

_RELAXED: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("trailing white space", str.rstrip),
    ("indentation", str.strip),
    ("white space", lambda line: " ".join(line.split())),
)
_REPLACE_ALL = " Or set replace_all=true to change every one."
_MAX_NAMED = 8
_CLOSE_SCAN_LINES = 20_000
_DIFF_MAX_LINES = 2_000


def replace(text: str, old: str, new: str, *, every: bool, path: str) -> tuple[str, int]:
    """`text` with `old` replaced by `new`, and how many times.

    Without `every` the passage must be there exactly once. In a file with CRLF line ends the `\\n` of `old` and `new`
    stand for CRLF. Raises ToolFailure.
    """
    if not old:
        raise ToolFailure(f"{path}: old_string is empty. Give the text to replace, or use write_file for a new file.")
    if old == new:
        raise ToolFailure(f"{path}: old_string and new_string are the same; nothing to change.")
    old, new = _with_line_ends_of(text, old), _with_line_ends_of(text, new)
    count = text.count(old)
    if count == 1 or (count and every):
        return text.replace(old, new), count
    if count:
        numbers = [_line_number(text, at) for at in _starts(text, old)]
        raise ToolFailure(_ambiguous(path, numbers, split_lines(text)) + _REPLACE_ALL)
    lines, wanted = split_lines(text), [_no_end(line) for line in split_lines(old)]
    for what, relax in _RELAXED:
        places = _find(lines, wanted, relax)
        if len(places) == 1:
            start, stop = places[0], places[0] + len(wanted)
            return _swap(lines, start, stop, wanted, new), 1
        if places:
            numbers = [place + 1 for place in places]
            note = f" once {what} is ignored"
            raise ToolFailure(_ambiguous(path, numbers, lines, note))
    raise ToolFailure(f"{path}: old_string was not found." + closest(lines, wanted))


def split_lines(text: str) -> list[str]:
    """The lines of a text with their ends, split at `\n` only (`splitlines` also splits at form feeds)."""
    lines = [line + "\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def closest(lines: Sequence[str], wanted: Sequence[str]) -> str:
    """A sentence with the lines of a file that come closest to `wanted`, for the message about a missing passage."""
    if not lines:
        return " The file is empty."
    stripped = [line.strip() for line in wanted]
    places: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        places.setdefault(line.strip(), []).append(number)
    votes: dict[int, int] = {}
    for index, line in enumerate(stripped):
        found = places.get(line, [])
        if line and len(found) <= 50:
            for number in found:
                votes[max(0, number - index)] = votes.get(max(0, number - index), 0) + 1
    if votes:
        start = max(votes, key=lambda at: (votes[at], -at))
        for index, line in enumerate(stripped):
            there = lines[start + index].strip() if start + index < len(lines) else None
            if there != line:
                found_text = "the end of the file" if there is None else repr(_no_end(lines[start + index])[:200])
                return (
                    f" It comes closest at line {start + 1}, and differs at line {start + index + 1}: the file has "
                    f"{found_text}, old text has {wanted[index][:200]!r}. Read the file and copy the text exactly."
                )
    first = next((line for line in stripped if line), "")
    candidates = [line for line in list(places)[:_CLOSE_SCAN_LINES] if line and len(line) <= 500]
    near = difflib.get_close_matches(first[:500], candidates, n=3, cutoff=0.6) if first else []
    if not near:
        return " No line of the file comes close. Read the file and copy the text exactly."
    named = "; ".join(f"line {places[line][0] + 1}: {line[:200]!r}" for line in near)
    return f" Lines that come close: {named}. Read the file and copy the text exactly."


@dataclasses.dataclass(frozen=True)
class Hunk:
    """One change of a V4A update: `before` (context and removed lines) becomes `after` (context and added lines)."""

    hint: str
    """Text of a line above the change, from `@@ hint`; empty for none."""
    before: tuple[str, ...]
    after: tuple[str, ...]
    at_end: bool = False
    """The hunk said `*** End of File`: it belongs at the end."""


def apply_hunks(text: str, hunks: Sequence[Hunk], *, path: str) -> str:
    """`text` after all hunks, each looked for below the one before. Raises ToolFailure, naming the hunk."""
    lines = split_lines(text)
    cursor = 0
    for number, hunk in enumerate(hunks, 1):
        where = f"{path}, hunk {number} of {len(hunks)}"
        start = _after_hint(lines, cursor, hunk.hint, where) if hunk.hint else cursor
        before = list(hunk.before)
        if before:
            at = _locate(lines, before, start, hunk, where)
        elif hunk.hint:
            at = start
        else:
            at = len(lines)
        changed = _swap_lines(lines[at : at + len(before)], before, hunk.after, _ends_of(text))
        if at == len(lines) and lines and changed and not lines[-1].endswith("\n"):
            lines[-1] += _ends_of(text)
        lines[at : at + len(before)] = changed
        cursor = at + len(changed)
    return "".join(lines)


def _locate(lines: list[str], before: list[str], start: int, hunk: Hunk, where: str) -> int:
    for what, relax in (("nothing", _no_end), *_RELAXED):
        places = [place for place in _find(lines, before, relax) if place >= start]
        if hunk.at_end:
            places = [place for place in places if place + len(before) == len(lines)] or places
        if len(places) == 1 or (places and hunk.hint and what == "nothing"):
            return places[0]
        if places:
            raise ToolFailure(
                _ambiguous(where, [place + 1 for place in places], lines)
                + " Or name a line above it: @@ text of that line @@."
            )
    elsewhere = [place for place in _find(lines, before, _no_end) if place < start]
    if elsewhere:
        raise ToolFailure(
            f"{where}: its lines are at line {elsewhere[0] + 1}, above {'its @@ hint' if hunk.hint else 'the hunk'} "
            f"{'' if hunk.hint else 'before it '}(line {start}). Put the hunks in the order of the file."
        )
    raise ToolFailure(f"{where}: its context and removed lines were not found." + closest(lines, before))


def _after_hint(lines: list[str], cursor: int, hint: str, where: str) -> int:
    for matches in (
        lambda line: line.rstrip("\r\n") == hint,
        lambda line: line.strip() == hint.strip(),
        lambda line: hint.strip() in line,
    ):
        for number in range(cursor, len(lines)):
            if matches(lines[number]):
                return number + 1
    raise ToolFailure(f"{where}: no line matches its hint {hint[:200]!r}." + closest(lines[cursor:], [hint]))


def unified_diff(before: str, after: str, path: str, new_path: str | None = None) -> str:
    """A unified diff with three lines of context; cheap where a large file changed in one place."""
    old, new = split_lines(before), split_lines(after)
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    from_line, context = max(0, head - 3), max(0, tail - 3)
    old, new = old[from_line : len(old) - context], new[from_line : len(new) - context]
    names = f"--- a/{path.lstrip('/')}\n+++ b/{(new_path or path).lstrip('/')}\n"
    if len(old) + len(new) > 2 * _DIFF_MAX_LINES:
        return f"{names}(about {max(len(old), len(new))} lines differ from line {from_line + 1} on: too many to show)\n"
    out = []
    for group in _matcher(old, new, head - from_line, min(tail, 3)).get_grouped_opcodes(3):
        first, last = group[0], group[-1]
        out.append(f"@@ -{_span(from_line, first[1], last[2])} +{_span(from_line, first[3], last[4])} @@\n")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                out += [_diff_line(" ", line) for line in old[i1:i2]]
                continue
            out += [_diff_line("-", line) for line in old[i1:i2]]
            out += [_diff_line("+", line) for line in new[j1:j2]]
    return names + "".join(out) if out else ""


def _matcher(old: list[str], new: list[str], before: int, after: int) -> difflib.SequenceMatcher[str]:
    """Matched between the common `before` and `after` lines only: matching over them may move a change to the edge,
    and patch(1) takes a hunk without its trailing context for the file's end."""
    old_end, new_end = len(old) - after, len(new) - after
    inner = difflib.SequenceMatcher(None, old[before:old_end], new[before:new_end])
    whole = difflib.SequenceMatcher(None, old, new)
    whole.opcodes = [  # type: ignore[attr-defined] # what get_opcodes keeps; typeshed does not list it
        *([("equal", 0, before, 0, before)] if before else []),
        *((tag, i + before, j + before, k + before, n + before) for tag, i, j, k, n in inner.get_opcodes()),
        *([("equal", old_end, len(old), new_end, len(new))] if after else []),
    ]
    return whole


def _span(base: int, start: int, stop: int) -> str:
    count = stop - start
    return f"{base + start + (1 if count else 0)}" + ("" if count == 1 else f",{count}")


def _diff_line(sign: str, line: str) -> str:
    body = line.removesuffix("\n").removesuffix("\r")
    return f"{sign}{body}\n" if line.endswith("\n") else f"{sign}{body}\n\\ No newline at end of file\n"


def _no_end(line: str) -> str:
    return line.rstrip("\r\n")


def _ends_of(text: str) -> str:
    """The line end a text uses: that of its first line, `\\n` if it has none."""
    at = text.find("\n")
    return "\r\n" if at > 0 and text[at - 1] == "\r" else "\n"


def _with_line_ends_of(text: str, passage: str) -> str:
    if _ends_of(text) == "\r\n" and "\r" not in passage:
        return passage.replace("\n", "\r\n")
    return passage


def _starts(text: str, passage: str) -> list[int]:
    starts: list[int] = []
    at = text.find(passage)
    while at >= 0 and len(starts) < 1000:
        starts.append(at)
        at = text.find(passage, at + len(passage))
    return starts


def _line_number(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _find(lines: Sequence[str], wanted: Sequence[str], relax: Callable[[str], str]) -> list[int]:
    """Where `wanted` stands in `lines` (indices of its first line), both relaxed; never where all of it is blank."""
    target = [relax(line) for line in wanted]
    if not target or (relax is not _no_end and not any(target)):
        return []
    relaxed = [relax(line) for line in lines]
    places: list[int] = []
    at = -1
    while len(places) < 1000:
        try:
            at = relaxed.index(target[0], at + 1, len(relaxed) - len(target) + 1)
        except ValueError:
            break
        if relaxed[at : at + len(target)] == target:
            places.append(at)
    return places


def _swap(lines: list[str], start: int, stop: int, wanted: Sequence[str], new: str) -> str:
    """The whole text with lines [start, stop), found by a relaxed match of `wanted`, replaced by `new`."""
    shift = _shift(lines[start:stop], wanted)
    body = "".join(shift(line) for line in split_lines(new))
    last = lines[stop - 1]
    if body and last.endswith("\n") and not body.endswith("\n"):
        body += "\r\n" if last.endswith("\r\n") else "\n"
    return "".join(lines[:start]) + body + "".join(lines[stop:])


def _shift(found: Sequence[str], wanted: Sequence[str]) -> Callable[[str], str]:
    """How to indent replacement lines when the file is indented otherwise than the passage asked for."""
    pairs = {(_indent(line), _indent(asked)) for line, asked in zip(found, wanted, strict=True) if asked.strip()}
    extra = {there[: len(there) - len(asked)] for there, asked in pairs if there.endswith(asked)}
    if len(extra) == 1 and all(there.endswith(asked) for there, asked in pairs):
        prefix = extra.pop()
        return lambda line: prefix + line if line.strip() else line
    missing = {asked[: len(asked) - len(there)] for there, asked in pairs if asked.endswith(there)}
    if len(missing) == 1 and all(asked.endswith(there) for there, asked in pairs):
        prefix = missing.pop()
        return lambda line: line.removeprefix(prefix)
    return lambda line: line


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _swap_lines(found: list[str], before: Sequence[str], after: Sequence[str], end: str) -> list[str]:
    """Replacement lines of a hunk: context lines stay as the file has them, added lines get the file's line ends."""
    shift = _shift(found, before)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    out: list[str] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        out += found[i1:i2] if tag == "equal" else [shift(line) + end for line in after[j1:j2]]
    out[:-1] = [line if line.endswith("\n") else line + end for line in out[:-1]]
    if out and found and not found[-1].endswith("\n"):
        out[-1] = out[-1].removesuffix(end)
    return out


def _ambiguous(where: str, numbers: Sequence[int], lines: Sequence[str], note: str = "") -> str:
    named = "; ".join(f"line {number}: {lines[number - 1].strip()[:120]!r}" for number in numbers[:_MAX_NAMED])
    more = f" and {len(numbers) - _MAX_NAMED} more" if len(numbers) > _MAX_NAMED else ""
    return (
        f"{where}: the text is there {len(numbers)} times{note} ({named}{more}). Add surrounding lines to make it "
        f"unique."
    )
