"""Text fit to be shown: terminals and XML must not get the control characters and broken Unicode that models write."""

from __future__ import annotations

import traceback
from pathlib import Path


def shown(text: str) -> str:
    """`text` without lone surrogates and control characters; line ends and tabs stay."""
    if text.isprintable():
        return text
    whole = text.encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in whole)


def shown_line(value: object) -> str:
    """As `shown`, on one line."""
    return shown(str(value)).replace("\n", " ").replace("\t", " ")


def described(error: BaseException) -> str:
    """Type, message and the user's line it came from: `KeyError: 'x' (bench.py:12 in verify)`."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parent)
    theirs = [f for f in frames if not f.filename.startswith(ours) and "site-packages" not in f.filename]
    frame = next(reversed(theirs or list(frames)), None)
    place = f" ({Path(frame.filename).name}:{frame.lineno} in {frame.name})" if frame else ""
    return f"{type(error).__name__}: {error}{place}"
