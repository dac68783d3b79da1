"""What agents, models, task data and errors write never reaches the user's terminal raw, nor breaks the XML.

The hostile text holds: a window title (OSC), colour and cursor movement (CSI), a reset, the 8-bit forms of both (C1),
backspaces and deletes, a change of the direction of writing (bidi), a NUL and a lone surrogate.
"""

from __future__ import annotations

import subprocess
import sys
import unicodedata

import pytest

OPTIONS = {
    "plain": [],
    "all outcomes": ["-rA"],
    "verbose": ["-vv"],
    "long tracebacks": ["--tb=long", "--showlocals"],
    "native tracebacks": ["--tb=native"],
    "one line": ["--tb=line"],
    "uncaptured": ["-s", "-v"],
    "live log": ["-o", "log_cli=true", "-o", "log_cli_level=DEBUG"],
}

BODY = r"""
import asyncio, json, pytest
from pytest_hermes import Verdict
from pytest_hermes.errors import SandboxLost, VerifierError

EVIL = "\x1b]0;title\x07 \x1b[31mred\x1b[2J \x1bc \x9b31m \x9d0;t\x9c \x08\x7f \u202egnol\u2066 end"
WORSE = EVIL + "\0\udc80"

def evil(name, text=EVIL):
    script = [
        {"tool": "terminal", "arguments": {"command": "printf '\\033]0;t\\007\\033[31m\\233\\n' | tee f; exit 3"}},
        {"tool": EVIL, "arguments": {"path": EVIL}},
        {"tool": "read_file", "arguments": {"path": text}},
        {"content": text},
    ]
    return Task(id=name, prompt=text, difficulty="d" + EVIL, category="c" + EVIL, data={"script": script})

def check(v):
    kind = v.task.id.partition("-")[0]
    output = v.ctx.terminal("cat f")["output"]
    if kind == "raises": raise ValueError(EVIL + output)
    if kind == "infra": raise SandboxLost(EVIL)
    if kind == "verifier": raise VerifierError(EVIL, output=WORSE)
    if kind == "components": return {"reward": 0.0, "x" + EVIL: 0.5}
    return Verdict(1.0 if kind == "passes" else 0.0, output=WORSE + output, evidence=[EVIL])

kinds = ("raises", "infra", "verifier", "components", "fails", "passes")
benchmark = Benchmark("bench", tasks=[evil(f"{kind}-{EVIL}") for kind in kinds], verify=check)

@benchmark.parametrize
def test_task(rollout):
    rollout.check()

bodies = Benchmark("bodies", tasks=[evil(kind) for kind in
    ("compare", "lines", "contains", "dicts", "raises", "group", "skips", "xfails", "prints", "chained")],
    verify=lambda v: 1.0)

@bodies.parametrize
def test_body(rollout, task, ctx, record_property):
    record_property("seen" + EVIL, EVIL)
    output, kind = ctx.terminal("cat f")["output"] + EVIL, task.id
    if kind == "compare": assert output == EVIL
    if kind == "lines": assert (output + "\n" + EVIL).splitlines() == [EVIL]
    if kind == "contains": assert EVIL + "x" in output, EVIL
    if kind == "dicts": assert {"a": output, EVIL: 1} == {"a": EVIL}
    if kind == "raises": raise RuntimeError(output)
    if kind == "group": raise ExceptionGroup(EVIL, [ValueError(output)])
    if kind == "skips": pytest.skip(output)
    if kind == "xfails": pytest.xfail(output)
    if kind == "chained":
        try:
            json.loads(output)
        except ValueError as error:
            raise RuntimeError(EVIL) from error
    if kind == "prints":
        capture = PRINTS
        if capture: print(output)
        pytest.fail(EVIL)
"""


def raw(text: str) -> list[str]:
    """Characters that a terminal would act on."""
    bad = [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\n\t"]
    return sorted({repr(c) for c in bad})


@pytest.mark.parametrize("how", OPTIONS)
def test_nothing_raw_reaches_the_terminal(bench, processes, how):
    bench.write(body=BODY.replace("PRINTS", str("-s" not in OPTIONS[how])))
    run = bench.run("--junitxml=j.xml", "--hermes-set=env.retries=0", *OPTIONS[how], *processes)
    outcomes = run.result.parseoutcomes()
    assert (outcomes["passed"], outcomes["failed"], outcomes["skipped"]) == (1, 12, 1)
    assert raw(run.result.stdout.str() + run.result.stderr.str()) == []
    assert "end" in run.result.stdout.str() or how == "one line"
    properties = run.junit()
    assert len(properties) == 16
    assert raw("".join(properties)) == [] or "\\x1b" in "".join(properties)


def test_colours_of_pytest_itself_stay(bench):
    bench.write(body=BODY.replace("PRINTS", "True"))
    run = bench.run("--color=yes", "-k", "compare", "-vv")
    text = run.result.stdout.str()
    assert "\x1b[31m" in text or "\x1b[91m" in text
    for hostile in ("\x1b]", "\x1b[2J", "\x1bc", "\x9b", "\x9d", "\x07", "\u202e", "\0", "\x7f"):
        assert hostile not in text


def test_show_prints_nothing_raw(bench):
    bench.write(body=BODY.replace("PRINTS", "True"))
    run = bench.run("--hermes-set=env.retries=0")
    for row in run.rows.values():
        for more in ([], ["--json"], ["--task", row["task_id"]], ["--task", row["task_id"] + "\x1b[31m"]):
            words = [sys.executable, "-m", "pytest_hermes.cli", "show", str(run.directory), *more]
            done = subprocess.run(words, capture_output=True, text=True)
            assert raw(done.stdout + done.stderr) == []


MISTAKES = {
    "two tasks": "benchmark = Benchmark('b', tasks=[Task(id=EVIL, prompt='x')] * 2, verify=len)",
    "tasks raise": "def tasks(settings): raise ValueError(EVIL)\nbenchmark = Benchmark('b', tasks=tasks, verify=len)",
    "a broken task": "benchmark = Benchmark('b', tasks=[Task(id='t', prompt='x', error=EVIL)], verify=len)",
    "a bad tool set": "benchmark = Benchmark('b', tasks=[Task(id='t', prompt='x')], verify=len, toolsets=[EVIL])",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_task_data_are_told_without_anything_raw(bench, processes, mistake):
    evil = next(line for line in BODY.splitlines() if line.startswith("EVIL"))
    lines = [evil, MISTAKES[mistake], "@benchmark.parametrize", "def test_task(rollout): rollout.check()"]
    bench.write(body="\n".join(lines))
    run = bench.run(*processes)
    assert run.result.ret != 0
    assert raw(run.result.stdout.str() + run.result.stderr.str()) == []
