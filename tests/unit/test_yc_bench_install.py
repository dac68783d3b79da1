"""Which yc-bench is found, what it says of itself, and what is said where there is none."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pytest_hermes.datasets import store
from pytest_hermes.errors import ConfigurationError
from pytest_hermes.yc_bench import install
from pytest_hermes.yc_bench.install import PRESETS, find_installation

needs_yc_bench = pytest.mark.skipif(importlib.util.find_spec("yc_bench") is None, reason="yc-bench is not installed")
SCRIPT = Path(sys.executable).parent / "yc-bench"
OWN = ("challenge", "easy", "fast_test", "hard", "high_reward", "medium", "nightmare", "tutorial")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(install.VARIABLE, raising=False)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that has been asked once."""
    directory = tmp_path_factory.mktemp("known")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(store.VARIABLE, str(directory))
        patch.delenv(install.VARIABLE, raising=False)
        find_installation()
    return directory


@pytest.fixture
def asked_once(known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.VARIABLE, str(known))


def no_process(*_: object, **__: object) -> None:
    raise AssertionError("a process was started")


@needs_yc_bench
@pytest.mark.usefixtures("asked_once")
class TestOfThisInterpreter:
    def test_says_what_it_offers(self) -> None:
        found = find_installation()
        assert (found.version, found.script, found.python) == ("0.1.0", SCRIPT, Path(sys.executable))
        assert found.presets == tuple(sorted((*OWN, "default")))
        assert found.domains == ("system", "research", "data", "frontend", "backend", "training", "hardware")
        assert found.commands["task assign"] == ("--task-id", "--employee-id")
        assert "--required-prestige-lte" in found.commands["market browse"]
        assert found.commands["sim resume"] == ()
        assert {"run", "start", "scratchpad clear"} < found.commands.keys()
        facts = found.preset_facts
        assert facts.keys() == {*OWN, "default"}
        assert (facts["fast_test"].horizon_years, facts["fast_test"].max_turns) == (1, 50)
        assert (facts["hard"].num_employees, facts["hard"].num_market_tasks) == (7, 200)
        assert (facts["medium"].auto_advance_after_turns, facts["medium"].max_turns) == (8, None)
        assert {fact.initial_funds_cents for fact in facts.values()} == {25_000_000}

    def test_what_a_sandbox_must_see_has_all_of_it(self) -> None:
        found = find_installation()
        for needed in (found.python, found.python.resolve(), found.script, found.package, Path(sys.base_prefix)):
            assert any(needed.is_relative_to(outer) for outer in (*found.readable, *install._SYSTEM)), needed
        assert not any(a != b and a.is_relative_to(b) for a in found.readable for b in found.readable)

    def test_is_asked_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(subprocess, "run", no_process)
        assert find_installation() == find_installation()

    def test_presets_are_names_of_the_package(self) -> None:
        found = find_installation()
        assert found.preset_argument("fast_test") == "fast_test"
        with pytest.raises(
            ConfigurationError, match="has no preset 'fast-test', it has challenge, default, easy"
        ) as error:
            found.preset_argument("fast-test")
        assert str(error.value).endswith(". Did you mean 'fast_test'?")
        assert "\n" not in str(error.value)


@needs_yc_bench
@pytest.mark.parametrize("spoil", [b"", b"{}", b"[]", b'{"package_sha256": 1}', None])
def test_a_broken_or_outdated_answer_is_asked_for_anew(
    cache: Path, known: Path, monkeypatch: pytest.MonkeyPatch, spoil: bytes | None
) -> None:
    (kept,) = (known / "yc-bench").glob("*.json")
    whole = kept.read_bytes()
    if spoil is None:
        spoil = json.dumps({**json.loads(whole), "package_sha256": "0" * 64, "domains": ["none"]}).encode()
    (cache / "yc-bench").mkdir(parents=True)
    (cache / "yc-bench" / kept.name).write_bytes(spoil)
    monkeypatch.setattr(install, "_probed", lambda python, script: json.loads(whole))
    assert find_installation().domains[0] == "system"
    assert json.loads((cache / "yc-bench" / kept.name).read_bytes()) == json.loads(whole)


