"""What the plugin keeps on pytest's own objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_hermes.engine import Handle
    from pytest_hermes.job import Job
    from pytest_hermes.resume import KnownRollout
    from pytest_hermes.rollout import Rollout
    from pytest_hermes.session import HermesSession

session_key: pytest.StashKey[HermesSession] = pytest.StashKey()
job_key: pytest.StashKey[Job] = pytest.StashKey()
handle_key: pytest.StashKey[Handle] = pytest.StashKey()
rollout_key: pytest.StashKey[Rollout] = pytest.StashKey()
waited_key: pytest.StashKey[float] = pytest.StashKey()
"""Seconds that the item's set-up spent waiting for its rollout."""
known_key: pytest.StashKey[tuple[str, KnownRollout | None]] = pytest.StashKey()
"""What the resumed run knows of the item: what is to be done about it, and the rollout to replay."""
resumed_key: pytest.StashKey[str] = pytest.StashKey()
"""What was done about the item in a resumed run, until one of its reports carries it."""
