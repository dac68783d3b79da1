"""Which shell texts are one `yc-bench` command and nothing else, so that no shell is needed to know its words.

For a text that is accepted, bash would run `yc-bench` once with exactly these arguments: nothing in it expands,
redirects, branches or assigns, whatever the shell's options and locale are. What bash would make of a *function* or
alias of that name is not known here. When in doubt the answer is no: then a shell runs the text.
"""

from __future__ import annotations

import re

NAME = "yc-bench"
_OTHER_PROGRAMS = frozenset({"run", "start"})
"""Commands with a loop and imports of their own: not for a process that has only the command line's imports."""
_ARGUMENT_BYTES_MAX = 128 * 1024 - 1
"""Linux takes no longer argument of a new process; a forked one would not notice."""
_PIECE = re.compile(
    r"""
      (?P<bare>[A-Za-z0-9_%+,./:=@-]+)
    | '(?P<single>[^']*)'
    | "(?P<double>[^"$`\\!]*)"
    """,
    re.VERBOSE,
)
_BLANKS = re.compile(r"[ \t]+")


def plain_command(text: str) -> list[str] | None:
    """The words of `text`, `yc-bench` first; None if it is anything but one such command, or one of `yc-bench run` and
    `yc-bench start`."""
    words = _words(text.strip(" \t\n"))
    if not words or words[0] != NAME:
        return None
    if any(len(word.encode()) > _ARGUMENT_BYTES_MAX for word in words):
        return None
    command = next((word for word in words[1:] if not word.startswith("-")), None)
    return None if command in _OTHER_PROGRAMS else words


def _words(text: str) -> list[str] | None:
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        return None
    if not text.startswith(NAME):
        return None
    words, at = [], 0
    while at < len(text):
        word = ""
        while piece := _PIECE.match(text, at):
            word += piece[piece.lastgroup or 0]
            at = piece.end()
        words.append(word)
        if at == len(text):
            return words
        blanks = _BLANKS.match(text, at)
        if blanks is None:
            return None
        at = blanks.end()
    return words
