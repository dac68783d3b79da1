"""The evaluation files of hermes environments, one pair per benchmark: `metrics.json` and `samples.jsonl`.

Their form is that of Atropos' `BaseEnv.evaluate_log` as hermes' Terminal-Bench environments call it (itself a skeleton
of lighteval's), with fields of ours besides. `docs/records.md` says what they mean with several attempts and with
invalid rollouts. Samples are streamed: the memory needed is one row's.
"""

from __future__ import annotations

import collections
import functools
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_hermes.artifacts.run_directory import file_name, write_json
from pytest_hermes.artifacts.run_reader import LocatedRow, whole_rows
from pytest_hermes.artifacts.sections import Section
from pytest_hermes.artifacts.summary import NOT_COUNTED, GroupSummary, skipped_tasks
from pytest_hermes.artifacts.task_summary import Attempts, TaskSummary, clusters
from pytest_hermes.shown import described

FOLDER = "evals"


def write_eval_files(
    run: Path,
    located: Sequence[LocatedRow],
    manifest: Mapping[str, Any],
    base: Path,
    sections: Mapping[str, Section] | None = None,
) -> list[str]:
    """Write `evals/<benchmark>/` of the run, and a copy where `env.data_dir_to_save_evals` says, relative to `base`.

    `sections` of benchmarks add to their files. Benchmarks that share that directory get one of their own below it.
    What could not be written does not keep the rest: the reasons are returned, a line each.
    """
    problems: list[str] = []
    by_benchmark: dict[str, list[LocatedRow]] = collections.defaultdict(list)
    for place in located:
        if place.numbers["cause"] not in NOT_COUNTED:
            by_benchmark[place.numbers["benchmark"]].append(place)
    settings = manifest.get("settings") or {}
    wanted = {name: (settings.get(name) or {}).get("env", {}).get("data_dir_to_save_evals") for name in by_benchmark}
    sharing = collections.Counter(wanted.values())
    for name, places in by_benchmark.items():
        folder = run / FOLDER / file_name(name)
        try:
            problems += _write_pair(folder, name, places, manifest, (sections or {}).get(name))
        except OSError as error:
            problems.append(f"evaluation files of {name} not written: {error}")
            continue
        if not wanted[name]:
            continue
        copy = base / Path(wanted[name]).expanduser()
        if sharing[wanted[name]] > 1:
            copy /= file_name(name)
        try:
            copy.mkdir(parents=True, exist_ok=True)
            for file in ("samples.jsonl", "metrics.json"):
                _replace(copy / file, functools.partial(shutil.copyfile, folder / file))
        except OSError as error:
            problems.append(f"env.data_dir_to_save_evals: evaluation files of {name} not written: {error}")
    return problems


def _write_pair(
    folder: Path,
    benchmark: str,
    places: Sequence[LocatedRow],
    manifest: Mapping[str, Any],
    section: Section | None,
) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []

    def write_samples(partial: Path) -> None:
        with partial.open("w", encoding="ascii") as file:
            for row in whole_rows(places):
                line = sample(row)
                text = json.dumps(line)
                if section is not None and section.samples is not None and not problems:
                    try:
                        text = json.dumps({**line, **section.samples(row), **line})  # it replaces nothing
                    except Exception as error:  # noqa: BLE001 - whatever it is, the samples stand
                        problems.append(f"samples of {benchmark} lack what its section adds: {described(error)}")
                file.write(text + "\n")

    _replace(folder / "samples.jsonl", write_samples)
    own = section.evaluation if section is not None else {}
    write_json(folder / "metrics.json", evaluation(benchmark, [place.numbers for place in places], manifest, own))
    return problems


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Replace a file by what `write` puts into another one, whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def sample(row: Mapping[str, Any]) -> dict[str, Any]:
    """A line of `samples.jsonl`: the fields of hermes, then ours."""
    return {
        "task_name": row["task_id"],
        "category": row["category"] or "unknown",
        "passed": row["outcome"] == "passed",
        "reward": row["reward"],
        "turns_used": row["turns"],
        "finished_naturally": row.get("finished_naturally"),
        "error": row.get("error"),
        "messages": row.get("messages") or [],
        "attempt": row["attempt"],
        "outcome": row["outcome"],
        "cause": row["cause"],
        "difficulty": row["difficulty"],
        "node_id": row["node_id"],
    }


