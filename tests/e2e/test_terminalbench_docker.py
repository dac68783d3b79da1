"""Terminal-Bench 2 and TBLite in docker on the sample tasks as rows: from a file, and from a hub that speaks HTTP."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.hub import Hub, serving

from pytest_hermes.datasets.pack import pack

pytestmark = [pytest.mark.requires("docker", "sample-images")]
SAMPLES = Path(__file__).parents[1] / "data" / "harbor"
PARALLEL = {"workers": ["-n", "4"], "one process": ["--hermes-concurrency=8"]}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The samples as rows of a JSONL file."""
    path = tmp_path_factory.mktemp("rows") / "samples.jsonl"
    pack([SAMPLES], path)
    return path


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub that has them as a parquet file of TBLite."""
    root = tmp_path_factory.mktemp("hub")
    pack([SAMPLES], root / "NousResearch" / "openthoughts-tblite" / "data" / "train-00000-of-00001.parquet")
    with serving(root) as running:
        yield running


@pytest.mark.parametrize("how", PARALLEL)
@pytest.mark.parametrize("agent", ["oracle", "nop"])
def test_rows_of_a_file(harbor, rows, tmp_path, agent, how):
    environment = {"PYTEST_HERMES_CACHE": str(tmp_path / "cache")}
    run = harbor(
        f"--hermes-dataset={rows}",
        f"--hermes-agent={agent}",
        f"--junitxml={tmp_path / 'j.xml'}",
        *PARALLEL[how],
        tasks=None,
        benchmark="terminalbench_2",
        **environment,
    )
    _check(run, agent)
    cases = list(ElementTree.parse(tmp_path / "j.xml").getroot().iter("testcase"))
    assert sorted(case.attrib["name"] for case in cases) == sorted(f"test_task[{name}]" for name in run.rows)


@pytest.mark.parametrize("how", PARALLEL)
@pytest.mark.parametrize("agent", ["oracle", "nop"])
def test_parquet_of_a_hub(harbor, hub, tmp_path, agent, how):
    hub.requests.clear()
    environment = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hf"),
        "PYTEST_HERMES_CACHE": str(tmp_path / "cache"),
    }
    run = harbor(f"--hermes-agent={agent}", *PARALLEL[how], tasks=None, benchmark="tblite", **environment)
    _check(run, agent)
    repository = hub.repository("NousResearch/openthoughts-tblite")
    assert repository is not None
    (directory,) = (path for path in (run.folder / "runs").iterdir() if path.is_dir())
    origin = json.loads((directory / "run.json").read_text())["datasets"]["tblite"]
    assert origin["commit"] == repository.commit and set(origin["tasks"]) == set(run.rows)
    assert {name: row["task_digest"] for name, row in run.rows.items()} == origin["tasks"]
    downloads = [path for method, path in hub.requests if method == "GET" and path.endswith(".parquet")]
    assert len(downloads) == 1


def _check(run, agent: str) -> None:
    if agent == "oracle":
        assert "8 passed" in run.output and run.status == 0, run.output
        assert {row["reward"] for row in run.rows.values()} == {1.0}
        assert not any(row["verifier"]["evidence"] for row in run.rows.values())
    else:
        assert "8 failed" in run.output and run.status == 1, run.output
        assert {row["outcome"] for row in run.rows.values()} == {"failed"}
