"""From rollouts to pytest's reports: properties, durations, the body's judgement, progress and the summary."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_hermes.artifacts.run_directory import notes
from pytest_hermes.errors import (
    BodyNotRun,
    BodySkipped,
    ConfigurationError,
    HermesError,
    InfrastructureError,
    VerifierTimeout,
)
from pytest_hermes.failures import BodyTimeout
from pytest_hermes.shown import described, show_report, shown_line
from pytest_hermes.stash import handle_key, job_key, resumed_key, rollout_key, session_key, waited_key

if TYPE_CHECKING:
    from pytest_hermes.artifacts.run_reader import LocatedRow
    from pytest_hermes.artifacts.sections import Sections
    from pytest_hermes.rollout import Rollout
    from pytest_hermes.session import HermesSession

_details_key = pytest.StashKey[frozenset[str]]()
"""Names of the properties that come from the verifier's details."""
PROGRESS_EVERY_S = 30.0
ALARM_AGAIN_S = 1.0


def describe(item: pytest.Item, rollout: Rollout) -> None:
    """Set the item's `hermes.*` properties and those of the verifier's details: scalars that reach JUnit XML, also from
    xdist workers."""
    usage = rollout.trajectory.usage
    values = {
        "benchmark": rollout.benchmark,
        "task": rollout.task.id,
        "attempt": rollout.attempt,
        "outcome": rollout.outcome,
        "cause": rollout.cause,
        "reward": rollout.reward,
        **{f"reward.{name}": value for name, value in rollout.components.items()},
        "agent": rollout.agent,
        "model": rollout.model,
        "sandbox": rollout.sandbox.get("backend"),
        "turns": rollout.trajectory.turns_used if rollout.model else None,  # they are model calls
        "tokens_prompt": usage.prompt_tokens,
        "tokens_completion": usage.completion_tokens,
        "cost_usd": usage.cost_usd,
        "seconds": round(rollout.duration_s, 3),
        "tries": len(rollout.tries) + 1,
        "tampering": len((rollout.verifier or {}).get("evidence") or ()) or None,
        "difficulty": rollout.task.difficulty,
        "category": rollout.task.category,
    }
    before = item.stash.get(_details_key, frozenset())  # of an earlier rollout of the item, it may be
    item.user_properties[:] = [
        entry for entry in item.user_properties if not entry[0].startswith("hermes.") and entry[0] not in before
    ]
    named = {**{f"hermes.{name}": value for name, value in values.items()}, **rollout.details}
    item.user_properties += [(shown_line(name), plain(value)) for name, value in named.items() if value is not None]
    item.stash[_details_key] = frozenset(rollout.details)


def plain(value: object) -> object:
    """A scalar that every reporter and xdist can carry."""
    return value if isinstance(value, bool | int | float) else shown_line(value)


# -- the body's judgement ------------------------------------------------------------------------------


@contextmanager
def phase_clock(item: pytest.Item) -> Iterator[None]:
    """Interrupt what a phase of the item runs in pytest's own thread when the verify clock is over.

    The item's set-up, body and teardown each get the whole clock; waiting for the rollout is not counted
    (`clock_paused`). The alarm repeats: a body may catch it once. Needs the main thread and SIGALRM, as on Linux.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seconds = item.stash[job_key].effective_limits().verify_s or 0.0

    def expired(_signal: int, _frame: object) -> None:
        raise BodyTimeout(f"the test's own code did not end within the verifier's {seconds:g} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds, ALARM_AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def clock_paused() -> Iterator[None]:
    """Stop the phase's clock while pytest's thread only waits."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    left, again = signal.setitimer(signal.ITIMER_REAL, 0.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, again)


