"""Archives of a data set's rows (base64 of a tar.gz): packed the same way everywhere, and read without trusting them.

A row comes from the network. What is not a plain file or directory below the archive's root (a link, a device, a path
that leads out), more than `MAX_FILES` files or more than `MAX_BYTES` expanded is refused with the archive's name; no
more than that is ever expanded, to a temporary file, and nothing is written under a name that the archive chose.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import io
import itertools
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import IO

from pytest_hermes import unpacking
from pytest_hermes.errors import TaskError, TransferError
from pytest_hermes.task import Entry

MAX_BYTES = 1 << 30
MAX_FILES = 100_000
MAX_HEADERS = 2 * MAX_FILES
IN_MEMORY_BYTES = 16 << 20
CHUNK_BYTES = 1 << 20
SMALLEST_STEP = 1 << 10
MAX_PARTS = 100_000
GZIP_MAGIC = b"\x1f\x8b"
GZIP_IN_BASE64 = b"H4sI"


def decoded(value: object, what: str) -> bytes | None:
    """The bytes of an archive column: base64 text or raw bytes; None where the row has none. Raises TaskError."""
    if value is None or value == "" or value == b"" or value != value:  # NaN stands for nothing
        return None
    if isinstance(value, bytes):
        if not value.startswith(GZIP_IN_BASE64) or value[257:262] == b"ustar":
            return value
        value = value.decode("ascii", "replace")
    if not isinstance(value, str):
        raise TaskError(f"{what} is a {type(value).__name__}, not base64 of a tar.gz")
    try:
        return base64.b64decode("".join(value.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise TaskError(f"{what} is not base64 ({error})") from error


def entries_of(packed: bytes, what: str, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> list[Entry]:
    """The files of a tar or tar.gz, sorted by name; of two of one name the later one. Raises TaskError, with `what`."""
    found: dict[str, Entry] = {}
    left = max_bytes
    headers = 0
    with _expanded(packed, what, max_bytes) as archive:
        try:
            with unpacking.opened(archive) as tar:
                for member in unpacking.members(archive, tar):
                    headers += 1
                    if headers > 2 * max_files:
                        raise TaskError(f"{what} has more than {2 * max_files:,} members")
                    name = _safe_name(member.name, what)
                    if member.isdir():
                        continue
                    if not member.isreg() or member.issparse():
                        raise TaskError(
                            f"{what}: {member.name!r} is {_kind(member)}; only files and directories may be in it"
                        )
                    left -= member.size
                    if left < 0:
                        raise TaskError(f"{what} expands to more than {max_bytes:,} bytes")
                    if not name:
                        raise TaskError(f"{what}: {member.name!r} is no file's name")
                    content = tar.extractfile(member)
                    assert content is not None
                    found[name] = name, stat.S_IMODE(member.mode) & 0o777, content.read()
                    if len(found) > max_files:
                        raise TaskError(f"{what} has more than {max_files:,} files")
        except TransferError as error:
            raise TaskError(f"{what}: {error}") from error
        except unpacking.DAMAGE as error:
            raise TaskError(f"{what}: the archive is damaged: {error}") from error
    ordered = sorted(name.replace("/", "\0") for name in found)  # what is below a name comes right after it
    for name, after in itertools.pairwise(ordered):
        if after.startswith(f"{name}\0"):
            raise TaskError(f"{what}: {name.replace(chr(0), '/')!r} is a file and a directory")
    return sorted(found.values())


def packed(entries: Iterable[Entry]) -> bytes:
    """A tar.gz of the files: the same bytes for the same files on every machine and day."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, mode, content in sorted(entries):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755 if mode & 0o100 else 0o644
            archive.addfile(info, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), mtime=0)


def encoded(archive: bytes) -> str:
    """Base64, as archive columns hold it."""
    return base64.b64encode(archive).decode()


def _expanded(packed: bytes, what: str, max_bytes: int) -> IO[bytes]:
    """The uncompressed archive in a temporary file that the caller closes."""
    most = max_bytes + MAX_HEADERS * tarfile.BLOCKSIZE
    plain = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES)  # noqa: SIM115 - the caller closes it
    try:
        if not packed.startswith(GZIP_MAGIC):
            plain.write(packed)
        else:
            _inflate(packed, plain, what, most, max_bytes)
    except BaseException:
        plain.close()
        raise
    plain.seek(0)
    return plain


def _inflate(packed: bytes, plain: IO[bytes], what: str, most: int, max_bytes: int) -> None:
    source, at, size, parts = memoryview(packed), 0, 0, 0
    while source[at : at + len(GZIP_MAGIC)] == GZIP_MAGIC:  # a gzip file may be several, one after the other
        parts += 1
        if parts > MAX_PARTS:
            raise TaskError(f"{what} is a gzip file of more than {MAX_PARTS:,} parts")
        stream = zlib.decompressobj(wbits=31)
        step = SMALLEST_STEP  # what is given and not used is copied, so little is given to a part that may be short
        try:
            while at < len(source) and not stream.eof:
                given = source[at : at + step]
                chunk = stream.decompress(given, CHUNK_BYTES)
                at += len(given) - len(stream.unconsumed_tail) - len(stream.unused_data)
                step = min(2 * step, CHUNK_BYTES)
                size += len(chunk)
                if size > most:
                    raise TaskError(f"{what} expands to more than {max_bytes:,} bytes")
                plain.write(chunk)
        except zlib.error as error:
            raise TaskError(f"{what} is not a tar.gz: {error}") from error
        if not stream.eof:
            raise TaskError(f"{what} is cut off")


def _safe_name(name: str, what: str) -> str:
    """The name without `./`; "" for the root itself. Raises TaskError for one that leads elsewhere."""
    size = len(name.encode(errors="surrogateescape"))
    if size >= unpacking.PATH_MAX:
        raise TaskError(f"{what}: {name[:80]!r}, {size:,} bytes long, cannot be a file's name")
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise TaskError(f"{what}: {name!r} leads out of the archive's directory")
    if "\0" in name or any(len(part.encode(errors="surrogateescape")) > unpacking.NAME_MAX for part in path.parts):
        raise TaskError(f"{what}: {name[:80]!r} cannot be a file's name")
    return "" if path == PurePosixPath(".") else path.as_posix()


def _kind(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return f"a link (to {member.linkname!r})"
    if member.issparse():
        return "a sparse file"
    return "a device" if member.isdev() and not member.isfifo() else "neither a file nor a directory"
