"""Unpacks tar archives on this machine, out of untrusted sandboxes or into directories that one had its hands on:
nothing is written outside the given directory, and what cannot be unpacked is said member by member.

It does not rely on the extraction filters of `tarfile`, which a chain of links longer than PATH_MAX defeats
(CVE-2025-4517); every directory is opened by its descriptor, and no link is followed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from pytest_hermes.errors import TransferError

PATH_MAX = 4096
NAME_MAX = 255
DAMAGE = (tarfile.TarError, ValueError, OverflowError, EOFError, LookupError, RecursionError)
"""What `tarfile` raises on forged headers."""
MAX_EXTENSION_BYTES = 1 << 20
MAX_HEADER_BYTES = 100 << 20
EXTENSIONS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
"""Kinds of members that are more headers of the next one, read into memory as a whole."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Damaged(TransferError):
    """The archive cannot be read from here on."""


@dataclasses.dataclass(frozen=True)
class Unpacked:
    """What became of one member: its bytes, or None for a directory, or the error."""

    name: str
    size: int | None = None
    error: str | None = None

    @property
    def failure(self) -> str | None:
        """The error with the member's name; without one where the archive itself is at fault."""
        return f"{self.name}: {self.error}" if self.name and self.error else self.error


class _Member(tarfile.TarInfo):
    """Headers that `tarfile` would expand in memory are refused: a few kilobytes ask for any amount."""

    def _block(self, count: int) -> int:
        if count < 0:  # tarfile would go backwards and read the same headers for ever (CVE-2025-8194)
            raise tarfile.ReadError("a member of negative size")
        return -(-count // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in EXTENSIONS:
            tar.header_bytes = getattr(tar, "header_bytes", 0) + self.size  # type: ignore[attr-defined]
            if self.size > MAX_EXTENSION_BYTES or tar.header_bytes > MAX_HEADER_BYTES:  # type: ignore[attr-defined]
                raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        return super()._proc_member(tar)  # type: ignore[misc,no-any-return]

    def _proc_gnusparse_10(self, *_: object) -> None:
        raise tarfile.ReadError("a sparse file with its map in its content")


@contextlib.contextmanager
def opened(archive: IO[bytes]) -> Iterator[tarfile.TarFile]:
    """An uncompressed archive. TransferError for what is none."""
    with contextlib.ExitStack() as stack:
        try:
            tar = stack.enter_context(tarfile.open(fileobj=archive, mode="r:", tarinfo=_Member))
        except DAMAGE as error:
            raise TransferError(f"not a tar archive, or a damaged one: {error}") from error
        yield tar


def members(archive: IO[bytes], tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members, at least one. TransferError where the archive is damaged, cut off or empty."""
    count = 0
    while True:
        try:
            member = tar.next()
            tar.members.clear()  # type: ignore[attr-defined]  # it would keep them all
        except DAMAGE as error:
            raise Damaged(f"the archive is damaged or cut off: {error}") from error
        if member is None:
            break
        count += 1
        yield member
    archive.seek(tar.offset)
    if archive.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise Damaged("the archive is damaged or cut off: it has no end mark")
    if not count:
        raise TransferError("the archive is empty")


def for_the_owner(mode: int) -> int:
    """The mode of a file that came from elsewhere: the owner can read and write it, others never write it."""
    mode = mode & 0o755 | 0o600
    return mode if mode & 0o100 else mode & ~0o111


def _as_it_is(mode: int) -> int:
    return mode & 0o755


def unpack(
    tar: tarfile.TarFile,
    found: Iterator[tarfile.TarInfo],
    folder: Path,
    *,
    max_bytes: int,
    named: Callable[[str], str | None] = lambda name: name,
    faithful: bool = False,
) -> list[Unpacked]:
    """Unpack members below `folder`, made if missing; files that are there are replaced.

    `named` gives the name below `folder` for a name in the archive, "" to leave a member out and None to refuse it.
    `max_bytes` limits the sum of the expanded sizes. No link leads out of `folder` and the owner can read and write all
    files; with `faithful`, for a sandbox's own directories, links and modes are those of the archive (but others never
    write). A damaged archive adds one error to what came before. OSError if `folder` itself cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        tree = _Tree(root, len(os.fsencode(folder.absolute())), max_bytes, faithful)
        done: list[Unpacked] = []
        name: str | None = ""
        try:
            for member in found:
                name = named(member.name)
                if name is None:
                    done.append(Unpacked(member.name, error="refused: not below the directory that was asked for"))
                elif name:
                    link = named(member.linkname) if member.islnk() else member.linkname
                    done += _judged(name, lambda m=member, n=name, k=link: tree.add(tar, m, n, k))  # type: ignore[misc]
                name = ""
        except (TransferError, OSError) as error:
            done.append(Unpacked(name or "", error=reason(error)))
        for name in tree.links:  # last: no file can be written through one
            done += _judged(name, lambda n=name: tree.make_link(n))  # type: ignore[misc]
        return done
    finally:
        os.close(root)


def _judged(name: str, make: Callable[[], Unpacked | None]) -> list[Unpacked]:
    try:
        made = make()
    except Damaged:
        raise
    except (TransferError, OSError, *DAMAGE) as error:
        return [Unpacked(name, error=reason(error))]
    return [made] if made else []


def reason(error: Exception) -> str:
    """An error in words, without the names of temporary files."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


class _Tree:
    """A directory that is being filled."""

    def __init__(self, root: int, above: int, max_bytes: int, faithful: bool) -> None:
        self.links: dict[str, str] = {}
        self._root, self._above, self._left, self._faithful = root, above, max_bytes, faithful
        self._files: set[str] = set()

    def add(self, tar: tarfile.TarFile, member: tarfile.TarInfo, name: str, link: str | None) -> Unpacked | None:
        """Unpack one member; symbolic links wait for `make_link`."""
        parts = self._parts(name)
        name = "/".join(parts)
        if not parts:
            return None
        if member.isdir():
            with self._directory(parts) as made:
                if self._faithful:
                    os.fchmod(made, _as_it_is(member.mode) | 0o700)
                return Unpacked(name)
        if not (member.isreg() or member.islnk() or member.issym()):
            raise TransferError("refused: neither a file, a directory nor a link")
        source = "/".join(self._parts(link or "")) if member.islnk() else ""
        if member.islnk() and (source not in self._files or source == name):
            raise TransferError(f"refused: a hard link to {link!r}, which is no earlier file of the archive")
        if member.isreg() and member.size > self._left:
            raise TransferError(f"refused: {member.size} bytes, {self._left} are left of the limit")
        with self._directory(parts[:-1]) as parent:
            if member.isreg():
                size = write(tar, member, parent, parts[-1], _as_it_is if self._faithful else for_the_owner)
                self._left -= size
            else:
                remove(parent, parts[-1])
                self._files.discard(name)
                self.links.pop(name, None)
                if member.issym():
                    self.links[name] = member.linkname
                    return None
                size = self._hard_link(source.split("/"), parent, parts[-1])
        self.links.pop(name, None)
        self._files.add(name)
        return Unpacked(name, size)

    def _hard_link(self, source: list[str], parent: int, name: str) -> int:
        with self._directory(source[:-1]) as other:
            os.link(source[-1], name, src_dir_fd=other, dst_dir_fd=parent, follow_symlinks=False)
        return os.stat(name, dir_fd=parent, follow_symlinks=False).st_size

    def make_link(self, name: str) -> Unpacked:
        """Make a symbolic link, whose end no file is written through any more."""
        target, parts = self.links[name], name.split("/")
        if not self._faithful:
            self._check_link(target, parts[:-1])
        with self._directory(parts[:-1]) as parent:
            os.symlink(target, parts[-1], dir_fd=parent)
        return Unpacked(name, len(os.fsencode(target)))

    def _check_link(self, target: str, place: list[str]) -> None:
        """Refuse a link in `place` that may leave, whatever else is, or comes to be, in the directory."""
        if target.startswith("/") or not target or len(os.fsencode(target)) >= PATH_MAX:
            raise TransferError("refused: a link to an absolute, empty or over-long path")
        below = False
        steps = [step for step in target.split("/") if step not in ("", ".")]
        for number, step in enumerate(steps):
            if step != "..":
                below = True
                place.append(step)
                self._check_step(place, last=number == len(steps) - 1)
            elif below:  # the name before it might become a link, and its parent is then another one
                raise TransferError(f"refused: a link to {target!r}, which goes down and up again")
            elif not place:
                raise TransferError(f"refused: a link to {target!r}, which leaves the directory")
            else:
                place.pop()

    def _check_step(self, place: list[str], *, last: bool) -> None:
        """Refuse a link through another link, or to one that is not of this archive."""
        name = "/".join(place)
        if name in self.links:
            linked = not last
        else:
            try:
                with self._directory(place[:-1], make=False) as parent:
                    linked = stat.S_ISLNK(os.stat(place[-1], dir_fd=parent, follow_symlinks=False).st_mode)
            except (FileNotFoundError, NotADirectoryError):
                linked = False
        if linked:
            raise TransferError(f"refused: a link through the link {name!r}")

    def _parts(self, name: str) -> list[str]:
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts or "\0" in name:
            raise TransferError("refused: an absolute name, or one with '..'")
        sizes = [len(os.fsencode(part)) for part in parts]
        if max(sizes, default=0) > NAME_MAX or self._above + sum(sizes) + len(sizes) >= PATH_MAX:
            raise TransferError("refused: the name is too long")
        return parts

    @contextlib.contextmanager
    def _directory(self, parts: list[str], *, make: bool = True) -> Iterator[int]:
        """A real directory below the root, opened step by step."""
        current = os.dup(self._root)
        try:
            for number, part in enumerate(parts):
                name = "/".join(parts[: number + 1])
                if name in self.links:
                    raise TransferError(f"refused: it lies below the link {name!r}")
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=current)
                if stat.S_ISLNK(os.stat(part, dir_fd=current, follow_symlinks=False).st_mode):
                    raise TransferError(f"refused: it lies below the link {name!r}")
                deeper = os.open(part, _DIRECTORY, dir_fd=current)
                os.close(current)
                current = deeper
            yield current
        finally:
            os.close(current)


def remove(parent: int, name: str) -> None:
    """Make way for a new `name`: remove a file or link. OSError for a directory, TransferError for a device or pipe."""
    with contextlib.suppress(FileNotFoundError):
        _check_replaceable(parent, name)
        os.unlink(name, dir_fd=parent)


def _check_replaceable(parent: int, name: str) -> None:
    mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(21, "Is a directory", name)
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        raise TransferError("a device, pipe or socket is in the way")


def write(
    tar: tarfile.TarFile,
    member: tarfile.TarInfo,
    parent: int,
    name: str,
    mode_of: Callable[[int], int] = for_the_owner,
) -> int:
    """Write a regular member as `name`, which appears once it is whole and replaces a file or link; its size.

    OSError and TransferError leave nothing behind.
    """
    with contextlib.suppress(FileNotFoundError):
        _check_replaceable(parent, name)
    content = tar.extractfile(member)
    if content is None:
        raise TransferError("not a regular file")
    part = f".{secrets.token_hex(8)}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(part, flags, 0o600, dir_fd=parent), "wb") as file:
            size = 0
            try:
                while data := content.read(1 << 20):
                    size += file.write(data)
            except DAMAGE as error:
                raise Damaged(f"the archive is damaged or cut off: {error}") from error
            if size != member.size:
                raise TransferError(f"{member.size} bytes expected, {size} arrived")
            file.flush()
            os.fchmod(file.fileno(), mode_of(member.mode))
            with contextlib.suppress(ValueError, OverflowError, OSError):  # a forged time: the file is whole without it
                os.utime(file.fileno(), (member.mtime, member.mtime))
        os.rename(part, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part, dir_fd=parent)
        raise
    return size
