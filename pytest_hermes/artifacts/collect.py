"""Fetching a task's artifacts from its sandbox into the run directory."""

from __future__ import annotations

import fnmatch
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

from pytest_hermes.artifacts.run_directory import file_name
from pytest_hermes.sandbox.protocol import OutputTooLarge, Sandbox
from pytest_hermes.task import Artifact


async def collect(sandbox: Sandbox, artifacts: Sequence[Artifact], folder: Path, *, max_bytes: int) -> None:
    """Unpack each artifact below `folder`; `manifest.json` there says what came and what did not, and why."""
    manifest = []
    for artifact in artifacts:
        target = folder / file_name(artifact.destination or artifact.source.strip("/"))
        entry = {"source": artifact.source, "destination": target.name}
        try:
            archive = await sandbox.download_tar(artifact.source, max_bytes=max_bytes)
            entry["files"] = str(_unpack(archive, target, artifact.exclude))
        except FileNotFoundError:
            entry["error"] = "not there"
        except OutputTooLarge as error:
            entry["error"] = str(error)
        except tarfile.TarError as error:
            entry["error"] = f"refused: {error}"
        manifest.append(entry)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def _unpack(archive: bytes, target: Path, exclude: Sequence[str]) -> int:
    """Unpack with the `data` filter (no absolute paths, no links out, no devices); the number of files."""
    target.mkdir(parents=True, exist_ok=True)
    count = 0
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if not any(fnmatch.fnmatch(member.name, pattern) for pattern in exclude):
                tar.extract(member, target, filter="data")
                count += member.isfile()
    return count
