"""A field of the settings tree, with its documentation."""

from __future__ import annotations

import dataclasses
from typing import Any


def setting(default: Any, help_text: str, **metadata: Any) -> Any:
    """A dataclass field with its documentation. `changes_results=False` marks a setting that a resumed run may change:
    what a rollout does and how it is judged does not depend on it."""
    metadata["help"] = help_text
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)
