"""`${NAME}` and `${NAME:-default}` in a task's environment variables, filled from the host by an allow-list.

A host variable is read only if `env.verifier_env` names it: a task's author cannot ask for the user's keys.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping

from pytest_hermes.errors import TaskError

REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def expand(
    variables: Mapping[str, str], allowed: Collection[str], where: str, host: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables with every reference replaced; `where` names the table in errors.

    A default is used where the host has no such variable or the allow-list does not name it. Raises TaskError for a
    reference without default that is not on the allow-list or not set.
    """
    source = os.environ if host is None else host

    def value(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if name in allowed and source.get(name):
            return source[name]
        if default is not None:
            return default
        if name not in allowed:
            raise TaskError(
                f"{where} asks for the host variable {name}, which the setting env.verifier_env does not allow."
                f" To allow it: --hermes-set env.verifier_env={name}"
            )
        raise TaskError(f"{where} asks for the host variable {name}, which is not set")

    return {key: REFERENCE.sub(value, text) for key, text in variables.items()}
