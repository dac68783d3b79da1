"""Which yc-bench is played with, and what it really offers.

`find_installation` finds the command, the interpreter that owns it, and asks the package there once (`probe.py`, a
process of about a CPU second); the answer is kept in the cache directory and holds as long as the package's files are
the same. Nothing goes by version numbers: every git revision of yc-bench since 0.1.0 calls itself 0.1.0.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_hermes.config import hint
from pytest_hermes.datasets.store import Store, key_of
from pytest_hermes.errors import ConfigurationError

log = logging.getLogger(__name__)

OPTION = "--yc-bench-bin"
VARIABLE = "YC_BENCH_BIN"
PRESETS = Path(__file__).with_name("presets")
"""Presets of ours, for an installation that has none of that name."""
_KIND = "yc-bench"
_PROBE_TIMEOUT_S = 60.0
_SEEN = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
_SYSTEM = tuple(Path(name) for name in ("/usr", "/bin", "/lib", "/lib64"))
_HEAD_BYTES = 4_096


class YcBenchMissing(ConfigurationError):
    """There is no yc-bench to play with; the message says how to get one."""


@dataclasses.dataclass(frozen=True)
class PresetFacts:
    """Figures of a preset, resolved by the package's own loader."""

    horizon_years: int
    initial_funds_cents: int
    num_employees: int
    num_market_tasks: int
    auto_advance_after_turns: int
    max_turns: int | None
    history_keep_rounds: int


@dataclasses.dataclass(frozen=True)
class Installation:
    """A yc-bench on this machine."""

    python: Path
    """The interpreter that owns it, absolute; a virtual environment's, not what that is a link to."""
    script: Path
    """The console script, absolute, links resolved."""
    version: str
    package: Path
    package_sha256: str
    """Over the package's .py and .toml files: tells apart what one version number cannot."""
    presets: tuple[str, ...]
    domains: tuple[str, ...]
    readable: tuple[Path, ...]
    """Directories that a confined sandbox must see to run it."""
    commands: Mapping[str, tuple[str, ...]]
    """Every command with its long options: `task assign` -> `--task-id`, `--employee-id`."""
    preset_facts: Mapping[str, PresetFacts]
    """Of the package's presets, and of ours where the package has none of that name."""

    def preset_argument(self, name: str) -> str:
        """The value of YC_BENCH_EXPERIMENT for a preset. ConfigurationError for an unknown one, which yc-bench 0.1.0
        would silently play with figures of its code."""
        if name in self.presets:
            return name
        if name in self.preset_facts:
            return str(PRESETS / f"{name}.toml")
        raise ConfigurationError(
            f"yc-bench {self.version} has no preset {name!r}, it has {', '.join(self.presets)}"
            f"{hint(name, self.preset_facts)}"
        )


def find_installation(binary: str | None = None) -> Installation:
    """The yc-bench that `binary` (a path, or a name on PATH; default: $YC_BENCH_BIN) is the command of, else the one
    of this interpreter. Raises YcBenchMissing, and ConfigurationError where it cannot be asked what it offers."""
    source = OPTION if binary else VARIABLE
    binary = binary or os.environ.get(VARIABLE) or None
    if binary is None:
        script, python, package = _own()
    else:
        script = _resolved(binary, f"{source}={binary}")
        python, package = _interpreter(script, f"{source}={binary}"), None
    store = Store()
    key = key_of(_KIND, str(python), str(script), str(package), _own_presets_sha256())
    if (kept := _kept(store, key, python, script)) is not None:
        return kept
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(store.locked(f"{_KIND}-{key}"))
        except ConfigurationError as error:  # no cache: the package is asked by every process
            log.info("%s", error)
        # Another process may have asked while this one waited.
        if (kept := _kept(store, key, python, script)) is not None:
            return kept
        found = _probed(python, script)
        found["package_sha256"] = _sha256(Path(found["package"]))
        installation = _installation(found, python, script)
        try:
            store.write(_KIND, key, found)
        except ConfigurationError as error:
            log.info("%s", error)
    return installation


# -- where it is -----------------------------------------------------------------------------------------


def _own() -> tuple[Path, Path, Path]:
    """This interpreter's script, interpreter and package; nothing is imported."""
    spec = importlib.util.find_spec("yc_bench")
    if spec is None or not spec.submodule_search_locations:
        wanted = "pip install 'pytest-hermes[yc-bench]'"
        if sys.version_info < (3, 12):
            raise YcBenchMissing(
                f"yc-bench needs Python 3.12 and this is {sys.version_info[0]}.{sys.version_info[1]}: use an"
                f" environment of Python 3.12 ({wanted} there), or name another one's command with {OPTION}"
            )
        raise YcBenchMissing(f"yc-bench is not installed: {wanted}, or name its command with {OPTION}")
    python = Path(sys.executable)
    beside = [python.parent / "yc-bench", Path(sysconfig.get_path("scripts")) / "yc-bench"]
    script = next((path for path in beside if path.is_file()), None)
    if script is None:
        raise YcBenchMissing(
            f"yc-bench is importable but has no command {beside[0]}: install it with pip, or name its command with"
            f" {OPTION}"
        )
    return script.resolve(), python, Path(next(iter(spec.submodule_search_locations)))