def finish_phase(item: pytest.Item, call: pytest.CallInfo[Any], report: pytest.TestReport) -> None:
    """Called for each report of an item of ours: judge by the body, correct outcome and durations, clean its text.

    What goes wrong in that (the row cannot be written, say) makes the item an error.
    """
    if status := item.stash.get(resumed_key, None):
        report.hermes_resumed = status  # type: ignore[attr-defined] # travels to the controller as reports do
        item.stash[resumed_key] = ""
    try:
        _finish_phase(item, call, report)
    except HermesError as error:
        report.outcome, report.when, report.longrepr = "failed", "setup", str(error)
    show_report(report, item.config)


def _finish_phase(item: pytest.Item, call: pytest.CallInfo[Any], report: pytest.TestReport) -> None:
    rollout = item.stash.get(rollout_key, None)
    if rollout is None:
        return
    handle = item.stash.get(handle_key, None)
    session = item.config.stash[session_key]
    error = call.excinfo.value if call.excinfo else None
    if report.when == "setup":
        report.duration = max(0.0, report.duration - item.stash.get(waited_key, 0.0))
        if error is not None and handle is not None and handle.open:
            _close_gate(session, item, BodyNotRun(f"the test's set-up failed: {type(error).__name__}: {error}"))
    if report.when == "call" and handle is not None and handle.gate is not None:
        _judge_by_body(session, item, rollout, error)
        if isinstance(error, InfrastructureError):
            report.when = "setup"  # pytest and its reporters call a failure outside the call phase an error
    elif session.replays is not None and session.replays.judge(item):
        pass  # its body did not run
    elif report.when == "call" and report.outcome != "skipped" and report.passed != rollout.passed:
        if report.failed:
            why = f"{type(error).__name__}: {error}" if error is not None else str(report.longrepr)  # XPASS(strict)
            rollout.outcome, rollout.cause, rollout.error = "failed", "test_body", why
        else:  # the body is the judge: check(0.4) at a reward of 0.5, say
            rollout.outcome = "passed"
            rollout.cause = None if rollout.cause in ("reward_below_threshold", "not_passed") else rollout.cause
        session.record_again(rollout)
        describe(item, rollout)
        report.user_properties[:] = item.user_properties
    if report.when == "call" or (report.when == "setup" and report.failed):
        report.duration += rollout.duration_s
        ended = rollout.finished if rollout.resumed_from else max(rollout.finished, report.stop)
        report.start, report.stop = rollout.started, ended


def _judge_by_body(session: HermesSession, item: pytest.Item, rollout: Rollout, error: BaseException | None) -> None:
    judgement: HermesError | None = None
    if isinstance(error, HermesError):
        judgement = error
    elif isinstance(error, pytest.skip.Exception):
        judgement = BodySkipped(str(error))
    elif isinstance(error, BodyTimeout):
        judgement = VerifierTimeout(str(error))
    else:
        scored = rollout.verdict is not None
        rollout.body_passed = error is None
        if error is not None:
            rollout.cause, rollout.error = "test_body", f"{type(error).__name__}: {error}"
        if item.stash[job_key].verify is None and not scored:
            rollout.reward = 0.0 if error is not None else 1.0
    _close_gate(session, item, judgement)


def _close_gate(session: HermesSession, item: pytest.Item, judgement: HermesError | None) -> None:
    """Let the sandbox go and wait until it is gone and the row is on disk."""
    handle = item.stash[handle_key]
    assert handle.gate is not None
    handle.gate.judge(judgement)
    session.engine.wait(handle.done.done)
    describe(item, handle.done.result())


# -- progress --------------------------------------------------------------------------------------------


