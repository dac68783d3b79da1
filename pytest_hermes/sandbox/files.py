"""File transfer for backends whose only door is `exec`: `head`, `cat` and `tar` inside the sandbox.

Paths travel as arguments of their own, never inside a shell's text.
"""

from __future__ import annotations

import errno
import io
import posixpath
import sys
import tarfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from pytest_hermes import unpacking
from pytest_hermes.errors import TransferError
from pytest_hermes.sandbox.protocol import ExecResult, OutputTooLarge, Sandbox

_C_LOCALE = {"LC_ALL": "C"}
# On a pipe that an agent has put there, the command would wait for ever.
_NO_PIPE = 'if [ -e "$1" ] && [ ! -f "$1" ] && [ ! -d "$1" ]; then echo "$1: Not a regular file" >&2; exit 1; fi; '
_READ = f'{_NO_PIPE}exec head -c "$2" -- "$1"'
_WRITE = f'{_NO_PIPE}mkdir -p -- "${{1%/*}}/" && cat >"$1" && chmod "$2" -- "$1"'
_UNPACK = 'mkdir -p -- "$1" && tar -C "$1" -xpf - --no-same-owner'
_PACK = (
    'test -e "$1" || test -L "$1" || { echo "No such file or directory" >&2; exit 1; }; exec tar -C "$2" -cf - -- "$3"'
)
_SMALL_MESSAGE = 20_000


def absolute(path: str, workdir: str) -> str:
    """`path` as an absolute, normalised path; a relative one starts at `workdir`."""
    if "\0" in path or not path:
        raise ValueError(f"not a path: {path!r}")
    return posixpath.normpath(posixpath.join(workdir, path))


def os_error(message: str, path: str) -> OSError:
    """The OSError that a C-locale tool's message stands for."""
    for text, number in (
        ("No such file", errno.ENOENT),
        ("Is a directory", errno.EISDIR),
        ("Permission denied", errno.EACCES),
        ("Not a directory", errno.ENOTDIR),
        ("Not a regular file", errno.EINVAL),
        ("No space left", errno.ENOSPC),
        ("Read-only file system", errno.EROFS),
    ):
        if text in message:
            return OSError(number, text if number != errno.ENOENT else "No such file or directory", path)
    return OSError(errno.EIO, message.strip()[-300:] or "failed", path)


def _text(result: ExecResult) -> str:
    return result.stderr.decode(errors="replace")


async def read_by_exec(sandbox: Sandbox, path: str, *, max_bytes: int) -> bytes:
    """`Sandbox.read_file` through one exec."""
    result = await sandbox.exec(
        ["sh", "-c", _READ, "sh", path, str(max_bytes + 1)], env=_C_LOCALE, user="root", max_output=max_bytes + 1
    )
    if result.exit_code != 0:
        raise os_error(_text(result), path)
    if result.stdout_bytes > max_bytes:
        raise OutputTooLarge(f"{path}: more than the {max_bytes} bytes allowed")
    return result.stdout


async def write_by_exec(sandbox: Sandbox, path: str, data: bytes, *, mode: int) -> None:
    """`Sandbox.write_file` through one exec."""
    result = await sandbox.exec(
        ["sh", "-c", _WRITE, "sh", path, f"{mode:o}"],
        env=_C_LOCALE,
        user="root",
        stdin=data,
        max_output=_SMALL_MESSAGE,
    )
    if result.exit_code != 0:
        raise os_error(_text(result), path)


async def unpack_by_exec(sandbox: Sandbox, archive: bytes, destination: str) -> None:
    """`Sandbox.upload_tar` through one exec."""
    result = await sandbox.exec(
        ["sh", "-c", _UNPACK, "sh", destination], env=_C_LOCALE, user="root", stdin=archive, max_output=_SMALL_MESSAGE
    )
    if result.exit_code != 0:
        raise TransferError(f"could not unpack {len(archive)} bytes below {destination}: {_text(result).strip()}")


async def pack_by_exec(sandbox: Sandbox, source: str, *, max_bytes: int) -> bytes:
    """`Sandbox.download_tar` through one exec."""
    parent, name = posixpath.split(source.rstrip("/") or "/")
    result = await sandbox.exec(
        ["sh", "-c", _PACK, "sh", source, parent, name or "."], env=_C_LOCALE, user="root", max_output=max_bytes
    )
    if result.exit_code != 0:
        raise os_error(_text(result), source)
    if result.truncated:
        raise OutputTooLarge(f"{source}: its archive is larger than the {max_bytes} bytes allowed")
    return result.stdout


async def stream_by_exec(
    sandbox: Sandbox, source: str, add: Callable[[bytes], Awaitable[None]], *, max_bytes: int
) -> None:
    """`stream_tar` through one stream: the archive of `source` in chunks, however large. Errors of `pack_by_exec`."""
    parent, name = posixpath.split(source.rstrip("/") or "/")
    argv = ["sh", "-c", f"exec 2>/dev/null; {_PACK}", "sh", source, parent, name or "."]
    stream = await sandbox.open_stream(argv, env=_C_LOCALE)
    total = 0
    try:
        while data := await stream.read():
            total += len(data)
            if total > max_bytes:
                raise OutputTooLarge(f"{source}: its archive is larger than the {max_bytes} bytes allowed")
            await add(data)
        code = await stream.exit_code()
    finally:
        await stream.close()
    if code != 0:
        told = await sandbox.exec(
            ["sh", "-c", f"exec >/dev/null; {_PACK}", *argv[3:]], env=_C_LOCALE, user="root", max_output=_SMALL_MESSAGE
        )
        raise os_error(_text(told), source)


def extract(archive: bytes, destination: str) -> None:
    """Unpack an archive on this host below `destination`, modes kept. No link that is there already is followed.

    TransferError if a member cannot be unpacked or would leave it; the others are there then.
    """
    if archive.startswith(bytes(tarfile.BLOCKSIZE)):  # its end mark: a tree without files
        return
    spool, folder = io.BytesIO(archive), Path(destination)
    with unpacking.opened(spool) as tar:
        done = unpacking.unpack(tar, unpacking.members(spool, tar), folder, max_bytes=sys.maxsize, faithful=True)
    failed = [member.failure for member in done if member.failure]
    if failed:
        raise TransferError(f"could not unpack {len(failed)} of {len(done)} below {destination}: {failed[0]}")
