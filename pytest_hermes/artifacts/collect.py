"""Fetching a task's artifacts from its sandbox into the run directory."""

from __future__ import annotations

import asyncio
import fnmatch
import json
from collections.abc import Sequence
from pathlib import Path

from pytest_hermes import unpacking
from pytest_hermes.artifacts.run_directory import file_name
from pytest_hermes.errors import TransferError
from pytest_hermes.sandbox.protocol import OutputTooLarge, Sandbox
from pytest_hermes.sandbox.spool import Spooled, spooled
from pytest_hermes.task import Artifact
from pytest_hermes.unpacking import Unpacked

SHOWN_FAILURES = 5
MANIFEST = "manifest.json"


async def collect(sandbox: Sandbox, artifacts: Sequence[Artifact], folder: Path, *, max_bytes: int) -> None:
    """Unpack each artifact below `folder`; `manifest.json` there says what came and what did not, and why.

    An artifact whose destination is that name goes to `manifest.json-artifact`. What was read of a file that is being
    written to counts as come, with a `warning`.
    """
    manifest = []
    for artifact in artifacts:
        name = file_name(artifact.destination or artifact.source.strip("/"))
        target = folder / (f"{name}-artifact" if name == MANIFEST else name)
        entry = {"source": artifact.source, "destination": target.name}
        try:
            async with spooled(sandbox, artifact.source, max_bytes=max_bytes) as fetched:
                done = await asyncio.to_thread(_unpack, fetched, target, artifact.exclude, max_bytes)
            entry["files"] = str(sum(member.size is not None for member in done))
            failed = [member.failure for member in done if member.failure]
            if failed:
                entry["error"] = f"{len(failed)} not unpacked; {'; '.join(failed[:SHOWN_FAILURES])}"
            changed = [problem.name for problem in fetched.problems if problem.has_changed_only]
            changed = [name for name in changed if not _is_excluded(name, artifact.exclude)]
            if changed:
                entry["warning"] = f"{len(changed)} changed while read; {'; '.join(changed[:SHOWN_FAILURES])}"
        except FileNotFoundError:
            entry["error"] = "not there"
        except OutputTooLarge as error:
            entry["error"] = str(error)
        except TransferError as error:
            entry["error"] = f"refused: {error}"
        except OSError as error:
            entry["error"] = f"not unpacked: {unpacking.reason(error)}"
        manifest.append(entry)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def _unpack(fetched: Spooled, target: Path, exclude: Sequence[str], max_bytes: int) -> list[Unpacked]:
    def named(name: str) -> str:
        return "" if _is_excluded(name, exclude) else name

    archive = fetched.archive
    with unpacking.opened(archive) as tar:
        done = unpacking.unpack(tar, unpacking.members(archive, tar), target, max_bytes=max_bytes, named=named)
    unread = [problem for problem in fetched.problems if not problem.has_changed_only]
    lost = [
        Unpacked(problem.name, error=problem.reason) for problem in unread if not _is_excluded(problem.name, exclude)
    ]
    return done + lost


def _is_excluded(name: str, exclude: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in exclude)
