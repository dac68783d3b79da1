"""Owner labels, cross-process places and the registry of backends."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_hermes.errors import ConfigurationError
from pytest_hermes.sandbox.docker_client import daemon_url
from pytest_hermes.sandbox.labels import Owner
from pytest_hermes.sandbox.local import allowed_environment
from pytest_hermes.sandbox.registry import check_backend, make_provider
from pytest_hermes.sandbox.starts import Slots


def test_owner_round_trip() -> None:
    owner = Owner.here(run="r", worker="gw1", item="t.py::test[a]", lease_s=60)
    assert Owner.read(owner.labels()) == owner
    assert Owner.read({}) is None
    assert Owner.read({**owner.labels(), "pytest-hermes.pid": "x"}) is None


def test_when_an_owner_is_dead() -> None:
    alive = Owner.here(run="r", lease_s=-1)
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert not alive.is_dead(), "on the same machine the process counts, not the lease"
    assert dataclasses.replace(alive, pid=gone.pid).is_dead()
    assert dataclasses.replace(alive, started="1.00").is_dead(), "the number belongs to another process now"
    assert dataclasses.replace(alive, boot="before").is_dead()
    for elsewhere in ({"host": "other"}, {"pid_namespace": "pid:[1]"}):
        assert dataclasses.replace(alive, pid=gone.pid, **elsewhere).is_dead()  # type: ignore[arg-type]
        later = dataclasses.replace(alive, pid=gone.pid, lease_until=time.time() + 60, **elsewhere)  # type: ignore[arg-type]
        assert not later.is_dead()


def test_places_within_a_process(tmp_path: Path) -> None:
    """Never more than `count`, all of them used, first come first served."""
    busy, most, order = 0, 0, []

    async def one(slots: Slots, number: int) -> None:
        nonlocal busy, most
        async with slots.slot():
            order.append(number)
            busy += 1
            most = max(most, busy)
            await asyncio.sleep(0.01)
            busy -= 1

    async def whole() -> None:
        slots = Slots(tmp_path, "x", 3)
        await asyncio.gather(*(one(slots, number) for number in range(12)))

    asyncio.run(whole())
    assert most == 3
    assert order == sorted(order)


def test_places_across_processes(tmp_path: Path) -> None:
    """A place held elsewhere is waited for, and a killed holder gives it back."""
    script = f"""
import asyncio, sys
from pathlib import Path
from pytest_hermes.sandbox.starts import Slots
async def main():
    async with Slots(Path({str(tmp_path)!r}), "x", 1).slot():
        print("held", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""
    holder = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"

        async def whole() -> None:
            slots = Slots(tmp_path, "x", 1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2), slots.slot():
                    pass
            holder.kill()
            holder.wait()
            async with asyncio.timeout(5), slots.slot():
                pass

        asyncio.run(whole())
    finally:
        holder.kill()
        holder.stdout.close()


def test_no_places() -> None:
    with pytest.raises(ValueError, match="nothing start"):
        Slots(Path("/tmp"), "x", 0)


def test_backend_names() -> None:
    check_backend("local")
    check_backend("docker")
    assert make_provider("local", confine="off", starts=2).backend == "local"
    with pytest.raises(ConfigurationError, match="Did you mean docker"):
        check_backend("dokcer")
    for name in ("ssh", "modal", "daytona", "singularity"):
        with pytest.raises(ConfigurationError, match="not built yet"):
            make_provider(name)


def test_third_party_backend(tmp_path: Path) -> None:
    """A distribution with an entry point is found by name and given the options."""
    info = tmp_path / "mine-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[pytest_hermes.sandboxes]\nmine = mine_sandbox:make\n")
    (tmp_path / "mine_sandbox.py").write_text("def make(**options):\n    return sorted(options)\n")
    script = (
        "from pytest_hermes.sandbox.registry import *; check_backend('mine'); print(make_provider('mine', starts=3))"
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.getcwd()}"}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert done.stdout == "['starts']\n", done.stderr


def test_daemon_url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://there:1")
    assert daemon_url() == "tcp://there:1"
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text('{"currentContext": "elsewhere"}')
    assert daemon_url() is None


def test_registry_imports_no_backend() -> None:
    script = (
        "import sys; import pytest_hermes.sandbox.registry, pytest_hermes.sandbox.protocol; "
        "heavy = {'docker', 'aiodocker', 'aiohttp', 'asyncio'}; print([name for name in sys.modules if name in heavy])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_variables_that_another_thread_deletes_meanwhile(monkeypatch):
    class Shrinking(dict[str, str]):
        def __iter__(self):
            yield from [*self.keys(), "LC_GONE"]

        def items(self):
            yield from [(name, self[name]) for name in self]

    monkeypatch.setattr(os, "environ", Shrinking(PATH="/bin", LC_ALL="C", OTHER="x"))
    assert allowed_environment(["MINE"]) == {"PATH": "/bin", "LANG": "C.UTF-8", "TERM": "dumb", "LC_ALL": "C"}
