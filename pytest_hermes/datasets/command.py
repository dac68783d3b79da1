"""`pytest-hermes dataset fetch | list | pack`: each gives the lines to print."""

from __future__ import annotations

import argparse
import collections
import json
import time
from collections.abc import Iterator

from pytest_hermes.config import EnvSettings, Settings
from pytest_hermes.datasets.dataset import Provenance, rows
from pytest_hermes.datasets.pack import pack as write_rows
from pytest_hermes.datasets.store import Store
from pytest_hermes.task import Task


def fetch(options: argparse.Namespace) -> Iterator[str]:
    """Resolve a source into the cache and say what came."""
    tasks, origin = _load(options)
    if options.json:
        digests = {task.id: task.digest for task in tasks if not task.error}
        yield json.dumps({**origin.as_json(), "tasks": digests, "broken": [task.error for task in tasks if task.error]})
        return
    yield f"{origin.source}" + (f", commit {origin.commit}, split {origin.split}" if origin.commit else "")
    yield f"{len(tasks)} tasks; " + _counts(tasks)
    if origin.note:
        yield origin.note
    yield from (f"broken: {task.error}" for task in tasks if task.error)
    yield f"cache: {Store().root}"


def list_tasks(options: argparse.Namespace) -> Iterator[str]:
    """The tasks of a source, or the data sets in the cache."""
    if options.source is None:
        yield from _cached(as_json=options.json)
        return
    tasks, _ = _load(options)
    width = max(len(task.id) for task in tasks)
    for task in tasks:
        spec = task.sandbox
        if options.json:
            fields = {"task": task.id, "difficulty": task.difficulty, "category": task.category, "image": spec.image}
            yield json.dumps({**fields, "digest": None if task.error else task.digest, "error": task.error})
        elif task.error:
            yield f"{task.id:<{width}}  broken: {task.error}"
        else:
            what = spec.image or ("built" if spec.build else "no image")
            yield f"{task.id:<{width}}  {task.difficulty or '-':<8}  {task.category or '-'}  {what}"


def pack(options: argparse.Namespace) -> Iterator[str]:
    """Write Harbor directories as rows."""
    count = write_rows(options.directories, options.target)
    yield f"{options.target}: {count} tasks"


def _load(options: argparse.Namespace) -> tuple[list[Task], Provenance]:
    settings = Settings(env=EnvSettings(dataset_revision=options.revision, dataset_split=options.split))
    return rows(options.source).load(settings, run_id="")


def _counts(tasks: list[Task]) -> str:
    found = []
    for name in ("difficulty", "category"):
        counts = collections.Counter(getattr(task, name) or "none" for task in tasks)
        found.append(f"{name}: " + ", ".join(f"{value} {count}" for value, count in counts.most_common()))
    return "; ".join(found)


def _cached(*, as_json: bool) -> Iterator[str]:
    store = Store()
    for index in store.indexes():
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(index["made"]))
        if as_json:
            fields = {name: index[name] for name in ("name", "commit", "split", "made")}
            yield json.dumps({**fields, "tasks": len(index["tasks"])})
        else:
            yield f"{index['source']}  {len(index['tasks'])} tasks  {made}"
    if not as_json:
        yield f"cache: {store.root}"
