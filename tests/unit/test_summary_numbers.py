"""The numbers of a run from its rows: groups, several attempts, skipped tasks, the table of tasks, evaluation files."""

from __future__ import annotations

import itertools
import json
import math
import os
import tracemalloc
from pathlib import Path

import pytest

from pytest_hermes.artifacts import eval_files
from pytest_hermes.artifacts.eval_files import metrics, write_eval_files
from pytest_hermes.artifacts.run_directory import RunDirectory, RunIdentity
from pytest_hermes.artifacts.run_end import end_of
from pytest_hermes.artifacts.run_reader import locate, read_manifest, whole_rows
from pytest_hermes.artifacts.summary import summarize, summarize_run
from pytest_hermes.artifacts.summary_text import render, render_tasks
from pytest_hermes.artifacts.task_summary import test_of as name_of_test
from pytest_hermes.cli import main
from pytest_hermes.errors import ConfigurationError
from pytest_hermes.stats import wilson

CLOCK = itertools.count(1000)


def row(task="a", outcome="passed", attempt=1, of=1, *, module="t.py", test="test_task", variant="", **changes):
    """A row as `records.row_of` makes it; `of` is the number of attempts that the run was asked for."""
    name = f"{task}:{attempt}" if of > 1 else task
    started = float(next(CLOCK))
    reward = {"passed": 1.0, "failed": 0.0}.get(outcome)
    return {
        "format": 1, "run_id": "r", "worker": "main", "benchmark": "b", "task_id": task, "task_digest": f"d-{task}",
        "node_id": f"{module}::{test}[{name}{variant}]", "attempt": attempt, "outcome": outcome, "error": None,
        "cause": {"failed": "reward_below_threshold", "invalid": "image"}.get(outcome), "reward": reward,
        "difficulty": None, "category": None, "agent": "hermes", "model": "m", "toolsets": None, "tries": [],
        "verifier": None, "started": started, "finished": started + 10, "clocks": {"agent_s": 9.0}, "turns": 3,
        "finished_naturally": True, "messages": [{"role": "user", "content": "x"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "cached_tokens": None, "reasoning_tokens": None,
                  "cost_usd": 0.5},
    } | changes  # fmt: skip


def attempts(task, outcomes, **changes):
    """Rows of one task; `outcomes` is a string of p, f, i."""
    words = {"p": "passed", "f": "failed", "i": "invalid"}
    return [row(task, words[o], n, len(outcomes), **changes) for n, o in enumerate(outcomes, 1)]


def text(rows, skipped=None):
    return "\n".join(render(summarize(rows, skipped)))


# -- one attempt per task ------------------------------------------------------------------------------


def test_one_attempt_per_task_shows_wilson_and_no_pass_at_k():
    rows = [row("a"), row("b"), row("c", "failed")]
    summary = summarize(rows)
    assert summary.attempts is None and summary.total.interval == wilson(2, 3)
    assert summary.total.pass_rate_standard_error == pytest.approx(math.sqrt((2 / 3) * (1 / 3) / 2))
    shown = text(rows)
    assert "3 rollouts: 2 passed, 1 failed, 0 invalid\n" in shown
    assert "pass rate 66.7% [20.8%, 93.9%]; mean reward 0.667\n" in shown
    assert "pass@" not in shown and "standard error" not in shown


def test_part_scores_stand_apart_from_the_pass_rate_in_total_and_groups():
    rows = [
        row("a", difficulty="easy"),
        row("b", "failed", reward=0.5, difficulty="easy"),
        row("c", "failed", reward=0.0, difficulty="hard"),
        row("d", "invalid", difficulty="hard"),
    ]
    summary = summarize(rows)
    assert summary.total.mean_reward == 0.5
    assert summary.total.mean_reward_standard_error == pytest.approx(0.5 / math.sqrt(3))
    assert summary.by_difficulty["hard"].bounds == (0.0, 0.0)
    shown = text(rows)
    assert "mean reward 0.500 (standard error 0.289)" in shown
    assert "easy   50.0%  1/2 passed, mean reward 0.750\n" in shown
    assert "hard    0.0%  0/1 passed, mean reward 0.000, 1 invalid (0.0% if failed)\n" in shown


@pytest.mark.parametrize(
    ("rows", "rate", "interval", "bounds"),
    [
        ([], None, (0.0, 1.0), None),
        ([row()], 1.0, wilson(1, 1), (1.0, 1.0)),
        ([row("a"), row("b")], 1.0, wilson(2, 2), (1.0, 1.0)),
        ([row("a", "failed"), row("b", "failed")], 0.0, wilson(0, 2), (0.0, 0.0)),
        ([row("a", "invalid"), row("b", "invalid")], None, (0.0, 1.0), None),
        ([row("a"), row("b", "invalid")], 1.0, wilson(1, 1), (0.5, 1.0)),
        (attempts("a", "pp") + attempts("b", "pp"), 1.0, wilson(2, 2), (1.0, 1.0)),
        (attempts("a", "ii") + attempts("b", "ii"), None, (0.0, 1.0), None),
    ],
    ids=["none", "one", "all pass", "all fail", "all invalid", "an invalid one", "attempts pass", "attempts invalid"],
)
def test_edges(rows, rate, interval, bounds):
    total = summarize(rows).total
    assert (total.pass_rate, total.interval, total.bounds) == (rate, pytest.approx(interval), bounds)
    assert render(summarize(rows))
    json.dumps(summarize(rows).as_json(), allow_nan=False)


# -- several attempts ----------------------------------------------------------------------------------


def test_several_attempts_show_pass_at_1_with_the_clustered_error_and_both_kinds_of_k():
    rows = attempts("a", "pppp") + attempts("b", "ppff") + attempts("c", "ffff")
    found = summarize(rows).attempts
    assert (found.attempts, found.tasks, found.pass_at_1) == (4, 3, 0.5)
    assert found.standard_error == pytest.approx(0.5 / math.sqrt(3))  # of the tasks' shares 1, 0.5, 0
    assert found.standard_error == pytest.approx(summarize(rows).total.pass_rate_standard_error)
    assert [(e.k, e.pass_at_k, e.pass_hat_k, e.tasks) for e in found.by_k] == [
        (1, 0.5, 0.5, 3),
        (2, pytest.approx((1 + 5 / 6) / 3), pytest.approx((1 + 1 / 6) / 3), 3),
        (4, pytest.approx(2 / 3), pytest.approx(1 / 3), 3),
    ]
    shown = text(rows)
    assert "12 rollouts of 3 tasks: 6 passed, 6 failed, 0 invalid\n" in shown
    assert "pass rate 50.0%; mean reward 0.500 (standard error 0.289)\n" in shown
    assert "pass@1 50.0% [0.0%, 100.0%], standard error 28.9% clustered by task (3 tasks)\n" in shown
    assert "pass@2 61.1%, pass^2 38.9% (3 tasks)\npass@4 66.7%, pass^4 33.3% (3 tasks)\n" in shown


def test_tasks_with_invalid_attempts_are_left_out_of_the_k_that_they_cannot_have_and_that_is_said():
    rows = attempts("a", "ppp") + attempts("b", "fii") + attempts("c", "iii")
    found = summarize(rows).attempts
    assert (found.pass_at_1, found.tasks_with_valid_attempts, found.tasks) == (0.5, 2, 3)  # not 3/4 of the rollouts
    assert [(e.k, e.pass_at_k, e.tasks) for e in found.by_k] == [(1, 0.5, 2), (2, 1.0, 1), (3, 1.0, 1)]
    shown = text(rows)
    assert "pass rate 75.0%; 33.3% if every invalid rollout had failed, 75.0% without them" in shown
    assert "pass@1 50.0% [" in shown and "(2 of 3 tasks)" in shown
    assert "pass@3 100.0%, pass^3 100.0% (1 of 3 tasks have 3 valid attempts)" in shown


def test_no_task_with_enough_valid_attempts_is_said_too():
    rows = attempts("a", "pi") + attempts("b", "if")
    assert "pass@2, pass^2: no task has 2 valid attempts" in text(rows)
    assert summarize(rows).attempts.by_k[1].pass_at_k is None


def test_the_ks_are_powers_of_two_and_the_number_of_attempts():
    assert [e.k for e in summarize(attempts("a", "p" * 10)).attempts.by_k] == [1, 2, 4, 8, 10]
    assert [e.k for e in summarize(attempts("a", "p" * 8)).attempts.by_k] == [1, 2, 4, 8]
    assert [e.k for e in summarize(attempts("a", "p" * 3)).attempts.by_k] == [1, 2, 3]


def test_one_task_of_many_attempts_is_not_sure_of_anything():
    found = summarize(attempts("a", "ppff")).attempts
    assert found.standard_error is None and found.interval == pytest.approx(wilson(0.5, 1))
    assert "standard error" not in text(attempts("a", "ppff"))


@pytest.mark.parametrize("changes", [{"benchmark": "other"}, {"module": "u.py"}, {"test": "T::test_task"}])
def test_the_same_id_in_another_benchmark_module_or_class_is_another_task(changes):
    rows = attempts("a", "pp") + attempts("a", "ff", **changes)
    summary = summarize(rows)
    assert summary.total.tasks == 2 and [task.passed for task in summary.tasks] == [2, 0]
    assert summary.attempts.standard_error == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("task", "attempt", "node", "name"),
    [
        ("fix-git", 1, "d/t.py::test[fix-git]", "d/t.py::test"),
        ("fix-git", 2, "t.py::test[fix-git:2]", "t.py::test"),
        ("fix-git", 2, "t.py::A::test[fix-git:2-fast]", "t.py::A::test[fast]"),
        ("fix-git", 1, "t.py::test[fix-git-fast]", "t.py::test[fast]"),
        ("test", 3, "t.py::test[3]", "t.py::test"),
        ("test", 3, "t.py::test[3-fast]", "t.py::test[fast]"),
        ("test", 1, "t.py::test", "t.py::test"),
        ("test", 1, "t.py::test[7]", "t.py::test[7]"),
        ("ü", 2, "t.py::test[\\xfc:2-x]", "t.py::test[\\xfc-x]"),
        ("a:1-b", 2, "t.py::test[a:1-b:2]", "t.py::test"),
        ("a[0]", 2, "d[x]/t.py::test[a[0]:2]", "d[x]/t.py::test"),
    ],
)
def test_attempts_of_a_task_have_one_name(task, attempt, node, name):
    assert name_of_test({"task_id": task, "attempt": attempt, "node_id": node}) == name


