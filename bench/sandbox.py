"""Latency and CPU of each sandbox backend: start, close, exec, kept-shell command; many at once.

    python bench/sandbox.py [--image NAME] [--backend local|confined|docker ...] [--commands 300]

Milliseconds of wall clock are medians; CPU is this process's own and its children's, per operation.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import time
from collections.abc import Awaitable, Callable

from pytest_hermes.sandbox.contract_case import request
from pytest_hermes.sandbox.docker import DockerProvider
from pytest_hermes.sandbox.local import LocalProvider
from pytest_hermes.sandbox.protocol import Sandbox, SandboxProvider
from pytest_hermes.sandbox.shell import ShellSession
from pytest_hermes.task import SandboxSpec


def cpu_s() -> tuple[float, float]:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime


async def measure(name: str, count: int, once: Callable[[], Awaitable[object]]) -> None:
    walls, before = [], cpu_s()
    for _ in range(count):
        began = time.perf_counter()
        await once()
        walls.append(time.perf_counter() - began)
    after = cpu_s()
    own, children = ((b - a) / count * 1000 for a, b in zip(before, after, strict=True))
    print(f"  {name:<28} {statistics.median(walls) * 1000:8.2f} ms   cpu own {own:6.2f} children {children:6.2f} ms")


async def rollout(provider: SandboxProvider, spec: SandboxSpec, commands: int) -> None:
    sandbox = await provider.create(request(spec))
    shell = ShellSession(sandbox)
    for _ in range(commands):
        await shell.run("echo x")
    await shell.close()
    await sandbox.close()


async def bench(backend: str, image: str, commands: int) -> None:
    spec = SandboxSpec(image=image, network=False) if backend == "docker" else SandboxSpec()
    provider: SandboxProvider
    if backend == "docker":
        provider = DockerProvider()
    else:
        provider = LocalProvider(confine="on" if backend == "confined" else "off")
    print(backend)
    made: list[Sandbox] = []

    async def start() -> None:
        made.append(await provider.create(request(spec)))

    async def close() -> None:
        await made.pop().close()

    starts = 5 if backend == "docker" else 20
    await measure("start", starts, start)
    sandbox = made[-1]
    await measure("exec true", 20, lambda: sandbox.exec("true"))
    shell = ShellSession(sandbox)
    await measure("kept shell: first command", 1, lambda: shell.run("true"))
    await measure("kept shell: echo x", commands, lambda: shell.run("echo x"))
    await measure("kept shell: after exit 1", 5, lambda: shell.run("exit 1"))
    await measure("kept shell: timeout 0.2 s", 3, lambda: shell.run("sleep 9", timeout_s=0.2))
    await measure("read_file 1 kB", 10, lambda: sandbox.read_file("/etc/passwd"))
    await measure("write_file 1 MB", 10, lambda: sandbox.write_file("/tmp/x", b"x" * 1_000_000))
    await shell.close()
    await measure("close", starts, close)

    shells = []
    for _ in range(8):
        await start()
        shells.append(ShellSession(made[-1]))
    await asyncio.gather(*(each.run("true") for each in shells))
    began = time.perf_counter()

    async def many(each: ShellSession) -> None:
        for _ in range(commands):
            await each.run("echo x")

    await asyncio.gather(*(many(each) for each in shells))
    print(f"  kept shell in 8 sandboxes    {8 * commands / (time.perf_counter() - began):8.0f} commands/s")
    await asyncio.gather(*(each.close() for each in shells))
    await asyncio.gather(*(close() for _ in list(made)))

    count, at_once = (16, 16) if backend == "docker" else (400, 128)
    places, before, began = asyncio.Semaphore(at_once), cpu_s(), time.perf_counter()

    async def one() -> None:
        async with places:
            await rollout(provider, spec, 10)

    await asyncio.gather(*(one() for _ in range(count)))
    wall, after = time.perf_counter() - began, cpu_s()
    own, children = ((b - a) / count * 1000 for a, b in zip(before, after, strict=True))
    print(
        f"  {count} x (start, 10 commands, close), {at_once} at once: {count / wall:.1f}/s, "
        f"cpu own {own:.2f} children {children:.2f} ms each"
    )
    await provider.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", action="append", choices=["local", "confined", "docker"])
    parser.add_argument("--image", default="hermes-test/base:local")
    parser.add_argument("--commands", type=int, default=300)
    options = parser.parse_args()
    for backend in options.backend or ["local", "confined", "docker"]:
        asyncio.run(bench(backend, options.image, options.commands))


if __name__ == "__main__":
    main()
