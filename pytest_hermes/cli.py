"""The command `pytest-hermes`: what one does with runs outside of pytest."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_hermes import __version__
from pytest_hermes.errors import ConfigurationError, HermesError
from pytest_hermes.shown import shown, shown_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sub-command; its exit status. Errors of ours are one line on stderr and status 2."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
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
    show.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory")
    part = show.add_mutually_exclusive_group()
    part.add_argument("--task", metavar="ID", help="the conversation and the verifier's output of one task")
    part.add_argument("--tasks", action="store_true", help="a line per task: outcomes, reward, time, tokens, cost")
    show.add_argument("--json", action="store_true", help="the numbers as JSON, one object a line")
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
    import json

    from pytest_hermes.artifacts.summary import summarize_run
    from pytest_hermes.artifacts.summary_text import render, render_tasks

    for run in options.runs:
        if options.task is not None:
            _show_task(run, options.task)
            continue
        summary = summarize_run(run)
        if options.json:
            print(json.dumps({"run": str(run), **summary.as_json()}))
            continue
        print(f"{shown_line(run)}:")
        for line in render_tasks(summary.tasks) if options.tasks else render(summary):
            print(f"  {shown_line(line)}")
    return 0


def _show_task(run: Path, task: str) -> None:
    from pytest_hermes.artifacts.conversation import render_row
    from pytest_hermes.artifacts.run_reader import locate, read_manifest, whole_rows
    from pytest_hermes.config import hint

    read_manifest(run)  # refuses what is no run
    located = locate(run)
    found = [place for place in located if place.numbers["task_id"] == task]
    if not found:
        raise ConfigurationError(f"{run}: no task {task!r}{hint(task, {p.numbers['task_id'] for p in located})}")
    for row in whole_rows(sorted(found, key=lambda place: place.numbers["attempt"])):
        print(shown("\n".join(render_row(row))))


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
