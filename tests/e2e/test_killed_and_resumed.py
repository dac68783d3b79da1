"""A run killed half way and resumed: its report is an unbroken run's, and no finished rollout is paid for twice."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_hermes.artifacts.records import read_rows
from pytest_hermes.models.scripted import ScriptedServer

TASKS = 40
KILLED_AT = 20
REQUESTS = 2
"""Of each rollout: a tool call, then the answer."""
SUITE = f"""
from pytest_hermes import Benchmark, Task, Verdict

TASKS = [
    Task(id=f"task-{{n:02}}", prompt=f"write {{n}}", difficulty=("easy", "hard")[n % 2], data={{"want": str(n)}})
    for n in range({TASKS})
]

def verify(v):
    found = v.ctx.terminal("cat out.txt")["output"].strip()
    output = f"out.txt holds {{found}},\\nnot {{v.task.data['want']}}"
    return Verdict(float(found == v.task.data["want"]), output=output)

benchmark = Benchmark("halfway", tasks=TASKS, verify=verify)

@benchmark.parametrize
def test_task(rollout): rollout.check()
"""
WAYS = {"one process": ("--hermes-concurrency=4",), "xdist": ("-n", "4")}


def write_the_number(request: Mapping[str, Any]) -> dict[str, Any]:
    """The model: right but for every fourth task, and slow enough that a run can be caught half way."""
    number = int(request["messages"][0]["content"].removeprefix("write "))
    if any(message["role"] == "assistant" for message in request["messages"]):
        return {"content": f"wrote {number}", "delay_s": 0.05}
    text = number if number % 4 else -1
    return {"tool": "terminal", "arguments": {"command": f"echo {text} > ~/out.txt"}, "delay_s": 0.05}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    made = ScriptedServer()
    made.add("default", write_the_number)
    asyncio.run_coroutine_threadsafe(made.start(), loop).result()
    yield made
    asyncio.run_coroutine_threadsafe(made.stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


class Folder:
    """A benchmark and its runs; sandboxes live below it too."""

    def __init__(self, path: Path, server: ScriptedServer) -> None:
        self.path, self.server = path, server
        (path / "test_halfway.py").write_text(SUITE)
        (path / "pytest.ini").write_text("[pytest]\n")

    def start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "pytest", "--model=scripted", f"--hermes-base-url={self.server.url()}"]
        command += [f"--hermes-run-dir={name}", f"--junitxml={name}.xml", "--hermes-local-confine=off"]
        command += ["-p", "no:randomly", "-p", "no:cacheprovider", *arguments]
        return subprocess.Popen(
            command,
            cwd=self.path,
            env=os.environ | {"TMPDIR": str(self.path), "OPENAI_API_KEY": "sk-test"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, name: str, *arguments: str) -> tuple[int, str, int]:
        """Exit status, output, and the requests that the model's server saw."""
        before = self.server.stats.total()
        process = self.start(name, *arguments)
        output, _ = process.communicate(timeout=240)
        return process.returncode, output, self.server.stats.total() - before

    def directory(self, name: str) -> Path:
        (found,) = (path for path in (self.path / name).iterdir() if path.is_dir())
        return found

    def whole_lines(self, name: str) -> int:
        return sum(shard.read_bytes().count(b"\n") for shard in (self.path / name).glob("*/rollouts-*.jsonl"))

    def report(self, name: str) -> list[str]:
        """The JUnit XML without what may differ between two runs, its test cases in order of name."""
        text = (self.path / f"{name}.xml").read_text()
        text = re.sub(r' (time|timestamp|hostname)="[^"]*"', "", text)
        text = re.sub(r'<property name="hermes.seconds"[^>]*>', "", text)
        run = re.escape(self.directory(name).name)
        text = re.sub(rf"\S*{run}/rollouts-\w+\.jsonl", "RECORD", text)
        text = re.sub(rf"{name}/{run}", "RUN", text)
        text = re.sub(r" at RUN/rollouts-\w+", "", text)
        head, *cases = re.split(r"(?=<testcase)", text)
        *cases, last = cases
        last, tail = last.split("</testsuite>")
        return [line for part in (head, *sorted([*cases, last]), tail) for line in part.splitlines()]

    def sandboxes(self) -> list[Path]:
        return list(self.path.glob("hermes-*/*/home"))

    def processes(self) -> list[int]:
        """Those whose environment names this folder: pytest's own and those of its sandboxes."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and str(self.path).encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found


def kill_tree(root: int) -> None:
    """SIGKILL to a process and all its descendants, whatever their sessions; parents first, so that none cleans up."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    tree = [root]
    for process in tree:
        tree += children.get(process, ())
    for process in tree:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


@pytest.fixture
def folder(tmp_path: Path, server: ScriptedServer) -> Iterator[Folder]:
    made = Folder(tmp_path, server)
    yield made
    for process in made.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def start_and_kill(folder: Folder, name: str, *arguments: str) -> Path:
    """A run of which about half was on disk when its whole process tree got SIGKILL."""
    process = folder.start(name, *arguments)
    deadline = time.monotonic() + 120
    while folder.whole_lines(name) < KILLED_AT:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the rollouts never got under way"
        time.sleep(0.005)
    kill_tree(process.pid)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    return folder.directory(name)


def difference(one: list[str], other: list[str]) -> str:
    return "\n".join(difflib.unified_diff(one, other, lineterm="", n=0))


@pytest.mark.slow
@pytest.mark.parametrize("how", WAYS)
def test_a_run_killed_half_way_and_resumed_reports_as_an_unbroken_one(folder: Folder, how: str) -> None:
    status, output, requests = folder.run("unbroken", *WAYS[how])
    assert status == 1 and "30 passed" in output and "10 failed" in output, output
    assert requests == TASKS * REQUESTS

    killed = start_and_kill(folder, "killed", *WAYS[how])
    before = {path: path.read_bytes() for path in killed.rglob("*") if path.is_file()}
    replayed = folder.whole_lines("killed")
    assert KILLED_AT <= replayed < TASKS
    assert folder.sandboxes(), "nothing was under way when it was killed"

    status, output, requests = folder.run("resumed", f"--hermes-resume={killed}", *WAYS[how])
    assert status == 1, output
    assert requests == (TASKS - replayed) * REQUESTS
    assert f"resumed from killed/{killed.name}: {replayed} replayed, {TASKS - replayed} new" in output
    assert difference(folder.report("unbroken"), folder.report("resumed")) == ""
    assert len([line for line in folder.report("resumed") if "out.txt holds" in line]) >= 10

    assert folder.sandboxes() == [] and folder.processes() == []
    assert {path: path.read_bytes() for path in killed.rglob("*") if path.is_file()} == before
    rows = read_rows(folder.directory("resumed"))
    assert len(rows) == TASKS and sum(row["resumed_from"] == killed.name for row in rows) == replayed
    assert json.loads((folder.directory("resumed") / "run.json").read_text())["resumed_from"] == str(killed)

    status, output, requests = folder.run("again", f"--hermes-resume={folder.directory('resumed')}", *WAYS[how])
    assert (status, requests) == (1, 0), output
    assert f"{TASKS} replayed\n" in output
    assert difference(folder.report("unbroken"), folder.report("again")) == ""