@needs_yc_bench
def test_many_that_ask_at_once_start_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    run = subprocess.run

    def counted(*args: object, **options: object) -> object:
        started.append(args)
        return run(*args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", counted)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: find_installation(), range(8)))
    assert len(started) == 1
    assert found == [found[0]] * 8


# -- other commands ------------------------------------------------------------------------------------------


@needs_yc_bench
@pytest.mark.parametrize(
    "head",
    [
        "#!{python}\n",
        "#! {python} -E\n",
        "#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\n",
        "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n",
        "#!/usr/bin/env python-of-it\n",
        "#!/usr/bin/env -S python-of-it -E\n",
        "#!/bin/sh\n'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'python-of-it' \"$0\" \"$@\"\n' '''\n",
    ],
)
def test_the_interpreter_of_a_script(known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str) -> None:
    beside = tmp_path / "bin" / "python-of-it"
    beside.parent.mkdir()
    beside.symlink_to(sys.executable)
    script = tmp_path / "bin" / "yc-bench"
    script.write_text(head.format(python=sys.executable) + "print('hello')\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{beside.parent}:{os.environ['PATH']}")
    (kept,) = (known / "yc-bench").glob("*.json")
    monkeypatch.setattr(install, "_probed", lambda python, script: json.loads(kept.read_bytes()))
    wanted = beside if "python-of-it" in head else Path(sys.executable)
    for binary in (str(script), "yc-bench"):
        found = find_installation(binary)
        assert (found.python, found.script) == (wanted, script)
    monkeypatch.setenv(install.VARIABLE, str(script))
    assert find_installation().script == script
    assert script.parent in found.readable


@needs_yc_bench
def test_a_link_to_a_command_is_followed(known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "yc").symlink_to(SCRIPT)
    assert find_installation(str(tmp_path / "yc")).script == SCRIPT


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such command. Give the path of the yc-bench of a Python 3.12 environment"),
        (b"", "is not the script of a Python environment that is here"),
        (b"\x7fELF\0\0", "is not the script of a Python environment that is here"),
        (b"#!/bin/bash\nexec other\n", "is not the script of a Python environment that is here"),
        (b"#!/gone/bin/python3.12\n", "is not the script of a Python environment that is here"),
        (b"#!/usr/bin/env no-such-python\n", "is not the script of a Python environment that is here"),
        (b"#!/bin/sh\n'''exec' \"open\n", "is not the script of a Python environment that is here"),
    ],
)
def test_what_is_no_yc_bench_is_told(tmp_path: Path, content: bytes | None, said: str) -> None:
    script = tmp_path / "yc-bench"
    if content is not None:
        script.write_bytes(content)
        script.chmod(0o755)
    with pytest.raises(ConfigurationError, match=said) as error:
        find_installation(str(script))
    assert str(error.value).startswith(f"--yc-bench-bin={script}: ")
    assert "\n" not in str(error.value)


def test_the_variable_is_named_where_it_was_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(install.VARIABLE, "/gone/yc-bench")
    with pytest.raises(ConfigurationError, match=r"^YC_BENCH_BIN=/gone/yc-bench: no such command"):
        find_installation()


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (
            "import sys; sys.exit(\"ModuleNotFoundError: No module named 'yc_bench'\")",
            ConfigurationError,
            "does not have it",
        ),
        ("raise ImportError('typer is too old')", ConfigurationError, "says ImportError: typer is too old. Install it"),
        ("print('hello')", ConfigurationError, "did not say what it offers"),
        ("pass", ConfigurationError, "did not say what it offers"),
        ("import time; time.sleep(60)", ConfigurationError, "did not say within 1 s what it offers"),
    ],
)
def test_a_package_that_does_not_answer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, kind: type[Exception], said: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -c "$BODY"\n')
    python.chmod(0o755)
    script = tmp_path / "yc-bench"
    script.write_text(f"#!{python}\n")
    script.chmod(0o755)
    monkeypatch.setenv("BODY", body)
    monkeypatch.setattr(install, "_SEEN", ("BODY",))
    if "sleep" in body:
        monkeypatch.setattr(install, "_PROBE_TIMEOUT_S", 1.0)
    with pytest.raises(kind, match=said) as error:
        find_installation(str(script))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (
            (3, 11),
            r"needs Python 3\.12 and this is 3\.11: use an environment of Python 3\.12 .* or name another one's",
        ),
        (
            (3, 12),
            r"is not installed: pip install 'pytest-hermes\[yc-bench\]', or name its command with --yc",
        ),
    ],
)
def test_none_at_all_is_told(monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], said: str) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "version_info", version)
    with pytest.raises(ConfigurationError, match=said):
        find_installation()


# -- presets -------------------------------------------------------------------------------------------------


@needs_yc_bench
@pytest.mark.parametrize("name", OWN)
def test_our_presets_are_those_of_the_package(name: str) -> None:
    from yc_bench.config import load_config  # type: ignore[import-untyped,import-not-found,unused-ignore]

    theirs, ours = load_config(name), load_config(str(PRESETS / f"{name}.toml"))
    assert (ours.world, ours.sim, ours.loop) == (theirs.world, theirs.sim, theirs.loop)
    assert ours.agent.history_keep_rounds == theirs.agent.history_keep_rounds == 20
    assert ours.name == name


@needs_yc_bench
@pytest.mark.usefixtures("asked_once")
def test_our_presets_step_in_where_the_package_has_none() -> None:
    import dataclasses

    found = dataclasses.replace(find_installation(), presets=("default",))
    assert found.preset_argument("default") == "default"
    for name in OWN:
        with Path(found.preset_argument(name)).open("rb") as file:
            settings = tomllib.load(file)
        assert settings["extends"] == "default"
        assert settings["sim"]["horizon_years"] == found.preset_facts[name].horizon_years
    with pytest.raises(ConfigurationError, match=r"has no preset 'hards', it has default\. Did you mean 'hard'"):
        found.preset_argument("hards")
