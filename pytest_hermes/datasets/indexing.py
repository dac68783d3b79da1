"""Makes the index of a data set: run as a process of its own, so that no test process imports `datasets`.

The process reads one request as JSON from stdin (`kind` hub or table, and that source's fields) and prints one line of
JSON: `{"key", "commit", "note"}`, or `{"error"}` with a sentence for people. `ask` is its other end.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_hermes.datasets.rows import check_columns, entry_of, refuse
from pytest_hermes.datasets.store import INDEX_FORMAT, Store, key_of
from pytest_hermes.errors import ConfigurationError

NEEDS_HUB = "pip install 'pytest-hermes[hub]'"
TAIL_CHARS = 600
HUB_SECONDS = 15.0
"""How long one read of an answer may take; the library asks again a few times."""
ROWS_UNTIL_SURE = 100
"""So many rows without a column mean that the data set has no such column."""
PROGRAM = f"""\
import os, sys
given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path in sys.path]
sys.path[:] = [path for path in sys.path if path not in given] + given + [{str(Path(__file__).parents[2])!r}]
from {__name__} import main
sys.exit(main())
"""
"""A folder called `datasets` in the working directory or on PYTHONPATH is not the package of that name."""


def ask(request: Mapping[str, Any]) -> dict[str, Any]:
    """Have an index made; the answer's fields. Raises ConfigurationError with the process's sentence."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    try:
        output, log = process.communicate(json.dumps(request))
    finally:
        process.kill()
        process.wait()
    try:
        answer = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        ended = process.returncode
        how = f"was killed (signal {-ended})" if ended < 0 else f"ended with status {ended}"
        tail = f": {log[-TAIL_CHARS:]}" if log.strip() else ""
        raise ConfigurationError(f"{request['name']}: the process that reads it {how}{tail}") from None
    if "error" in answer:
        raise ConfigurationError(str(answer["error"]))
    return dict(answer)


