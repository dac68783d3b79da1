"""The tasks of a data set: `Benchmark("mine", tasks=rows("org/name"), verify=run_test_script)`.

Whichever process of a run needs the data set first resolves it, under a lock, into the cached index; all others (xdist
workers, later runs) read that. Which commit a branch means is settled once per run, so that all workers collect the
same items. A file's index is made again when the file changes.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_hermes.config import Settings
from pytest_hermes.datasets import indexing
from pytest_hermes.datasets.harbor import load_tasks
from pytest_hermes.datasets.registry import registry_tasks
from pytest_hermes.datasets.rows import task_of
from pytest_hermes.datasets.sources import DirectorySource, HubSource, RegistrySource, TableSource, parse_source
from pytest_hermes.datasets.store import Store, key_of
from pytest_hermes.errors import ConfigurationError
from pytest_hermes.task import Task

RUNS_REMEMBERED = 50


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Where a benchmark's tasks came from, for the run's manifest."""

    source: str
    commit: str | None = None
    split: str | None = None
    note: str | None = None
    """What a user should know: the hub could not be reached, say."""

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


class Dataset:
    """Tasks by a source that the settings may override; see `rows`."""

    def __init__(self, source: str, *, revision: str | None = None, split: str | None = None) -> None:
        self.source = source
        self.revision = revision
        self.split = split

    def load(self, settings: Settings, run_id: str) -> tuple[list[Task], Provenance]:
        """The tasks and where they came from. Raises ConfigurationError."""
        env = settings.env
        if env.tasks_dir:
            return load_tasks(Path(env.tasks_dir), settings), Provenance(env.tasks_dir)
        chosen = env.dataset_name or self.source
        own = chosen == self.source
        revision = env.dataset_revision or (self.revision if own else None)
        split = (self.split if own and env.dataset_split == "train" else None) or env.dataset_split
        source = parse_source(chosen, revision=revision, split=split)
        if isinstance(source, DirectorySource):
            return load_tasks(source.path, settings), Provenance(str(source.path))
        store = Store()
        if isinstance(source, RegistrySource):
            tasks, name = registry_tasks(source, settings, store, run_id)
            return tasks, Provenance(name)
        index, note = (
            _hub_index(source, store, run_id) if isinstance(source, HubSource) else _table_index(source, store, run_id)
        )
        made = [task_of(entry, settings, index["source"], store) for entry in index["tasks"]]
        return made, Provenance(index["name"], index["commit"], index["split"], note)


def rows(source: str, *, revision: str | None = None, split: str = "train") -> Dataset:
    """Tasks of a hub data set or a local source (`--hermes-dataset` and `env.dataset_*` choose another)."""
    return Dataset(source, revision=revision, split=split)


def _table_index(source: TableSource, store: Store, run_id: str) -> tuple[Mapping[str, Any], None]:
    try:
        key = indexing.table_key(source.path)
    except OSError as error:
        raise ConfigurationError(f"{source.path}: cannot be read ({error.strerror})") from error
    if (index := store.read_index(key)) is not None:
        return index, None
    with store.once(key, run_id):
        if (index := store.read_index(key)) is not None:
            return index, None
        answer = indexing.ask({"kind": "table", "name": str(source.path), "cache": str(store.root)})
        return _made(store, answer["key"]), None


def _hub_index(source: HubSource, store: Store, run_id: str) -> tuple[Mapping[str, Any], str | None]:
    if source.is_pinned:
        index = store.read_index(indexing.hub_key(source.name, source.revision, source.split))
        if index is not None:
            return index, None
    known = key_of(source.name, source.revision, source.split)
    with store.once(known, run_id):
        remembered: dict[str, Any] = store.read("revisions", known) or {}
        commits: dict[str, str] = dict(remembered.get("commits") or {})
        if run_id and run_id in commits:
            index = store.read_index(indexing.hub_key(source.name, commits[run_id], source.split))
            if index is not None:
                return index, (remembered.get("notes") or {}).get(run_id)
        answer = indexing.ask(
            {
                "kind": "hub",
                "name": source.name,
                "revision": source.revision,
                "split": source.split,
                "cache": str(store.root),
            }
        )
        name = run_id or "last"
        commits.pop(name, None)
        kept = list(commits.items())[-RUNS_REMEMBERED:]
        notes = {run: text for run, text in (remembered.get("notes") or {}).items() if run in dict(kept)}
        if answer["note"]:
            notes[name] = answer["note"]
        store.write(
            "revisions", known, {"commits": {**dict(kept), name: answer["commit"]}, "notes": notes, "at": time.time()}
        )
        return _made(store, answer["key"]), answer["note"]


def _made(store: Store, key: str) -> Mapping[str, Any]:
    index = store.read_index(key)
    if index is None:
        raise ConfigurationError(f"cache of data sets {store.root}: what was just written cannot be read")
    return index
