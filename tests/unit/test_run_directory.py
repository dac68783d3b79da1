"""The run directory: rows survive kills, several processes agree, secrets stay out."""

import json
import os
import subprocess
import sys

import pytest

from pytest_hermes.artifacts.records import read_rows
from pytest_hermes.artifacts.run_directory import RunDirectory, RunIdentity, file_name
from pytest_hermes.errors import ConfigurationError


def row(**changes):
    base = {"format": 1, "benchmark": "b", "node_id": "n", "task_digest": "d", "attempt": 1, "outcome": "passed"}
    return base | changes


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory(RunIdentity.new(tmp_path), "bench", "main")
    directory.make(lambda: {"settings": {}})
    yield directory
    directory.close()


def test_rows_come_back_and_the_last_of_an_attempt_wins(run):
    run.append(row(outcome="passed"))
    run.append(row(node_id="other"))
    run.append(row(outcome="failed"))
    rows = read_rows(run.path)
    assert [(r["node_id"], r["outcome"]) for r in rows] == [("n", "failed"), ("other", "passed")]


def test_a_torn_last_line_is_passed_over(run):
    run.append(row())
    with run.shard.open("a") as shard:
        shard.write('{"format": 1, "half')
    assert len(read_rows(run.path)) == 1


def test_a_newer_format_is_refused_in_one_line(run):
    run.append(row(format=99))
    with pytest.raises(ConfigurationError, match="written in format 99"):
        read_rows(run.path)


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="not a run directory"):
        read_rows(tmp_path)


@pytest.mark.parametrize("placeholder", ["none", "test", "1", "x", "preset"])
def test_a_placeholder_for_a_key_masks_nothing(run, placeholder):
    written = row(node_id="test_preset.py::test_run[1]", messages=[{"content": "none of test 1"}])
    run.append(written, (placeholder,))
    assert json.loads(run.shard.read_text())["messages"] == written["messages"]


def test_names_and_keys_of_a_row_stay_whatever_a_key_is(run):
    secret = "terminal_bench"
    written = row(node_id=f"{secret}.py::test", task_id=secret, messages=[{secret: f"say {secret}, {{}}"}])
    run.append(written, (secret,))
    found = json.loads(run.shard.read_text())
    assert (found["node_id"], found["task_id"]) == (written["node_id"], secret)
    assert found["messages"] == [{secret: "say ***, {}"}]


def test_secrets_are_masked_in_what_is_written(run):
    run.append(row(messages=[{"content": 'key is sk-"secret"'}]), ('sk-"secret"',))
    text = run.shard.read_text()
    assert "secret" not in text and "***" in text
    json.loads(text)


def test_lone_surrogates_are_written_and_read(run):
    run.append(row(error="\ud800"))
    assert read_rows(run.path)[0]["error"] == "\ud800"


def test_all_processes_find_the_same_directory_and_one_manifest_wins(tmp_path):
    identity = RunIdentity.new(tmp_path)
    assert identity.find() is None
    for worker in ("gw0", "gw1"):
        RunDirectory(identity, "bench", worker).make(lambda worker=worker: {"by": worker})
    assert identity.find() == identity.path("bench")
    assert json.loads((identity.path("bench") / "run.json").read_text())["by"] == "gw0"


def test_rows_before_a_kill_are_on_disk(tmp_path):
    program = (
        "import os, pathlib\n"
        "from pytest_hermes.artifacts.run_directory import RunDirectory, RunIdentity\n"
        f"run = RunDirectory(RunIdentity('id', 'utc', {str(tmp_path)!r}), 'b', 'main')\n"
        "run.make(dict)\n"
        "for n in range(50): run.append({'format': 1, 'benchmark': 'b', 'node_id': str(n), 'task_digest': '',"
        " 'attempt': 1, 'text': 'x' * 100000})\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=False)
    assert len(read_rows(tmp_path / "utc-b-id")) == 50


def test_an_unwritable_root_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="Choose another with --hermes-run-dir"):
        RunDirectory(RunIdentity.new(tmp_path / "file"), "b", "main").make(dict)


@pytest.mark.parametrize("name", ["fix-git", "a/../b", "..", "ü", "x" * 300, "a b", ""])
def test_file_names_are_one_safe_component(name):
    safe = file_name(name)
    assert safe == os.path.basename(safe) and safe not in ("", ".", "..") and len(safe) <= 120


def test_different_names_stay_different():
    assert file_name("a/b") != file_name("a_b") != file_name("a b")
