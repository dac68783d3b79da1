"""Downloads of archives that a hostile sandbox forged, and onto places that cannot take them."""

from __future__ import annotations

import asyncio
import io
import json
import os
import resource
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_archives import FORGED

from pytest_hermes import transfers
from pytest_hermes.artifacts.collect import collect
from pytest_hermes.errors import SandboxLost, TransferError
from pytest_hermes.sandbox.files import extract, read_problems
from pytest_hermes.sandbox.protocol import PartlyRead, ReadProblem
from pytest_hermes.task import Artifact

Entry = tuple[str, bytes, bytes | str]
FILE, DIR, SYM, HARD = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


class Forger:
    """A sandbox that answers every download with one archive."""

    def __init__(self, archive: bytes | Exception) -> None:
        self.archive = archive

    async def download_tar(self, place: str, *, max_bytes: int) -> bytes:
        if isinstance(self.archive, Exception):
            raise self.archive
        return self.archive

    async def check(self) -> None:
        return None


def tar(*entries: Entry, top: bool = True) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, kind, content in ([("top", DIR, b"")] if top else []) + list(entries):
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, 0o644
            if isinstance(content, str):
                info.linkname, content = content, b""
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def directory(archive: bytes | Exception, target: Path) -> list[dict[str, Any]]:
    return asyncio.run(transfers.download_directory(Forger(archive), "/x/top", target))  # type: ignore[arg-type]


def single(archive: bytes | Exception, target: Path) -> dict[str, Any]:
    return asyncio.run(transfers.download_file(Forger(archive), "/x/top", target))  # type: ignore[arg-type]


def success(results: list[dict[str, Any]]) -> dict[str | None, bool]:
    return {entry.get("path"): entry["success"] for entry in results}


def long_chain(outside: Path) -> bytes:
    """The archive of CVE-2025-4517: links whose resolved path is longer than PATH_MAX."""
    folder, steps, path = "d" * 247, "abcdefghijklmnop", "top"
    entries: list[Entry] = []
    for step in steps:
        entries += [(f"{path}/{folder}", DIR, b""), (f"{path}/{step}", SYM, folder)]
        path += f"/{folder}"
    last = "/".join(steps) + "/" + "l" * 254
    up = "../" * len(outside.parts)
    entries += [(f"top/{last}", SYM, "../" * len(steps)), ("top/escape", SYM, f"{last}/{up}{outside}")]
    return tar(*entries, ("top/escape/pwned", FILE, b"owned"))


