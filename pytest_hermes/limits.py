"""The four clocks of a rollout and its turn limit. Seconds everywhere; no clock borrows from another."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one rollout; `None` means "not said here" until `over()` has filled it from the defaults.

    A task's own limits win over the benchmark's defaults, those over the package's (`DEFAULTS`).
    """

    provision_s: float | None = None
    """Sandbox start, agent set-up and healthcheck; an image pull or build has `build_s` on top."""
    build_s: float | None = None
    agent_s: float | None = None
    verify_s: float | None = None
    teardown_s: float | None = None
    max_turns: int | None = None

    def over(self, defaults: Limits) -> Limits:
        """These limits, with `defaults` where they say nothing."""
        return Limits(
            **{
                field.name: getattr(defaults, field.name)
                if getattr(self, field.name) is None
                else getattr(self, field.name)
                for field in dataclasses.fields(self)
            }
        )

    def scaled(self, multiplier: float) -> Limits:
        """All clocks times `multiplier`; the turn limit stays."""
        return Limits(
            **{
                field.name: value if value is None or field.name == "max_turns" else value * multiplier
                for field in dataclasses.fields(self)
                for value in [getattr(self, field.name)]
            }
        )


DEFAULTS = Limits(provision_s=300.0, build_s=600.0, agent_s=900.0, verify_s=600.0, teardown_s=60.0, max_turns=30)