def test_a_test_that_is_parametrised_further_has_a_task_per_parameter():
    rows = attempts("a", "pp", variant="-fast") + attempts("a", "ff", variant="-slow")
    assert [(task.test, task.attempts) for task in summarize(rows).tasks] == [
        ("t.py::test_task[fast]", 2),
        ("t.py::test_task[slow]", 2),
    ]


# -- what is left out ----------------------------------------------------------------------------------


def test_skipped_tasks_are_named_by_reason_and_counted():
    rows = [row("a"), row("b")]
    skipped = {f"t.py::test_task[{name}]": "env.skip_tasks" for name in ("q1", "q2")}
    skipped |= {"t.py::test_task[q3]": "not on modal", "t.py::test_task[a]": "has a row, so it ran"}
    assert summarize(rows, skipped).as_json()["skipped"] == {
        "tasks": 3,
        "of": 5,
        "reasons": {"env.skip_tasks": ["q1", "q2"], "not on modal": ["q3"]},
    }
    shown = text(rows, skipped)
    assert "2 of 5 tasks skipped: q1, q2 (env.skip_tasks)\n1 of 5 tasks skipped: q3 (not on modal)\n" in shown
    assert "skipped" not in text(rows)


def test_skipped_attempts_of_a_task_are_one_task_and_long_lists_are_cut():
    skipped = {f"t.py::test_task[q-{n}:{k}]": "why" for n in range(9) for k in (1, 2)}
    skipped |= {f"t.py::test_own[{k}]": "other" for k in (1, 2)}
    shown = text(attempts("a", "pp"), skipped)
    assert "9 of 11 tasks skipped: q-0, q-1, q-2, q-3, q-4, q-5 and 3 more (why)" in shown
    assert "1 of 11 tasks skipped: test_own (other)" in shown


