"""Sections that benchmarks add to a run's summary: `Benchmark(section="package.module:function")`.

`run.json` holds the import path by benchmark, so that whoever reads the run finds the function: the xdist controller
(which collects nothing), `pytest-hermes show`, a resumed run. It is imported when a summary is made, not before. What
is wrong with a section is a line; the other sections and the summary stand.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytest_hermes.artifacts.run_reader import LocatedRow
from pytest_hermes.artifacts.summary import NOT_COUNTED
from pytest_hermes.shown import described, named

Row = Mapping[str, Any]

RULE_COLUMNS = 76
_FILE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*\.json")
_TAKEN = ("run.json", "summary.json")


@dataclasses.dataclass(frozen=True)
class Section:
    """What a benchmark adds to its run's summary."""

    title: str
    lines: Sequence[str]
    """Shown below the title."""
    metrics: Mapping[str, float | None] = dataclasses.field(default_factory=dict)
    """Full name -> number, None for one that cannot be computed: `metrics` of `summary.json`, the names of gates."""
    evaluation: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Goes into the results of the benchmark's `metrics.json`, over what is there by the same name."""
    samples: Callable[[Row], Mapping[str, Any]] | None = None
    """Gets a whole row and gives what its line of `samples.jsonl` has besides; it replaces nothing there."""
    files: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """File name (`*.json`) -> JSON value: written into the run's directory."""

    def rendered(self) -> list[str]:
        """Title and lines, where no terminal reporter draws the title."""
        return [f"{f' {self.title} ':=^{RULE_COLUMNS}}", *self.lines]


SectionFunction = Callable[[Sequence[Row], Mapping[str, Any]], Section | None]
"""(rows, settings) -> section, None if there is nothing to say.

Rows are the last ones of each attempt in the order of their start, without conversations (`run_reader.HEAVY`);
cancelled and unused ones are left out. Settings are those of `run.json` (`env`, `openai`, `benchmark`), and `tasks`:
the ids of the tasks that were selected, in their order.
"""


@dataclasses.dataclass(frozen=True)
class Sections:
    """The sections of a run by benchmark, and what is wrong with those that are missing, a line each."""

    by_benchmark: dict[str, Section]
    problems: list[str]

    @property
    def metrics(self) -> dict[str, float | None]:
        """Of all sections."""
        return {name: value for section in self.by_benchmark.values() for name, value in section.metrics.items()}

    @property
    def files(self) -> dict[str, Any]:
        """Of all sections."""
        return {name: value for section in self.by_benchmark.values() for name, value in section.files.items()}


def sections_of(located: Iterable[LocatedRow], manifest: Mapping[str, Any]) -> Sections:
    """The sections of a run's benchmarks that have a rollout, in the order of their names. Never raises."""
    wanted: Mapping[str, str] = manifest.get("sections") or {}
    rows: dict[str, list[Row]] = collections.defaultdict(list)
    if wanted:
        for place in located:
            if place.numbers["cause"] not in NOT_COUNTED:
                rows[place.numbers["benchmark"]].append(dict(place.numbers))
    found = Sections({}, [])
    for benchmark, path in sorted(wanted.items()):
        if not rows[benchmark]:
            continue
        settings = {
            **((manifest.get("settings") or {}).get(benchmark) or {}),
            "tasks": list(((manifest.get("datasets") or {}).get(benchmark) or {}).get("tasks") or ()),
        }
        section, problem = _section(path, rows[benchmark], settings)
        if section is not None and problem is None:
            problem = _clash(section, found)
        if problem is not None:
            found.problems.append(f"no section of {benchmark}: {problem}")
        elif section is not None:
            found.by_benchmark[benchmark] = section
    return found


def _section(path: str, rows: Sequence[Row], settings: Mapping[str, Any]) -> tuple[Section | None, str | None]:
    """What the function at `path` gives, or what is wrong with it."""
    module, _, name = str(path).partition(":")
    try:
        function: SectionFunction = getattr(importlib.import_module(module), name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a module may raise anything, SystemExit and pytest.skip too
        return None, f"{path} cannot be imported here ({named(error)})"
    try:
        section = function(rows, settings)
        return section, next(_faults(section), None) if section is not None else None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, the run and its summary stand
        return None, f"{path} raised {described(error)}"


def _faults(section: Section) -> Iterator[str]:
    """What is wrong with a section."""
    if not isinstance(section, Section):
        yield f"its function gave a {type(section).__name__}, not a Section or None"
        return
    if not isinstance(section.title, str) or isinstance(section.lines, str):
        yield "its title is no string, or its lines are one"
    if wrong := [line for line in section.lines if not isinstance(line, str)]:
        yield f"{wrong[0]!r} is no line"
    for name, value in section.metrics.items():
        if value is not None and (not isinstance(value, int | float) or not math.isfinite(value)):
            yield f"metric {name!r} is {value!r}, not a finite number or None"
    for name in section.files:
        if not _FILE.fullmatch(name) or name in _TAKEN:
            yield f"file {name!r}: not a name like 'bench_summary.json' that is free"


def _clash(section: Section, found: Sections) -> str | None:
    """A metric or file that another section has already: its value would be lost."""
    taken = [*(section.metrics.keys() & found.metrics.keys()), *(section.files.keys() & found.files.keys())]
    return f"another benchmark's section has {min(taken)!r} too" if taken else None
