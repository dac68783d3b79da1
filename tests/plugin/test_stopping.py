"""Every way to stop a run: sandboxes gone, rows on disk, a summary from the process that lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_hermes.artifacts.records import read_rows

AGENTS = '''
import asyncio, os
from pathlib import Path
from pytest_hermes import AgentResult

class Waiter:
    """Leaves a mark on the host, then works for ever, unless its task says how to end."""
    needs_model = False

    def __init__(self, context):
        self.context = context

    async def run(self, prompt, toolbox):
        await toolbox.call("terminal", {"command": "sleep 1000 & echo started"})
        Path(os.environ["MARKS"], self.context.task.id).write_text(self.context.sandbox.id)
        if prompt == "wait":
            await asyncio.sleep(3600)
        return AgentResult(messages=[{"role": "user", "content": prompt}], finished_naturally=True)
'''
SUITE = """
from pytest_hermes import Benchmark, SandboxSpec, Task
IMAGE = {image!r}
TASKS = [Task(id=f"quick-{{n}}", prompt="go", sandbox=SandboxSpec(image=IMAGE)) for n in range({quick})]
TASKS += [Task(id=f"wait-{{n}}", prompt="wait", sandbox=SandboxSpec(image=IMAGE)) for n in range({waiting})]
benchmark = Benchmark("stop", tasks=TASKS, verify=lambda v: 1.0)

@benchmark.parametrize
def test_task(rollout): rollout.check({threshold})
"""


class Stopped:
    """A pytest process that can be stopped once so many rollouts are under way."""

    def __init__(self, folder: Path, *arguments: str, image=None, quick=1, waiting=4, threshold=1.0) -> None:
        self.folder = folder
        (folder / "marks").mkdir()
        (folder / "waiter.py").write_text(AGENTS)
        (folder / "test_stop.py").write_text(
            SUITE.format(image=image, quick=quick, waiting=waiting, threshold=threshold)
        )
        env = os.environ | {"MARKS": str(folder / "marks"), "PYTHONPATH": str(folder), "TMPDIR": str(folder)}
        command = [sys.executable, "-m", "pytest", "--hermes-agent=waiter:Waiter", "--hermes-run-dir=runs"]
        command += ["--hermes-local-confine=off", "-p", "no:randomly", "-p", "no:cacheprovider", *arguments]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait_for_marks(self, count: int, rows: int = 0) -> None:
        """Until so many waiting rollouts are in their agent phase and so many others are on disk."""
        deadline = time.monotonic() + 60
        while len(list((self.folder / "marks").glob("wait-*"))) < count or (rows and len(self.rows) < rows):
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < deadline, "the rollouts never got under way"
            time.sleep(0.05)

    def end(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=90)
        return self.process.returncode, output

    @property
    def rows(self):
        (run,) = (path for path in (self.folder / "runs").iterdir() if path.is_dir())
        return {row["task_id"]: row for row in read_rows(run)}

    @property
    def local_sandboxes(self) -> list[Path]:
        return list(self.folder.glob("hermes-*/*/home"))

    def left_processes(self) -> list[int]:
        """Processes of the sandboxes: their environment names a directory of this test."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and str(self.folder).encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


@pytest.fixture
def stopped(tmp_path):
    made = []

    def start(*arguments: str, **options) -> Stopped:
        made.append(Stopped(tmp_path, *arguments, **options))
        return made[-1]

    yield start
    for run in made:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)
            run.process.wait()


SLOW_REMOVAL = """
import asyncio, contextlib
from pytest_hermes.sandbox.labels import Owner
from pytest_hermes.sandbox.protocol import SandboxRequest
from pytest_hermes.sandbox.registry import make_provider

@contextlib.asynccontextmanager
async def prepared(task, run):
    provider = make_provider("local", confine="off")
    request = SandboxRequest(task.sandbox, Owner.here(run=run).labels(), task.id, lifetime_s=600, build_timeout_s=60)
    sandbox = await provider.create(request)
    try:
        yield sandbox
    finally:
        await asyncio.sleep(12)  # xdist kills its workers after 10
        await sandbox.close()

def pytest_hermes_make_sandbox(task, settings):
    return prepared(task, "slow")
"""