def _resolved(binary: str, asked: str) -> Path:
    found = shutil.which(os.path.expanduser(binary))  # noqa: PTH111 - a bare name must stay one
    if found is None:
        raise ConfigurationError(
            f"{asked}: no such command. Give the path of the yc-bench of a Python 3.12 environment"
        )
    return Path(found).resolve()


def _interpreter(script: Path, asked: str) -> Path:
    """The interpreter that a console script starts: from its `#!` line, or, where that would be too long for the
    kernel, from the `exec` of the shell that pip and uv put there."""
    try:
        with script.open("rb") as file:
            head = file.read(_HEAD_BYTES).decode(errors="replace").splitlines()
    except OSError as error:
        raise ConfigurationError(f"{asked}: {script} cannot be read ({error.strerror})") from error
    words = _words(head[0][2:]) if head and head[0].startswith("#!") else []
    if words and Path(words[0]).name == "sh" and len(head) > 1 and head[1].startswith("'''exec'"):
        # uv's relocatable scripts look beside themselves.
        beside = re.search(r"\)\"/'?([^' ]+)'? ", head[1])
        words = [str(script.parent / beside[1])] if beside else _words(head[1].removeprefix("'''exec'"))
    if words and Path(words[0]).name == "env":
        named = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "")
        words = [shutil.which(named) or ""]
    python = Path(words[0]) if words else Path()
    if not python.name.startswith(("python", "pypy")) or not os.access(python, os.X_OK):
        raise ConfigurationError(
            f"{asked}: {script} is not the script of a Python environment that is here. Give the path of the yc-bench"
            " in the environment's bin directory"
        )
    return Path(os.path.abspath(python))  # noqa: PTH100 - resolving would leave the virtual environment


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []


def _readable(python: Path, script: Path, found: Mapping[str, Any]) -> tuple[Path, ...]:
    """Directories without which the command does not start, none of them within another."""
    wanted = [Path(found["prefix"]), Path(found["base_prefix"]), Path(found["package"]), script.parent]
    link = python
    while True:
        # Each link on the way must be there, not only the interpreter at its end.
        wanted.append(link.parent)
        if not link.is_symlink():
            break
        link = Path(os.path.normpath(link.parent / link.readlink()))
    kept: list[Path] = []
    for directory in sorted(set(wanted), key=lambda path: len(path.parts)):
        if not any(directory.is_relative_to(outer) for outer in (*_SYSTEM, *kept)):
            kept.append(directory)
    return tuple(kept)


# -- what it offers --------------------------------------------------------------------------------------


def _probed(python: Path, script: Path) -> dict[str, Any]:
    """Ask the package, in a process of its interpreter. ConfigurationError if that does not answer."""
    source = Path(__file__).with_name("probe.py").read_text()
    argv = [str(python), "-I", "-c", source, str(PRESETS)]
    env = {name: os.environ[name] for name in _SEEN if name in os.environ}
    try:
        done = subprocess.run(argv, env=env, cwd="/", capture_output=True, timeout=_PROBE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ConfigurationError(
            f"yc-bench ({script}): {python} did not say within {_PROBE_TIMEOUT_S:.0f} s what it offers. Is that"
            " environment whole?"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"yc-bench ({script}): {python} cannot be started ({error.strerror})") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        reason = said[-1] if said else f"exit {done.returncode}"
        if "No module named 'yc_bench'" in reason:
            raise ConfigurationError(f"yc-bench ({script}): {python} does not have it. Install it there with pip")
        raise ConfigurationError(f"yc-bench ({script}) cannot be used: {python} says {reason}. Install it anew")
    try:
        found = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        found = None
    if not isinstance(found, dict):
        raise ConfigurationError(f"yc-bench ({script}): {python} did not say what it offers. Install it anew")
    return found


def _kept(store: Store, key: str, python: Path, script: Path) -> Installation | None:
    """What the cache knows, if it is about the files that are there now."""
    found = store.read(_KIND, key)
    try:
        if found is None or found["package_sha256"] != _sha256(Path(found["package"])):
            return None
        return _installation(found, python, script)
    except (KeyError, TypeError, ValueError, AttributeError, OSError):
        return None


def _installation(found: Mapping[str, Any], python: Path, script: Path) -> Installation:
    return Installation(
        python=python,
        script=script,
        version=str(found["version"]),
        package=Path(found["package"]),
        package_sha256=str(found["package_sha256"]),
        presets=tuple(found["presets"]),
        domains=tuple(found["domains"]),
        readable=_readable(python, script, found),
        commands={name: tuple(options) for name, options in found["commands"].items()},
        preset_facts={name: PresetFacts(**facts) for name, facts in found["preset_facts"].items()},
    )


def _sha256(package: Path) -> str:
    """One digest over names and contents of the package's .py and .toml files."""
    digest = hashlib.sha256()
    files = {path.relative_to(package).as_posix(): path for end in ("py", "toml") for path in package.rglob(f"*.{end}")}
    for name, path in sorted(files.items()):
        content = path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


@functools.cache
def _own_presets_sha256() -> str:
    return _sha256(PRESETS)
