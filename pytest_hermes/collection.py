"""From marks to jobs: parametrisation of benchmarks, and what each collected item is to roll out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.skipping import evaluate_skip_marks, evaluate_xfail_marks

from pytest_hermes.benchmark import Benchmark
from pytest_hermes.config import Settings, hint
from pytest_hermes.errors import ConfigurationError
from pytest_hermes.job import Job
from pytest_hermes.limits import Limits
from pytest_hermes.names import check_tools
from pytest_hermes.stash import job_key
from pytest_hermes.task import FileTree, InlineFiles, SandboxSpec, Script, Task, slug

if TYPE_CHECKING:
    from pytest_hermes.tools.tool import Tool

JOB_FIXTURE = "_hermes_job"
"""Every fixture of ours asks for this one; benchmarks parametrise it."""


@dataclasses.dataclass(frozen=True)
class TaskAttempt:
    """Parameter of a collected item: which task, which attempt. `task` is None for a task that the mark describes."""

    task: Task | None
    attempt: int


def parametrize(metafunc: pytest.Metafunc, settings_for: Any, run_id: str) -> None:
    """`pytest_generate_tests`: one item per task and attempt. Configuration mistakes become collection errors."""
    mark = metafunc.definition.get_closest_marker("hermes")
    if mark is None:
        return
    if JOB_FIXTURE not in metafunc.fixturenames:
        raise pytest.Collector.CollectError(
            f"{metafunc.definition.nodeid}: marked `hermes`, but asks for none of the fixtures "
            "rollout, ctx, task, trajectory. Add one to its parameters"
        )
    try:
        _parametrize(metafunc, mark, settings_for, run_id)
    except ConfigurationError as error:
        raise pytest.Collector.CollectError(str(error)) from error


def _parametrize(metafunc: pytest.Metafunc, mark: pytest.Mark, settings_for: Any, run_id: str) -> None:
    benchmark = benchmark_of(mark)
    settings: Settings = settings_for(benchmark)
    attempts = settings.env.attempts
    if benchmark is None:
        task_of_mark(metafunc.definition, mark)
        check_tools(settings, mark.kwargs.get("toolsets"), _tools_of_mark(metafunc.definition, mark))
        if attempts > 1:
            parameters = [TaskAttempt(None, attempt) for attempt in range(1, attempts + 1)]
            metafunc.parametrize(JOB_FIXTURE, parameters, ids=[str(p.attempt) for p in parameters], indirect=True)
        return
    items = []
    for task in benchmark.load(settings, run_id):
        marks = [
            _registered_mark(metafunc.config, f"{kind}_{slug(value)}")
            for kind, value in (("difficulty", task.difficulty), ("category", task.category))
            if value
        ]
        if reason := benchmark.skip_reason(task, settings):
            marks.append(pytest.mark.skip(reason=reason))
        for attempt in range(1, attempts + 1):
            name = task.id if attempts == 1 else f"{task.id}:{attempt}"
            items.append(pytest.param(TaskAttempt(task, attempt), id=name, marks=marks))
    metafunc.parametrize(JOB_FIXTURE, items, indirect=True)


def _registered_mark(config: pytest.Config, name: str) -> pytest.MarkDecorator:
    """A mark that `--strict-markers` accepts."""
    line = f"{name}: set by pytest-hermes from the task's metadata"
    if line not in config.getini("markers"):
        config.addinivalue_line("markers", line)
    mark: pytest.MarkDecorator = getattr(pytest.mark, name)
    return mark


def benchmark_of(mark: pytest.Mark) -> Benchmark | None:
    """The benchmark of a `hermes` mark; None when the mark itself describes the task."""
    if "benchmark" not in mark.kwargs:
        return None
    benchmark = mark.kwargs["benchmark"]
    if not isinstance(benchmark, Benchmark):
        raise ConfigurationError(f"mark hermes: benchmark={benchmark!r} is not a Benchmark")
    return benchmark


def job_of(item: pytest.Item, settings_for: Any) -> Job | None:
    """The job of a collected item, kept on the item; None for an item that is not ours."""
    if (job := item.stash.get(job_key, None)) is not None:
        return job
    mark = item.get_closest_marker("hermes")
    if mark is None or JOB_FIXTURE not in getattr(item, "fixturenames", ()):
        return None
    callspec = getattr(item, "callspec", None)
    parameter = callspec.params.get(JOB_FIXTURE) if callspec else None
    if not isinstance(parameter, TaskAttempt):
        parameter = TaskAttempt(None, 1)
    benchmark = benchmark_of(mark)
    settings: Settings = settings_for(benchmark)
    cap = _timeout_of(item)
    if benchmark is None:
        task = task_of_mark(item, mark)
        toolsets = mark.kwargs.get("toolsets")
        job = Job(
            benchmark=_module_name(item),
            task=task,
            attempt=parameter.attempt,
            node_id=item.nodeid,
            settings=settings,
            verify=None,
            toolsets=None if toolsets is None else tuple(toolsets),
            tools=_tools_of_mark(item, mark),
            agent_cap_s=cap,
        )
    else:
        assert parameter.task is not None
        threshold = settings.env.pass_threshold
        job = Job(
            benchmark=benchmark.name,
            task=parameter.task,
            attempt=parameter.attempt,
            node_id=item.nodeid,
            settings=settings,
            verify=benchmark.verify,
            pass_threshold=benchmark.pass_threshold if threshold is None else threshold,
            toolsets=benchmark.toolsets,
            tools=benchmark.tools,
            limits=benchmark.limits,
            parallel_tools=benchmark.parallel_tools,
            episode=benchmark.episode,
            agent_cap_s=cap,
        )
    item.stash[job_key] = job
    return job


def will_run(item: pytest.Item) -> bool:
    """Whether pytest will run the item's body, as far as its marks tell."""
    try:
        if evaluate_skip_marks(item) is not None:
            return False
        xfail = evaluate_xfail_marks(item)
    except pytest.fail.Exception:
        return False  # a broken condition: pytest reports it when the item's turn comes
    return xfail is None or xfail.run or bool(item.config.option.runxfail)


