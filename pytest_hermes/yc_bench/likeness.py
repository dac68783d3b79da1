"""Whether the kept process answers as the installed command does: the condition of the fast path.

Compared byte by byte for a command that succeeds and one that crashes, whose traceback goes through every layer of the
program. That takes four commands, so a good answer is kept in the cache directory, for exactly these files.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import weakref
from pathlib import Path

from pytest_hermes.datasets.store import Store, key_of
from pytest_hermes.errors import ConfigurationError
from pytest_hermes.yc_bench.install import Installation
from pytest_hermes.yc_bench.simulation import PROGRAMS, Simulation, url_of

log = logging.getLogger(__name__)

_KIND = "yc-bench-alike"
_COMMAND = ("company", "status")
_ENVIRONMENTS: tuple[dict[str, str], ...] = ({}, {"DATABASE_URL": url_of("/nowhere/at/all.db")})
"""Nothing makes the directory of the second."""
_FOUND: dict[str, bool] = {}
_COMPARING: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()


async def answers_alike(simulation: Simulation, installation: Installation, *, timeout_s: float = 60.0) -> bool:
    """Whether a simulation's helper gives the bytes and exit codes of real processes, asked once per installation and
    backend. It changes nothing in a database that holds a simulation."""
    key = await asyncio.to_thread(_key, installation, simulation.backend)
    async with _COMPARING.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        if key not in _FOUND:
            _FOUND[key] = await asyncio.to_thread(_is_known, key) or await _compare(simulation, key, timeout_s)
        return _FOUND[key]


async def _compare(simulation: Simulation, key: str, timeout_s: float) -> bool:
    for env in _ENVIRONMENTS:
        if not await simulation.agrees_with_process(_COMMAND, env=env, timeout_s=timeout_s):
            log.warning("yc-bench's helper answers otherwise than its command: commands are processes of their own")
            return False
    await asyncio.to_thread(_keep, key)
    return True


def _key(installation: Installation, backend: str) -> str:
    # What is installed beside the package changes the directory that both are in.
    around = installation.package.parent.stat().st_mtime_ns
    return key_of(
        _KIND,
        installation.python,
        installation.script,
        installation.package_sha256,
        around,
        backend,
        _own_sha256(),
    )


@functools.cache
def _own_sha256() -> str:
    sources = [Path(__file__).with_name(f"{name}.py").read_bytes() for name in PROGRAMS]
    return hashlib.sha256(b"\0".join(sources)).hexdigest()


def _is_known(key: str) -> bool:
    return Store().read(_KIND, key) == {"alike": True}


def _keep(key: str) -> None:
    try:
        Store().write(_KIND, key, {"alike": True})
    except ConfigurationError as error:  # then the next process compares again
        log.info("%s", error)
