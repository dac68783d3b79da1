"""The run directory: made when the first rollout starts, shared by all processes of the run.

    <root>/<utc>-<benchmark>-<id>/run.json, rollouts-<worker>.jsonl, artifacts/<task>/<n>/, summary.json

`utc` and `id` are chosen by the process that owns the run and handed to xdist workers, so that all agree on the path
without talking. Rows are appended to the worker's own shard, one whole line per write, before the item is reported.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_hermes.shown import SHORTEST_SECRET

FORMAT_VERSION = 1
NAMES = frozenset(
    ("format", "run_id", "worker", "resumed_from", "benchmark", "node_id", "task_id", "task_digest", "attempt")
)
"""Fields of a row by which it is found again."""


@dataclasses.dataclass(frozen=True)
class RunIdentity:
    """What the processes of a run must agree on. Plain strings: it travels to xdist workers."""

    run_id: str
    started_utc: str
    root: str

    @classmethod
    def new(cls, root: Path) -> RunIdentity:
        """A fresh identity; nothing is written yet."""
        return cls(uuid.uuid4().hex[:8], time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()), str(root))

    def path(self, benchmark: str) -> Path:
        """The run's directory, once the benchmark's name is known."""
        return Path(self.root) / f"{self.started_utc}-{file_name(benchmark)}-{self.run_id}"

    def find(self) -> Path | None:
        """The directory, if some process of the run has made it."""
        return next(iter(sorted(Path(self.root).glob(f"{self.started_utc}-*-{self.run_id}"))), None)


class RunDirectory:
    """One process's view of the run directory."""

    def __init__(self, identity: RunIdentity, benchmark: str, worker: str) -> None:
        self.identity = identity
        self.worker = worker
        self.path = identity.path(benchmark)
        self._shard: int | None = None
        self._alive: int | None = None
        self._noted = ""
        self._appending = threading.Lock()
        """The engine's thread appends rollouts, pytest's replays."""

    @property
    def run_id(self) -> str:
        return self.identity.run_id

    @property
    def shard(self) -> Path:
        return self.path / f"rollouts-{self.worker}.jsonl"

    @property
    def abort_flag(self) -> Path:
        """Exists once the run is to stop (-x or --maxfail reached in some process)."""
        return self.path / "abort"

    def make(self, manifest: Callable[[], dict[str, Any]]) -> None:
        """Make the directory and, if this process is the first, its `run.json`, with what `manifest` gives."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            from pytest_hermes.errors import ConfigurationError

            raise ConfigurationError(
                f"run directory {self.path}: cannot be made ({error.strerror}). Choose another with --hermes-run-dir"
            ) from error
        ignore = Path(self.identity.root, ".gitignore")
        if not ignore.exists():
            ignore.write_text("*\n")
        if not (self.path / "run.json").exists():
            partial = self.path / f".run-{self.worker}.json"
            content = {"format": FORMAT_VERSION, "run_id": self.run_id, **manifest()}
            partial.write_text(json.dumps(content, indent=1) + "\n")
            try:
                os.link(partial, self.path / "run.json")  # atomic: the first process wins
            except FileExistsError:
                pass
            partial.unlink()
        self._alive = _engines_lock(self.path)
        fcntl.flock(self._alive, fcntl.LOCK_SH)  # held until `close`, or until this process dies

    def append(self, row: dict[str, Any], secrets: tuple[str, ...] = ()) -> int:
        """Append a row to this process's shard as one line, written before it returns.

        Values of `secrets` are masked in the texts that are written, not in names and ids; one of fewer than
        `SHORTEST_SECRET` characters is a placeholder that an endpoint without keys was given. Returns the byte offset
        of the line.
        """
        try:
            text = _line(row)
        except (TypeError, ValueError, RecursionError):
            text = _line(_plain(row))
        told = [secret for secret in secrets if len(secret) >= SHORTEST_SECRET and json.dumps(secret)[1:-1] in text]
        if told:
            written = json.loads(text)
            text = _line({name: value if name in NAMES else _masked(value, told) for name, value in written.items()})
        data = memoryview(text.encode() + b"\n")
        with self._appending:
            if self._shard is None:
                self._shard = os.open(self.shard, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            offset = os.fstat(self._shard).st_size
            try:
                while data:
                    data = data[os.write(self._shard, data) :]
            except OSError:
                os.ftruncate(self._shard, offset)  # no half line: the next row would continue it
                raise
        return offset

    def note(self, text: str) -> None:
        """Say what this process waits for (an image), or with "" nothing: the run's progress line shows it."""
        if text == self._noted:
            return
        self._noted = text
        path = self.path / "progress" / self.worker
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def artifacts(self, task_id: str, attempt: int) -> Path:
        """The folder for an attempt's files; made on first use."""
        folder = self.path / "artifacts" / file_name(task_id) / str(attempt)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def keep(self, task_id: str, attempt: int, name: str, content: bytes) -> Path:
        """Write a file into the attempt's folder; where it is."""
        path = self.artifacts(task_id, attempt) / file_name(name)
        path.write_bytes(content)
        return path

    def close(self) -> None:
        """This process has ended its rollouts and their sandboxes. Idempotent."""
        for descriptor in (self._shard, self._alive):
            if descriptor is not None:
                os.close(descriptor)
        self._shard = self._alive = None


def notes(run: Path) -> list[str]:
    """What the processes of a run wait for, each once."""
    found = (path.read_text(errors="replace") for path in sorted((run / "progress").glob("*")))
    return list(dict.fromkeys(text for text in found if text))


def wait_for_engines(run: Path, seconds: float) -> bool:
    """Wait until no process has rollouts in this run directory any more; False if some still have after `seconds`."""
    lock = _engines_lock(run)
    waiting = threading.Thread(target=_lock_and_close, args=(lock,), name="hermes-engines-end", daemon=True)
    waiting.start()
    waiting.join(seconds)
    return not waiting.is_alive()


def is_alive(run: Path) -> bool:
    """Whether some process has rollouts in this run directory. Writes nothing there."""
    try:
        lock = os.open(run / "locks" / "engines", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _lock_and_close(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.close(descriptor)


def _engines_lock(run: Path) -> int:
    folder = run / "locks"
    folder.mkdir(exist_ok=True)
    return os.open(folder / "engines", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _line(row: object) -> str:
    return json.dumps(row, ensure_ascii=True, separators=(",", ":"), default=str)


def _masked(value: Any, secrets: Sequence[str]) -> Any:
    """A copy of JSON values without these texts; keys of objects stay."""
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, "***")
        return value
    if isinstance(value, list):
        return [_masked(entry, secrets) for entry in value]
    return {key: _masked(entry, secrets) for key, entry in value.items()} if isinstance(value, dict) else value


def _plain(value: object, depth: int = 0) -> object:
    """A copy that JSON can hold, of values that an agent of the user's own put into its result."""
    if depth > 40:
        return f"({type(value).__name__}, too deep or circular)"
    if isinstance(value, Mapping):
        return {str(key): _plain(entry, depth + 1) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(entry, depth + 1) for entry in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(value, indent=1, default=str) + "\n")
    partial.replace(path)


def file_name(text: str) -> str:
    """`text` as one safe path component; different texts stay different."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", text)[:100].lstrip(".") or "_"
    if safe != text:
        import hashlib

        safe += "-" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return safe
