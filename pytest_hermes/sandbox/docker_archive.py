"""Tar transfers of a container over the daemon's archive endpoint, with sizes checked before and while reading."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import posixpath
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from pytest_hermes.errors import TransferError
from pytest_hermes.sandbox.docker_client import translated
from pytest_hermes.sandbox.protocol import OutputTooLarge

if TYPE_CHECKING:
    import aiodocker
    import aiohttp

_LINKS = 40
_GO_DIRECTORY = 1 << 31
_GO_SYMLINK = 1 << 27


@contextlib.asynccontextmanager
async def _archive(client: aiodocker.Docker, container: str, path: str) -> AsyncIterator[aiohttp.ClientResponse]:
    """The daemon's answer with the archive of `path`. Closed also when not read to its end: until then the daemon
    holds the container's lock, and every further call would wait."""
    async with client._query(f"containers/{container}/archive", params={"path": path}) as response:
        try:
            yield response
        finally:
            response.close()


async def fetch(client: aiodocker.Docker, container: str, path: str, *, max_bytes: int) -> bytes:
    """The tar archive of `path`. FileNotFoundError; OutputTooLarge beyond `max_bytes`."""
    archive = bytearray()

    async def add(data: bytes) -> None:
        archive.extend(data)

    await stream(client, container, path, add, max_bytes=max_bytes)
    return bytes(archive)


async def stream(
    client: aiodocker.Docker, container: str, path: str, add: Callable[[bytes], Awaitable[None]], *, max_bytes: int
) -> None:
    """As `fetch`, the archive in chunks."""
    import aiodocker

    total = 0
    try:
        async with _archive(client, container, path) as response:
            async for chunk in response.content.iter_any():
                total += len(chunk)
                if total > max_bytes:
                    raise OutputTooLarge(f"{path}: its archive is larger than the {max_bytes} bytes allowed")
                await add(chunk)
    except aiodocker.DockerError as error:
        raise _not_there(error, path) from error


def _not_there(error: aiodocker.DockerError, path: str) -> Exception:
    message = str(error.message)
    if error.status == 404 and "no such container" not in message.lower():
        return FileNotFoundError(2, "No such file or directory", path)
    return translated(error, path)


def _stat(response: aiohttp.ClientResponse) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(base64.b64decode(response.headers["X-Docker-Container-Path-Stat"]))
    return found


async def nearest(client: aiodocker.Docker, container: str, path: str) -> str:
    """The nearest of `path` and its parents that the daemon finds; where that is a link, the end of it."""
    while path != "/":
        try:
            async with client._query(f"containers/{container}/archive", method="HEAD", params={"path": path}) as found:
                return str(_stat(found)["linkTarget"] or path)
        except json.JSONDecodeError:  # a 404: aiodocker reads an error's text, and an answer to HEAD has none
            path = posixpath.dirname(path)
    return path


async def read(client: aiodocker.Docker, container: str, path: str, *, max_bytes: int) -> bytes:
    """One regular file's bytes; symbolic links are followed inside the container."""
    current = path
    for _ in range(_LINKS):
        found = await _read_once(client, container, current, given=path, max_bytes=max_bytes)
        if isinstance(found, bytes):
            return found
        current = posixpath.normpath(posixpath.join(posixpath.dirname(current), found))
    raise OSError(40, "Too many levels of symbolic links", path)


async def _read_once(client: aiodocker.Docker, container: str, path: str, *, given: str, max_bytes: int) -> bytes | str:
    """A file's bytes, or where the symbolic link at `path` points."""
    import aiodocker

    try:
        async with _archive(client, container, path) as response:
            found = _stat(response)
            mode = int(found["mode"])
            if mode & _GO_DIRECTORY:
                raise IsADirectoryError(21, "Is a directory", given)
            if mode & _GO_SYMLINK:
                return str(found["linkTarget"])
            if int(found["size"]) > max_bytes:
                raise OutputTooLarge(f"{given}: {found['size']} bytes, more than the {max_bytes} allowed")
            archive = await response.read()
    except aiodocker.DockerError as error:
        raise _not_there(error, given) from error
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        member = opened.next()
        content = opened.extractfile(member) if member is not None else None
        if content is None:
            raise OSError(22, "Not a regular file", given)
        return content.read()


def below(archive: bytes, destination: str) -> bytes:
    """The same archive with `destination` (and its parents, as directories) put before every name.

    Unpacked at `/` it makes a missing destination; without this the daemon refuses one.
    """
    prefix = destination.strip("/")
    buffer = io.BytesIO()
    try:
        with (
            tarfile.open(fileobj=io.BytesIO(archive)) as source,
            tarfile.open(fileobj=buffer, mode="w") as target,
        ):
            for member in source:
                name = posixpath.normpath(member.name.lstrip("/"))
                if name.startswith("../") or name == "..":
                    raise TransferError(f"the archive's member {member.name} would leave {destination}")
                if name == ".":
                    continue
                member.name = f"{prefix}/{name}" if prefix else name
                if member.islnk() and prefix:
                    member.linkname = f"{prefix}/{member.linkname.lstrip('/')}"
                target.addfile(member, source.extractfile(member) if member.isreg() else None)
    except tarfile.TarError as error:
        raise TransferError(f"not a tar archive for {destination}: {error}") from error
    return buffer.getvalue()


async def send(client: aiodocker.Docker, container: str, archive: bytes, destination: str) -> None:
    """Unpack an archive below `destination`, made if missing, as root. TransferError, also for a file that would take a
    directory's place: the daemon would otherwise remove that with all that is in it."""
    import aiodocker

    moved = await asyncio.to_thread(below, archive, destination)
    params = {"path": "/", "noOverwriteDirNonDir": "true"}
    try:
        async with client._query(
            f"containers/{container}/archive", method="PUT", params=params, data=io.BytesIO(moved)
        ):
            pass
    except aiodocker.DockerError as error:
        if error.status == 404 and "no such container" in str(error.message).lower():
            raise translated(error, destination) from error
        raise TransferError(f"could not unpack {len(archive)} bytes below {destination}: {error.message}") from error
