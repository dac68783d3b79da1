"""Text fit to be shown: terminals and XML must not get the control characters and broken Unicode that models write."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

SHORTEST_SECRET = 8
"""Characters of a key that is one and must not be shown: `none`, `x` or `EMPTY` are words that conversations have."""
_COLOUR = re.compile("\x1b\\[(?:(?:0?[014]|3[0-79]|4[0-79]|9[0-7])(?:;(?=\\d)|(?=m)))*m")
"""Colour, bold and underline, as pytest's own highlighter sets them; nothing that moves, hides or names."""
_RESET = "\x1b[0m"


def shown(text: str) -> str:
    """`text` without lone surrogates and control characters; line ends and tabs stay."""
    if text.isprintable():
        return text
    whole = text.encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in whole)


def shown_line(value: object) -> str:
    """As `shown`, on one line."""
    return shown(str(value)).replace("\n", " ").replace("\t", " ")


def ending(text: str, most: int, *, was_cut: bool = False) -> str:
    """The last lines of `text` within `most` characters, with `...` in place of what is left out.

    `was_cut`: what comes before `text` was lost already, so that its first line may be half of one.
    """
    kept = text[-most:]
    if not was_cut and len(kept) == len(text):
        return kept
    if was_cut or text[-most - 1] != "\n":
        rest = kept.partition("\n")[2]
        if len(rest.strip()) < most // 2:
            return f"...{kept}"  # the end of a long line is better than little
        kept = rest
    return f"...\n{kept}"


def show_report(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> None:
    """Make all text of a report fit to be shown.

    pytest prints much of it as it is: both sides of a failed comparison, reasons, captured output. Colours stay where
    pytest itself writes them.
    """
    import pytest

    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    report.longrepr = _show_deep(report.longrepr, terminal is not None and terminal.hasmarkup)
    report.sections[:] = [(shown_line(title), shown(content)) for title, content in report.sections]
    if not isinstance(report, pytest.TestReport):
        return
    report.user_properties[:] = [
        (shown_line(name), shown(value) if isinstance(value, str) else value) for name, value in report.user_properties
    ]
    if hasattr(report, "wasxfail"):
        report.wasxfail = shown_line(report.wasxfail)


def _show_deep(value: Any, coloured: bool) -> Any:
    if isinstance(value, str):
        return _shown_coloured(value) if coloured else shown(value)
    if isinstance(value, tuple | list):
        return type(value)(_show_deep(part, coloured) for part in value)
    if hasattr(value, "toterminal"):
        for name, part in vars(value).items():
            setattr(value, name, _show_deep(part, coloured))
    return value


def _shown_coloured(text: str) -> str:
    """As `shown`, but colours stay, and end with the text."""
    if "\x1b" not in text:
        return shown(text)
    colours = _COLOUR.findall(text)
    parts = [shown(part) for part in _COLOUR.split(text)]
    whole = parts[0] + "".join(colour + part for colour, part in zip(colours, parts[1:], strict=True))
    return whole + _RESET if colours else whole


def described(error: BaseException) -> str:
    """Type, message and the user's line it came from: `KeyError: 'x' (bench.py:12 in verify)`."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parent)
    theirs = [f for f in frames if not f.filename.startswith(ours) and "site-packages" not in f.filename]
    frame = next(reversed(theirs or list(frames)), None)
    place = f" ({Path(frame.filename).name}:{frame.lineno} in {frame.name})" if frame else ""
    return f"{named(error)}{place}"


def named(error: BaseException) -> str:
    """Type and message: `KeyError: 'x'`; also of an error whose `__str__` raises."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as another:  # noqa: BLE001 - said in place of the message
        return f"{type(error).__name__}: its message cannot be read ({type(another).__name__})"
