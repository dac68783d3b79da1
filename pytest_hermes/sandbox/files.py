"""File transfer for backends whose only door is `exec`: `head`, `cat` and `tar` inside the sandbox.

Paths travel as arguments of their own, never inside a shell's text. What `tar` could read is kept, whatever else it
says: its messages become `ReadProblem`s (`PartlyRead`), and an OSError only where it read nothing at all.
"""

from __future__ import annotations

import asyncio
import errno
import io
import posixpath
import re
import secrets
import sys
import tarfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

from pytest_hermes import unpacking
from pytest_hermes.errors import TransferError
from pytest_hermes.sandbox.protocol import ExecResult, OutputTooLarge, PartlyRead, ReadProblem, Sandbox, Stream

_C_LOCALE = {"LC_ALL": "C"}
# On a pipe that an agent has put there, the command would wait for ever.
_NO_PIPE = 'if [ -e "$1" ] && [ ! -f "$1" ] && [ ! -d "$1" ]; then echo "$1: Not a regular file" >&2; exit 1; fi; '
_READ = f'{_NO_PIPE}exec head -c "$2" -- "$1"'
_WRITE = f'{_NO_PIPE}mkdir -p -- "${{1%/*}}/" && cat >"$1" && chmod "$2" -- "$1"'
# tar would remove an empty directory, a pipe or a device to put a file there.
_FREE = (
    'into=$1; shift; mkdir -p -- "$into" || exit; '
    'for name; do to="$into/$name"; if [ -L "$to" ] || [ -f "$to" ] || [ ! -e "$to" ]; then continue; fi; '
    'if [ -d "$to" ]; then echo "$to: Is a directory" >&2; else echo "$to: Not a regular file" >&2; fi; exit 1; done; '
)
_UNPACK = f'{_FREE}exec tar -C "$into" -xpf - --no-same-owner'
_NO_SIZE = "Files of the kernel have no size of their own, read them by a command"
# In /proc and /sys, tar believes the size that is shown, 0 or a page, and makes empty or padded files of it.
_PACK = (
    '[ -e "$1" ] || [ -L "$1" ] || { echo "No such file or directory" >&2; exit 1; }; '
    '[ -L "$1" ] || case $(stat -f -c %T -- "$1" 2>/dev/null) in '
    f'proc | sysfs | cgroup*fs | debugfs | tracefs | securityfs) echo "{_NO_SIZE}" >&2; exit 1 ;; esac; '
    'exec tar -C "$2" -cf - -- "$3"'
)
# The archive goes straight to the stream; after it a mark, what was said, and the exit code.
_PACK_AND_SAY = (
    "export LC_ALL=C; exec 3>&1 2>/dev/null; said=$({ ( "
    + _PACK
    + " ) 2>&1 >&3 3>&-; printf '\\n%s' \"$?\"; } | tail -c 20000); "
    'printf \'%s%s\' "$4" "$said"'
)
_SMALL_MESSAGE = 20_000
_NAMES_BYTES = 500_000
"""Names travel as arguments: Linux allows 2 MB in all."""
_GNU_MESSAGE = re.compile(rb"tar: ((?:[^\\:]|\\.)+): (.+)")
_BUSYBOX_MESSAGE = re.compile(rb"tar: can't \w+ '(.*)': (.+)")
_NO_PROBLEM = re.compile(rb"tar: (.*: socket ignored|Exiting with failure status.*|error exit delayed.*|)")
_CHANGED = "changed as we read it"
_ESCAPED = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_ESCAPES = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


def absolute(path: str, workdir: str) -> str:
    """`path` as an absolute, normalised path; a relative one starts at `workdir`."""
    if "\0" in path or not path:
        raise ValueError(f"not a path: {path!r}")
    return posixpath.normpath(posixpath.join(workdir, path))


def os_error(message: str, path: str, code: int | None) -> OSError:
    """The OSError that a C-locale tool's message stands for; `code` is for one that said nothing."""
    for text, number in (
        ("No such file", errno.ENOENT),
        ("Is a directory", errno.EISDIR),
        ("Permission denied", errno.EACCES),
        ("Not a directory", errno.ENOTDIR),
        ("Not a regular file", errno.EINVAL),
        (_NO_SIZE, errno.EINVAL),
        ("No space left", errno.ENOSPC),
        ("Read-only file system", errno.EROFS),
    ):
        if text in message:
            return OSError(number, text if number != errno.ENOENT else "No such file or directory", path)
    silent = f"The command in the sandbox ended with exit code {code} and said nothing"
    return OSError(errno.EIO, message.strip()[-300:] or silent, path)


def _text(result: ExecResult) -> str:
    return result.stderr.decode(errors="replace")


async def read_by_exec(sandbox: Sandbox, path: str, *, max_bytes: int) -> bytes:
    """`Sandbox.read_file` through one exec."""
    result = await sandbox.exec(
        ["sh", "-c", _READ, "sh", path, str(max_bytes + 1)], env=_C_LOCALE, user="root", max_output=max_bytes + 1
    )
    if result.exit_code != 0:
        raise os_error(_text(result), path, result.exit_code)
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
        raise os_error(_text(result), path, result.exit_code)