def skipped_items(items: Iterable[pytest.Item]) -> dict[str, str]:
    """Node id -> reason of the items that their marks skip."""
    found = {}
    for item in items:
        try:
            skipped = evaluate_skip_marks(item)
        except pytest.fail.Exception:
            continue
        if skipped is not None:
            found[item.nodeid] = skipped.reason
    return found


def _timeout_of(item: pytest.Item) -> float | None:
    """Seconds of a `timeout` mark, else of `--timeout` on the command line (pytest-timeout's ini value is ignored)."""
    mark = item.get_closest_marker("timeout")
    value = (mark.args[0] if mark.args else mark.kwargs.get("timeout")) if mark else None
    if value is None:
        value = item.config.getoption("timeout", None)
    return float(value) if value else None


def _module_name(item: pytest.Item) -> str:
    path = item.path.stem.removeprefix("test_")
    return path or "tests"


MARK_FIELDS: dict[str, type | tuple[type, ...]] = {
    "prompt": str,
    "id": str,
    "image": str,
    "sandbox": SandboxSpec,
    "env": Mapping,
    "workdir": str,
    "network": bool,
    "toolsets": (list, tuple),
    "tools": (list, tuple),
    "files": object,
    "solution": str,
    "script": (list, tuple),
    "limits": Limits,
    "difficulty": str,
    "category": str,
    "tags": (list, tuple),
}
"""Arguments of the `hermes` mark that describe a task, and their types; docs/writing-benchmarks.md explains them."""


def _tools_of_mark(node: pytest.Item, mark: pytest.Mark) -> tuple[Tool, ...]:
    if not mark.kwargs.get("tools"):
        return ()
    from pytest_hermes.tools.own import own_tools

    return own_tools(mark.kwargs["tools"], f"{node.nodeid}: mark hermes")


def _data_of_mark(node: pytest.Item, mark: pytest.Mark) -> dict[str, Any]:
    """The script of a scripted model; and the chosen tools, for they are part of what such a task is."""
    data = {name: list(mark.kwargs[name]) for name in ("script", "toolsets") if mark.kwargs.get(name) is not None}
    if tools := _tools_of_mark(node, mark):
        data["tools"] = [tool.schema for tool in tools]
    return data


def task_of_mark(node: pytest.Item, mark: pytest.Mark) -> Task:
    """The task that a `hermes` mark describes. Raises ConfigurationError for unknown or wrong arguments."""
    given = dict(mark.kwargs)
    where = f"{node.nodeid}: mark hermes"
    if mark.args:
        raise ConfigurationError(f"{where}: takes keyword arguments only, such as prompt=...")
    for name, value in given.items():
        if name not in MARK_FIELDS:
            raise ConfigurationError(f"{where}: unknown argument {name!r}{hint(name, MARK_FIELDS)}")
        if not isinstance(value, MARK_FIELDS[name]):
            raise ConfigurationError(f"{where}: {name}={value!r} is of type {type(value).__name__}")
    if not given.get("prompt"):
        raise ConfigurationError(f"{where}: needs prompt=... (or use @benchmark.parametrize)")
    spec = given.get("sandbox") or SandboxSpec(
        image=given.get("image"),
        env=given.get("env", {}),
        workdir=given.get("workdir"),
        network=given.get("network", True),
    )
    solution, files = given.get("solution"), given.get("files")
    tree: FileTree | None = InlineFiles(files) if isinstance(files, Mapping) else files
    return Task(
        id=given.get("id") or node.name,
        prompt=given["prompt"],
        sandbox=spec,
        limits=given.get("limits", Limits()),
        difficulty=given.get("difficulty"),
        category=given.get("category"),
        tags=tuple(given.get("tags", ())),
        files=tree,
        solution=solution and Script(InlineFiles({"solve.sh": solution}), "solve.sh"),
        data=_data_of_mark(node, mark),
        source=node.nodeid,
    )
