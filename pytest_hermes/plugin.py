"""The pytest plugin: hooks only, each a call to a named thing. Imports nothing heavy; a run without rollouts pays only
for this file and what it imports.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_hermes import options
from pytest_hermes.stash import session_key

if TYPE_CHECKING:
    from pytest_hermes.session import HermesSession

pytest_plugins = ("pytest_hermes.fixtures",)
MARK = (
    "hermes(prompt=..., image=..., toolsets=[...], ...): the test judges one rollout of an agent in a sandbox; "
    "or hermes(benchmark=...), set by @benchmark.parametrize"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from pytest_hermes import hookspec

    pluginmanager.add_hookspecs(hookspec)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None, object, object]:
    result = yield
    options.add_short_model_option(parser)
    return result


def pytest_configure(config: pytest.Config) -> None:
    from pytest_hermes import session

    config.addinivalue_line("markers", MARK)
    session.refuse_combinations(config)
    hermes = config.stash[session_key] = session.HermesSession(config)
    if hermes.replays is not None:
        config.pluginmanager.register(hermes.replays, "hermes-replays")
    if session.names_groups(config):
        config.pluginmanager.register(session.GroupCheck(hermes), "hermes-groups")
    if not hermes.on_worker:
        from pytest_hermes.controller import Controller

        config.pluginmanager.register(Controller(hermes), "hermes-controller")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("hermes") is None:
        return
    from pytest_hermes.collection import parametrize

    hermes = _session(metafunc.config)
    parametrize(metafunc, hermes.settings_for, hermes.identity.run_id)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, Any]:
    report = yield
    if report.failed:
        from pytest_hermes.shown import show_report

        show_report(report, collector.config)  # the error may quote task data
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    hermes = _session(config)
    hermes.take(items)
    if hermes.items and hermes.on_worker and not hermes.fail_fast:
        from pytest_hermes.scheduling import order_for_workers

        order_for_workers(items, hermes)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    hermes = _session(session.config)
    if not hermes.looks_ahead(session):
        return None
    from pytest_hermes.reporting import progress
    from pytest_hermes.scheduling import run_items

    return run_items(session, hermes, progress(session.config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    result = yield
    _session(item.config).forget(item)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    hermes = _session(item.config)
    if hermes.job(item) is None:
        return (yield)
    from pytest_hermes.reporting import phase_clock

    hermes.begin(item)
    with phase_clock(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    if _session(item.config).job(item) is None:
        return (yield)
    from pytest_hermes.bridge import driven_body
    from pytest_hermes.reporting import phase_clock

    with phase_clock(item), driven_body(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    if _session(item.config).job(item) is None:
        return (yield)
    from pytest_hermes.reporting import phase_clock

    with phase_clock(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    report = yield
    if _session(item.config).job(item) is not None:
        from pytest_hermes.reporting import finish_phase

        finish_phase(item, call, report)
    return report


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item) -> bool | None:
    """The engine keeps a rollout's clocks: an alarm would hit the waiting main thread, not the rollout."""
    return True if _session(item.config).job(item) is not None else None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove what still runs before anything else: under xdist later hooks raise once the controller is dead."""
    if (hermes := session.config.stash.get(session_key, None)) is not None:
        hermes.finish()


def _session(config: pytest.Config) -> HermesSession:
    return config.stash[session_key]