# -- task by task --------------------------------------------------------------------------------------


def test_the_tasks_of_a_run_have_means_over_valid_rollouts_and_sums_over_all():
    rows = attempts("a", "pfi")
    rows[1].update(finished=rows[1]["started"] + 30, turns=7)
    rows[2].update(finished=rows[2]["started"] + 1000, usage=rows[2]["usage"] | {"cost_usd": None})
    (task,) = summarize(rows).as_json()["tasks"]
    assert task == {
        "task": "a", "benchmark": "b", "test": "t.py::test_task", "category": None, "difficulty": None, "attempts": 3,
        "passed": 1, "failed": 1, "invalid": 1, "cause": "reward_below_threshold",
        "mean_reward": 0.5, "seconds_mean": 20.0, "turns_mean": 5.0,
        "prompt_tokens": 300, "completion_tokens": 30, "cost_usd": 1.0,
    }  # fmt: skip
    assert "mean (median) of a rollout: 20.0 s (20.0), 5.0 turns (5.0), 100 prompt tokens (100)," in text(rows)


def test_the_line_of_means_has_medians_and_leaves_out_what_is_unknown():
    unknown = {"prompt_tokens": None, "completion_tokens": None, "cost_usd": None}
    rows = [row(str(n), finished=float(end), started=0.0, model=None) for n, end in enumerate((1, 2, 9))]
    rows = [entry | {"usage": entry["usage"] | unknown} for entry in rows]
    assert "mean (median) of a rollout: 4.0 s (2.0)\n" in text(rows) + "\n"


