"""The plugin's state for one pytest process: settings, the run's identity, the engine, and each item's rollout.

Light until an item is ours: the engine and everything below it are imported when the first rollout starts.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_hermes.artifacts.run_directory import RunDirectory, RunIdentity
from pytest_hermes.options import resolve_settings, run_root
from pytest_hermes.stash import handle_key, job_key, rollout_key

if TYPE_CHECKING:
    from pytest_hermes.benchmark import Benchmark
    from pytest_hermes.config import Settings
    from pytest_hermes.engine import Engine, Handle
    from pytest_hermes.job import Job
    from pytest_hermes.replay import Replays
    from pytest_hermes.resume import PastRun
    from pytest_hermes.rollout import Rollout

WORKERINPUT = "hermes"
RESUMED_INPUT = "hermes_resume"
DEFAULT_CONCURRENCY = 4
GARBAGE_THRESHOLD = 10_000
"""Net new containers between collections while rollouts run; Python's own 700 is made for small heaps."""


class HermesSession:
    """One per process. `worker` is `main`, or the xdist worker's id; `items` are the selected items of ours."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.identity = identity_of(config)
        self.worker: str = getattr(config, "workerinput", {}).get("workerid", "main")
        self.items: list[pytest.Item] = []
        self.pump: Any = lambda: None
        """Set by the run loop: submit what can start now."""
        self._settings: dict[int, tuple[Benchmark | None, Settings]] = {}
        self._run: RunDirectory | None = None
        self._engine: Engine | None = None
        self.past = past_run_of(config)
        """The run that is resumed."""
        self.replays: Replays | None = None
        self._thresholds = gc.get_threshold()
        if self.past is not None:
            from pytest_hermes.replay import Replays

            self.replays = Replays(self, self.past)

    @property
    def on_worker(self) -> bool:
        return hasattr(self.config, "workerinput")

    @property
    def fail_fast(self) -> bool:
        """Whether a failure stops the run: nothing may start that it would have kept from starting."""
        option = self.config.option
        return bool(getattr(option, "maxfail", 0)) or bool(getattr(option, "stepwise", False))

    # -- collection ----------------------------------------------------------------------------------

    def settings_for(self, benchmark: Benchmark | None) -> Settings:
        """The merged and checked settings of a benchmark (None: tests whose mark describes the task)."""
        known = self._settings.get(id(benchmark))
        if known is None:
            from pytest_hermes.names import check_names

            layer = benchmark.default_layer() if benchmark else None
            settings = resolve_settings(
                self.config, layer, f"benchmark {benchmark.name}: defaults" if benchmark else ""
            )
            check_names(settings, benchmark)
            known = self._settings[id(benchmark)] = benchmark, settings
        return known[1]

    def take(self, items: list[pytest.Item]) -> None:
        """Remember the selected items that are ours and refuse a run that cannot work."""
        marked = [item for item in items if item.get_closest_marker("hermes") is not None]
        if not marked:
            return
        from pytest_hermes.collection import job_of

        self.items = [item for item in marked if job_of(item, self.settings_for) is not None]
        if self.items and not self.config.option.collectonly:
            why = self._unusable()
            if why is None and self.past is not None:
                why = self._refusal(self.past)
            if why is not None:
                self.refuse(why, items)
            elif not self.on_worker:
                refuse_unusable_root(Path(self.identity.root))

    def _refusal(self, past: PastRun) -> str | None:
        """Why the items cannot resume the run."""
        from pytest_hermes.artifacts.manifest import settings_by_benchmark
        from pytest_hermes.errors import ConfigurationError

        try:
            return past.refusal(settings_by_benchmark(self.jobs))
        except ConfigurationError as error:
            return f"--hermes-resume={past.path.name}: {error}"

    def refuse(self, why: str, items: list[pytest.Item]) -> None:
        """Stop before anything starts. A worker cannot: it drops its items and tells the controller."""
        if not self.on_worker:
            raise pytest.UsageError(why)
        items.clear()
        self.items = []
        report = pytest.CollectReport("pytest-hermes", "failed", why, [], hermes_refusal=True)
        self.config.hook.pytest_collectreport(report=report)

    def _unusable(self) -> str | None:
        """Why the run cannot work, whatever its items do."""
        from pytest_hermes.collection import will_run
        from pytest_hermes.preflight import refusal

        hooked = bool(self.config.hook.pytest_hermes_make_sandbox.get_hookimpls())
        jobs = [item.stash[job_key] for item in self.items if will_run(item)]
        return refusal(jobs, own_sandboxes=hooked or self.past is not None)

    def job(self, item: pytest.Item) -> Job | None:
        """What the item rolls out; None for items that are not ours."""
        return item.stash.get(job_key, None)

    @property
    def jobs(self) -> list[Job]:
        """What the selected items roll out."""
        return [item.stash[job_key] for item in self.items]

    # -- engine --------------------------------------------------------------------------------------

    def concurrency(self) -> int:
        """Rollouts in flight in this process: the least that one of its benchmarks allows; 1 on an xdist worker."""
        if self.on_worker:
            return 1
        chosen = [settings.env.concurrency for _, settings in self._settings.values()]
        return min((k for k in chosen if k is not None), default=DEFAULT_CONCURRENCY)

    def looks_ahead(self, session: pytest.Session) -> bool:
        """Whether our run loop takes this session: items of ours, several in flight, nothing only shown."""
        option = self.config.option
        if not self.items or self.concurrency() == 1:
            return False
        if option.collectonly or option.setuponly or option.setupplan:
            return False
        return not session.testsfailed or bool(option.continue_on_collection_errors)

    @property
    def run(self) -> RunDirectory:
        """The run directory, made on first use; from then on SIGTERM stops the run as Ctrl-C does."""
        if self._run is None:
            from pytest_hermes.artifacts.manifest import manifest
            from pytest_hermes.collection import skipped_items

            names = {job.benchmark for job in self.jobs}
            run = RunDirectory(self.identity, names.pop() if len(names) == 1 else "mixed", self.worker)
            run.make(
                lambda: manifest(
                    jobs=self.jobs,
                    arguments=[str(argument) for argument in self.config.invocation_params.args],
                    root=self.config.rootpath,
                    skipped=skipped_items(self.items),
                    sources={
                        benchmark.name: benchmark.provenance
                        for benchmark, _ in self._settings.values()
                        if benchmark is not None and benchmark.provenance is not None
                    },
                    sections={
                        benchmark.name: benchmark.section
                        for benchmark, _ in self._settings.values()
                        if benchmark is not None and benchmark.section is not None
                    },
                    resumed_from=self.past.path if self.past is not None else None,
                )
            )
            self._run = run
            stop_on_sigterm(lambda: True)
            # Thousands of collected items live to the end: looking through them for garbage was a fifth of the time.
            gc.freeze()
            if self._thresholds[0]:  # 0: somebody turned it off
                gc.set_threshold(max(GARBAGE_THRESHOLD, self._thresholds[0]), *self._thresholds[1:])
        return self._run

    @property
    def made_run(self) -> RunDirectory | None:
        """The run directory, if this process has made it."""
        return self._run

    @property
    def engine(self) -> Engine:
        """The engine; the first use starts its loop."""
        if self._engine is None:
            from pytest_hermes.engine import Engine

            self._engine = Engine(
                self.run, self._make_services, concurrency=self.concurrency(), hold_slots=self.fail_fast
            )
        return self._engine

    @property
    def started(self) -> bool:
        """Whether any rollout was started in this process."""
        return self._engine is not None

    def _make_services(self, loop: Any) -> Any:
        from pytest_hermes.services import Services

        hook = self.config.hook.pytest_hermes_make_sandbox
        return Services(self.run, loop, lambda task, settings: hook(task=task, settings=settings))

    # -- items ---------------------------------------------------------------------------------------

    def submit(self, item: pytest.Item) -> Handle:
        """The item's rollout, started now if it was not before."""
        handle = item.stash.get(handle_key, None)
        if handle is None:
            from pytest_hermes.job import BodyGate

            if self.replays is not None:
                self.replays.note_rollout(item)
            gate = BodyGate() if self.keeps_sandbox(item) else None
            handle = self.engine.submit(item.stash[job_key], gate)
            item.stash[handle_key] = handle
        return handle

    def holds_slot(self, item: pytest.Item) -> bool:
        """Whether the item's rollout keeps its slot until the item has been reported."""
        return self.fail_fast or self.keeps_sandbox(item)

    def keeps_sandbox(self, item: pytest.Item) -> bool:
        """Whether the sandbox lives until the test body has judged."""
        return item.stash[job_key].verify is None or "ctx" in getattr(item, "fixturenames", ())

    def begin(self, item: pytest.Item) -> None:
        """The item's set-up begins; a re-run (pytest-rerunfailures) gets a rollout of its own."""
        if rollout_key in item.stash:
            self.forget(item)

    def forget(self, item: pytest.Item) -> None:
        """The item has been reported: free its slot. A rollout that its test never asked for (a fixture before it
        skipped or failed) is cancelled, or its row says `unused`."""
        handle = item.stash.get(handle_key, None)
        if handle is not None:
            del item.stash[handle_key]
            if not handle.done.done():
                self.engine.cancel(handle)
            elif rollout_key not in item.stash and handle.done.exception() is None:
                rollout = handle.done.result()
                rollout.outcome, rollout.cause = "invalid", "unused"
                self.engine.record_again(rollout)
            self.engine.report_done(handle)
        if rollout_key in item.stash:
            del item.stash[rollout_key]  # its conversation need not stay in memory

    def record_again(self, rollout: Rollout) -> None:
        """Append the row once more, with what the test made of it."""
        if rollout.resumed_from is not None and self.replays is not None:
            self.replays.record(rollout)
        else:
            self.engine.record_again(rollout)

    def finish(self) -> None:
        """Cancel what still runs and wait until its sandboxes are gone."""
        if self._engine is not None:
            with patient():
                self._engine.close()
        if self._run is not None:
            self._run.close()
            gc.set_threshold(*self._thresholds)
            gc.unfreeze()


