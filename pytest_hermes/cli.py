"""The command `pytest-hermes`: what one does with runs outside of pytest."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_hermes import __version__
from pytest_hermes.errors import ConfigurationError, HermesError
from pytest_hermes.shown import shown, shown_line

ENDED_BY_PIPE = 128 + 13
"""The status of a program that SIGPIPE ends."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sub-command; its exit status. Errors of ours are one line on stderr and status 2."""
    options = _parser().parse_args(arguments)
    try:
        status = int(options.run(options))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever reads has seen enough: `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in the buffer goes nowhere
        return ENDED_BY_PIPE
    except HermesError as error:
        print(shown_line(f"pytest-hermes {options.command}: {error}"), file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pytest-hermes", description="Work with runs of pytest-hermes. Benchmarks themselves are run by pytest."
    )
    parser.add_argument("--version", action="version", version=f"pytest-hermes {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    show = commands.add_parser("show", help="print the summary of runs, finished or not")
    show.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="a run directory, or the name of one in .hermes/runs"
    )
    part = show.add_mutually_exclusive_group()
    part.add_argument("--task", metavar="ID", help="the conversation and the verifier's output of one task")
    part.add_argument("--tasks", action="store_true", help="a line per task: outcomes, reward, time, tokens, cost")
    show.add_argument("--attempt", type=int, metavar="N", help="with --task: only this attempt")
    show.add_argument(
        "--json", action="store_true", help="JSON lines: a run's numbers; of --tasks, each task; of --task, its rows"
    )
    show.set_defaults(run=_show)

    tools = commands.add_parser("tools", help="list tool sets, what their schemas cost, and distributions")
    tools.set_defaults(run=_tools)

    parse = commands.add_parser("parse", help="show the tool calls that a parser finds in a model's raw output")
    parse.add_argument("file", nargs="?", default="-", help="a text file; standard input without one")
    parse.add_argument("--format", default="auto", metavar="NAME", help="parser (auto)")
    parse.add_argument(
        "--tools", type=Path, metavar="FILE", help="JSON list of the OpenAI tool schemas that were given"
    )
    parse.add_argument("--json", action="store_true", help="one line of JSON")
    parse.set_defaults(run=_parse)

    dataset = commands.add_parser("dataset", help="fetch, list and pack data sets of tasks")
    actions = dataset.add_subparsers(dest="action", required=True, metavar="ACTION")
    fetch = actions.add_parser("fetch", help="put a data set into the cache, so that runs need no connection")
    listing = actions.add_parser("list", help="the tasks of a data set; without one, the data sets of the cache")
    fetch.add_argument("source", metavar="SOURCE", help="as --hermes-dataset: org/name, a file, a directory, ...")
    listing.add_argument("source", nargs="?", metavar="SOURCE", help="as --hermes-dataset")
    for action in (fetch, listing):
        action.add_argument("--revision", metavar="REV", help="commit, tag or branch of a hub data set (main)")
        action.add_argument("--split", default="train", help="split of a hub data set (train)")
        action.add_argument("--json", action="store_true", help="JSON lines")
    pack = actions.add_parser("pack", help="write Harbor directories as rows")
    pack.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="a task, or a directory of tasks")
    pack.add_argument("target", type=Path, metavar="FILE", help="a .jsonl or .parquet file")
    dataset.set_defaults(run=_dataset)

    reap = commands.add_parser("reap", help="remove sandboxes whose owning process is dead")
    reap.add_argument("--sandbox", action="append", choices=["local", "docker"], help="only this backend; repeatable")
    reap.set_defaults(run=_reap)
    return parser


def _show(options: argparse.Namespace) -> int:
    if options.attempt is not None and options.task is None:
        raise ConfigurationError("--attempt is one attempt of a task: name it with --task")
    for given in options.runs:
        run = _run_directory(given)
        if options.task is not None:
            _show_task(run, options)
        else:
            for line in _numbers(run, options):
                print(line)
    return 0


def _run_directory(given: Path) -> Path:
    """A directory as it was given, or the run of that name in the nearest `.hermes/runs`."""
    if given.is_dir():
        return given  # whether it is a run is seen when it is read
    from pytest_hermes.resume import find_run

    here = Path.cwd()
    roots = [folder / ".hermes/runs" for folder in (here, *here.parents)]
    try:
        run = find_run(str(given), here, next((root for root in roots if root.is_dir()), roots[0]))
    except ConfigurationError as error:
        raise ConfigurationError(f"{given}: {error}") from error
    return run.relative_to(here) if run.is_relative_to(here) else run


def _numbers(run: Path, options: argparse.Namespace) -> Iterator[str]:
    """The lines of a run's summary, or of its tasks."""
    import json

    from pytest_hermes.artifacts.run_end import end_of
    from pytest_hermes.artifacts.run_reader import locate, read_manifest
    from pytest_hermes.artifacts.sections import Sections, sections_of
    from pytest_hermes.artifacts.summary import summarize_located
    from pytest_hermes.artifacts.summary_text import render, render_tasks

    manifest = read_manifest(run)
    located = locate(run)
    summary, end = summarize_located(located, manifest), end_of(run, located, manifest)
    sections = Sections({}, []) if options.tasks else sections_of(located, manifest)
    if options.json:
        values = summary.as_json()
        entries = values["tasks"] if options.tasks else [{**values, "end": end.as_json(), "metrics": sections.metrics}]
        yield from (json.dumps({"run": str(run), **entry}) for entry in entries)
        return
    origin = f" (resumed from {end.resumed_from})" if end.resumed_from else ""
    yield shown_line(f"{run}{origin}: {end.headline or ''}".rstrip())
    for line in render_tasks(summary.tasks) if options.tasks else [*render(summary), *sections.problems]:
        yield f"  {shown_line(line)}"
    if end.advice and not options.tasks:
        yield f"  {shown_line(end.advice)}"
    for section in sections.by_benchmark.values():
        yield from (f"  {shown_line(line)}" for line in section.rendered())


def _show_task(run: Path, options: argparse.Namespace) -> None:
    import json

    from pytest_hermes.artifacts.conversation import render_row
    from pytest_hermes.artifacts.run_reader import locate, read_manifest, whole_rows
    from pytest_hermes.config import hint

    read_manifest(run)  # refuses what is no run
    located, task = locate(run), options.task
    found = [place for place in located if place.numbers["task_id"] == task]
    if not found:
        raise ConfigurationError(f"{run}: no task {task!r}{hint(task, {p.numbers['task_id'] for p in located})}")
    if options.attempt is not None:
        known = sorted({place.numbers["attempt"] for place in found})
        found = [place for place in found if place.numbers["attempt"] == options.attempt]
        if not found:
            numbers = ", ".join(map(str, known))
            raise ConfigurationError(f"{run}: task {task!r} has no attempt {options.attempt}. Known: {numbers}")
    for row in whole_rows(sorted(found, key=lambda place: place.numbers["attempt"])):
        print(json.dumps(row) if options.json else shown("\n".join(render_row(row))))


def _tools(options: argparse.Namespace) -> int:
    from pytest_hermes.tools.listing import list_tools

    for line in list_tools():
        print(shown_line(line))
    return 0


def _parse(options: argparse.Namespace) -> int:
    import json

    from pytest_hermes.tool_call_parsers import UnknownParser
    from pytest_hermes.tool_call_parsers.report import as_json, report

    try:
        raw = sys.stdin.buffer.read() if options.file == "-" else Path(options.file).read_bytes()
        tools = None if options.tools is None else json.loads(options.tools.read_bytes())
        text = raw.decode("utf-8", "replace")
        if options.json:
            print(as_json(options.format, text, tools))
            return 0
        for line in report(options.format, text, tools):
            print(shown_line(line))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{options.tools}: not JSON: {error}") from error
    except UnknownParser as error:
        raise ConfigurationError(f"--format: {error}") from error
    return 0


def _dataset(options: argparse.Namespace) -> int:
    from pytest_hermes.datasets import command

    actions = {"fetch": command.fetch, "list": command.list_tasks, "pack": command.pack}
    for line in actions[options.action](options):
        print(shown_line(line))
    return 0


def _reap(options: argparse.Namespace) -> int:
    from pytest_hermes.reaper import reap

    failed = 0
    for backend, result in reap(options.sandbox or ["local", "docker"]).items():
        if isinstance(result, int):
            print(f"{backend}: removed {result}")
        else:
            print(shown_line(f"{backend}: {result}"))
            failed += bool(options.sandbox)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
