"""What the tools of a rollout share, and its end."""

from __future__ import annotations

import asyncio

import pytest

from pytest_hermes.tools.state import RolloutState
from pytest_hermes.tools.tool import ToolFailure

closed: list[str] = []


class First:
    async def aclose(self) -> None:
        closed.append("first")


class Second:
    async def aclose(self) -> None:
        closed.append("second")
        raise OSError("stuck")


class Plain:
    pass


def test_parts_are_shared_closed_once_and_not_made_again() -> None:
    state = RolloutState()
    assert state.part(First) is state.part(First)
    state.part(Plain)
    state.part(Second)
    with pytest.raises(OSError, match="stuck"):
        asyncio.run(state.aclose())
    assert closed == ["second", "first"]
    for kind in (First, Plain):
        with pytest.raises(ToolFailure, match="has ended"):
            state.part(kind)
    asyncio.run(state.aclose())
    assert closed == ["second", "first"]
