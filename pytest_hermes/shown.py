"""Text fit to be shown: terminals and XML must not get the control characters and broken Unicode that models write."""

from __future__ import annotations


def shown(text: str) -> str:
    """`text` without lone surrogates and control characters; line ends and tabs stay."""
    if text.isprintable():
        return text
    whole = text.encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in whole)


def shown_line(value: object) -> str:
    """As `shown`, on one line."""
    return shown(str(value)).replace("\n", " ").replace("\t", " ")
