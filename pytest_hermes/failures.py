"""What tests of rollouts fail with: pytest failures that show their message and no traceback."""

from __future__ import annotations

from _pytest.outcomes import Failed


class _Shown(Failed):
    def __init__(self, message: str) -> None:
        super().__init__(message, pytrace=False)


class TaskFailed(_Shown):
    """A rollout below its pass threshold (`rollout.check()`)."""


class RolloutInvalid(_Shown):
    """A rollout without a valid reward; raised in set-up, so that pytest calls it an error."""


class BodyTimeout(_Shown):
    """The test body used up the verifier's clock."""
