"""What is different in a container from its image, and the image's own files, without a program of the container.

The daemon's list of changes (`docker diff`) walks the whole image: 0.8 s. Where this process can read the daemon's own
directory (root on the same machine, overlay2), the container's layer there tells the same in about a millisecond.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import filecmp
import io
import os
import stat
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_hermes.errors import SandboxError
from pytest_hermes.sandbox import docker_archive
from pytest_hermes.sandbox.docker_client import remove
from pytest_hermes.sandbox.protocol import ChangedFile

if TYPE_CHECKING:
    import aiodocker

ORIGINAL_MAX_BYTES = 256_000_000
_MODIFIED, _ADDED = 0, 1


@dataclasses.dataclass(frozen=True)
class Layers:
    """A container's layer and those of its image below it, as directories of this machine."""

    upper: str
    lower: tuple[str, ...]

    @staticmethod
    def of(info: Mapping[str, Any]) -> Layers | None:
        """The layers of an inspected container, where this process can read them."""
        driver = info.get("GraphDriver") or {}
        data = driver.get("Data") or {}
        upper, lower = data.get("UpperDir"), data.get("LowerDir")
        if driver.get("Name") != "overlay2" or not upper or not lower:
            return None
        layers = Layers(upper, tuple(lower.split(":")))
        readable = all(os.access(folder, os.R_OK | os.X_OK) for folder in (layers.upper, *layers.lower))
        return layers if readable else None

    def changed(self, below: Sequence[str]) -> list[ChangedFile]:
        """See `SeesChanges.changed_files`. Never follows a link out of the container's layer."""
        found: list[ChangedFile] = []
        for top in below:
            if not Path(self.upper + top).is_dir():
                continue
            for folder, folders, names, descriptor in os.fwalk(self.upper + top, follow_symlinks=False):
                inside = folder[len(self.upper) :]
                folders[:] = [name for name in folders if self._image_has(f"{inside}/{name}") is not None]
                for name in names:
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                        continue  # a character device 0/0 says that the file was removed
                    original = self._image_has(f"{inside}/{name}")
                    if original is None:
                        found.append(ChangedFile(f"{inside}/{name}", is_added=True))
                    elif not _same(original, descriptor, name, status):
                        found.append(ChangedFile(f"{inside}/{name}", is_added=False))
        return found

    def _image_has(self, path: str) -> str | None:
        for layer in self.lower:
            try:
                status = os.lstat(layer + path)
            except OSError:
                continue
            return None if stat.S_ISCHR(status.st_mode) else layer + path
        return None


def _same(original: str, folder: int, name: str, status: os.stat_result) -> bool:
    """Whether the image's file and the container's have the same content."""
    theirs = os.lstat(original)
    if stat.S_IFMT(theirs.st_mode) != stat.S_IFMT(status.st_mode):
        return False
    if stat.S_ISLNK(status.st_mode):
        return os.readlink(original) == os.readlink(name, dir_fd=folder)  # noqa: PTH115
    if theirs.st_size != status.st_size:
        return False
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        return filecmp.cmp(original, f"/proc/self/fd/{file}", shallow=False)
    finally:
        filecmp.clear_cache()
        os.close(file)


async def changed(
    client: aiodocker.Docker, container: str, layers: Layers | None, below: Sequence[str], *, quick: bool
) -> list[ChangedFile]:
    """See `SeesChanges.changed_files`."""
    if layers is not None:
        with contextlib.suppress(OSError):  # a file that went away meanwhile: the daemon's list is the slower way
            return await asyncio.to_thread(layers.changed, below)
    if quick:
        # What the daemon tells in 1 ms about one name: the file that changes what every program does.
        preload = "/etc/ld.so.preload"
        there = await docker_archive.nearest(client, container, preload) == preload
        return [ChangedFile(preload, is_added=True)] if there else []
    async with client._query(f"containers/{container}/changes") as response:
        entries = await response.json() or []
    return [
        ChangedFile(entry["Path"], is_added=entry["Kind"] == _ADDED)
        for entry in entries
        if entry["Kind"] in (_MODIFIED, _ADDED) and any(entry["Path"].startswith(f"{top}/") for top in below)
    ]


async def originals(client: aiodocker.Docker, info: Mapping[str, Any], name: str, paths: Sequence[str]) -> bytes:
    """See `SeesChanges.original_files`: from a container of the same image that is made, never started, and removed."""
    container = await client.containers.create(
        {
            "Image": info["Image"],
            "Entrypoint": [],
            "Cmd": ["true"],
            "Labels": info["Config"]["Labels"],
            "HostConfig": {"NetworkMode": "none"},
        },
        name=name,
    )
    buffer = io.BytesIO()
    try:
        with tarfile.open(fileobj=buffer, mode="w") as target:
            for path in paths:
                await _add(client, container.id, path, target)
    finally:
        with contextlib.suppress(SandboxError):
            await asyncio.shield(remove(container))
    return buffer.getvalue()


async def _add(client: aiodocker.Docker, container: str, path: str, target: tarfile.TarFile) -> None:
    """Put a regular file or link of a container into an archive under its whole path, if it is there."""
    try:
        archive = await docker_archive.fetch(client, container, path, max_bytes=ORIGINAL_MAX_BYTES)
    except FileNotFoundError:
        return
    with tarfile.open(fileobj=io.BytesIO(archive)) as source:
        member = source.next()
        if member is None or not (member.isreg() or member.issym()):
            return
        content = source.extractfile(member) if member.isreg() else None
        member.name = path.lstrip("/")
        target.addfile(member, content)