WAYS = {
    "ctrl-c": lambda process: os.killpg(process.pid, signal.SIGINT),
    "sigint to the controller": lambda process: process.send_signal(signal.SIGINT),
    "sigterm": lambda process: process.send_signal(signal.SIGTERM),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", [("--hermes-concurrency=5",), ("-n", "4")], ids=["one process", "xdist"])
def test_signals(stopped, way, how):
    run = stopped(*how)
    run.wait_for_marks(4 if "-n" not in how else 3, rows=1)
    WAYS[way](run.process)
    status, output = run.end()
    assert status == 2
    assert run.local_sandboxes == [] and run.left_processes() == []
    rows = run.rows
    assert rows["quick-0"]["outcome"] == "passed"
    cancelled = [row for name, row in rows.items() if name.startswith("wait")]
    assert len(cancelled) >= 3 and {row["cause"] for row in cancelled} == {"cancelled"}
    assert "more cancelled or unused" in output and "run directory: runs" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("flag", ["-x", "--maxfail=1"])
@pytest.mark.parametrize("how", [("--hermes-concurrency=5",), ("-n", "4")], ids=["one process", "xdist"])
def test_the_first_failure_cancels_what_is_in_flight(stopped, flag, how):
    run = stopped(flag, *how, threshold=2.0)
    status, output = run.end()
    assert status in (1, 2)
    assert "crashed" not in output
    last = output.rstrip().splitlines()[-1]
    assert "1 failed" in last and "error" not in last, "what was cancelled did not fail"
    assert run.local_sandboxes == [] and run.left_processes() == []
    assert {row["cause"] for name, row in run.rows.items() if name.startswith("wait")} <= {"cancelled"}


def test_a_killed_worker_loses_one_item_and_no_sandbox(stopped):
    run = stopped("-n", "2", quick=3, waiting=1)
    run.wait_for_marks(1)
    owner = (run.folder / "marks" / "wait-0").read_text()
    (record,) = [p for p in run.folder.glob("hermes-*/*/owner.json") if p.parent.name == owner]
    import json

    os.kill(int(json.loads(record.read_text())["pytest-hermes.pid"]), signal.SIGKILL)
    status, output = run.end()
    assert status == 1
    assert "3 passed" in output and "crashed" in output
    assert run.local_sandboxes == [] and run.left_processes() == []


def test_sandboxes_of_a_killed_run_go_at_the_next_start(stopped):
    run = stopped("--hermes-concurrency=4", quick=0)
    run.wait_for_marks(4)
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    assert len(run.local_sandboxes) == 4
    env = os.environ | {"TMPDIR": str(run.folder)}
    command = [sys.executable, "-m", "pytest_hermes.cli", "reap", "--sandbox=local"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.stdout == "local: removed 4\n"
    assert run.local_sandboxes == [] and run.left_processes() == []


@pytest.mark.requires("docker")
@pytest.mark.parametrize("way", ["ctrl-c", "sigterm"])
@pytest.mark.parametrize("how", [("--hermes-concurrency=9",), ("-n", "8")], ids=["one process", "xdist"])
def test_signals_with_docker_sandboxes(stopped, way, how, test_image):
    run = stopped("--hermes-sandbox=docker", *how, image=test_image, quick=0, waiting=8)
    run.wait_for_marks(8)
    (directory,) = (path for path in (run.folder / "runs").iterdir() if path.is_dir())
    label = "label=pytest-hermes.run=" + directory.name.rsplit("-", 1)[1]
    listing = ["docker", "ps", "-aq", "--filter", label]
    assert len(subprocess.run(listing, capture_output=True, text=True).stdout.split()) == 8
    WAYS[way](run.process)
    status, _ = run.end()
    assert status == 2
    assert subprocess.run(listing, capture_output=True, text=True).stdout.split() == []
    assert {row["cause"] for row in run.rows.values()} == {"cancelled"} and len(run.rows) == 8


@pytest.mark.slow
@pytest.mark.parametrize("way", ["sigterm", "sigint to the controller"])
def test_workers_with_slow_sandboxes_end_by_themselves(stopped, tmp_path, way):
    (tmp_path / "conftest.py").write_text(SLOW_REMOVAL)
    run = stopped("-n", "2", quick=0, waiting=2)
    run.wait_for_marks(2)
    WAYS[way](run.process)
    status, output = run.end()
    assert status == 2, output
    assert {row["cause"] for row in run.rows.values()} == {"cancelled"} and len(run.rows) == 2
    assert run.local_sandboxes == [] and run.left_processes() == []
