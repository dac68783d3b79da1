"""What a run cannot work without, looked at once the items are known: a mistake stops the run before anything starts,
in one line, instead of failing every item.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pytest_hermes.config import hint
from pytest_hermes.errors import ConfigurationError, SandboxUnavailable
from pytest_hermes.names import NO_MODEL, check_endpoint, lacks_model
from pytest_hermes.sandbox.registry import check_usable
from pytest_hermes.task import slug

if TYPE_CHECKING:
    from pytest_hermes.job import Job
    from pytest_hermes.task import Task

GROUP_MARK = re.compile(r"\b(?:difficulty|category)_\w+")


def refusal(jobs: Sequence[Job], *, own_sandboxes: bool) -> str | None:
    """Why these jobs cannot be rolled out; None if nothing is known to be in the way.

    `own_sandboxes` says that a hook of the user's makes sandboxes: then the backend may not matter.
    """
    try:
        for job in {id(job.settings): job for job in jobs}.values():
            if lacks_model(job.settings):
                return NO_MODEL
            check_endpoint(job.settings)
        _check_solutions(jobs)
        if not own_sandboxes:
            _check_backends(jobs)
    except (ConfigurationError, SandboxUnavailable) as error:
        return str(error)
    return None


def _check_solutions(jobs: Iterable[Job]) -> None:
    """A task without a solution is that task's error; a benchmark without any cannot be checked by the oracle."""
    by_benchmark: dict[str, list[Task]] = {}
    for job in jobs:
        if job.settings.env.agent == "oracle":
            by_benchmark.setdefault(job.benchmark, []).append(job.task)
    for name, tasks in by_benchmark.items():
        if all(task.solution is None and task.error is None for task in tasks):
            raise ConfigurationError(
                f"--hermes-agent=oracle runs the tasks' own solutions, and no task of {name} that was selected has one."
                " Rows of a hub often come without: take the same tasks in the Harbor form, with --hermes-dataset"
            )


def _check_backends(jobs: Iterable[Job]) -> None:
    image_needed: dict[str, bool] = {}
    for job in jobs:
        backend = job.settings.env.terminal_backend
        image_needed[backend] = image_needed.get(backend, False) or job.task.sandbox.needs_image
    for backend, needs_image in image_needed.items():
        check_usable(backend, needs_image=needs_image)


def unknown_group(expression: str, tasks: Sequence[Task], registered: Iterable[str]) -> str | None:
    """What is wrong with a `-m` expression that names a difficulty or category which no collected task has."""
    known: dict[str, set[str]] = {"difficulty": set(), "category": set()}
    for task in tasks:
        for kind, value in (("difficulty", task.difficulty), ("category", task.category)):
            if value:
                known[kind].add(slug(value))
    own = {re.split(r"[:(]", line)[0].strip() for line in registered}
    for name in GROUP_MARK.findall(expression):
        kind, _, value = name.partition("_")
        if value in known[kind] or name in own:
            continue
        if not known[kind]:
            return f"-m {expression!r}: none of the {len(tasks)} collected tasks says its {kind}"
        return f"-m {expression!r}: no collected task is {name}{hint(value, known[kind])}"
    return None