async def unpack_by_exec(sandbox: Sandbox, archive: bytes, destination: str) -> None:
    """`Sandbox.upload_tar` through one exec (further ones to look for what is in the way of very many files)."""
    *before, last = _portions(await asyncio.to_thread(_file_names, archive, destination))
    for names, script, data in [*((names, _FREE, b"") for names in before), (last, _UNPACK, archive)]:
        result = await sandbox.exec(
            ["sh", "-c", script, "sh", destination, *names],
            env=_C_LOCALE,
            user="root",
            stdin=data,
            max_output=_SMALL_MESSAGE,
        )
        if result.exit_code != 0:
            raise TransferError(f"could not unpack {len(archive)} bytes below {destination}: {_text(result).strip()}")


def _file_names(archive: bytes, destination: str) -> list[str]:
    """The names in an archive, without those of directories."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            return [member.name for member in opened if not member.isdir()]
    except unpacking.DAMAGE as error:
        raise TransferError(f"not a tar archive for {destination}: {error}") from error


def _portions(names: Sequence[str]) -> Iterator[list[str]]:
    """`names` in lists that fit into a command's arguments, at least one."""
    portion: list[str] = []
    size = 0
    for name in names:
        size += 4 * len(name) + 16
        if portion and size > _NAMES_BYTES:
            yield portion
            portion, size = [], 4 * len(name) + 16
        portion.append(name)
    yield portion


async def pack_by_exec(sandbox: Sandbox, source: str, *, max_bytes: int) -> bytes:
    """`Sandbox.download_tar` through one exec."""
    result = await sandbox.exec(
        ["sh", "-c", _PACK, "sh", *_place(source)], env=_C_LOCALE, user="root", max_output=max_bytes
    )
    if result.stdout_bytes > len(result.stdout):
        raise OutputTooLarge(f"{source}: its archive is larger than the {max_bytes} bytes allowed")
    if result.exit_code != 0:
        raise _unread(source, result.stderr[-_SMALL_MESSAGE:], result.exit_code, archive=result.stdout)
    return result.stdout


async def stream_by_exec(
    sandbox: Sandbox,
    source: str,
    add: Callable[[bytes], Awaitable[None]],
    *,
    max_bytes: int,
    opened: Callable[[Sequence[str]], Awaitable[Stream]] | None = None,
) -> None:
    """`stream_tar` through one stream: the archive of `source` in chunks, however large. Errors of `pack_by_exec`.

    `opened` opens the stream where `sandbox.open_stream` would be the wrong user's.
    """
    mark = secrets.token_bytes(16).hex().encode()
    argv = ["sh", "-c", _PACK_AND_SAY, "sh", *_place(source), mark.decode()]
    stream = await (opened(argv) if opened else sandbox.open_stream(argv))
    held, total, first = bytearray(), 0, b""
    kept_back = _SMALL_MESSAGE + len(mark)
    try:
        while data := await stream.read():
            held += data
            if len(held) > kept_back:
                part = bytes(held[:-kept_back])
                del held[:-kept_back]
                total, first = total + len(part), first or part[:1]
                if total > max_bytes:
                    raise OutputTooLarge(f"{source}: its archive is larger than the {max_bytes} bytes allowed")
                await add(part)
    finally:
        await stream.close()
    part, found, said = bytes(held).rpartition(mark)
    if not found:
        await sandbox.check()
        raise OSError(errno.EIO, "The command in the sandbox that reads it was ended", source)
    if total + len(part) > max_bytes:
        raise OutputTooLarge(f"{source}: its archive is larger than the {max_bytes} bytes allowed")
    await add(part)
    message, _, code = said.rpartition(b"\n")
    if code != b"0":
        number = int(code) if code.isdigit() else None
        raise _unread(source, message, number, archive=None, first=first or part[:1])


def _place(source: str) -> tuple[str, str, str]:
    """`source`, its parent and its name there."""
    parent, name = posixpath.split(source.rstrip("/") or "/")
    return source, parent, name or "."


def _unread(source: str, said: bytes, code: int | None, *, archive: bytes | None, first: bytes = b"") -> Exception:
    """What it means that tar made an archive and ended with `code`; `first` is the archive's first byte."""
    if (archive or first)[:1] in (b"", b"\0"):  # nothing, or the end mark at once
        return os_error(said.decode(errors="replace"), source, code)
    return PartlyRead(source, read_problems(said, code), archive)


def read_problems(said: bytes, code: int | None) -> list[ReadProblem]:
    """The problems that the messages of GNU's or BusyBox's tar name (`tar: NAME: REASON`), at least one."""
    lines = said.splitlines()
    problems = []
    if len(said) > _SMALL_MESSAGE - 10:  # the tail of a stream has the exit code in it as well
        problems.append(ReadProblem("", "very many could not be read, of which only the last are named"))
        del lines[0]  # not whole
    for line in lines:
        if _NO_PROBLEM.fullmatch(line) or not line:
            continue
        found = _BUSYBOX_MESSAGE.fullmatch(line) or _GNU_MESSAGE.fullmatch(line)
        name = _unescaped(found[1]) if found else ""
        reason = (found[2] if found else line).decode(errors="replace")
        problems.append(ReadProblem(name, reason, has_changed_only=_CHANGED in reason))
    return problems or [ReadProblem("", f"tar ended with exit code {code} and said nothing")]


def _unescaped(name: bytes) -> str:
    """A name as GNU's tar quotes it (`--quoting-style=escape`), as it is."""

    def one(match: re.Match[bytes]) -> bytes:
        return bytes([int(match[1], 8) & 255]) if len(match[1]) == 3 else _ESCAPES.get(match[1], match[1])

    return _ESCAPED.sub(one, name).decode(errors="surrogateescape")


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
