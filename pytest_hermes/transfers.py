"""Files between this machine and a sandbox, in bounded memory: uploads in small tar archives (larger files in slices),
downloads through an archive that is spooled to disk. Any name goes, modes are kept, sizes are checked.

All functions run on the engine's loop; archives are made and unpacked in threads. What goes wrong with files of a
living sandbox is in the results, as `ToolContext` documents them; a lost sandbox is raised. What could be read is kept:
a file that was written to meanwhile is a success with a `warning`, one that could not be read (whole) is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import os
import posixpath
import tarfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_hermes import unpacking
from pytest_hermes.errors import SandboxError, SandboxLost, TransferError
from pytest_hermes.sandbox.spool import Spooled, spooled

if TYPE_CHECKING:
    from pytest_hermes.sandbox.protocol import ReadProblem, Sandbox

BATCH_BYTES = 8_000_000
BATCH_FILES = 1_000
DOWNLOAD_MAX_BYTES = 512_000_000
TIMEOUT_S = 600.0
MAX_LINKS = 10

Result = dict[str, Any]


# -- up ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Batch:
    """Part of an upload: an archive, the sizes of the files in it, and the file whose content follows in slices."""

    archive: bytes
    sizes: dict[str, int]
    failed: dict[str, str]
    large: tuple[str, Path] | None = None


async def upload_file(sandbox: Sandbox, source: Path, place: str) -> Result:
    """Copy a file to the absolute path `place`."""
    if not await asyncio.to_thread(source.is_file):
        return {"exit_code": -1, "output": "", "error": f"Local file not found: {source}"}
    folder, name = posixpath.split(place)
    return (await _upload(sandbox, {name: source}, folder))[0]


async def upload_directory(sandbox: Sandbox, source: Path, place: str) -> list[Result]:
    """Copy what is below a directory; links to files become files, empty directories are made as well."""
    if not await asyncio.to_thread(source.is_dir):
        return [{"exit_code": -1, "output": "", "error": f"Local directory not found: {source}"}]
    files, empty, odd = await asyncio.to_thread(_listed, source)
    try:
        await _make_directories(sandbox, [place])
        await _make_directories(sandbox, [posixpath.join(place, name) for name in empty])
    except TransferError as error:
        return [{"exit_code": -1, "output": "", "error": str(error), "path": name} for name in (*files, *empty, *odd)]
    results = await _upload(sandbox, files, place)
    return results + [{"exit_code": -1, "output": "", "error": why, "path": name} for name, why in odd.items()]


def _listed(source: Path) -> tuple[dict[str, Path], list[str], dict[str, str]]:
    """Files, empty directories and what is neither (with the reason it is not sent) below a directory, by name."""
    files: dict[str, Path] = {}
    empty: list[str] = []
    odd: dict[str, str] = {}
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source).as_posix()
        if path.is_file():
            files[name] = path
        elif path.is_symlink():
            odd[name] = "a symbolic link to a directory or to nothing; links to files alone are followed"
        elif not path.is_dir():
            odd[name] = "not a regular file"
        elif not any(path.iterdir()):
            empty.append(name)
    return files, empty, odd


async def _upload(sandbox: Sandbox, files: Mapping[str, Path], folder: str) -> list[Result]:
    sizes: dict[str, int] = {}
    arrived: dict[str, int] = {}
    failed: dict[str, str] = {}
    batches = _batches(files)
    while batch := await asyncio.to_thread(next, batches, None):
        failed |= batch.failed
        sizes |= batch.sizes
        if not batch.sizes:
            continue
        try:
            async with _judged(sandbox):
                arrived |= await _send(sandbox, batch, folder)
        except TransferError as error:
            if len(batch.sizes) == 1:
                failed |= dict.fromkeys(batch.sizes, str(error))
            else:  # which of them? Each half by itself
                names = list(batch.sizes)
                for half in (names[: len(names) // 2], names[len(names) // 2 :]):
                    again = await _upload(sandbox, {name: files[name] for name in half}, folder)
                    failed |= {entry["path"]: entry["error"] for entry in again if entry["error"]}
                    arrived |= {entry["path"]: entry["bytes"] for entry in again if not entry["error"]}
                    sizes |= arrived
    return [_uploaded(name, sizes.get(name, 0), arrived.get(name), failed.get(name)) for name in files]


def _uploaded(name: str, sent: int, arrived: int | None, error: str | None) -> Result:
    if error is None and arrived != sent:
        found = "nothing" if arrived is None else f"{arrived} bytes"
        error = f"{name}: sent {sent} bytes, the sandbox has {found}"
    result = {"exit_code": 0 if error is None else -1, "output": "", "error": error, "path": name}
    return result if error else result | {"bytes": sent}


def _batches(files: Mapping[str, Path]) -> Iterator[_Batch]:
    waiting = list(files.items())[::-1]
    while waiting:
        batch = _Batch(b"", {}, {})
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT, dereference=True) as archive:
            while waiting and buffer.tell() < BATCH_BYTES and len(batch.sizes) < BATCH_FILES and not batch.large:
                name, path = waiting.pop()
                try:
                    _add(archive, batch, name, path)
                except OSError as error:
                    batch.failed[name] = f"{path}: {error.strerror or error}"
        batch.archive = buffer.getvalue()
        buffer.close()
        yield batch


def _add(archive: tarfile.TarFile, batch: _Batch, name: str, path: Path) -> None:
    with path.open("rb") as file:
        info = archive.gettarinfo(arcname=name, fileobj=file)
        info.type, info.linkname = tarfile.REGTYPE, ""  # also for a further name of a file that is in there already
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        data = b"" if info.size > BATCH_BYTES else file.read()
    batch.sizes[name] = info.size if info.size > BATCH_BYTES else len(data)
    if info.size > BATCH_BYTES:
        batch.large = (name, path)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


async def _send(sandbox: Sandbox, batch: _Batch, folder: str) -> dict[str, int]:
    """Unpack a batch below `folder`; the sizes that the sandbox then has."""
    await sandbox.upload_tar(batch.archive, folder)
    if batch.large is not None:
        name, path = batch.large
        with await asyncio.to_thread(path.open, "rb") as file:
            while data := await asyncio.to_thread(file.read, BATCH_BYTES):
                await _append(sandbox, posixpath.join(folder, name), data)
    names = list(batch.sizes)
    listed = await sandbox.exec(
        ["xargs", "-0", "stat", "-L", "-c", "%s"],
        stdin=_words(f"./{name}" for name in names),
        cwd=folder,
        user="root",
        timeout_s=TIMEOUT_S,
        max_output=max(1_000_000, 32 * len(names)),
    )
    sizes = listed.stdout.split()
    if len(sizes) != len(names):
        said = listed.stderr.decode(errors="replace").strip()[:300]
        raise TransferError(f"{folder}: {len(names)} files were sent, {len(sizes)} are there. {said}")
    return {name: int(size) for name, size in zip(names, sizes, strict=True)}


async def _append(sandbox: Sandbox, place: str, data: bytes) -> None:
    done = await sandbox.exec(
        ["sh", "-c", 'cat >>"$1"', "sh", place], stdin=data, user="root", timeout_s=TIMEOUT_S, max_output=10_000
    )
    if done.exit_code != 0:
        raise TransferError(f"{place}: {done.stderr.decode(errors='replace').strip()[:300] or 'could not be written'}")


async def _make_directories(sandbox: Sandbox, places: Sequence[str]) -> None:
    if not places:
        return
    async with _judged(sandbox):
        done = await sandbox.exec(
            ["xargs", "-0", "mkdir", "-p", "--"],
            stdin=_words(places),
            cwd="/",
            user="root",
            timeout_s=TIMEOUT_S,
            max_output=10_000,
        )
        if done.exit_code != 0:
            raise TransferError(done.stderr.decode(errors="replace").strip()[:300] or f"{places[0]}: could not be made")


def _words(texts: Iterable[str]) -> bytes:
    return b"\0".join(text.encode(errors="surrogateescape") for text in texts)


# -- down --------------------------------------------------------------------------------------------------


async def download_file(sandbox: Sandbox, place: str, target: Path) -> Result:
    """Copy the file at the absolute path `place`; symbolic links in the sandbox are followed there."""
    current = place
    for _ in range(MAX_LINKS):
        async with _fetched(sandbox, current) as fetched:
            found = fetched if isinstance(fetched, str) else await asyncio.to_thread(_save, fetched, current, target)
        if isinstance(found, dict):
            return found
        if not isinstance(found, _Link):
            return {"success": False, "error": found}
        current = posixpath.normpath(posixpath.join(posixpath.dirname(current), found))
    return {"success": False, "error": f"{place}: too many symbolic links"}


class _Link(str):
    """Where a symbolic link points."""


def _save(fetched: Spooled, place: str, target: Path) -> Result | str:
    """Unpack the one file of an archive; its result, or a `_Link`, or why it could not be done."""
    try:
        with unpacking.opened(fetched.archive) as tar:
            member = next(unpacking.members(fetched.archive, tar))
            if member.isdir():
                return f"{place} is a directory; use download_dir"
            if member.issym():
                return _Link(member.linkname)
            if not member.isreg():
                return f"{place} is not a regular file"
            if member.size > DOWNLOAD_MAX_BYTES:
                return f"{place}: {member.size} bytes, more than the {DOWNLOAD_MAX_BYTES} allowed"
            if not target.name or target.name == "..":
                return f"{target} is a directory, not a name for a file"
            target.parent.mkdir(parents=True, exist_ok=True)
            parent = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                size = unpacking.write(tar, member, parent, target.name)
            finally:
                os.close(parent)
        result: Result = {"success": True, "bytes": size}
        for problem in fetched.problems:
            result |= _told(problem, f"{place}: {problem.reason}")
        return result
    except OSError as error:
        return f"{target}: {unpacking.reason(error)}"
    except TransferError as error:
        return f"{place}: {error}"


async def download_directory(sandbox: Sandbox, place: str, target: Path) -> list[Result]:
    """Copy what is below the directory at the absolute path `place`, directories without files included."""
    async with _fetched(sandbox, place) as fetched:
        if isinstance(fetched, str):
            return [{"success": False, "error": fetched}]
        return await asyncio.to_thread(_unpack, fetched, place, target)


def _unpack(fetched: Spooled, place: str, target: Path) -> list[Result]:
    try:
        with unpacking.opened(fetched.archive) as tar:
            found = unpacking.members(fetched.archive, tar)
            first = next(found)
            if not first.isdir():
                return [{"success": False, "error": f"{place} is not a directory; use download_file"}]
            top = first.name.removeprefix("./")

            def inner(name: str) -> str | None:
                name = name.removeprefix("./")
                if top in ("", ".", name):
                    return "" if name == top else name
                return name.removeprefix(f"{top}/") if name.startswith(f"{top}/") else None

            done = unpacking.unpack(tar, found, target, max_bytes=DOWNLOAD_MAX_BYTES, named=inner)
    except OSError as error:
        return [{"success": False, "error": f"{target}: {unpacking.reason(error)}"}]
    except TransferError as error:
        return [{"success": False, "error": f"{place}: {error}"}]
    results = [_downloaded(place, member) for member in done if member.error or member.size is not None]
    files = {entry["path"]: entry for entry in results if "path" in entry}
    for problem in fetched.problems:
        name = inner(problem.name)
        if name in files:
            files[name] |= _told(problem, problem.reason)
        elif problem.has_changed_only:  # a directory that got or lost an entry meanwhile
            continue
        elif name:
            results.append(_told(problem, problem.reason) | {"path": name})
        else:
            results.append(_told(problem, f"{place}: {problem.reason}"))
    return results


def _told(problem: ReadProblem, text: str) -> Result:
    """What a problem adds to a file's result: what was read of a file that is being written to is good."""
    return {"warning": text} if problem.has_changed_only else {"success": False, "error": text}