def words(line):
    return " ".join(line.split())


def test_the_table_of_tasks_is_aligned_in_the_order_of_the_run():
    rows = [
        *attempts("b", "pf"),
        *attempts("x" * 100 + "-end", "pi", usage=row()["usage"] | {"cost_usd": None, "prompt_tokens": 123456}),
        *attempts("世界\x1b[31m", "ff"),
    ]
    lines = render_tasks(summarize(rows).tasks)
    assert words(lines[0]) == "task n passed failed invalid reward s turns prompt compl. $ cause"
    assert words(lines[1]) == "b 2 1 1 0 0.500 10.0 3.0 200 20 1.0000 reward_below_threshold"
    assert words(lines[2]).endswith("-end 2 1 0 1 1.000 10.0 3.0 246,912 20 - image")
    assert lines[1].index("reward_below_threshold") == lines[2].index("image")
    assert lines[2].startswith("xxx") and "…" in lines[2]
    assert "\x1b" not in "".join(lines)
    assert len({line.index(cell) for line, cell in ((lines[1], "0.500"), (lines[2], "1.000"))}) == 1
    assert lines[3].index("0.000") == lines[1].index("0.500") - 2  # two wide characters take two columns each
    two = render_tasks(summarize([row("a"), row("a", benchmark="c")]).tasks)
    assert [line.split()[1] for line in two] == ["benchmark", "b", "c"]


# -- a run directory -----------------------------------------------------------------------------------


@pytest.fixture
def write_run(tmp_path):
    def write(*shards, **manifest):
        settings = {"b": {"env": {}, "openai": {"model_name": "m"}}}
        for number, rows in enumerate(shards):
            directory = RunDirectory(RunIdentity("r", "utc", str(tmp_path / "runs")), "b", f"gw{number}")
            directory.path.mkdir(parents=True, exist_ok=True)
            for entry in rows:
                directory.append(entry)
            directory.close()
        (directory.path / "run.json").write_text(json.dumps({"format": 1, "settings": settings, **manifest}))
        return directory.path

    return write


def test_the_run_is_read_as_it_was_without_its_conversations(write_run):
    first, second = row("a", "failed", error="no"), row("b")
    run = write_run([second, row("a")], [first | {"verifier": {"output": "long", "evidence": ["planted"]}}])
    with next(run.glob("*gw1.jsonl")).open("a") as shard:
        shard.write("\0" * 100 + '\n{"torn')
    located = locate(run)
    assert [place.numbers["task_id"] for place in located] == ["a", "b"]  # by start, not by shard
    assert located[0].numbers["verifier"] == {"evidence": ["planted"]} and "messages" not in located[0].numbers
    whole = {entry["node_id"]: entry for entry in whole_rows(located)}
    assert whole["t.py::test_task[a]"]["verifier"]["output"] == "long" and whole["t.py::test_task[b]"] == second
    summary = summarize_run(run)
    assert (summary.total.passed, summary.total.failed, summary.flagged) == (1, 1, ["a"])
    assert summary.as_json() == summarize(whole_rows(located)).as_json()


def test_broken_runs_are_refused_as_before(tmp_path, write_run):
    with pytest.raises(ConfigurationError, match="not a run directory"):
        read_manifest(tmp_path)
    with pytest.raises(ConfigurationError, match="written in format 99"):
        locate(write_run([row(format=99)]))
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"run\.json: not JSON"):
        read_manifest(tmp_path)
    (tmp_path / "rollouts-x.jsonl").write_text("{\n" + json.dumps(row()) + "\n")
    with pytest.raises(ConfigurationError, match="a line is not JSON"):
        locate(tmp_path)


