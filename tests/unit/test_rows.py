"""Rows of data sets: the same task as the directory it was packed from, columns that win, and what is refused."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_archives import archive

from pytest_hermes.config import EnvSettings, Settings
from pytest_hermes.datasets.dataset import rows
from pytest_hermes.datasets.harbor import load_tasks
from pytest_hermes.datasets.indexing import ask, build
from pytest_hermes.datasets.pack import pack, row_of
from pytest_hermes.datasets.rows import COLUMNS, NEEDED, TEXTS, TREES, entry_of, task_of
from pytest_hermes.datasets.store import INDEX_FORMAT, Store
from pytest_hermes.errors import ConfigurationError, TaskError
from pytest_hermes.limits import Limits
from pytest_hermes.task import Task

SAMPLES = Path(__file__).parent.parent / "data" / "harbor"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("PYTEST_HERMES_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def b64(*members: tuple[str, dict[str, object], bytes]) -> str:
    return base64.b64encode(archive(*members)).decode()


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., list[Task]]:
    """The tasks of rows that are written to a JSONL file."""

    def tasks(*given: dict[str, Any], **env: Any) -> list[Task]:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in given))
        return rows(str(path)).load(Settings(env=EnvSettings(**env)), "")[0]

    return tasks


ROW: dict[str, Any] = {
    "task_name": "one",
    "instruction": "Do it.",
    "docker_image": "some/image:1",
    "environment_tar": "",
    "tests_tar": "",
    "test_sh": "echo 1 > /logs/verifier/reward.txt\n",
}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_packed_samples_are_the_same_tasks(tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"samples.{suffix}"
    assert pack([SAMPLES], target) == 8
    found = {task.id: task for task in rows(str(target)).load(Settings(), "")[0]}
    for wanted in load_tasks(SAMPLES, Settings()):
        task = found[wanted.id]
        assert task.error is None and task.digest == wanted.digest
        assert (task.difficulty, task.category, task.tags) == (wanted.difficulty, wanted.category, wanted.tags)
        assert task.tests is not None and wanted.tests is not None
        assert task.tests.files.tar() == wanted.tests.files.tar()


@pytest.mark.parametrize("script", [b"#!/bin/bash\r\ntrue\r\n", b"# caf\xe9\ntrue\n", b"true\0\n", b""])
def test_a_test_script_is_packed_byte_by_byte(tmp_path: Path, script: bytes) -> None:
    shutil.copytree(SAMPLES / "fix-git", tmp_path / "one")
    (tmp_path / "one" / "tests" / "test.sh").write_bytes(script)
    pack([tmp_path / "one"], tmp_path / "x.jsonl")
    (task,), (wanted,) = (
        rows(str(tmp_path / "x.jsonl")).load(Settings(), "")[0],
        load_tasks(tmp_path / "one", Settings()),
    )
    assert (task.error, task.digest) == (None, wanted.digest)


def test_packing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    pack([SAMPLES / "fix-git"], tmp_path / "a.jsonl")
    pack([SAMPLES / "fix-git"], tmp_path / "b.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_the_seven_columns_of_hermes_environments(read: Callable[..., list[Task]]) -> None:
    tests = b64(("test_outputs.py", {}, b"x = 1\n"), ("test.sh", {}, b"old\n"))
    (task,) = read({**ROW, "tests_tar": tests, "category": None})
    assert task.error is None
    assert (task.id, task.prompt, task.sandbox.image, task.category) == ("one", "Do it.", "some/image:1", "unknown")
    assert task.limits == Limits() and task.solution is None
    assert task.tests is not None and task.tests.entry == "test.sh"
    assert [(name, content) for name, _, content in task.tests.files.entries()] == [  # type: ignore[attr-defined]
        ("test.sh", ROW["test_sh"].encode()),
        ("test_outputs.py", b"x = 1\n"),
    ]


def test_further_columns(read: Callable[..., list[Task]]) -> None:
    more = {
        "difficulty": "hard",
        "category": "security",
        "tags": '["a", "b"]',
        "agent_timeout_sec": 900,
        "max_test_timeout_sec": 60.0,
        "build_timeout_sec": 600,
        "cpus": 2,
        "memory": "4G",
        "storage_mb": 5000,
        "workdir": "/srv",
        "allow_internet": False,
    }
    (task,) = read({**ROW, **more})
    assert task.error is None
    assert (task.difficulty, task.category, task.tags) == ("hard", "security", ("a", "b"))
    assert task.limits == Limits(agent_s=900.0, verify_s=60.0, build_s=600.0)
    spec = task.sandbox
    assert (spec.cpus, spec.memory_mb, spec.disk_mb, spec.workdir, spec.network) == (2.0, 4096, 5000, "/srv", False)


def test_columns_win_over_task_toml(read: Callable[..., list[Task]]) -> None:
    toml = '[agent]\ntimeout_sec = 5\nuser = "me"\n[environment]\nmemory = "1G"\n[metadata]\ndifficulty = "easy"\n'
    (task,) = read({**ROW, "task_toml": toml, "agent_timeout_sec": 7, "memory_mb": 2000, "difficulty": None})
    assert task.error is None
    assert (task.limits.agent_s, task.sandbox.memory_mb, task.sandbox.user) == (7.0, 2000, "me")
    assert task.difficulty == "easy"


def test_image_by_name_unless_it_is_to_be_built(read: Callable[..., list[Task]]) -> None:
    context = b64(("Dockerfile", {}, b"FROM x\n"), ("sub/data", {}, b"1"))
    named = {**ROW, "environment_tar": context}
    assert read(named)[0].sandbox.image == "some/image:1"
    build = read(named, force_build=True)[0].sandbox.build
    assert build is not None and [name for name, _, _ in build.context.entries()] == ["Dockerfile", "sub/data"]  # type: ignore[union-attr]
    assert read({**named, "docker_image": ""})[0].sandbox.build is not None
    (neither,) = read({**ROW, "docker_image": ""})
    assert "Dockerfile in column environment_tar is missing and environment.docker_image names no image" in str(
        neither.error
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tests_tar": b64(("../x", {}, b""))}, "task one of {path}: column tests_tar: '../x' leads out"),
        ({"environment_tar": "%%"}, "column environment_tar is not base64"),
        ({"instruction": "  "}, "column instruction is empty"),
        ({"instruction": None}, "column instruction is empty"),
        ({"test_sh": ""}, "column test_sh is missing"),
        ({"agent_timeout_sec": -3}, "field agent.timeout_sec is -3, not above 0"),
        ({"cpus": "two"}, "field environment.cpus is 'two', not a number"),
        ({"task_toml": "= ="}, "column task_toml is not TOML"),
        ({"task_name": ""}, "row 1: task_name is '', not a name"),
        ({"task_name": "a\nb"}, "row 1: task_name is 'a\\nb', not a name"),
        ({"task_name": 3}, "row 1: task_name is 3, not a name"),
        ({"instruction": 3}, "column instruction is a number, not a text"),
        ({"instruction": ["a"]}, "column instruction is a list, not a text"),
        ({"instruction": {"a": "x"}}, "column instruction is a table, not a text"),
        ({"instruction": "half \ud83d"}, "column instruction is not Unicode text"),
        ({"test_sh": {"a": "x"}}, "column test_sh is a table, not a text"),
        ({"test_sh": "half \ud83d"}, "column test_sh is not Unicode text"),
        ({"task_toml": ["a"]}, "column task_toml is a list, not a text"),
        ({"task_toml": "a = " + "[" * 20_000}, "column task_toml is not TOML"),
        ({"task_toml": "a = " + "1" * 5_000}, "column task_toml is not TOML"),
        ({"docker_image": {"a": 1}}, "column docker_image is a table"),
        ({"workdir": "/\ud83d"}, "column workdir is not Unicode text"),
        ({"tags": "[" * 100_000}, "column tags is nested too deeply"),
        ({"agent_timeout_sec": 10**400}, "field agent.timeout_sec is 1000"),
        ({"memory_mb": 10**400}, "field environment.memory_mb is 1000"),
        ({"memory": "9" * 400 + "G"}, "field environment.memory is '999"),
        ({"network_mode": ["public"]}, "field environment.network_mode is not supported (['public']"),
        ({"tests_tar": b64(("test.sh/a", {}, b"x"))}, "column tests_tar: 'test.sh' is a directory"),
    ],
)
def test_a_broken_row_is_named_and_the_others_go_on(
    read: Callable[..., list[Task]], tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    broken, fine = read({**ROW, **change}, {**ROW, "task_name": "two"})
    assert said.format(path=tmp_path / "rows.jsonl") in str(broken.error)
    assert fine.error is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(10**400) | st.just("\ud83d"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=3,
)


@given(st.dictionaries(st.sampled_from([*NEEDED, *TEXTS, *COLUMNS, *TREES.values()]), VALUES, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
def test_whatever_a_column_holds_the_row_is_a_task_or_a_broken_one(cache: Path, change: dict[str, Any]) -> None:
    store = Store(cache)
    entry = json.loads(json.dumps(entry_of({**ROW, **change}, 1, store)))
    task = task_of(entry, Settings(), "x", store)
    assert task.error or (task.digest and task.prompt.encode() and task.tests and task.tests.files.tar())


def test_a_row_without_a_column_and_one_whose_name_is_taken_are_broken(read: Callable[..., list[Task]]) -> None:
    bare = {name: value for name, value in ROW.items() if name != "instruction"}
    found = read(bare, {**ROW, "task_name": "row-4"}, {**ROW, "instruction": "Else."}, {**ROW, "task_name": ""})
    assert [task.error and task.error.split(": ", 1)[1] for task in found[:2]] == ["column instruction is empty", None]
    assert found[2].id == "row-3" and "row 3: task_name 'one' is row 1's too" in str(found[2].error)
    assert "row 4: task_name is ''" in str(found[3].error)
    assert len({task.id for task in found}) == 4


def test_a_broken_row_keeps_its_marks(read: Callable[..., list[Task]]) -> None:
    (task,) = read({**ROW, "instruction": 3, "difficulty": "hard", "category": "security"})
    assert task.error and (task.difficulty, task.category) == ("hard", "security")


def test_columns_of_other_types_in_parquet(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tests = archive(("a", {}, b"1"))
    row = {**ROW, "tests_tar": base64.b64encode(tests).decode(), "agent_timeout_sec": Decimal("900.00"), "cpus": 2}
    (wanted,) = _of_parquet(tmp_path, pa.Table.from_pylist([{**row, "agent_timeout_sec": 900.0}]), pq)
    assert wanted.error is None
    texts = list(ROW)
    for kind in (pa.binary(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        given: dict[str, Any] = dict(row)
        if kind == pa.binary():
            given |= {name: row[name].encode() for name in texts} | {"tests_tar": tests}
        schema = pa.schema(
            [*((name, kind) for name in texts), ("agent_timeout_sec", pa.decimal128(10, 2)), ("cpus", pa.int8())]
        )
        (task,) = _of_parquet(tmp_path, pa.Table.from_pylist([given], schema=schema), pq)
        assert (task.id, task.error, task.digest) == ("one", None, wanted.digest), kind


def _of_parquet(folder: Path, table: Any, writer: Any) -> list[Task]:
    path = folder / f"{table.schema.field(0).type}.parquet"
    writer.write_table(table, path)
    return rows(str(path)).load(Settings(), "")[0]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"format":2}',
        b'{"format":2,"tasks":3}',
        b'{"format":2,"tasks":[{}]}',
        b'{"format":2,"tasks":[],"source":"x","name":"x","made":1}',
        b'{"format":2,"tasks":[{"id":"a","columns":{},"trees":{"tests":{}},"error":null}],"source":"x","name":"x","made":1}',
        b"[" * 100_000,
    ],
)
def test_an_index_that_is_none_is_made_again(read: Callable[..., list[Task]], cache: Path, content: bytes) -> None:
    assert INDEX_FORMAT == 2, "so that it is the shape that these are refused for"
    assert read(ROW)[0].error is None
    (index,) = (cache / "indexes").iterdir()
    index.write_bytes(content)
    assert Store().indexes() == []
    assert read(ROW)[0].error is None
    assert len(Store().indexes()) == 1


def test_no_room_to_unpack_is_not_the_file_s_fault(read: Callable[..., list[Task]], monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.SpooledTemporaryFile", full)
    store = Store()
    with pytest.raises(ConfigurationError, match=r"archives are unpacked in .*\(No space left on device\).*TMPDIR"):
        build([{**ROW, "tests_tar": b64(("a", {}, b"1"))}], "rows.jsonl", "key", store)


def test_what_failed_once_in_a_run_fails_in_its_other_processes_at_once(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("[1]\n")
    asked = []

    def counted(request: Mapping[str, Any]) -> dict[str, Any]:
        asked.append(request)
        return ask(request)

    monkeypatch.setattr("pytest_hermes.datasets.indexing.ask", counted)
    for run in ("one", "one", "two", "", ""):
        with pytest.raises(ConfigurationError, match="line 1: a list, not an object"):
            rows(str(path)).load(Settings(), run)
    assert len(asked) == 4


def test_what_goes_wrong_unforeseen_is_one_sentence(cache: Path, monkeypatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ask({"kind": "table", "name": str(tmp_path / "a.jsonl\0"), "cache": str(cache)})
    assert "Traceback" not in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).endswith("(ValueError)")


def test_without_a_home_directory_the_variable_is_named(monkeypatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.delenv("PYTEST_HERMES_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(ConfigurationError, match=r"no home directory.*PYTEST_HERMES_CACHE"):
        Store()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the data set has no row"),
        ('{"a": 1}\n', "it has no column task_name (its columns: a)"),
        ("[1]\n", "line 1: a list, not an object"),
        ('{"task_name": "x", "instruction": "y"}\n{"task', "line 2: not JSON"),
    ],
)
def test_files_that_are_no_rows(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        rows(str(path)).load(Settings(), "")
    assert str(path) in str(caught.value) and said in str(caught.value)


def test_not_parquet(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_text("no")
    with pytest.raises(ConfigurationError, match=r"rows\.parquet: not a parquet file that can be read"):
        rows(str(path)).load(Settings(), "")


def test_a_changed_file_is_read_again_and_an_emptied_cache_filled_again(
    read: Callable[..., list[Task]], cache: Path
) -> None:
    row = {**ROW, "tests_tar": b64(("a", {}, b"1"))}
    first = read(row)[0]
    (index,) = (cache / "indexes").iterdir()
    made = index.stat().st_mtime_ns
    for blob in (cache / "blobs").rglob("*"):
        if blob.is_file():
            blob.unlink()
    assert first.tests is not None
    with pytest.raises(TaskError, match="cannot be read"):
        first.tests.files.tar()
    assert read(row)[0].tests.files.tar()  # type: ignore[union-attr]
    assert read({**row, "instruction": "Do more."})[0].prompt == "Do more."
    assert index.stat().st_mtime_ns == made


def test_a_damaged_archive_in_the_cache_is_no_result(read: Callable[..., list[Task]], cache: Path) -> None:
    (task,) = read({**ROW, "tests_tar": b64(("a", {}, b"1"))})
    (blob,) = (path for path in (cache / "blobs").rglob("*") if path.is_file())
    blob.write_bytes(b"other")
    assert task.tests is not None
    with pytest.raises(TaskError, match="the cached archive was changed"):
        task.tests.files.tar()


def test_a_cache_that_cannot_be_written_is_one_line(read: Callable[..., list[Task]], monkeypatch, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PYTEST_HERMES_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(ConfigurationError, match=r"cannot be written .*PYTEST_HERMES_CACHE"):
        read(ROW)


def test_packing_refuses_what_a_row_cannot_hold(tmp_path: Path) -> None:
    folder = tmp_path / "tasks" / "one"
    for part in ("environment", "tests"):
        (folder / part).mkdir(parents=True)
    (folder / "task.toml").write_text("[verifier]\nenv = {K = '${SOME_KEY}'}\ntimeout_sec = 3\n")
    (folder / "instruction.md").write_text("Do it.\n")
    (folder / "tests" / "test.sh").write_text("true\n")
    (folder / "environment" / "Dockerfile").write_text("FROM x\n")
    assert row_of(folder)["verifier_timeout_sec"] == 3.0, "host variables are the business of who runs it"
    (folder / "environment" / "link").symlink_to("/etc")
    with pytest.raises(ConfigurationError, match=r"cannot pack: .*link is a link out of"):
        pack([folder.parent], tmp_path / "x.jsonl")
    assert not list(tmp_path.glob("*x.jsonl*"))
    with pytest.raises(ConfigurationError, match=r"ends in \.csv, not in \.jsonl or \.parquet"):
        pack([SAMPLES], tmp_path / "x.csv")
    with pytest.raises(ConfigurationError, match="two tasks are called fix-git"):
        pack([SAMPLES / "fix-git", SAMPLES / "fix-git"], tmp_path / "x.jsonl")
