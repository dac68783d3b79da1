"""The file transfer part of a backend's contract; `contract.SandboxContract` has it."""

from __future__ import annotations

import asyncio
import io
import stat
import tarfile

import pytest

from pytest_hermes.errors import SandboxError, TransferError
from pytest_hermes.sandbox.contract_case import RUN, archive_of, in_sandbox
from pytest_hermes.sandbox.protocol import OutputTooLarge, Sandbox, StreamsTar
from pytest_hermes.sandbox.spool import spooled


async def _ignored(_: bytes) -> None:
    """Where the chunks of an archive go that nobody wants."""


class FilesContract:
    """Files and archives, both ways."""

    @in_sandbox()
    async def test_file_round_trip(self, sandbox: Sandbox) -> None:
        """Any bytes, any name, parents made, mode set; relative to the working directory."""
        data = bytes(range(256)) * 40
        for name in ("plain", "deep/er/file", "with space/ü 中.txt", "$(touch x);'\"", "-dash"):
            await sandbox.write_file(name, data, mode=0o750)
            assert await sandbox.read_file(name) == data
            path = f"{sandbox.workdir.rstrip('/')}/{name}"
            shown = await sandbox.exec(["stat", "-c", "%a %s", "--", path])
            assert shown.stdout == b"750 %d\n" % len(data)
        await sandbox.write_file("plain", b"")
        assert await sandbox.read_file("plain") == b""

    @in_sandbox()
    async def test_file_errors(self, sandbox: Sandbox) -> None:
        """Missing, directory, too large, each by its own exception; links are followed."""
        with pytest.raises(FileNotFoundError):
            await sandbox.read_file("no/such/file")
        with pytest.raises(IsADirectoryError):
            await sandbox.read_file("/usr")
        await sandbox.write_file("big", b"x" * 2_000)
        with pytest.raises(OutputTooLarge):
            await sandbox.read_file("big", max_bytes=1_999)
        assert len(await sandbox.read_file("big", max_bytes=2_000)) == 2_000
        await sandbox.exec("ln -s big one; ln -s one two; ln -s nowhere dangling")
        assert len(await sandbox.read_file("two")) == 2_000
        with pytest.raises(FileNotFoundError):
            await sandbox.read_file("dangling")

    @in_sandbox()
    async def test_a_pipe_is_no_file(self, sandbox: Sandbox) -> None:
        """What is neither file nor directory is refused, and still there afterwards."""
        await sandbox.exec("mkfifo pipe; ln -s pipe link")
        async with asyncio.timeout(60):
            for place in ("pipe", "link", "/dev/null"):
                with pytest.raises((OSError, SandboxError), match="regular file"):
                    await sandbox.read_file(place)
                with pytest.raises(OSError, match="regular file"):
                    await sandbox.write_file(place, b"x")
            with pytest.raises(OSError, match=r"."):
                await sandbox.write_file("/proc/version", b"x")
            with pytest.raises(TransferError):
                await sandbox.upload_tar(archive_of({"null": (b"x", 0o644)}), "/dev")
        assert (await sandbox.exec("test -p pipe && test -L link && test -c /dev/null")).exit_code == 0

    @in_sandbox()
    async def test_no_file_takes_the_place_of_a_directory(self, sandbox: Sandbox) -> None:
        await sandbox.exec("mkdir -p top/full/src top/empty; echo precious >top/full/src/main.c; ln -s top/full link")
        for name in ("top/full", "top/empty", "link"):
            with pytest.raises(IsADirectoryError):
                await sandbox.write_file(name, b"x")
        for name in ("full", "empty"):
            with pytest.raises(TransferError):
                await sandbox.upload_tar(archive_of({name: (b"x", 0o644)}), "top")
        assert await sandbox.read_file("top/full/src/main.c") == b"precious\n"
        assert (await sandbox.exec("test -d top/empty && test -L link")).exit_code == 0

    @in_sandbox()
    async def test_files_are_written_through_links(self, sandbox: Sandbox) -> None:
        await sandbox.write_file("there/file", b"old")
        await sandbox.exec("ln -s there/file link; ln -s there/new dangling; ln -s there folder")
        for name in ("link", "dangling", "folder/below"):
            await sandbox.write_file(name, b"new")
        for name in ("there/file", "there/new", "there/below"):
            assert await sandbox.read_file(name) == b"new"
        assert (await sandbox.exec("test -L link && test -L dangling && test -L folder")).exit_code == 0

    @in_sandbox()
    async def test_memory_file_systems(self, sandbox: Sandbox) -> None:
        """Files of /dev/shm go both ways, also through a link to it."""
        top = f"/dev/shm/{RUN}"
        try:
            await sandbox.write_file(f"{top}/file", b"1")
            assert (await sandbox.exec(["cat", f"{top}/file"])).stdout == b"1"
            await sandbox.exec(["sh", "-c", f"printf 2 >{top}/theirs; ln -s {top} shm"])
            assert await sandbox.read_file(f"{top}/theirs") == await sandbox.read_file("shm/theirs") == b"2"
            for place in (f"{top}/new/place", "shm/sent", "shm"):
                await sandbox.upload_tar(archive_of({"sent": (b"3", 0o640)} if place != "shm" else {}), place)
            assert (await sandbox.exec(["cat", f"{top}/new/place/sent", f"{top}/sent/sent"])).stdout == b"33"
            with tarfile.open(fileobj=io.BytesIO(await sandbox.download_tar(top))) as opened:
                names = {member.name for member in opened if member.isreg()}
            assert names == {f"{RUN}/{name}" for name in ("file", "theirs", "new/place/sent", "sent/sent")}
            with pytest.raises(FileNotFoundError):
                await sandbox.download_tar(f"{top}/none")
            if isinstance(sandbox, StreamsTar):
                chunks = bytearray()

                async def add(data: bytes) -> None:
                    chunks.extend(data)

                await sandbox.stream_tar(f"{top}/theirs", add, max_bytes=1_000_000)
                with tarfile.open(fileobj=io.BytesIO(chunks)) as opened:
                    assert opened.getnames() == ["theirs"]
        finally:
            await sandbox.exec(["rm", "-rf", top])

    @in_sandbox()
    async def test_a_file_that_grows_keeps_no_other_back(self, sandbox: Sandbox) -> None:
        """A log that is being written to is no failure of an archive; the other files are in it."""
        await sandbox.exec("mkdir live; echo keep >live/result.txt")
        await sandbox.exec("(while :; do date; done >>live/server.log) >/dev/null 2>&1 &")
        for _ in range(5):
            async with spooled(sandbox, "live", max_bytes=100_000_000) as found:
                with tarfile.open(fileobj=found.archive) as opened:
                    assert {"live/result.txt", "live/server.log"} <= set(opened.getnames())
                assert all(problem.has_changed_only for problem in found.problems)

    @in_sandbox()
    async def test_files_without_a_size_of_their_own(self, sandbox: Sandbox) -> None:
        """/proc shows sizes of 0: an archive says so instead of holding empty files."""
        assert b"version" in await sandbox.read_file("/proc/version")
        for place in ("/proc/version", "/proc/self/net"):
            with pytest.raises(OSError, match="size of their own"):
                await sandbox.download_tar(place)

    @in_sandbox()
    async def test_big_file(self, sandbox: Sandbox) -> None:
        """20 MB both ways."""
        data = bytes(range(251)) * 80_000
        await sandbox.write_file("big", data)
        assert (await sandbox.exec("wc -c < big")).stdout.strip() == b"%d" % len(data)
        assert await sandbox.read_file("big") == data

    @in_sandbox()
    async def test_directories(self, sandbox: Sandbox) -> None:
        """A tree both ways: contents, modes, links, a destination that was missing."""
        files = {f"d{n % 7}/file {n}": (b"%d" % n * n, 0o640 if n % 2 else 0o755) for n in range(200)}
        await sandbox.upload_tar(archive_of(files), "new/place")
        await sandbox.exec(["ln", "-s", "d1/file 1", f"{sandbox.workdir.rstrip('/')}/new/place/link"])
        archive = await sandbox.download_tar("new/place")
        found, links = {}, {}
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            for member in opened:
                name = member.name.removeprefix("place/")
                if member.isreg():
                    content = opened.extractfile(member)
                    assert content is not None
                    found[name] = (content.read(), stat.S_IMODE(member.mode))
                elif member.issym():
                    links[name] = member.linkname
        assert found == files
        assert links == {"link": "d1/file 1"}
        if isinstance(sandbox, StreamsTar):
            chunks: list[bytes] = []

            async def add(data: bytes) -> None:
                chunks.append(data)

            await sandbox.stream_tar("new/place", add, max_bytes=10_000_000)
            assert b"".join(chunks) == archive

    @in_sandbox()
    async def test_transfer_errors(self, sandbox: Sandbox) -> None:
        """What is not there, what is too large, what is no archive."""
        with pytest.raises(FileNotFoundError):
            await sandbox.download_tar("no/such")
        await sandbox.write_file("much/file", b"x" * 100_000)
        with pytest.raises(OutputTooLarge):
            await sandbox.download_tar("much", max_bytes=50_000)
        if isinstance(sandbox, StreamsTar):
            with pytest.raises(FileNotFoundError):
                await sandbox.stream_tar("no/such", _ignored, max_bytes=50_000)
            with pytest.raises(OutputTooLarge):
                await sandbox.stream_tar("much", _ignored, max_bytes=50_000)
        with pytest.raises(TransferError):
            await sandbox.upload_tar(b"this is no tar archive" * 100, "place")
