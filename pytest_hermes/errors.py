"""Errors named by the boundary they come from: configuration, task, sandbox, model, agent, verifier.

An error's type says where it arose; `outcome.py` holds the one table that says what follows from a type.
Messages are for people: what was asked, what was found, what to do.
"""

from __future__ import annotations

from pytest_hermes.shown import shown


class HermesError(Exception):
    """Base of every error this package raises on purpose.

    Its message may quote task data, tools or models; as text it is fit to be shown (`shown`).
    """

    def __str__(self) -> str:
        return shown(super().__str__())


class ConfigurationError(HermesError):
    """A setting, option or name that cannot be used; stops at collection, before anything is spent."""


class TaskError(HermesError):
    """One task is broken (missing file, bad task.toml, unsupported field); the other tasks go on."""


class HookError(HermesError):
    """A hook in a conftest or plugin failed; carries the original as `__cause__`."""


class EpisodeError(HookError):
    """A benchmark's episode failed; carries the original as `__cause__`."""


class InfrastructureError(HermesError):
    """Something other than the agent broke: there is no valid reward."""


# -- sandbox ---------------------------------------------------------------------------------------


class SandboxError(InfrastructureError):
    """A sandbox backend failed."""


class SandboxUnavailable(SandboxError):
    """The backend itself cannot be used (no daemon, no permission, missing program): a retry will not help."""


class SandboxStartError(SandboxError):
    """A sandbox could not be started."""


class ImageError(SandboxError):
    """An image could not be pulled or built. The message carries the tail of the build or pull log."""


class HealthcheckFailed(SandboxError):
    """The task's healthcheck did not succeed within its retries."""


class TransferError(SandboxError):
    """Files could not be moved into or out of a living sandbox."""


class SandboxLost(SandboxError):
    """The sandbox is gone, through no act of what ran in it."""


class SandboxKilled(HermesError):
    """What ran in the sandbox ended the sandbox itself (it stopped its init process, for example)."""


# -- model -----------------------------------------------------------------------------------------


class ModelError(InfrastructureError):
    """The model endpoint did not give an answer."""

    def __init__(self, message: str, *, status: int | None = None, attempts: int = 1) -> None:
        super().__init__(message)
        self.status = status
        self.attempts = attempts


class ModelUnavailable(ModelError):
    """The endpoint is down, times out or answers 5xx, past the client's own retries."""


class ModelRateLimited(ModelError):
    """The endpoint answers 429, past the client's own retries."""


class ModelRejected(ModelError):
    """The endpoint refuses this request (4xx): a retry will not help."""


class ModelUnauthorized(ModelRejected):
    """The endpoint refuses the key (401, 403)."""


class ModelNotFound(ModelRejected):
    """The endpoint does not know the model's name."""


class ModelAnswerInvalid(ModelError):
    """The endpoint answered 200 with something that is not a chat completion."""


class ContextOverflow(HermesError):
    """The conversation no longer fits the model's context window."""


# -- agent -----------------------------------------------------------------------------------------


class AgentError(InfrastructureError):
    """The agent's own code raised; carries the original as `__cause__`."""


class AgentTimeout(HermesError):
    """The agent phase used up its clock."""


# -- verifier --------------------------------------------------------------------------------------


class VerifierError(HermesError):
    """The verifier ran in a living sandbox and gave no reward. `output` is the tail of what it printed."""

    def __init__(self, message: str, *, output: str = "") -> None:
        super().__init__(message)
        self.output = output


class VerifierTimeout(VerifierError):
    """The verifier did not end within its clock."""


class VerifierNoReward(VerifierError):
    """The verifier ended (or crashed) without leaving a reward."""


class RewardUnreadable(VerifierError):
    """The verifier left something that is not a reward: empty, not a number, NaN, out of [0, 1], ambiguous."""


class RunAborted(HermesError):
    """The run is being stopped (Ctrl-C, SIGTERM, -x, --maxfail): this rollout was cancelled."""


class BodySkipped(HermesError):
    """The test body skipped itself after the agent had run."""


class BodyNotRun(HermesError):
    """The test body never judged: another fixture of the test failed."""
