"""What the process that owns a run does besides collecting: identity for xdist workers, -x across workers, reaping
after a killed worker, the exit status.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_hermes.artifacts.run_directory import wait_for_engines
from pytest_hermes.options import is_asked_for
from pytest_hermes.session import RESUMED_INPUT, WORKERINPUT, HermesSession, patient, stop_on_sigterm

TICK_S = 1.0
STOP_WAIT_S = 120.0
"""Twice the teardown clock's default: removing a sandbox, and what was just being made."""


class Controller:
    """Registered as a plugin in every process that is not an xdist worker."""

    def __init__(self, session: HermesSession) -> None:
        self._hermes = session
        self._config = session.config
        self._failed = 0
        self._invalid: collections.Counter[str] = collections.Counter()
        self._resumed: collections.Counter[str] = collections.Counter()
        self._workers = 0
        if self._config.getoption("numprocesses", None):
            if is_asked_for(self._config) and self._config.getoption("maxschedchunk", None) is None:
                self._config.option.maxschedchunk = 1  # rollouts are long: hand them out one by one
            stop_on_sigterm(lambda: session.identity.find() is not None)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[WORKERINPUT] = dataclasses.asdict(self._hermes.identity)
        if self._hermes.past is not None:
            node.workerinput[RESUMED_INPUT] = str(self._hermes.past.path)
        self._workers += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if getattr(report, "hermes_refusal", False):
            raise pytest.UsageError(str(report.longrepr))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        distributed = self._config.pluginmanager.get_plugin("dsession")
        if distributed is None or not is_asked_for(self._config):
            return (yield)
        with self._ticking(distributed):
            return (yield)

    @contextmanager
    def _ticking(self, distributed: Any) -> Iterator[None]:
        """Call `progress` in xdist's own loop about once a second: it wakes only when a worker says something."""
        from pytest_hermes.reporting import progress

        distributed.worker_hermes_tick = progress(self._config)
        over = threading.Event()

        def tick() -> None:
            while not over.wait(TICK_S):
                if distributed.queue.empty():  # a busy loop gets here by itself
                    distributed.queue.put(("hermes_tick", {}))

        thread = threading.Thread(target=tick, name="hermes-ticks", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """A worker that died took its engine with it: remove its sandboxes."""
        if error and self._hermes.identity.find() is not None:
            from pytest_hermes.reaper import reap_run

            reap_run(self._hermes.identity)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if (status := getattr(report, "hermes_resumed", None)) is not None:
            self._resumed[status] += 1
        if any(name == "hermes.outcome" for name, _ in report.user_properties):
            from pytest_hermes.reporting import progress

            progress(self._config)()
        if not report.failed or hasattr(report, "wasxfail"):
            return
        self._failed += 1
        properties = dict(report.user_properties)
        if properties.get("hermes.outcome") == "invalid":
            self._invalid[str(properties["hermes.benchmark"])] += 1
        maxfail = self._config.getvalue("maxfail")
        if maxfail and self._failed >= maxfail and (run := self._hermes.identity.find()) is not None:
            (run / "abort").write_text(f"stopping after {self._failed} failures")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, None, None]:
        """When a run is stopped, workers end their rollouts before xdist ends the workers: it kills after 10 s."""
        self._excuse_invalid(session, exitstatus)
        run = self._hermes.identity.find() if self._workers else None
        if run is not None and exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            (run / "abort").write_text("the run was stopped")
        with patient():
            ended = run is None or wait_for_engines(run, STOP_WAIT_S)
        yield
        if not ended:
            from pytest_hermes.reaper import reap_run

            reap_run(self._hermes.identity)

    def _excuse_invalid(self, session: pytest.Session, exitstatus: int) -> None:
        """Exit 0 if all that failed are invalid rollouts, of no benchmark more than its `env.max_invalid` allows."""
        if exitstatus != pytest.ExitCode.TESTS_FAILED or not 0 < self._invalid.total() == self._failed:
            return
        if (run := self._hermes.identity.find()) is None:
            return
        settings = json.loads((run / "run.json").read_text())["settings"]
        if all(count <= settings[name]["env"]["max_invalid"] for name, count in self._invalid.items()):
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        run = self._hermes.identity.find()
        if run is None:
            if (made := self._hermes.made_run) is not None:
                terminalreporter.write_line(f"hermes: the run directory {made.path} is gone")
            return
        from pytest_hermes.reporting import write_summary

        resumed = None
        if self._hermes.past is not None:
            from pytest_hermes.resume import outcome_line

            resumed = outcome_line(self._shown(self._hermes.past.path), self._resumed)
        write_summary(terminalreporter, run, self._shown(run), resumed)

    def _shown(self, run: Path) -> str:
        """A run directory as the user would name it."""
        shown = os.path.relpath(run, self._config.invocation_params.dir)
        return shown if not shown.startswith("..") else str(run)
