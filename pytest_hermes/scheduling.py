"""Which item runs next. pytest stays sequential: an item's ordinary runtest protocol is executed once its rollout is
over, in completion order among siblings.

Used without xdist and with more than one rollout in flight; otherwise pytest's own loop runs and each item starts its
rollout when it is reached. Rules:
- a group is a run of items with the same parent and the same parameters of higher-scoped fixtures: items change places
  only within it, so set-ups happen as often as in plain pytest;
- nothing starts for an item that pytest would not run (skip, skipif, xfail(run=False)), nor before the higher-scoped
  fixtures that the item uses are set up (they may start the model server): the first item of such a group opens it;
- a rollout that keeps its slot until its item is reported starts only in its own group's turn;
- when a failure stops the run (-x, --maxfail, --stepwise), an item that is not a rollout keeps its place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from _pytest.fixtures import FixtureDef
from _pytest.scope import Scope

from pytest_hermes.collection import will_run
from pytest_hermes.stash import job_key

if TYPE_CHECKING:
    from pytest_hermes.engine import Handle
    from pytest_hermes.session import HermesSession

INERT_MODULES = ("_pytest.", "pytest_asyncio", "pytest_hermes.", "xdist.", "anyio.", "pytest_timeout")
"""Higher-scoped fixtures defined there prepare nothing that a rollout could need."""
DIFFICULTY_ORDER = {"easy": 0, "medium": 1, "hard": 2, "extreme": 3}


def run_items(session: pytest.Session, hermes: HermesSession, on_idle: Callable[[], None]) -> bool:
    """Run all items of the session; the body of `pytest_runtestloop`."""
    groups = [_Group(list(items), hermes) for _, items in itertools.groupby(session.items, _group_key)]

    current = 0

    def pump() -> None:
        for ahead, group in enumerate(groups[current:]):
            group.start(is_current=ahead == 0)

    def next_item() -> pytest.Item | None:
        if not hermes.started:
            return groups[current].next_item()
        queue = hermes.engine.became_ready
        while queue:
            handle = queue.popleft()
            for group in groups[current:]:
                group.became_ready(handle)
        return groups[current].next_item()

    hermes.pump = pump
    for number, group in enumerate(groups):
        current = number
        following = next(iter(groups[number + 1].todo)) if number + 1 < len(groups) else None
        while group.todo:
            pump()
            item = hermes.engine.wait(next_item, on_idle) if hermes.started else next_item()
            assert item is not None
            group.remove(item)
            nextitem = next(iter(group.todo), following)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
    return True


class _Group:
    """Items that may change places. `todo` holds, in pytest's order, those that have not been reported."""

    def __init__(self, items: list[pytest.Item], hermes: HermesSession) -> None:
        self.todo = dict.fromkeys(items)
        self._hermes = hermes
        self._waiting = [item for item in items if hermes.job(item) is not None and will_run(item)]
        if (replays := hermes.replays) is not None:
            self._waiting = [item for item in self._waiting if replays.of(item) is None]
        if not hermes.fail_fast:
            self._waiting.sort(key=_expected_length, reverse=True)
        rollouts = set(self._waiting)
        self._others = dict.fromkeys(item for item in items if item not in rollouts)
        """Items that need no rollout: plain tests, and ours that will be skipped or are replayed."""
        self._by_handle: dict[Handle, pytest.Item] = {}
        self._started: dict[pytest.Item, None] = {}
        """Submitted, and not seen to be ready."""
        self._ready: dict[pytest.Item, None] = {}

    def start(self, *, is_current: bool) -> None:
        """Submit every rollout that may start now.

        Of groups whose turn has not come only rollouts that end by themselves: one that keeps its slot until its item
        is reported would wait for us while we wait for a slot.
        """
        if not self._hermes.fail_fast:
            self._waiting = [item for item in self._waiting if not self._submit(item, is_current)]
            return
        for item in self.todo:  # in order, and nothing past an item that must run first
            if item in self._others:
                return
            if item in self._waiting:
                if not self._submit(item, is_current):
                    return
                self._waiting.remove(item)

    def _submit(self, item: pytest.Item, is_current: bool) -> bool:
        if not is_current and self._hermes.holds_slot(item):
            return False
        if fixtures_are_set_up(item):
            self._by_handle[self._hermes.submit(item)] = item
            self._started[item] = None
            return True
        return False

    def became_ready(self, handle: Handle) -> None:
        """Note that a rollout, if it is one of this group, can be reported."""
        item = self._by_handle.get(handle)
        if item is not None and item in self._started:
            del self._started[item]
            self._ready[item] = None

    def next_item(self) -> pytest.Item | None:
        """The item to run now, or None while all that could run is still rolling out."""
        if self._hermes.fail_fast:
            return self._next_in_order()
        for found in (self._ready, self._others):
            if found:
                return next(iter(found))
        return None if self._started else next(iter(self.todo))

    def _next_in_order(self) -> pytest.Item | None:
        """As `next_item`, but no item passes one that is not a rollout."""
        rolling_out = False
        for item in self.todo:
            if item in self._ready:
                return item
            if item in self._others:
                break
            rolling_out |= item in self._started
        return None if rolling_out else next(iter(self.todo))

    def remove(self, item: pytest.Item) -> None:
        """The item's turn has come."""
        for collection in (self.todo, self._ready, self._others, self._started):
            collection.pop(item, None)
        if item in self._waiting:
            self._waiting.remove(item)


