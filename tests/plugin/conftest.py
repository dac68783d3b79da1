"""Running pytest with the plugin on small benchmarks: each call is a pytest process of its own, as a user's is."""

from __future__ import annotations

import dataclasses
import json
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from pytest_hermes.artifacts.records import read_rows

BENCH = '''
    from pytest_hermes import Benchmark, Script, InlineFiles, Task

    def write(name, text, want=None, **more):
        """A task whose scripted model writes `text` into out.txt, where `want` is right."""
        return Task(
            id=name,
            prompt=f"write {text}",
            solution=Script(InlineFiles({"solve.sh": f"echo {want or text} > ~/out.txt"}), "solve.sh"),
            data={
                "want": want or text,
                "script": [
                    {"tool": "terminal", "arguments": {"command": f"echo {text} > out.txt"}},
                    {"content": "done"},
                ],
            },
            **more,
        )

    def verify(v):
        return v.ctx.terminal("cat ~/out.txt")["output"].strip() == v.task.data["want"]
'''


@dataclasses.dataclass
class Run:
    """One finished pytest process: its result, and what its run left."""

    result: pytest.RunResult
    folder: Path

    @property
    def directory(self) -> Path:
        (found,) = (path for path in (self.folder / "runs").iterdir() if path.is_dir())
        return found

    @property
    def started(self) -> bool:
        """Whether any run directory was made."""
        return (self.folder / "runs").exists()

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """Rows by the last part of their node id."""
        return {row["node_id"].split("::", 1)[1]: row for row in read_rows(self.directory)}

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.directory / "summary.json").read_text())

    def junit(self) -> dict[str, dict[str, str]]:
        """Properties by test name, from `j.xml`."""
        cases = ElementTree.parse(self.folder / "j.xml").getroot().iter("testcase")
        return {
            case.attrib["name"]: {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")} for case in cases
        }


class Bench:
    """A folder with benchmarks to run."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")

    def write(self, name: str = "test_bench", **tasks_and_body: str) -> None:
        """A module with the prelude `BENCH` and the given body."""
        body = textwrap.dedent(BENCH) + textwrap.dedent(tasks_and_body["body"])
        self.pytester.makepyfile(**{name: body})

    def run(self, *arguments: str, model: str | None = "scripted") -> Run:
        """Run pytest in a process of its own."""
        chosen = [f"--model={model}"] if model else []
        result = self.pytester.runpytest_subprocess(
            *chosen, "--hermes-run-dir=runs", "--hermes-local-confine=off", "-p", "no:randomly", *arguments
        )
        return Run(result, self.pytester.path)


@pytest.fixture
def bench(pytester: pytest.Pytester) -> Bench:
    return Bench(pytester)


@pytest.fixture(params=[(), ("-n", "2")], ids=["one process", "xdist"])
def processes(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """How a test's pytest runs: alone and with two workers."""
    return request.param