class Progress:
    """A line every `PROGRESS_EVERY_S` on what is done and running; nothing in short runs, with -q or when captured."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._next = time.monotonic() + PROGRESS_EVERY_S

    def __call__(self) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + PROGRESS_EVERY_S
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        session = self._config.stash[session_key]
        if terminal is None or session.on_worker or self._config.option.verbose < 0:
            return
        stats = terminal.stats
        counts = {name: len(stats.get(name, ())) for name in ("passed", "failed", "error")}
        done = sum(counts.values()) + len(stats.get("skipped", ()))
        text = f"[hermes] {done} done ({', '.join(f'{n} {name}' for name, n in counts.items() if n) or 'none'})"
        if session.started:
            running = session.engine.in_flight
            text += f", {len(running)} running: " + ", ".join(handle.job.task.id for handle in running[:4])
        if (run := session.identity.find()) is not None and (waits := notes(run)):
            text += "; " + ", ".join(waits[:3])
        terminal.ensure_newline()
        terminal.write_line(shown_line(text))


_progress_key = pytest.StashKey[Progress]()


def progress(config: pytest.Config) -> Callable[[], None]:
    """The process's progress line, to be called while waiting."""
    if (found := config.stash.get(_progress_key, None)) is None:
        found = config.stash[_progress_key] = Progress(config)
    return found


# -- summary ---------------------------------------------------------------------------------------------


def write_summary(terminal: Any, run: Path, shown: str, resumed: str | None = None) -> None:
    """Print the run's summary, with its directory as `shown` and the line on what it `resumed`, and its benchmarks'
    sections; write `summary.json`, the evaluation files and those of the sections.

    What cannot be written is one line, as is a section that cannot be made; the summary is printed all the same.
    """
    from pytest_hermes.artifacts.run_end import end_of
    from pytest_hermes.artifacts.run_reader import locate, read_manifest
    from pytest_hermes.artifacts.sections import sections_of
    from pytest_hermes.artifacts.summary import summarize_located
    from pytest_hermes.artifacts.summary_text import render

    terminal.write_sep("=", "hermes")
    try:
        manifest, located = read_manifest(run), locate(run)
        summary = summarize_located(located, manifest)
        end = end_of(run, located, manifest, stopped_early=_stopped_early(terminal, run))
    except (ConfigurationError, OSError) as error:
        for line in filter(None, (f"no summary of {shown}: {error}", resumed)):
            terminal.write_line(shown_line(line))
        return
    for line in render(summary):
        terminal.write_line(shown_line(line))
    sections = sections_of(located, manifest)
    numbers = {**summary.as_json(), "end": end.as_json(), "metrics": sections.metrics}
    base = terminal.config.invocation_params.dir
    for problem in [*sections.problems, *_write_numbers(run, numbers, located, manifest, base, sections)]:
        terminal.write_line(shown_line(problem))
    for line in filter(None, (end.headline, end.advice)):
        terminal.write_line(shown_line(line))
    terminal.write_line(f"run directory: {shown}")
    if resumed is not None:
        terminal.write_line(shown_line(resumed))
    for section in sections.by_benchmark.values():
        terminal.write_sep("=", shown_line(section.title))
        for line in section.lines:
            terminal.write_line(shown_line(line))


def _stopped_early(terminal: Any, run: Path) -> bool:
    """Whether the run ends before its last item: Ctrl-C, SIGTERM, -x, or whatever else stopped pytest."""
    session = terminal._session
    ended = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    return not ended or bool(session.shouldfail or session.shouldstop) or (run / "abort").exists()


def _write_numbers(
    run: Path,
    numbers: Mapping[str, Any],
    located: Sequence[LocatedRow],
    manifest: Mapping[str, Any],
    base: Path,
    sections: Sections,
) -> list[str]:
    """Write the files of a run's numbers; why some are not written, a line each."""
    from pytest_hermes.artifacts.eval_files import write_eval_files
    from pytest_hermes.artifacts.run_directory import write_json

    problems = []
    for name, content in {"summary.json": numbers, **sections.files}.items():
        try:
            write_json(run / name, content)
        except (OSError, TypeError, ValueError) as error:
            problems.append(f"{name} not written: {error}")
    try:
        problems += write_eval_files(run, located, manifest, base, sections.by_benchmark)
    except Exception as error:  # noqa: BLE001 - whatever it is, the run and its summary stand
        problems.append(f"evaluation files not written: {described(error)}")
    return problems
