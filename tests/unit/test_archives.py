"""Archives of rows: plain files come out as they went in, everything else is refused with the archive's name."""

from __future__ import annotations

import base64
import gzip
import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hermes.datasets.archives import decoded, encoded, entries_of, packed
from pytest_hermes.errors import TaskError

NAMES = st.lists(st.text("abcdé .-_", min_size=1, max_size=8).filter(lambda part: part.strip(". ")), min_size=1).map(
    "/".join
)


def archive(*members: tuple[str, dict[str, object], bytes], compress: bool = True) -> bytes:
    """A tar.gz of (name, fields of TarInfo, content)."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for name, fields, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for field, value in fields.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(content))
    return gzip.compress(plain.getvalue()) if compress else plain.getvalue()


@given(st.dictionaries(NAMES, st.tuples(st.sampled_from([0o644, 0o755]), st.binary(max_size=50)), max_size=5))
def test_what_is_packed_comes_out(files: dict[str, tuple[int, bytes]]) -> None:
    parents = {"/".join(name.split("/")[:n]) for name in files for n in range(1, name.count("/") + 1)}
    entries = sorted((name, mode, content) for name, (mode, content) in files.items() if name not in parents)
    if not entries:
        return
    there = packed(entries)
    assert there == packed(reversed(entries)), "the order of the files does not matter"
    assert entries_of(there, "x") == entries
    assert decoded(encoded(there), "x") == there


def test_plain_tars_directories_and_doubled_names() -> None:
    plain = archive(
        ("./a/", {"type": tarfile.DIRTYPE}, b""), ("./a/b", {}, b"1"), ("a/b", {"mode": 0o755}, b"2"), compress=False
    )
    assert entries_of(plain, "x") == [("a/b", 0o755, b"2")]


def test_members_of_a_gzip_file_in_parts() -> None:
    plain = archive(("a", {}, b"1" * 5000), compress=False)
    assert entries_of(gzip.compress(plain[:3000]) + gzip.compress(plain[3000:]), "x") == [("a", 0o644, b"1" * 5000)]


@pytest.mark.parametrize("nothing", [None, "", b"", float("nan")])
def test_no_archive(nothing: object) -> None:
    assert decoded(nothing, "x") is None


REFUSED = {
    "an absolute path": (archive(("/etc/passwd", {}, b"x")), "'/etc/passwd' leads out"),
    "a path above": (archive(("a/../../b", {}, b"x")), "leads out"),
    "a link": (archive(("a", {"type": tarfile.SYMTYPE, "linkname": "/etc"}, b"")), "'a' is a link (to '/etc')"),
    "a hard link": (archive(("a", {"type": tarfile.LNKTYPE, "linkname": "b"}, b"")), "'a' is a link (to 'b')"),
    "a device": (archive(("a", {"type": tarfile.CHRTYPE}, b"")), "'a' is a device"),
    "an old sparse file": (archive(("a", {"type": tarfile.GNUTYPE_SPARSE}, b"")), "'a' is a sparse file"),
    "a pipe": (archive(("a", {"type": tarfile.FIFOTYPE}, b"")), "'a' is neither a file nor a directory"),
    "a file as directory": (archive(("a", {}, b"x"), ("a/b", {}, b"x")), "'a' is a file and a directory"),
    "a file without a name": (archive((".", {}, b"x")), "is no file's name"),
    "a name too long": (archive(("n" * 300, {}, b"x")), "cannot be a file's name"),
    "a path too long": (archive(("n/" * 2100 + "n", {}, b"x")), "cannot be a file's name"),
    "a file as directory, others between": (archive(("a", {}, b"x"), ("a.b", {}, b"x"), ("a/b", {}, b"x")), "'a' is a"),
    "no tar": (gzip.compress(b"hello" * 1000), "not a tar archive"),
    "no gzip": (b"hello", "not a tar archive"),
    "gzip cut off": (archive(("a", {}, bytes(range(256)) * 40))[:-20], "is cut off"),
    "broken gzip": (archive(("a", {}, b"x"))[:12] + b"\xff" * 40, "is not a tar.gz"),
    "tar cut off": (gzip.compress(archive(("a", {}, b"x" * 2000), compress=False)[:1024]), "the archive is damaged"),
    "empty": (archive(), "the archive is empty"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused_is_named(kind: str) -> None:
    content, said = REFUSED[kind]
    with pytest.raises(TaskError, match=r"^column tests_tar") as caught:
        entries_of(content, "column tests_tar")
    assert said in str(caught.value)


def test_a_bomb_is_refused_before_it_is_expanded(growth) -> None:
    bomb = archive(("zeros", {}, bytes(300_000_000)))
    assert len(bomb) < 1_000_000
    with growth() as grown, pytest.raises(TaskError, match="x expands to more than 50,000,000 bytes"):
        entries_of(bomb, "x", max_bytes=50_000_000)
    assert grown.mb < 60
    many = archive(*[(str(n), {}, b"") for n in range(300)])
    with pytest.raises(TaskError, match="x has more than 100 files"):
        entries_of(many, "x", max_files=100)
    folders = archive(*[(str(n), {"type": tarfile.DIRTYPE}, b"") for n in range(300)])
    with pytest.raises(TaskError, match="x has more than 200 members"):
        entries_of(folders, "x", max_files=100)


def test_a_sparse_member_counts_by_what_it_expands_to() -> None:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("sparse")
        info.pax_headers = {
            "GNU.sparse.major": "0",
            "GNU.sparse.minor": "1",
            "GNU.sparse.name": "sparse",
            "GNU.sparse.size": "9000000000000",
            "GNU.sparse.numblocks": "0",
            "GNU.sparse.map": "",
        }
        tar.addfile(info, io.BytesIO(b""))
    with pytest.raises(TaskError, match=r"expands to more than|damaged"):
        entries_of(plain.getvalue(), "x")


def test_a_gzip_file_in_very_many_parts() -> None:
    plain = archive(("a", {}, b"1"), compress=False)
    parts = gzip.compress(plain) + gzip.compress(b"") * 60_000
    assert entries_of(parts, "x") == [("a", 0o644, b"1")]
    with pytest.raises(TaskError, match="x is a gzip file of more than 100,000 parts"):
        entries_of(gzip.compress(plain) + gzip.compress(b"") * 100_001, "x")


def sparse_by_a_map(numbers: int) -> bytes:
    """A pax 1.0 sparse member whose map has this many numbers; it packs to almost nothing."""
    plain = io.BytesIO()
    content = f"{numbers // 2}\n".encode() + b"0\n" * numbers
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("s")
        info.size = len(content)
        sparse = {"major": "1", "minor": "0", "name": "s", "realsize": "10"}
        info.pax_headers = {f"GNU.sparse.{name}": value for name, value in sparse.items()}
        tar.addfile(info, io.BytesIO(content))
    return plain.getvalue()


def extended(kind: bytes, size: int) -> bytes:
    """An archive whose file comes after an extension header of this size."""
    return archive(("h", {"type": kind}, b"x" * size), ("a", {}, b"1"), compress=False)


FORGED = {
    "a sparse file by its map": sparse_by_a_map(4_000_000),
    "a long pax header": extended(tarfile.XHDTYPE, 2_000_000),
    "a long global header": extended(tarfile.XGLTYPE, 2_000_000),
    "a long name": extended(tarfile.GNUTYPE_LONGNAME, 2_000_000),
}


@pytest.mark.parametrize("kind", FORGED)
def test_headers_that_expand_in_memory_are_refused_before_they_do(kind: str, growth) -> None:
    with growth() as grown, pytest.raises(TaskError, match=r"damaged.*(sparse|header of 2,000,000 bytes)"):
        entries_of(FORGED[kind], "x")
    assert grown.mb < 40


def test_deep_directories() -> None:
    deep = archive(*[(f"{n}" + "/d" * 2000, {}, b"") for n in range(500)])
    assert len(entries_of(deep, "x")) == 500


def test_long_names_by_both_kinds_of_header() -> None:
    name = "/".join(["n" * 200] * 15)
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w", format=form) as tar:
            info = tarfile.TarInfo(name)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"1"))
        assert entries_of(plain.getvalue(), "x") == [(name, 0o644, b"1")]


@pytest.mark.parametrize("value", ["%%%", "abc", 7, [1]])
def test_not_base64(value: object) -> None:
    with pytest.raises(TaskError, match=r"^x is "):
        decoded(value, "x")


def test_base64_in_lines() -> None:
    assert decoded(base64.encodebytes(b"a" * 200).decode(), "x") == b"a" * 200


def test_bytes_are_the_archive_or_its_base64() -> None:
    there = archive(("a", {}, b"1"))
    plain = archive(("H4sI", {}, b"1"), compress=False)
    assert decoded(there, "x") == decoded(base64.b64encode(there), "x") == there
    assert decoded(plain, "x") == plain