def test_a_link_chain_beyond_path_max_writes_nothing_outside(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    results = success(directory(long_chain(tmp_path / "outside"), tmp_path / "down"))
    assert results["escape"] is results["escape/pwned"] is False
    assert list((tmp_path / "outside").iterdir()) == []
    assert not os.path.lexists(tmp_path / "down/escape")


@pytest.mark.parametrize(
    "entries",
    [
        [("/etc/x", FILE, b"")],
        [("top//etc/x", FILE, b"")],
        [("top/../../x", FILE, b"")],
        [("elsewhere/x", FILE, b"")],
        [("top/" + "n" * 256, FILE, b"")],
        [("top/" + "d/" * 2100 + "x", FILE, b"")],
        [("top/x", tarfile.CHRTYPE, b"")],
        [("top/x", tarfile.FIFOTYPE, b"")],
        [("top/x", HARD, "/etc/passwd")],
        [("top/x", HARD, "top/../../etc/passwd")],
        [("top/x", HARD, "top/none")],
        [("top/x", SYM, "/etc")],
        [("top/x", SYM, "..")],
        [("top/x", SYM, "name/../y")],
    ],
    ids=str,
)
def test_members_that_lead_out_are_refused_one_by_one(tmp_path: Path, entries: list[Entry]) -> None:
    results = directory(tar(*entries, ("top/ok", FILE, b"ok")), tmp_path / "down")
    assert [entry["success"] for entry in results] in ([False, True], [True, False])
    assert [path.name for path in (tmp_path / "down").iterdir() if path.name not in ("d", "name")] == ["ok"]


def test_links_are_made_last_and_only_inside(tmp_path: Path) -> None:
    entries: list[Entry] = [
        ("top/d", DIR, b""),
        ("top/d/f", FILE, b"f"),
        ("top/dot", SYM, "."),
        ("top/through", SYM, "dot/d"),
        ("top/d/up", SYM, "../d/f"),
        ("top/chain", SYM, "d/up"),
        ("top/dot/below", FILE, b""),
        ("top/hard", HARD, "top/d/f"),
        ("top/hardsoft", HARD, "top/dot"),
    ]
    results = success(directory(tar(*entries), tmp_path))
    assert {name for name, arrived in results.items() if not arrived} == {"through", "dot/below", "hardsoft"}
    assert (tmp_path / "chain").read_bytes() == b"f" and (tmp_path / "hard").samefile(tmp_path / "d/f")
    assert success(directory(tar(*entries), tmp_path)) == results


def test_links_that_the_target_has_are_replaced_but_not_followed(tmp_path: Path) -> None:
    outside, down = tmp_path / "outside", tmp_path / "down"
    outside.mkdir()
    down.mkdir()
    (outside / "f").write_text("mine")
    (down / "file").symlink_to(outside / "f")
    (down / "folder").symlink_to(outside)
    archive = tar(("top/file", FILE, b"new"), ("top/folder/f", FILE, b"new"), ("top/l", SYM, "folder/f"))
    assert success(directory(archive, down)) == {"file": True, "folder/f": False, "l": False}
    assert (outside / "f").read_text() == "mine" and (down / "file").read_text() == "new"
    (down / "one").symlink_to(outside / "f")
    assert single(tar(("top", FILE, b"new"), top=False), down / "one") == {"success": True, "bytes": 3}
    assert (outside / "f").read_text() == "mine" and not (down / "one").is_symlink()


def sparse(size: int) -> bytes:
    """An archive with a sparse file of `size` bytes, all of them a hole."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        top = tarfile.TarInfo("top")
        top.type = DIR
        archive.addfile(top)
        info = tarfile.TarInfo("top/big")
        info.pax_headers = {"GNU.sparse.map": f"{size},0", "GNU.sparse.size": str(size)}
        archive.addfile(info)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", sorted(FORGED))
def test_headers_that_expand_in_memory_are_refused_before_they_do(tmp_path: Path, growth, kind: str) -> None:
    with growth() as grown:
        (refused,) = directory(FORGED[kind], tmp_path / "a")
    assert "damaged" in refused["error"] and grown.mb < 60


def test_the_expanded_size_of_a_sparse_file_counts(tmp_path: Path) -> None:
    (refused,) = directory(sparse(transfers.DOWNLOAD_MAX_BYTES + 1), tmp_path / "a")
    assert not refused["success"] and "limit" in refused["error"] and list((tmp_path / "a").iterdir()) == []
    assert directory(sparse(5000), tmp_path / "b") == [{"success": True, "path": "big", "bytes": 5000}]


def test_a_damaged_archive_is_a_failing_result_after_those_that_came(tmp_path: Path) -> None:
    for archive in (b"", b"garbage" * 500, bytes(10240)):
        assert [entry["success"] for entry in directory(archive, tmp_path / "d")] == [False]
        assert single(archive, tmp_path / "f")["success"] is False
    good = tar(("top/a", FILE, b"a" * 5000), ("top/b", FILE, b"b" * 5000))
    for length in (9000, 512 + 512 + 5120, 512 + 512 + 5120 + 100):
        results = directory(good[:length], tmp_path / "d")
        assert results[0] == {"success": True, "path": "a", "bytes": 5000}
        assert not results[-1]["success"] and len(results) == 2
        assert [path.name for path in (tmp_path / "d").iterdir()] == ["a"]
    assert single(tar(("top", FILE, b"a" * 5000), top=False)[:3000], tmp_path / "f")["success"] is False
    assert not (tmp_path / "f").exists()


@pytest.mark.timeout(30)
def test_a_member_of_negative_size_does_not_loop_for_ever(tmp_path: Path) -> None:
    archive = bytearray(tar(("top/a", FILE, b"")))
    header = tarfile.TarInfo("top/a").tobuf(tarfile.GNU_FORMAT)
    forged = bytearray(header)
    forged[124:136] = (-1024).to_bytes(12, "big", signed=True)
    forged[148:156] = b" " * 8
    forged[148:156] = b"%06o\0 " % sum(forged)
    archive[512:1024] = forged
    assert [entry["success"] for entry in directory(bytes(archive), tmp_path)][-1:] == [False]


def test_places_on_this_machine_that_cannot_take_a_download(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    tree, one = tar(("top/a", FILE, b"a")), tar(("top", FILE, b"a"), top=False)
    os.mkfifo(tmp_path / "pipe")
    for results in (directory(tree, tmp_path / "file"), directory(tree, tmp_path / "file/below")):
        assert [entry["success"] for entry in results] == [False] and str(tmp_path) in results[0]["error"]
    for name in ("folder", "file/below", "pipe"):
        assert single(one, tmp_path / name)["success"] is False, name
    assert (tmp_path / "file").read_text() == "x" and list((tmp_path / "folder").iterdir()) == []
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    tree = tar(("top/a", FILE, b"a" * 50_000), ("top/big", FILE, b"b" * 200_000), ("top/c", FILE, b"c"))
    one = tar(("top", FILE, b"a" * 200_000), top=False)
    (tmp_path / "old").write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        results = directory(tree, tmp_path / "d")
        failed = [single(one, tmp_path / name) for name in ("new", "old")]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert success(results) == {"a": True, "big": False, "c": True}
    assert not any(entry["success"] for entry in failed) and "too large" in failed[0]["error"]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "c", "d", "old"]
    assert (tmp_path / "old").read_text() == "old"


def test_a_remote_place_below_a_file_is_a_failing_result(tmp_path: Path) -> None:
    broken = NotADirectoryError(20, "Not a directory", "/x/top")
    assert single(broken, tmp_path / "f") == {"success": False, "error": "Not a directory: /x/top"}
    assert [entry["success"] for entry in directory(broken, tmp_path / "d")] == [False]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError(2, "No such file or directory", "/x/top"), "No such file or directory: /x/top"),
        (PermissionError(13, "Permission denied", "/x/top"), "Permission denied: /x/top"),
        (OSError(5, "tar: command not found", "/x/top"), "tar: command not found: /x/top"),
        (OSError(40, "Too many levels of symbolic links", "/x/top"), "Too many levels of symbolic links: /x/top"),
    ],
)
def test_whatever_a_living_sandbox_says_of_its_files_is_a_failing_result(
    tmp_path: Path, error: OSError, said: str
) -> None:
    assert single(error, tmp_path / "f") == {"success": False, "error": said}
    assert directory(error, tmp_path / "d") == [{"success": False, "error": said}]

    class Refuser(Forger):
        async def upload_tar(self, archive: bytes, place: str) -> None:
            raise error

    (tmp_path / "up").write_text("x")
    (sent,) = [asyncio.run(transfers.upload_file(Refuser(b""), tmp_path / "up", "/x/top"))]  # type: ignore[arg-type]
    assert sent["exit_code"] == -1 and sent["error"] == said


PARTLY = [
    ReadProblem("top/log", "file changed as we read it", has_changed_only=True),
    ReadProblem("top", "file changed as we read it", has_changed_only=True),
    ReadProblem("top/secret", "Cannot open: Permission denied"),
    ReadProblem("top/short", "File shrank by 9 bytes; padding with zeros"),
    ReadProblem("", "something else"),
]


def test_what_could_be_read_is_kept_and_the_rest_is_named(tmp_path: Path) -> None:
    archive = tar(("top/log", FILE, b"log"), ("top/short", FILE, b"s\0"), ("top/ok", FILE, b"ok"))
    partly = PartlyRead("/x/top", PARTLY, archive)
    assert directory(partly, tmp_path / "d") == [
        {"success": True, "path": "log", "bytes": 3, "warning": "file changed as we read it"},
        {"success": False, "path": "short", "bytes": 2, "error": "File shrank by 9 bytes; padding with zeros"},
        {"success": True, "path": "ok", "bytes": 2},
        {"success": False, "path": "secret", "error": "Cannot open: Permission denied"},
        {"success": False, "error": "/x/top: something else"},
    ]
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == ["log", "ok", "short"]
    (tmp_path / "run").mkdir()
    asyncio.run(collect(Forger(partly), [Artifact("/x/top", exclude=("*/short",))], tmp_path / "run", max_bytes=10**6))  # type: ignore[arg-type]
    (entry,) = json.loads((tmp_path / "run/manifest.json").read_text())
    assert entry["files"] == "2" and entry["warning"] == "2 changed while read; top/log; top"
    assert entry["error"] == "2 not unpacked; top/secret: Cannot open: Permission denied; something else"


def test_one_file_that_changed_or_could_not_be_read_whole(tmp_path: Path) -> None:
    archive = tar(("top", FILE, b"log"), top=False)
    changed = PartlyRead("/x/top", [ReadProblem("top", "file changed as we read it", has_changed_only=True)], archive)
    told = {"success": True, "bytes": 3, "warning": "/x/top: file changed as we read it"}
    assert single(changed, tmp_path / "f") == told and (tmp_path / "f").read_text() == "log"
    broken = PartlyRead("/x/top", [ReadProblem("top", "Read error: Input/output error")], archive)
    assert single(broken, tmp_path / "f")["error"] == "/x/top: Read error: Input/output error"


def test_what_tars_say() -> None:
    gnu = rb"""tar: d/we\: ird\n\\x\303\274\377: Cannot open: Permission denied
tar: d/log: file changed as we read it
tar: d/socket: socket ignored
tar: Exiting with failure status due to previous errors
"""
    assert read_problems(gnu, 2) == [
        ReadProblem("d/we: ird\n\\xü\udcff", "Cannot open: Permission denied"),
        ReadProblem("d/log", "file changed as we read it", has_changed_only=True),
    ]
    busybox = b"tar: can't open 'd/it's': Permission denied\ntar: error exit delayed from previous errors\n"
    assert read_problems(busybox, 1) == [ReadProblem("d/it's", "Permission denied")]
    assert read_problems(b"Killed\n", 137) == [ReadProblem("", "Killed")]
    assert "137" in read_problems(b"", 137)[0].reason
    many = read_problems(b"".join(b"tar: f%d: gone\n" % n for n in range(9000))[-20_000:], 2)
    assert "very many" in many[0].reason and many[-1].name == "f8999" and all(p.name for p in many[1:])


def test_an_artifact_may_be_called_as_the_manifest(tmp_path: Path) -> None:
    archive = tar(("top", FILE, b"x"), top=False)
    asyncio.run(collect(Forger(archive), [Artifact("/x/top", "manifest.json")], tmp_path, max_bytes=10**6))  # type: ignore[arg-type]
    (entry,) = json.loads((tmp_path / "manifest.json").read_text())
    assert entry == {"source": "/x/top", "destination": "manifest.json-artifact", "files": "1"}
    assert (tmp_path / "manifest.json-artifact" / "top").read_text() == "x"


@pytest.mark.parametrize("download", [directory, single])
def test_a_lost_sandbox_is_raised(tmp_path: Path, download: Callable[[Any, Path], object]) -> None:
    with pytest.raises(SandboxLost):
        download(SandboxLost("gone"), tmp_path / "x")


def test_artifacts_are_unpacked_with_the_same_care(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "run").mkdir()
    archive = long_chain(tmp_path / "outside")
    asyncio.run(collect(Forger(archive), [Artifact("/x/top")], tmp_path / "run", max_bytes=10**6))  # type: ignore[arg-type]
    assert list((tmp_path / "outside").iterdir()) == []
    (entry,) = json.loads((tmp_path / "run/manifest.json").read_text())
    assert "escape" in entry["error"] or "refused" in entry["error"]


# -- uploads into a directory that an agent had its hands on -----------------------------------------------


def test_uploads_write_through_no_link_that_is_there(tmp_path: Path) -> None:
    place, outside = tmp_path / "place", tmp_path / "outside"
    place.mkdir(), outside.mkdir()
    (outside / "file").write_text("mine")
    (place / "folder").symlink_to(outside)
    (place / "file").symlink_to(outside / "file")
    os.link(outside / "file", place / "hard")
    os.mkfifo(place / "pipe")
    sent = [("folder/new", FILE, b"1"), ("file", FILE, b"2"), ("hard", FILE, b"3"), ("pipe", FILE, b"4")]
    with pytest.raises(TransferError, match=r"could not unpack 2 of 4 .*folder/new: refused: it lies below the link"):
        extract(tar(*sent, top=False), str(place))
    assert [path.name for path in outside.iterdir()] == ["file"] and (outside / "file").read_text() == "mine"
    assert (place / "file").read_text() == "2" and not (place / "file").is_symlink()
    assert (place / "hard").read_text() == "3"


def test_uploads_keep_modes_and_links(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind, mode in (("d", DIR, 0o700), ("d/a", FILE, 0o400), ("b", FILE, 0o754), ("l", SYM, 0o777)):
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.linkname = kind, mode, "/usr/bin/env" if kind == SYM else ""
            archive.addfile(info)
    extract(buffer.getvalue(), str(tmp_path / "new" / "place"))
    found = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in (tmp_path / "new" / "place").rglob("*")}
    assert found == {"d": 0o700, "a": 0o400, "b": 0o754, "l": 0o777}
    assert (tmp_path / "new" / "place" / "l").readlink() == Path("/usr/bin/env")
    extract(tar(top=False), str(tmp_path / "new" / "place"))  # a tree without files