def test_show_prints_the_tasks_and_the_skipped(write_run, capsys):
    run = write_run(attempts("a", "pf"), skipped={"t.py::test_task[q:1]": "too big"})
    assert main(["show", str(run), "--tasks"]) == 0
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["task", "n", "passed"],
        ["a", "2", "1"],
    ]
    main(["show", str(run)])
    assert "1 of 2 tasks skipped: q (too big)" in capsys.readouterr().out
    main(["show", str(run), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (
        found["tasks"][0]["attempts"] == 2 and found["skipped"]["tasks"] == 1 and found["attempts"]["pass_at_1"] == 0.5
    )
    main(["show", str(run), "--tasks", "--json"])
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"run": str(run), **found["tasks"][0]}
    ]


# -- how far it came -----------------------------------------------------------------------------------


def selected(*tasks, attempts=1, **more):
    """A manifest of one benchmark with these tasks."""
    settings = {"b": {"env": {"attempts": attempts}, "openai": {"model_name": "m"}}}
    return {"settings": settings, "datasets": {"b": {"tasks": dict.fromkeys(tasks, "d")}}, **more}


def ended(run, stopped_early=None):
    return end_of(run, locate(run), read_manifest(run), stopped_early=stopped_early)


def test_a_run_that_was_killed_says_what_is_missing_and_how_to_go_on(write_run, capsys):
    rows = [row("a"), row("b", "invalid", cause="cancelled"), row("c", "invalid", cause="unused")]
    run = write_run(rows, **selected("a", "b", "c", "d", "q", "größe"), skipped={"t.py::test_task[q-fast]": "too big"})
    main(["show", str(run)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        f"{run}: not finished (no summary.json: it was killed, or pytest printed no summary); "
        "4 of 5 tasks have no result"
    )
    assert lines[1:3] == [
        "  1 rollout: 1 passed, 0 failed, 0 invalid (2 more cancelled or unused)",
        "    unused (1): the test skipped or failed before it asked for its rollout",
    ]
    assert lines[-1] == f"  go on with: --hermes-resume {run.name}"
    main(["show", "--json", str(run)])
    end = json.loads(capsys.readouterr().out)["end"]
    assert (end["state"], end["tasks"], end["without_result"]) == ("not finished", 5, 4)


def test_a_run_at_work_says_so_and_one_that_reached_its_end_says_nothing(write_run, capsys):
    run = write_run([row("a")], **selected("a", "b"))
    directory = RunDirectory(RunIdentity("r", "utc", str(run.parent)), "b", "gw9")
    directory.make(dict)
    assert ended(run).headline == "still going on; 1 of 2 tasks has no result" and ended(run).advice is None
    directory.close()
    (run / "summary.json").write_text("{}")  # of an earlier version: it ended
    main(["show", str(run)])
    assert capsys.readouterr().out.startswith(f"{run}:\n") and ended(run).advice is None


def test_a_run_that_was_stopped_says_it_then_and_when_it_is_read_again(write_run):
    run = write_run([row("a"), row("b")], **selected("a", "b", "c"))
    then = ended(run, stopped_early=True)
    assert then.headline == "stopped early; 1 of 3 tasks has no result"
    assert then.advice == "go on with: --hermes-resume utc-b-r"
    (run / "summary.json").write_text(json.dumps({"end": then.as_json()}))
    assert ended(run) == then
    whole = write_run([row("c")], **selected("a", "b", "c"))  # the last one failed: there is nothing left to do
    assert (ended(whole, stopped_early=True).headline, ended(whole, stopped_early=True).advice) == (None, None)


def test_missing_attempts_are_told_by_task(write_run):
    run = write_run([*attempts("a", "pppp"), row("b", of=4)], **selected("a", "b", "c", attempts=4))
    assert ended(run, stopped_early=True).headline == (
        "stopped early; 1 of 3 tasks has no result, 1 task has fewer than 4 attempts"
    )


@pytest.mark.parametrize("node", ["t.py::test_own", "t.py::T::test_own[2]", "t.py::test_task[test_own:1-fast]"])
def test_skipped_tasks_are_not_missing(write_run, node):
    run = write_run([row("a")], **selected("a", "test_own"), skipped={node: "why"})
    assert (ended(run).tasks, ended(run).without_result) == (1, 0)


def test_show_of_a_resumed_run_names_the_one_before(write_run, capsys):
    run = write_run([row("a")], **selected("a"), resumed_from="/runs/before")
    (run / "summary.json").write_text("{}")
    main(["show", str(run)])
    assert capsys.readouterr().out.startswith(f"{run} (resumed from before):\n")


# -- causes and times ----------------------------------------------------------------------------------


def test_tasks_whose_verifier_gave_no_reward_are_named_up_to_five():
    rows = [row(f"t{n}", "failed", cause="verifier_no_reward") for n in range(7)] + [row("good")]
    advice = "check the benchmark with --hermes-agent=oracle"
    assert f"  a verifier gave no reward (t0, t1, t2, t3, t4 and 2 more): {advice}\n" in text(rows)
    assert advice not in text([entry | {"agent": "oracle"} for entry in rows])


def test_the_cause_of_a_task_is_its_most_frequent_one():
    rows = attempts("a", "pfffi")
    rows[1]["cause"] = "timeout"
    assert [task.cause for task in summarize([*rows, row("b")]).tasks] == ["reward_below_threshold", None]


def test_the_wait_for_a_slot_is_told_apart_from_the_time_that_it_is_no_part_of():
    clocks = {"queued_s": 4.8, "provision_s": 0.2, "agent_s": 9.0, "verify_s": 0.01}
    assert "  test_task[a]     10.0 s  (provision 0.2, agent 9.0), after 4.8 s in the queue" in text(
        [row("a", clocks=clocks)]
    )
    assert "queue" not in text([row("a")])


# -- evaluation files ----------------------------------------------------------------------------------


def evaluated(run, base=Path("/nowhere")):
    return write_eval_files(run, locate(run), read_manifest(run), base)


def test_the_evaluation_files_have_the_form_of_hermes(write_run):
    env = {"agent_temperature": 0.8, "max_token_length": 32000, "max_agent_turns": 60, "terminal_backend": "docker"}
    rows = [
        row("a", category="Data-Science basics", difficulty="easy"),
        row("b", "failed", category="data science-basics", error="too late"),
        row("c", "invalid"),
        row("d", "invalid", cause="cancelled"),
    ]
    run = write_run(
        rows, settings={"b": {"env": env, "openai": {"model_name": "m"}}}, skipped={"t.py::test_task[q]": "-"}
    )
    assert evaluated(run) == []
    found = json.loads((run / "evals/b/metrics.json").read_text())
    seconds = rows[2]["finished"] - rows[0]["started"]
    assert found["config_general"] == {
        "model_name": "m",
        "total_evaluation_time_seconds": str(seconds),
        "generation_parameters": {
            "max_new_tokens": 32000, "temperature": 0.8, "max_tokens": 32000, "max_agent_turns": 60,
            "terminal_backend": "docker",
        },
    }  # fmt: skip
    assert list(found["results"]) == ["atropos|b_eval|0", "all"]
    assert found["results"]["all"] == found["results"]["atropos|b_eval|0"]
    assert found["results"]["all"] == {
        "eval/pass_rate": 0.5,
        "eval/total_tasks": 2,
        "eval/passed_tasks": 1,
        "eval/evaluation_time_seconds": seconds,
        "eval/rollouts": 3,
        "eval/invalid": 1,
        "eval/skipped_tasks": 1,
        "eval/pass_rate_standard_error": 0.5,
        "eval/mean_reward": 0.5,
        "eval/mean_reward_standard_error": 0.5,
        "eval/pass_rate_invalid_failed": pytest.approx(1 / 3),
        "eval/pass_rate_difficulty_easy": 1.0,
        "eval/pass_rate_data_science_basics": 0.5,
    }
    lines = [json.loads(line) for line in (run / "evals/b/samples.jsonl").read_text().splitlines()]
    hermes = "task_name category passed reward turns_used finished_naturally error messages"
    assert [" ".join(list(line)[:8]) for line in lines] == [hermes] * 3
    assert [(line["task_name"], line["passed"], line["reward"], line["error"]) for line in lines] == [
        ("a", True, 1.0, None),
        ("b", False, 0.0, "too late"),
        ("c", False, None, None),
    ]
    assert lines[2]["category"] == "unknown" and lines[0]["messages"] == rows[0]["messages"]


def test_metrics_of_several_attempts_are_over_tasks():
    found = metrics(attempts("a", "ppp") + attempts("b", "pfi") + attempts("c", "iii"), {})
    assert found["eval/pass_rate"] == 0.75 == found["eval/passed_tasks"] / found["eval/total_tasks"]
    assert found["eval/total_tasks"] == 2 and found["eval/invalid"] == 4
    assert found["eval/pass_rate_invalid_failed"] == pytest.approx((1 + 1 / 3 + 0) / 3)
    assert (found["eval/pass@2"], found["eval/pass^2"], found["eval/tasks_with_2_valid"]) == (1.0, 0.5, 2)
    assert (found["eval/pass@3"], found["eval/pass^3"], found["eval/tasks_with_3_valid"]) == (1.0, 1.0, 1)


def test_metrics_without_a_valid_rollout_have_no_rate():
    found = metrics([row("a", "invalid", category="c")], {})
    assert (found["eval/pass_rate"], found["eval/total_tasks"], found["eval/invalid"]) == (None, 0, 1)
    assert "eval/pass_rate_c" not in found and "eval/mean_reward" not in found


def test_the_time_of_a_resumed_run_is_that_of_its_own_rollouts():
    old = row("a", resumed_from="before", started=0.0, finished=5.0)
    new = row("b", started=1000.0, finished=1010.0)
    assert metrics([old, new], {})["eval/evaluation_time_seconds"] == 10.0
    assert metrics([old], {})["eval/evaluation_time_seconds"] == 5.0


def test_copies_go_where_the_setting_says_and_benchmarks_do_not_overwrite_each_other(write_run, tmp_path):
    one, shared = {"env": {"data_dir_to_save_evals": "one"}}, {"env": {"data_dir_to_save_evals": str(tmp_path / "s")}}
    rows = [row(), row(benchmark="x/y"), row(benchmark="z")]
    run = write_run(rows, settings={"b": one, "x/y": shared, "z": shared})
    assert evaluated(run, tmp_path) == []
    assert (tmp_path / "one/metrics.json").read_bytes() == (run / "evals/b/metrics.json").read_bytes()
    assert (tmp_path / "one/samples.jsonl").read_bytes() == (run / "evals/b/samples.jsonl").read_bytes()
    assert len(list((tmp_path / "s").glob("x_y-*/metrics.json"))) == 1 and (tmp_path / "s/z/samples.jsonl").is_file()
    assert evaluated(run, tmp_path) == []
    assert not [found for found in tmp_path.rglob(".*") if found.name.startswith((".metrics", ".samples"))]


def test_a_place_that_cannot_take_the_files_is_one_line_and_keeps_no_other_from_being_written(write_run, tmp_path):
    (tmp_path / "file").write_text("")
    bad = {"env": {"data_dir_to_save_evals": "file/below"}}
    run = write_run([row(), row(benchmark="z")], settings={"b": bad, "z": {"env": {"data_dir_to_save_evals": "ok"}}})
    (problem,) = evaluated(run, tmp_path)
    assert problem.startswith("env.data_dir_to_save_evals: evaluation files of b not written: ")
    assert (run / "evals/b/metrics.json").is_file() and (tmp_path / "ok/metrics.json").is_file()


def test_a_full_disk_leaves_the_samples_of_before(write_run, monkeypatch):
    run = write_run([row(), row("b")])
    evaluated(run)
    before = (run / "evals/b/samples.jsonl").read_text()

    def full(entry):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(eval_files, "sample", full)
    assert evaluated(run) == ["evaluation files of b not written: [Errno 28] No space left on device"]
    assert (run / "evals/b/samples.jsonl").read_text() == before
    assert sorted(os.listdir(run / "evals/b")) == ["metrics.json", "samples.jsonl"]


def test_a_large_run_is_never_in_memory_as_a_whole(write_run):
    big = [{"role": "user", "content": "x" * 200_000}]
    run = write_run([row(str(n), messages=big) for n in range(60)])  # 12 MB
    tracemalloc.start()
    try:
        summarize_run(run)
        assert evaluated(run) == []
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
    assert (run / "evals/b/samples.jsonl").stat().st_size > 12_000_000
