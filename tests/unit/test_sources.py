"""What `--hermes-dataset SOURCE` can name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_hermes.datasets.sources import (
    DirectorySource,
    HubSource,
    RegistrySource,
    TableSource,
    parse_source,
)
from pytest_hermes.errors import ConfigurationError


def test_names_of_the_hub() -> None:
    assert parse_source("org/name") == HubSource("org/name", "main", "train")
    assert parse_source("org/name@v1", split="test") == HubSource("org/name", "v1", "test")
    assert parse_source("org/name", revision="a" * 40) == HubSource("org/name", "a" * 40, "train")
    assert parse_source("org/name@" + "a" * 40).is_pinned  # type: ignore[union-attr]
    assert not parse_source("org/name").is_pinned  # type: ignore[union-attr]


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.parquet", "b.jsonl", "c.json"):
        (tmp_path / name).write_text("")
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert parse_source("a.parquet") == TableSource(Path("a.parquet"))
    assert parse_source(str(tmp_path / "b.jsonl")) == TableSource(tmp_path / "b.jsonl")
    assert parse_source("c.json") == RegistrySource(Path("c.json"), None)
    assert parse_source("./c.json#x@1") == RegistrySource(Path("c.json"), "x@1")
    assert parse_source("org/name") == DirectorySource(Path("org/name")), "what is there is a path"


def test_a_path_may_hold_a_number_sign(tmp_path: Path) -> None:
    folder = tmp_path / "a#b"
    folder.mkdir()
    for name in ("rows.jsonl", "r.json"):
        (folder / name).write_text("")
    assert parse_source(str(folder)) == DirectorySource(folder)
    assert parse_source(str(folder / "rows.jsonl")) == TableSource(folder / "rows.jsonl")
    assert parse_source(f"{folder / 'r.json'}#x@1") == RegistrySource(folder / "r.json", "x@1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("taks", "neither a path that exists nor a data set of the hub (org/name). Did you mean 'tasks'?"),
        ("./taks", "there is no such file or directory. Did you mean 'tasks'?"),
        (
            "rows.parqet",
            "neither a path that exists nor a data set of the hub (org/name). Did you mean 'rows.parquet'?",
        ),
        ("row.parquet", "there is no such file or directory. Did you mean 'rows.parquet'?"),
        ("a" * 300, "neither a path that exists nor"),
        ("./" + "a/" * 3000, "there is no such file or directory"),
        ("~nobody-of-this-name/x", "there is no such file or directory"),
        ("a\0b", "neither a path that exists nor"),
        ("a/b/c", "neither a path that exists nor"),
        ("x.txt", "not a file of tasks. Wanted is"),
    ],
)
def test_what_is_nothing_of_these(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks").mkdir()
    for name in ("rows.parquet", "x.txt"):
        (tmp_path / name).write_text("")
    with pytest.raises(ConfigurationError) as caught:
        parse_source(text)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["rows.jsonl", "registry.json"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigurationError, match="not a file of tasks"):
        parse_source(str(tmp_path / name))


def test_two_revisions() -> None:
    with pytest.raises(ConfigurationError, match=r"env\.dataset_revision says 'v2'\. Give one"):
        parse_source("org/name@v1", revision="v2")
