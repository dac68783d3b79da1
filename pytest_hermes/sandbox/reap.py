"""Removing sandboxes whose owner is dead. The rule is `labels.Owner.is_dead`; this module applies it per backend."""

from __future__ import annotations

import json
from pathlib import Path

from pytest_hermes.sandbox.labels import Owner
from pytest_hermes.sandbox.local_sandbox import OWNER_FILE, remove_directory
from pytest_hermes.sandbox.proctable import kill_sessions


def is_reapable(owner: Owner | None, run_id: str | None) -> bool:
    """Whether a sandbox may be removed: its owner is dead, or it belongs to the very run that is being ended."""
    if owner is None:
        return False
    return owner.run == run_id if run_id is not None else owner.is_dead()


def reap_local(root: Path, run_id: str | None) -> int:
    """Kill and remove local sandboxes below `root`; how many were removed."""
    removed = 0
    for path in sorted(root.glob(f"*/{OWNER_FILE}")):
        try:
            labels = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if not isinstance(labels, dict) or not is_reapable(Owner.read(labels), run_id):
            continue
        kill_sessions({path.parent.name.encode()})
        remove_directory(path.parent)
        removed += 1
    return removed