def names_groups(config: pytest.Config) -> bool:
    """Whether `-m` may name a difficulty or a category of tasks."""
    expression = config.getoption("markexpr", "")
    return "difficulty_" in expression or "category_" in expression


class GroupCheck:
    """Stops a session where `-m` names a difficulty or category that no collected task has: a typo selects nothing.

    A plugin of its own, because it comes before other plugins deselect items, and what the session takes comes after.
    """

    def __init__(self, hermes: HermesSession) -> None:
        self._hermes = hermes

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        from pytest_hermes.collection import job_of
        from pytest_hermes.preflight import unknown_group

        tasks = [job.task for item in items if (job := job_of(item, self._hermes.settings_for)) is not None]
        why = unknown_group(config.getoption("markexpr"), tasks, config.getini("markers")) if tasks else None
        if why is not None:
            self._hermes.refuse(why, items)


def identity_of(config: pytest.Config) -> RunIdentity:
    """This run's identity: handed over by the xdist controller, or new."""
    handed = getattr(config, "workerinput", {}).get(WORKERINPUT)
    return RunIdentity(**handed) if handed else RunIdentity.new(run_root(config))


def past_run_of(config: pytest.Config) -> PastRun | None:
    """The run that is resumed: handed over by the xdist controller, or looked for. Raises UsageError."""
    handed = getattr(config, "workerinput", {}).get(RESUMED_INPUT)
    if config.getoption("hermes_resume") is None:
        return None
    from pytest_hermes.resume import PastRun, past_run

    return PastRun(Path(handed)) if handed else past_run(config)


