"""End-to-end runs: a pytest process on a real benchmark, a real sandbox, a real HTTP server."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_hermes.artifacts.records import read_rows

ROOT = Path(__file__).parents[2]
TASKS = ROOT / "tests" / "data" / "harbor"


@dataclasses.dataclass
class Finished:
    """A pytest process that ended."""

    status: int
    output: str
    folder: Path

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        (run,) = (path for path in (self.folder / "runs").iterdir() if path.is_dir())
        return {row["task_id"]: row for row in read_rows(run)}


@pytest.fixture
def harbor(tmp_path):
    """Run `benchmarks/harbor`, or another benchmark, on the sample tasks in docker; `tasks=None` names none."""

    def run(
        *arguments: str,
        script: dict[str, Any] | None = None,
        tasks: Path | None = TASKS,
        benchmark: str = "harbor",
        **environment: str,
    ) -> Finished:
        command = [sys.executable, "-m", "pytest", str(ROOT / "benchmarks" / benchmark)]
        command += [f"--hermes-tasks={tasks}"] if tasks else []
        command += ["--hermes-sandbox=docker", f"--hermes-run-dir={tmp_path / 'runs'}", "-p", "no:randomly"]
        if script is not None:
            (tmp_path / "script.json").write_text(json.dumps(script))
            command.append(f"--model=scripted:{tmp_path / 'script.json'}")
        done = subprocess.run(
            [*command, *arguments],
            cwd=tmp_path,
            env=os.environ | {"OPENAI_API_KEY": "sk-test-key-0123456789"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        return Finished(done.returncode, done.stdout, tmp_path)

    return run