def _group_key(item: pytest.Item) -> tuple[object, ...]:
    callspec = getattr(item, "callspec", None)
    shared: tuple[tuple[str, int], ...] = ()
    if callspec is not None:
        shared = tuple(
            (name, callspec.indices[name])
            for name, scope in sorted(callspec._arg2scope.items())
            if scope is not Scope.Function and name in callspec.indices
        )
    return id(item.parent), shared


def fixtures_are_set_up(item: pytest.Item) -> bool:
    """Whether every higher-scoped fixture of the user's that the item uses is set up, with the item's parameter."""
    return all(_is_set_up(definition, item) for definition in _shared_fixtures(item))


def _shared_fixtures(item: pytest.Item) -> Iterator[FixtureDef[object]]:
    info = getattr(item, "_fixtureinfo", None)
    for definitions in info.name2fixturedefs.values() if info else ():
        definition = definitions[-1]
        module = getattr(definition.func, "__module__", None) or ""
        xunit = definition.argname.startswith("_xunit_setup")
        if definition.scope != "function" and (xunit or not module.startswith(INERT_MODULES)):
            yield definition


def _is_set_up(definition: FixtureDef[object], item: pytest.Item) -> bool:
    result = definition.cached_result
    if result is None or result[2] is not None:
        return False
    callspec = getattr(item, "callspec", None)
    if callspec is None or definition.argname not in callspec.params:
        return True
    wanted = callspec.params[definition.argname]
    return result[1] is wanted or bool(result[1] == wanted) or result[1] == callspec.indices.get(definition.argname)


def _expected_length(item: pytest.Item) -> tuple[int, float]:
    """Longest first: by difficulty, else by the task's own agent clock."""
    job = item.stash[job_key]
    return DIFFICULTY_ORDER.get(job.task.difficulty or "", -1), job.task.limits.agent_s or 0.0


def order_for_workers(items: list[pytest.Item], hermes: HermesSession) -> None:
    """Reorder in place for xdist: within groups of rollouts alternately a long and a short one.

    A worker holds one item behind the running one; pairing a long with a short keeps two long ones from queueing up
    on the same worker. Deterministic, so that all workers agree. Groups whose rollouts all look alike stay as they are.
    """
    result: list[pytest.Item] = []
    for _, members in itertools.groupby(items, _group_key):
        group = list(members)
        if all(hermes.job(item) is not None for item in group) and len({_expected_length(item) for item in group}) > 1:
            by_length = sorted(group, key=_expected_length, reverse=True)
            half = (len(by_length) + 1) // 2
            long, short = by_length[:half], by_length[half:][::-1]
            group = [item for pair in itertools.zip_longest(long, short) for item in pair if item is not None]
        result += group
    items[:] = result
