"""Fetching a task's artifacts from its sandbox into the run directory."""

from __future__ import annotations

import asyncio
import fnmatch
import json
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from pytest_hermes import unpacking
from pytest_hermes.artifacts.run_directory import file_name
from pytest_hermes.errors import TransferError
from pytest_hermes.sandbox.protocol import OutputTooLarge, Sandbox
from pytest_hermes.sandbox.spool import spooled
from pytest_hermes.task import Artifact
from pytest_hermes.unpacking import Unpacked

SHOWN_FAILURES = 5


async def collect(sandbox: Sandbox, artifacts: Sequence[Artifact], folder: Path, *, max_bytes: int) -> None:
    """Unpack each artifact below `folder`; `manifest.json` there says what came and what did not, and why."""
    manifest = []
    for artifact in artifacts:
        target = folder / file_name(artifact.destination or artifact.source.strip("/"))
        entry = {"source": artifact.source, "destination": target.name}
        try:
            async with spooled(sandbox, artifact.source, max_bytes=max_bytes) as archive:
                done = await asyncio.to_thread(_unpack, archive, target, artifact.exclude, max_bytes)
            entry["files"] = str(sum(member.size is not None for member in done))
            failed = [member.failure for member in done if member.failure]
            if failed:
                entry["error"] = f"{len(failed)} not unpacked; {'; '.join(failed[:SHOWN_FAILURES])}"
        except FileNotFoundError:
            entry["error"] = "not there"
        except OutputTooLarge as error:
            entry["error"] = str(error)
        except TransferError as error:
            entry["error"] = f"refused: {error}"
        except OSError as error:
            entry["error"] = f"not unpacked: {unpacking.reason(error)}"
        manifest.append(entry)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def _unpack(archive: IO[bytes], target: Path, exclude: Sequence[str], max_bytes: int) -> list[Unpacked]:
    def named(name: str) -> str:
        return "" if any(fnmatch.fnmatch(name, pattern) for pattern in exclude) else name

    with unpacking.opened(archive) as tar:
        return unpacking.unpack(tar, unpacking.members(archive, tar), target, max_bytes=max_bytes, named=named)
