"""Texts of which it is known what bash makes of them."""

from __future__ import annotations

import os
import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hermes.yc_bench.plain import plain_command

PLAIN = {
    "yc-bench": [],
    "yc-bench --help": ["--help"],
    "  yc-bench\tcompany   status \n": ["company", "status"],
    "yc-bench task accept --task-id 1f0e-22": ["task", "accept", "--task-id", "1f0e-22"],
    "yc-bench finance ledger --from 01/31/2025": ["finance", "ledger", "--from", "01/31/2025"],
    "yc-bench scratchpad write --content 'a $b `c` \\ ! #'": ["scratchpad", "write", "--content", "a $b `c` \\ ! #"],
    'yc-bench scratchpad write --content "it\'s größer; > 3 | 計画"': [
        "scratchpad",
        "write",
        "--content",
        "it's größer; > 3 | 計画",
    ],
    "yc-bench scratchpad write --content 'two\nlines'": ["scratchpad", "write", "--content", "two\nlines"],
    "yc-bench scratchpad append --content=''": ["scratchpad", "append", "--content="],
    "yc-bench scratchpad append --content ''": ["scratchpad", "append", "--content", ""],
    "yc-bench a'b'\"c\"d": ["abcd"],
    "yc-bench company run": ["company", "run"],
}
NOT_PLAIN = [
    "",
    "ls",
    "yc-benchmark x",
    "yc-bench; ls",
    "yc-bench company status | head",
    "yc-bench company status && yc-bench employee list",
    "yc-bench company status\nyc-bench employee list",
    "yc-bench company status &",
    "yc-bench market browse > market.json",
    "yc-bench market browse 2>&1",
    "yc-bench task accept --task-id $TASK",
    'yc-bench task accept --task-id "$TASK"',
    "yc-bench task accept --task-id $'x'",
    'yc-bench scratchpad write --content "`date`"',
    'yc-bench scratchpad write --content "a \\" b"',
    'yc-bench scratchpad write --content "wow!"',
    "yc-bench scratchpad write --content a\\ b",
    "yc-bench scratchpad write --content ~/x",
    "yc-bench scratchpad write --content {a,b}",
    "yc-bench scratchpad write --content *",
    "yc-bench scratchpad write --content [a]",
    "yc-bench scratchpad write --content what?",
    "yc-bench scratchpad write --content größer",
    "yc-bench scratchpad write --content 'open",
    'yc-bench scratchpad write --content "open',
    "yc-bench company status # now",
    "yc-bench \\\ncompany status",
    "yc-bench company\rstatus",
    "yc-bench company status\r\n",
    "yc-bench x <<< y",
    "yc-bench (x)",
    "COLUMNS=20 yc-bench company status",
    "! yc-bench company status",
    "time yc-bench company status",
    "if yc-bench company status",
    "./yc-bench company status",
    "'yc-bench' company status",
    "yc-bench run --model x --seed 1",
    "yc-bench --help run",
    "yc-bench start",
    "yc-bench 'start'",
    "yc-bench 'nul\0'",
    "yc-bench 'half \ud800'",
    "yc-bench '" + "x" * 131_072 + "'",
    "yc-bench '" + "ü" * 65_536 + "'",
]


@pytest.mark.parametrize("text", PLAIN)
def test_plain_commands_are_their_words(text: str) -> None:
    assert plain_command(text) == ["yc-bench", *PLAIN[text]]


@pytest.mark.parametrize("text", NOT_PLAIN)
def test_whatever_bash_would_do_more_with_is_left_to_it(text: str) -> None:
    assert plain_command(text) is None


def test_the_longest_argument_that_a_process_may_have_is_plain() -> None:
    words = plain_command(f"yc-bench '{'x' * 131_071}'")
    assert words is not None
    assert subprocess.run(["true", *words]).returncode == 0


def in_bash(texts: list[str], *options: str) -> list[list[bytes]]:
    """What arguments `yc-bench` gets when bash evaluates each of the texts."""
    script = r"""
        yc-bench() { printf '%s\0' "$#" yc-bench "$@"; }
        for text; do eval "$text"; done
    """
    done = subprocess.run(
        ["bash", *options, "-c", script, "bash", *texts],
        capture_output=True,
        check=True,
        cwd="/",
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    assert done.stderr == b""
    fields = done.stdout.split(b"\0")[:-1]
    calls = []
    while fields:
        count = int(fields[0]) + 2
        calls.append(fields[1:count])
        del fields[:count]
    return calls


def test_bash_agrees_on_the_examples() -> None:
    assert in_bash(list(PLAIN)) == [[b"yc-bench", *map(str.encode, words)] for words in PLAIN.values()]


literal = ["a", "B-1", "--task-id", "=", "%", "@", "+", ":", "/", ".", ",", "0", "-", " ", "  ", "\t"]
quoted = ["'", '"', "''", '""', "'a b'", '"c d"', "'$x'", '"#"', "'\n'", "'\u00a0ü'"]
special = ["~", "*", "?", "[", "]", "{a,b}", "$x", "\\", "!", "#", ";", "&", "|", ">", "<", "(", ")", "`", "\n", "\r"]
other = ["ü", "計", "\x01", "\x7f", "\u00a0", "\u2028"]
pieces = st.one_of(*(st.sampled_from(kind) for kind in (literal, literal, quoted, special, other)))
texts = st.one_of(
    st.lists(pieces, max_size=12).map("".join),
    st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=12),
    st.lists(st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])), max_size=4).map(
        shlex.join
    ),
).map("yc-bench ".__add__)


@settings(max_examples=60, deadline=None)
@given(st.lists(texts, min_size=1, max_size=40), st.sampled_from([(), ("-O", "extglob"), ("-O", "nullglob")]))
def test_bash_agrees_on_whatever_is_accepted(tried: list[str], options: tuple[str, ...]) -> None:
    accepted = {text: words for text in tried if (words := plain_command(text)) is not None}
    assert in_bash(list(accepted), *options) == [list(map(str.encode, words)) for words in accepted.values()]