def refuse_combinations(config: pytest.Config) -> None:
    """Raise UsageError for options that do not go together."""
    concurrency = config.getoption("hermes_concurrency")
    workers = config.getoption("numprocesses", None)
    if concurrency is not None and concurrency > 1 and workers:
        raise pytest.UsageError(
            f"--hermes-concurrency={concurrency} together with -n {workers}: K > 1 per worker is not built yet. "
            "Use one of the two (-n N gives N in flight)"
        )


def stop_on_sigterm(has_started: Any) -> None:
    """Let SIGTERM stop the run as Ctrl-C does, once `has_started()`; before that it kills, as it always did."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def stop(number: int, _frame: object) -> None:
        if has_started():
            raise KeyboardInterrupt("SIGTERM")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, stop)


@contextmanager
def patient() -> Iterator[None]:
    """While sandboxes are being removed, answer a further Ctrl-C or SIGTERM with a line; the one after that ends it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = 0

    def answer(_number: int, _frame: object) -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise KeyboardInterrupt("sandboxes are left to the next run, or to `pytest-hermes reap`")
        os.write(2, b"\npytest-hermes: removing sandboxes; once more leaves them behind\n")

    before = {number: signal.signal(number, answer) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def refuse_unusable_root(root: Path) -> None:
    """Raise UsageError before anything starts if run directories cannot be made there."""
    existing = next(folder for folder in (root, *root.parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        what = "cannot be written" if existing.is_dir() else "is not a directory"
        raise pytest.UsageError(f"run directory {root}: {existing} {what}. Choose another with --hermes-run-dir")