def evaluation(
    benchmark: str,
    rows: Sequence[dict[str, Any]],
    manifest: Mapping[str, Any],
    own: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of `metrics.json` for one benchmark's rows (cancelled and unused ones left out); `own` is what its
    section adds."""
    settings = (manifest.get("settings") or {}).get(benchmark) or {}
    env = settings.get("env") or {}
    found = {**metrics(rows, manifest), **(own or {})}
    models = sorted({row["model"] for row in rows if row["model"]})
    return {
        "config_general": {
            "model_name": ", ".join(models) or (settings.get("openai") or {}).get("model_name"),
            "total_evaluation_time_seconds": str(found["eval/evaluation_time_seconds"]),
            "generation_parameters": {
                "max_new_tokens": env.get("max_token_length"),
                "temperature": env.get("agent_temperature"),
                "max_tokens": env.get("max_token_length"),
                "max_agent_turns": env.get("max_agent_turns"),
                "terminal_backend": env.get("terminal_backend"),
            },
        },
        "results": {f"atropos|{benchmark}_eval|0": found, "all": found},
    }


def metrics(rows: Sequence[dict[str, Any]], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """`eval/...` -> number. Pass rates are pass@1 over tasks with a valid attempt: the share of a task's valid attempts
    that passed, averaged over tasks. A rate that has no task is left out, but for `eval/pass_rate`, which is None."""
    tasks = [TaskSummary.of(members) for members in clusters(rows).values()]
    attempts, group = Attempts.of(tasks), GroupSummary.of(rows)
    valid = [task for task in tasks if task.valid]
    optional: dict[str, float | None] = {
        "eval/pass_rate_standard_error": attempts.standard_error,
        "eval/mean_reward": group.mean_reward,
        "eval/mean_reward_standard_error": group.mean_reward_standard_error,
        "eval/pass_rate_invalid_failed": sum(task.passed / task.attempts for task in tasks) / len(tasks),
    }
    for entry in attempts.by_k[1:]:
        optional[f"eval/pass@{entry.k}"] = entry.pass_at_k
        optional[f"eval/pass^{entry.k}"] = entry.pass_hat_k
        optional[f"eval/tasks_with_{entry.k}_valid"] = entry.tasks
    optional |= {f"eval/pass_rate_difficulty_{name}": rate for name, rate in _rates(tasks, "difficulty").items()}
    optional |= {f"eval/pass_rate_{name}": rate for name, rate in _rates(tasks, "category", "unknown").items()}
    passed = sum(task.passed / task.valid for task in valid)
    return {
        "eval/pass_rate": attempts.pass_at_1,
        "eval/total_tasks": len(valid),
        "eval/passed_tasks": passed if group.several_attempts else round(passed),
        "eval/evaluation_time_seconds": evaluation_seconds(rows),
        "eval/rollouts": group.rollouts,
        "eval/invalid": group.invalid,
        "eval/skipped_tasks": _skipped(rows, manifest),
        **{name: value for name, value in optional.items() if value is not None},
    }


def _rates(tasks: Sequence[TaskSummary], field: str, missing: str | None = None) -> dict[str, float]:
    """pass@1 by category or difficulty, named as hermes names them; spellings that give one name are one group."""
    shares: dict[str, list[float]] = collections.defaultdict(list)
    for task in tasks:
        name = getattr(task, field) or missing
        if name is not None and task.valid:
            shares[name.lower().replace(" ", "_").replace("-", "_")].append(task.passed / task.valid)
    return {name: sum(found) / len(found) for name, found in shares.items()}


def evaluation_seconds(rows: Sequence[Mapping[str, Any]]) -> float:
    """From the first rollout's start to the last one's end, of the rollouts that this run made itself."""
    own = [row for row in rows if not row.get("resumed_from")] or rows
    seconds: float = max(row["finished"] for row in own) - min(row["started"] for row in own)
    return seconds


def _skipped(rows: Sequence[dict[str, Any]], manifest: Mapping[str, Any]) -> int:
    """Skipped tasks of the tests that these rows are of."""
    tests = {str(row["node_id"]).partition("[")[0] for row in rows}
    skipped = manifest.get("skipped") or {}
    return skipped_tasks(rows, {node: why for node, why in skipped.items() if node.partition("[")[0] in tests}).tasks
