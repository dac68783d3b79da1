"""What an error means: one table from exception type to what the engine does next.

Everybody who decides something about an error derives it from `TABLE`: `rollout.py` (retry the rollout? verify
anyway? run the verifier once more?), `fixtures.py` (pytest `failed` or `error`), `artifacts/summary.py` (the causes and
the bounds). A type that is not listed takes the row of its nearest listed base class; `Exception` is the default.
`Policies(overrides)` changes single rows by class name (`env.error_policy` in YAML).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from pytest_hermes import errors

Outcome = Literal["passed", "failed", "invalid"]
OUTCOMES: tuple[Outcome, ...] = ("passed", "failed", "invalid")


@dataclasses.dataclass(frozen=True)
class Policy:
    """What follows from an error.

    `cause` is the slug written to records. `retry`: run the whole rollout again in a new sandbox. `verify`: the agent
    stopped, but what it left is verified and counts. `reverify`: run the verifier once more in the same sandbox.
    `valid_reward`: the attempt counts (as the verifier's reward if it ran, else as 0); otherwise it is `invalid`.
    """

    cause: str
    retry: bool = False
    verify: bool = False
    reverify: bool = False
    valid_reward: bool = False


TABLE: dict[type[BaseException], Policy] = {
    # the agent's own doing: the attempt counts
    errors.AgentTimeout: Policy("timeout", verify=True, valid_reward=True),
    errors.ContextOverflow: Policy("context_overflow", verify=True, valid_reward=True),
    errors.SandboxKilled: Policy("sandbox_killed", valid_reward=True),
    # the verifier's doing, in a living sandbox: once more, then 0; breaking the verifier never pays
    errors.VerifierTimeout: Policy("verifier_timeout", reverify=True, valid_reward=True),
    errors.VerifierNoReward: Policy("verifier_no_reward", reverify=True, valid_reward=True),
    errors.RewardUnreadable: Policy("reward_unreadable", reverify=True, valid_reward=True),
    errors.VerifierError: Policy("verifier_error", reverify=True, valid_reward=True),
    # infrastructure: no valid reward
    errors.SandboxUnavailable: Policy("sandbox_unavailable"),
    errors.SandboxStartError: Policy("sandbox_start", retry=True),
    errors.ImageError: Policy("image", retry=True),
    errors.HealthcheckFailed: Policy("healthcheck", retry=True),
    errors.TransferError: Policy("transfer", retry=True),
    errors.SandboxLost: Policy("sandbox_lost", retry=True),
    errors.SandboxError: Policy("sandbox_error", retry=True),
    errors.ModelUnavailable: Policy("model_unavailable", retry=True),
    errors.ModelRateLimited: Policy("model_rate_limited", retry=True),
    errors.ModelAnswerInvalid: Policy("model_answer_invalid", retry=True),
    errors.ModelNotFound: Policy("model_not_found"),
    errors.ModelUnauthorized: Policy("model_unauthorized"),
    errors.ModelRejected: Policy("model_rejected"),
    errors.ModelError: Policy("model_error", retry=True),
    errors.AgentError: Policy("agent_error"),
    errors.InfrastructureError: Policy("infrastructure", retry=True),
    errors.HookError: Policy("hook_error"),
    errors.EpisodeError: Policy("episode_error"),
    errors.TaskError: Policy("task_broken"),
    errors.ConfigurationError: Policy("configuration"),
    errors.RunAborted: Policy("cancelled"),
    errors.BodySkipped: Policy("skipped"),
    errors.BodyNotRun: Policy("test_error"),
    TimeoutError: Policy("provision_timeout", retry=True),
    Exception: Policy("internal_error"),
}


class Policies:
    """`TABLE` with the overrides of one configuration. Immutable after construction."""

    def __init__(self, overrides: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._table = dict(TABLE)
        by_name = {error_type.__name__: error_type for error_type in TABLE}
        fields = {field.name for field in dataclasses.fields(Policy)}
        for name, changes in (overrides or {}).items():
            if name not in by_name:
                raise errors.ConfigurationError(
                    f"env.error_policy: unknown error {name!r}. Known: {', '.join(sorted(by_name))}"
                )
            if unknown := set(changes) - fields:
                raise errors.ConfigurationError(
                    f"env.error_policy.{name}: unknown field {sorted(unknown)[0]!r}. Known: {', '.join(sorted(fields))}"
                )
            error_type = by_name[name]
            self._table[error_type] = dataclasses.replace(self._table[error_type], **changes)

    def of(self, error: BaseException) -> Policy:
        """The policy of an error: its own type's row, else the nearest base class that has one."""
        for error_type in type(error).__mro__:
            if error_type in self._table:
                return self._table[error_type]
        return self._table[Exception]