def main() -> int:
    """The process; its exit status is 0 also where the answer is an error."""
    request = json.load(sys.stdin)
    store = Store(Path(request["cache"]))
    try:
        answer = _hub(request, store) if request["kind"] == "hub" else _table(request, store)
    except ConfigurationError as error:
        answer = {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever the libraries raise, people want to know which data set
        answer = {"error": f"{request['name']}: {_reason(error)} ({type(error).__name__})"}
    print(json.dumps(answer))
    return 0


def hub_key(name: str, commit: str, split: str) -> str:
    """Key of a hub data set's index. A commit is the same content wherever it was fetched."""
    return key_of("hub", name, commit, split)


def build(rows: Iterable[Mapping[str, Any]], source: str, key: str, store: Store, **more: Any) -> None:
    """Write the index of these rows. Raises ConfigurationError where they are not tasks."""
    tasks: list[dict[str, Any]] = []
    columns: dict[str, None] = {}
    for number, row in enumerate(rows, 1):
        columns.update(dict.fromkeys(row))
        if number == ROWS_UNTIL_SURE:
            check_columns(columns, source)
        try:
            tasks.append(entry_of(row, number, store))
        except OSError as error:
            raise ConfigurationError(
                f"{source}: its archives are unpacked in {tempfile.gettempdir()} to be checked, which cannot be written"
                f" ({error.strerror or error}). Choose another place with the variable TMPDIR"
            ) from error
    if not tasks:
        raise ConfigurationError(f"{source}: the data set has no row")
    check_columns(columns, source)
    _name(tasks)
    store.write("indexes", key, {"format": INDEX_FORMAT, "source": source, "made": time.time(), **more, "tasks": tasks})


def _name(tasks: list[dict[str, Any]]) -> None:
    """Give the rows without a name, and those whose name an earlier one has, a name of their own."""
    rows: dict[str, int] = {}
    for number, task in enumerate(tasks, 1):
        name = task["id"]
        if name and rows.setdefault(name, number) != number:
            refuse(task, f"row {number}: task_name {name!r:.80} is row {rows[name]}'s too")
            task["id"] = ""
    for number, task in enumerate(tasks, 1):
        if not task["id"]:
            task["id"] = f"row-{number}"
            while rows.setdefault(task["id"], number) != number:
                task["id"] = f"nameless-{task['id']}"


# -- the hub -------------------------------------------------------------------------------------------


def _hub(request: Mapping[str, Any], store: Store) -> dict[str, Any]:
    name, revision, split = request["name"], request["revision"], request["split"]
    try:
        import datasets
        import huggingface_hub
    except ImportError as error:
        raise ConfigurationError(f"{name}: a data set of the hub needs {error.name}: {NEEDS_HUB}") from error
    from huggingface_hub import errors

    _limit_waiting(huggingface_hub)
    transport: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]  # of the HTTP library it uses
    note = None
    try:
        commit = huggingface_hub.HfApi().dataset_info(name, revision=revision, timeout=60).sha or revision
    except errors.GatedRepoError as error:
        raise ConfigurationError(
            f"{name}: the hub gives it only to accounts that were let in. Ask there, then set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ConfigurationError(f"{name}: the hub knows no revision {revision!r} of it") from error
    except errors.RepositoryNotFoundError as error:
        raise ConfigurationError(
            f"{name}: the hub has no such data set, or it is private and HF_TOKEN is not of somebody who may read it"
        ) from error
    except errors.HFValidationError as error:
        raise ConfigurationError(f"{name}: no name of a data set ({_reason(error)})") from error
    except (transport, OSError, ValueError) as error:  # ValueError: an answer that is not the hub's, a proxy's say
        known = (store.read("revisions", key_of(name, revision, split)) or {}).get("commits") or {}
        if not known:
            raise ConfigurationError(
                f"{name}: the hub cannot be reached ({_reason(error)}) and {revision} of it is not in the cache"
                f" {store.root}. Fetch it once with a connection: pytest-hermes dataset fetch {name}"
            ) from error
        commit = list(known.values())[-1]
        note = f"{name}: the hub cannot be reached ({_reason(error)}); using {revision} as it was last seen, {commit}"
    key = hub_key(name, commit, split)
    if store.read_index(key) is None:
        source = f"{name}@{commit[:12]}"
        build(_hub_rows(datasets, name, commit, split), source, key, store, name=name, commit=commit, split=split)
    return {"key": key, "commit": commit, "note": note}


def _hub_rows(datasets: Any, name: str, commit: str, split: str) -> Iterator[Mapping[str, Any]]:
    datasets.disable_progress_bars()
    try:
        yield from datasets.load_dataset(name, split=split, revision=commit)
    except Exception as error:  # it lets through what the HTTP library and every reader of files raise
        raise ConfigurationError(f"{name}@{commit[:12]}, split {split}: {_reason(error)}") from error


def _limit_waiting(hub: Any) -> None:
    """The library's own client waits for ever for a hub that has stopped answering."""
    if (choose := getattr(hub, "set_client_factory", None)) is None:
        return  # older ones, on requests: there the calls have their own limits
    from huggingface_hub.utils import _http

    def client() -> Any:
        made = _http.default_client_factory()  # type: ignore[attr-defined,unused-ignore]
        made.timeout = HUB_SECONDS
        return made

    choose(client)


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


# -- files ---------------------------------------------------------------------------------------------


def table_key(path: Path) -> str:
    """Key of a file's index: changes with the file."""
    found = path.stat()
    return key_of("table", path.resolve(), found.st_size, found.st_mtime_ns, found.st_ino)


def _table(request: Mapping[str, Any], store: Store) -> dict[str, Any]:
    path = Path(request["name"])
    try:
        key = table_key(path)
        if store.read_index(key) is None:
            rows = _parquet_rows(path) if path.suffix == ".parquet" else _jsonl_rows(path)
            build(rows, str(path), key, store, name=str(path.resolve()), commit=None, split=None)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror or _reason(error)})") from error
    return {"key": key, "commit": None, "note": None}


def _jsonl_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open("rb") as lines:
        for number, line in zip(itertools.count(1), lines, strict=False):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ConfigurationError(f"{path}, line {number}: not JSON ({error})") from error
            if not isinstance(row, dict):
                raise ConfigurationError(f"{path}, line {number}: a {type(row).__name__}, not an object")
            yield row


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigurationError(f"{path}: a parquet file needs {error.name}: {NEEDS_HUB}") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=8):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise ConfigurationError(f"{path}: not a parquet file that can be read ({_reason(error)})") from error
