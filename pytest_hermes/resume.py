"""`--hermes-resume RUN`: what an earlier run knows of this run's items, and whether the two are made alike.

A row is replayed if it is valid and has the item's benchmark, node id, task digest and attempt. The earlier run is only
read: once for the places of its rows, then the rows that are replayed, one by one. Settings that change results must be
equal; a difference is refused before anything starts.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_hermes.artifacts.records import Place, refuse_newer, rollout_of, row_heads
from pytest_hermes.artifacts.run_directory import file_name, is_alive
from pytest_hermes.config import SECTIONS
from pytest_hermes.errors import ConfigurationError, HermesError
from pytest_hermes.options import run_root
from pytest_hermes.shown import shown_line

if TYPE_CHECKING:
    from pytest_hermes.job import Job
    from pytest_hermes.rollout import Rollout

REPLAYED, NEW, CHANGED = "replayed", "new", "changed task"
XFAIL_RAISES = "xfail(raises=...)"
"""A row does not hold the exception that such a mark asks for."""
UNREADABLE = "unreadable"
SHOWN_CHARS = 100
HINTED_RUNS = 12


@dataclasses.dataclass(slots=True)
class KnownRollout:
    """An earlier rollout of an item: where its rows are. `first` is how the verifier left it, `last` how the test's
    body judged, where that made a difference."""

    run: Path
    first: Place
    last: Place
    started: float
    outcome: str
    cause: str | None

    @property
    def run_again(self) -> str | None:
        """Why it cannot be replayed; None if it is valid."""
        if self.outcome in ("passed", "failed"):
            return None
        return self.cause if self.cause in ("cancelled", "unused") else "invalid"


class PastRun:
    """The run to resume. Of a run that was itself resumed, what it had not replayed yet is known too."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigurationError unless `path` is a run directory that this version reads."""
        self.path = path
        self._manifest = read_manifest(path)
        self._found: dict[tuple[str, str, int], dict[str, KnownRollout]] | None = None

    def find(self, job: Job) -> tuple[str, KnownRollout | None]:
        """What is to be done about an item: `REPLAYED` and from where, else why not."""
        known = self.rollouts.get(_place(job.benchmark, job.node_id, job.attempt))
        if not known:
            return NEW, None
        try:
            digest = job.task.digest
        except (HermesError, OSError):
            return NEW, None  # its files cannot be read: the rollout says so
        if digest not in known:
            return CHANGED, None
        found = known[digest]
        return (found.run_again, None) if found.run_again else (REPLAYED, found)

    @property
    def rollouts(self) -> Mapping[tuple[str, str, int], Mapping[str, KnownRollout]]:
        """(benchmark, node id, attempt) -> task digest -> rollout; read on first use. Raises ConfigurationError."""
        if self._found is None:
            self._found = {}
            for run in reversed([self.path, *self._ancestors()]):
                self._read(run, self._found)
        return self._found

    def _read(self, run: Path, found: dict[tuple[str, str, int], dict[str, KnownRollout]]) -> None:
        try:
            for place, row in row_heads(run):
                if row["benchmark"] not in self._manifest["settings"]:
                    continue  # an ancestor's, whose settings nobody has compared
                key = _place(row["benchmark"], row["node_id"], row["attempt"])
                by_digest = found.setdefault(key, {})
                known = by_digest.get(row["task_digest"])
                if known is not None and known.run == run and known.started == row["started"]:
                    known.last, known.outcome, known.cause = place, row["outcome"], row["cause"]
                else:
                    by_digest[row["task_digest"]] = KnownRollout(
                        run, place, place, row["started"], row["outcome"], row["cause"]
                    )
        except OSError as error:
            raise ConfigurationError(f"{run}: cannot be read ({error.strerror})") from error
        except KeyError as error:
            raise ConfigurationError(f"{run}: a row has no {error}") from error

    def _ancestors(self) -> Iterator[Path]:
        """The run that this one resumed, the run that that one resumed, ... as far as they are still there."""
        manifest, seen = self._manifest, {self.path}
        while (origin := manifest.get("resumed_from")) is not None:
            places = (Path(origin), self.path.parent / Path(origin).name)
            found = next((place for place in places if (place / "run.json").is_file()), None)
            if found is None or found in seen:
                return
            seen.add(found)
            yield found
            manifest = read_manifest(found)

    def replay(self, known: KnownRollout, job: Job, *, judged: bool, artifacts: Path) -> Rollout | None:
        """The rollout, as the verifier left it or, with `judged`, as the test's body left it; its artifacts are copied
        to `artifacts`. None if its row does not hold what this version needs."""
        try:
            rollout = rollout_of((known.last if judged else known.first).read(), job.task)
        except (KeyError, TypeError, ValueError, AttributeError, OSError):
            return None
        rollout.node_id = job.node_id  # with another --hermes-attempts it is another
        rollout.resumed_from = rollout.resumed_from or known.run.name
        origin = self.path.parent / rollout.resumed_from
        for run in dict.fromkeys((known.run, origin)):
            source = run / "artifacts" / file_name(job.task.id) / str(job.attempt)
            if source.is_dir():
                shutil.copytree(source, artifacts, symlinks=True, dirs_exist_ok=True)
                break
        return rollout

    def differences(self, now: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """What is set otherwise than then, as lines, by benchmark if there are several; empty: the run may go on.

        `now` is `manifest.settings_by_benchmark`. A benchmark that the earlier run did not have differs in nothing.
        """
        then = self._manifest["settings"]
        found: dict[tuple[str, ...], list[str]] = {}
        for name in now:
            if name in then and (lines := tuple(_compared(then[name], json.loads(json.dumps(now[name], default=str))))):
                found.setdefault(lines, []).append(name)
        if len(now) == 1:
            return [f"  {line}" for lines in found for line in lines]
        return [
            line
            for lines, names in found.items()
            for line in (f"  {', '.join(names)}:", *(f"  {line}" for line in lines))
        ]

    def refusal(self, now: Mapping[str, Mapping[str, Any]]) -> str | None:
        """Why these benchmarks cannot resume the run; None if they can. Raises ConfigurationError for its rows."""
        then = self._manifest.get("benchmarks") or []
        if now and then and not set(now) & set(then):
            return (
                f"--hermes-resume={self.path.name}: that run is of {', '.join(then)}, this one of {', '.join(now)}:"
                " nothing could be taken over"
            )
        if lines := self.differences(now):
            head = f"--hermes-resume={self.path.name}: made with another configuration. Change it back, or start anew"
            return "\n".join(shown_line(line) for line in (f"{head} without --hermes-resume:", *lines))
        self.rollouts  # noqa: B018 - read now: what is wrong with them stops the run before it starts
        return None


def past_run(config: pytest.Config) -> PastRun | None:
    """The run that `--hermes-resume` names, if this session runs anything. Raises UsageError, in one line."""
    given, option = config.getoption("hermes_resume"), config.option
    if given is None or option.collectonly or option.setuponly or option.setupplan:
        return None
    try:
        path = find_run(given, config.invocation_params.dir, run_root(config))
        past = PastRun(path)
        if is_alive(path):
            raise ConfigurationError("that run is still going on. Wait for its end, or stop it")
    except ConfigurationError as error:
        raise pytest.UsageError(shown_line(f"--hermes-resume={given}: {error}")) from error
    return past


def find_run(given: str, here: Path, root: Path) -> Path:
    """The run directory, relative to `here` or by its name below `root`. Raises ConfigurationError with a hint."""
    candidates = [(folder / given).resolve() for folder in (here, root)]
    if run := next((path for path in candidates if (path / "run.json").is_file()), None):
        return run
    known = _known_runs(given, root)
    if found := next((path for path in candidates if path.is_dir()), None):
        raise ConfigurationError(f"{found}: not a run directory (it has no run.json){known}")
    raise ConfigurationError(f"no such directory here or in {root}{known}")


def _known_runs(given: str, root: Path) -> str:
    """Runs whose names are like the given one or hold it; else the newest ones. Their names begin with their time."""
    import difflib

    runs = sorted((path.parent.name for path in root.glob("*/run.json")), reverse=True)
    if not runs:
        return f". There is no run in {root}"
    name = Path(given).name
    near = difflib.get_close_matches(name, runs, n=3, cutoff=0.6)
    if near := near or [run for run in runs if name and name in run][:3]:
        return ". Did you mean " + " or ".join(repr(run) for run in near) + "?"
    more = f" and {len(runs) - HINTED_RUNS} older" if len(runs) > HINTED_RUNS else ""
    return f". Known{', newest first' if len(runs) > 1 else ''}: {', '.join(runs[:HINTED_RUNS])}{more}"


def read_manifest(run: Path) -> dict[str, Any]:
    """`run.json`. Raises ConfigurationError if it cannot be used."""
    file = run / "run.json"
    try:
        manifest = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ConfigurationError(f"{file}: not JSON ({error})") from error
    if isinstance(manifest, dict):
        refuse_newer(run, manifest)
        if isinstance(manifest.get("settings"), dict):
            return manifest
    raise ConfigurationError(f"{file}: holds no settings")


def _place(benchmark: str, node_id: str, attempt: int) -> tuple[str, str, int]:
    """`[task]` and `[task:1]` are one place: the first attempt is called so if there are more."""
    numbered = f":{attempt}]"
    return benchmark, node_id.removesuffix(numbered) + "]" if node_id.endswith(numbered) else node_id, attempt


# -- differences ---------------------------------------------------------------------------------------------------


def _compared(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Lines on the settings of one benchmark that change results. What the earlier version did not know had its
    default."""
    for section, kind in SECTIONS.items():
        defaults = dataclasses.asdict(kind())
        for field in dataclasses.fields(kind):
            if field.metadata.get("changes_results", True):
                before = then.get(section, {}).get(field.name, defaults[field.name])
                yield from _differences(f"{section}.{field.name}", before, now[section][field.name])
    if "benchmark" not in then:
        return
    before, after = dict(then["benchmark"]), dict(now["benchmark"])
    limits = [found.pop("timeout_s", {}) for found in (before, after)]
    yield from _differences("benchmark", before, after)
    for test in limits[0].keys() & limits[1].keys():
        yield from _differences(f"benchmark.timeout_s.{test}", limits[0][test], limits[1][test])


def _differences(name: str, then: Any, now: Any) -> Iterator[str]:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*then, *now]):
            yield from _differences(f"{name}.{key}", then.get(key), now.get(key))
    elif then != now:
        before, after = _text(then), _text(now)
        start = 0
        if max(len(before), len(after)) > SHOWN_CHARS:
            same = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
            start = max(0, same - SHOWN_CHARS // 4)
        yield f"{name}: {_excerpt(before, start)} then, {_excerpt(after, start)} now"


def _text(value: Any) -> str:
    if value is None:
        return "unset"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _excerpt(text: str, start: int) -> str:
    end = start + SHOWN_CHARS
    return ("..." if start else "") + text[start:end] + ("..." if len(text) > end else "")


def outcome_line(run: str, counts: Mapping[str, int]) -> str:
    """`resumed from RUN: 20 replayed, 3 run again (invalid), 1 changed task, 16 new`."""
    again = {why: count for why, count in counts.items() if why not in (REPLAYED, NEW, CHANGED)}
    parts = [f"{counts.get(REPLAYED, 0)} replayed"]
    if len(again) == 1:
        parts += [f"{count} run again ({why})" for why, count in again.items()]
    elif again:
        reasons = ", ".join(f"{count} {why}" for why, count in sorted(again.items()))
        parts.append(f"{sum(again.values())} run again ({reasons})")
    if changed := counts.get(CHANGED):
        parts.append(f"{changed} changed {'task' if changed == 1 else 'tasks'}")
    if new := counts.get(NEW):
        parts.append(f"{new} new")
    return f"resumed from {run}: {', '.join(parts)}"