def _downloaded(place: str, member: unpacking.Unpacked) -> Result:
    if member.error is None:
        return {"success": True, "path": member.name, "bytes": member.size}
    if not member.name:
        return {"success": False, "error": f"{place}: {member.error}"}
    return {"success": False, "path": member.name, "error": member.error}


@contextlib.asynccontextmanager
async def _fetched(sandbox: Sandbox, place: str) -> AsyncIterator[Spooled | str]:
    """The archive of a file or directory, from its start, or why there is none."""
    async with contextlib.AsyncExitStack() as stack:
        found: Spooled | str
        try:
            async with _judged(sandbox):
                found = await stack.enter_async_context(spooled(sandbox, place, max_bytes=DOWNLOAD_MAX_BYTES))
        except (TransferError, ValueError) as error:
            found = str(error)
        yield found


@contextlib.asynccontextmanager
async def _judged(sandbox: Sandbox) -> AsyncIterator[None]:
    """What goes wrong with files of a living sandbox (the agent may have put a link loop or a file in the way) is a
    TransferError and thus the caller's to judge, not the infrastructure's."""
    try:
        yield
    except (SandboxLost, TransferError):
        raise
    except OSError as error:
        await sandbox.check()
        where = f": {error.filename}" if error.filename else ""
        raise TransferError(f"{unpacking.reason(error)}{where}") from error
    except SandboxError as error:
        await sandbox.check()
        raise TransferError(str(error)) from error
