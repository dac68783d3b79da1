"""What tests of rollouts fail with: pytest failures that show their message and no traceback.

`__module__` is set as in pytest's own outcomes: the short summary then begins with the message, not with our path.
"""

from __future__ import annotations

from _pytest.outcomes import Failed


class _Shown(Failed):
    def __init__(self, message: str) -> None:
        super().__init__(message, pytrace=False)


class TaskFailed(_Shown):
    """A rollout below its pass threshold (`rollout.check()`)."""

    __module__ = "builtins"


class RolloutInvalid(_Shown):
    """A rollout without a valid reward; raised in set-up, so that pytest calls it an error."""

    __module__ = "builtins"


class BodyTimeout(_Shown):
    """The test body used up the verifier's clock."""

    __module__ = "builtins"
