"""The byte window that every command's output goes through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hermes.sandbox.output import OutputWindow


@given(st.lists(st.binary(max_size=300)), st.integers(0, 1000))
def test_window(chunks: list[bytes], limit: int) -> None:
    """Never above the limit; whole when it fits; else the true head and tail and the true number of cut bytes."""
    window = OutputWindow(limit)
    for chunk in chunks:
        window.add(chunk)
    whole, kept = b"".join(chunks), window.value()
    assert window.total == len(whole)
    assert len(kept) <= limit
    assert window.cut == (len(whole) > limit) == (len(kept) < len(whole))
    if not window.cut:
        assert kept == whole


@pytest.mark.parametrize("size", [1, 7, 1000, 100_000])
def test_cut_is_head_notice_tail(size: int) -> None:
    whole = bytes(n % 251 for n in range(1_000_000))
    window = OutputWindow(10_000)
    for at in range(0, len(whole), size) if size > 1 else [0]:
        window.add(whole[at : at + size] if size > 1 else whole)
    kept = window.value()
    head, _, rest = kept.partition(b"\n[... ")
    number, _, tail = rest.partition(b" bytes cut ...]\n")
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert int(number) + len(head) + len(tail) == len(whole)
    assert len(kept) > 9_900


def test_small_limit_keeps_the_head() -> None:
    window = OutputWindow(10)
    window.add(b"0123456789abcdef")
    assert window.value() == b"0123456789"


def test_negative_limit() -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        OutputWindow(-1)
