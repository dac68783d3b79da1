"""The built wheel in an environment of its own, away from the checkout."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (found,) = out.glob("*.whl")
    return found


def test_it_installs_one_top_level_package_and_carries_the_benchmarks(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"pytest_hermes"}
    for wanted in ("benchmarks/terminal_test/test_terminal_test.py", "benchmarks/harbor/default.yaml", "py.typed"):
        assert f"pytest_hermes/{wanted}" in names
    assert not [name for name in names if "__pycache__" in name]


@pytest.mark.slow
def test_its_benchmarks_run_in_a_clean_environment(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel]
    subprocess.run(install, check=True, capture_output=True)
    (tmp_path / "work").mkdir()
    done = subprocess.run(
        [python, "-m", "pytest", "--pyargs", "pytest_hermes.benchmarks.terminal_test", "--model=scripted"],
        cwd=tmp_path / "work",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "17 passed" in done.stdout
    assert list((tmp_path / "work" / ".hermes" / "runs").glob("*-terminal_test-*/run.json"))
    script = subprocess.run([tmp_path / "venv" / "bin" / "pytest-hermes", "--version"], capture_output=True, text=True)
    assert script.stdout.startswith("pytest-hermes ")
    # The checkout itself, as the README has it, with what the core depends on and nothing else.
    checkout = [python, "-m", "pytest", ROOT / "benchmarks" / "terminal_test", "--model=scripted", "-k", "csv"]
    done = subprocess.run(
        [*checkout, "-p", "no:cacheprovider", f"--hermes-run-dir={tmp_path / 'runs'}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
