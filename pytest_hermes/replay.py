"""Reporting items from the rows of a resumed run: instead of a rollout, through the ordinary protocol.

A replayed rollout is what its fixtures give, so the body judges it again. Where the body needs the sandbox, which is
gone, the row's own judgement is reported: the body, and those fixtures that ask for `ctx`, are passed over.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from pytest_hermes.artifacts.records import append_rollout
from pytest_hermes.artifacts.run_directory import file_name
from pytest_hermes.errors import ConfigurationError
from pytest_hermes.failures import TaskFailed
from pytest_hermes.resume import UNREADABLE, XFAIL_RAISES, KnownRollout, PastRun
from pytest_hermes.services import KEY_VARIABLES
from pytest_hermes.shown import shown
from pytest_hermes.stash import handle_key, job_key, known_key, resumed_key, rollout_key

if TYPE_CHECKING:
    from _pytest.fixtures import FixtureDef, SubRequest

    from pytest_hermes.rollout import Rollout
    from pytest_hermes.session import HermesSession

SANDBOX_FIXTURE = "ctx"


class Replays:
    """What one process replays of `past`; also a pytest plugin."""

    def __init__(self, session: HermesSession, past: PastRun) -> None:
        self._hermes = session
        self._past = past

    def of(self, item: pytest.Item) -> KnownRollout | None:
        """The rollout that the item will be reported from; None: it is rolled out."""
        return self._look_up(item)[1]

    def _look_up(self, item: pytest.Item) -> tuple[str, KnownRollout | None]:
        found = item.stash.get(known_key, None)
        if found is None:
            found = self._past.find(item.stash[job_key])
            if found[1] is not None and found[1].outcome == "failed" and self._is_judged_by_type(item):
                found = XFAIL_RAISES, None
            item.stash[known_key] = found
        return found

    def _is_judged_by_type(self, item: pytest.Item) -> bool:
        """Whether it matters which exception its body raised; rows do not hold that."""
        return self._hermes.keeps_sandbox(item) and any(
            mark.kwargs.get("raises") for mark in item.iter_markers("xfail")
        )

    def take(self, item: pytest.Item) -> Rollout | None:
        """The item's rollout, its row on disk in this run. None: it must be rolled out, as every re-run must."""
        status, known = self._look_up(item)
        if known is None:
            return None
        job, run = item.stash[job_key], self._hermes.run
        artifacts = run.path / "artifacts" / file_name(job.task.id) / str(job.attempt)
        rollout = self._past.replay(known, job, judged=self._hermes.keeps_sandbox(item), artifacts=artifacts)
        item.stash[known_key] = UNREADABLE, None
        if rollout is not None:
            item.stash.setdefault(resumed_key, status)
            self.record(rollout)
        return rollout

    def note_rollout(self, item: pytest.Item) -> None:
        """The item is rolled out: its first report says why."""
        item.stash.setdefault(resumed_key, self._look_up(item)[0])

    def record(self, rollout: Rollout) -> None:
        """Append the row of a replayed rollout."""
        secrets = tuple(os.environ[name] for name in KEY_VARIABLES if os.environ.get(name))
        append_rollout(self._hermes.run, rollout, secrets)

    def judge(self, item: pytest.Item) -> bool:
        """Whether the row judges the item, not its body."""
        if not self._hermes.keeps_sandbox(item):
            return False
        if (rollout := item.stash.get(rollout_key, None)) is not None:
            return rollout.resumed_from is not None
        return handle_key not in item.stash and self.of(item) is not None

    # -- hooks -----------------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: FixtureDef[Any], request: SubRequest) -> object | None:
        item = request.node
        if fixturedef.scope != "function" or job_key not in getattr(item, "stash", ()):
            return None
        if not _needs_sandbox(fixturedef, item) or not self.judge(item):
            return None
        from pytest_hermes.fixtures import rollout_of_item

        rollout = rollout_of_item(item)
        if rollout.resumed_from is None:
            return None  # its row was unreadable
        value = _Gone(rollout.resumed_from)
        fixturedef.cached_result = (value, fixturedef.cache_key(request), None)
        return value

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        rollout = pyfuncitem.stash.get(rollout_key, None)
        if rollout is None or not self.judge(pyfuncitem):
            return None
        if not rollout.passed:
            told = rollout.error or rollout.explain()
            raise TaskFailed(shown(f"{told}\nreplayed from {rollout.resumed_from}: the test's body was not run"))
        return True


class _Gone:
    """In place of a fixture that needs a sandbox."""

    def __init__(self, run: str) -> None:
        self._run = run

    def __getattr__(self, name: str) -> Any:
        raise ConfigurationError(
            f"replayed from {self._run}: there is no sandbox. A fixture that uses ctx must name it among its parameters"
        )


def _needs_sandbox(fixturedef: FixtureDef[Any], item: Any) -> bool:
    """Whether it is `ctx` or asks for it, directly or through others."""
    info = getattr(item, "_fixtureinfo", None)
    table = info.name2fixturedefs if info else {}
    asked, seen = [fixturedef.argname, *fixturedef.argnames], set()
    while asked:
        name = asked.pop()
        if name == SANDBOX_FIXTURE:
            return True
        if name not in seen:
            seen.add(name)
            asked += [argument for definition in table.get(name, ()) for argument in definition.argnames]
    return False
