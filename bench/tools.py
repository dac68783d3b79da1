"""Tool calls through the toolbox, beside a process (or docker exec) per command, on 1, 8 and 32 sandboxes at once.

    python bench/tools.py [--backend local docker] [--image NAME] [--calls 200] [--sandboxes 1 8 32]

Latency is the median of one call in milliseconds of wall clock, calls/s counts all sandboxes together, CPU is this
process's own per call in milliseconds. Each row is measured in the same run as its baseline: quote the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pytest_hermes.sandbox.contract_case import request
from pytest_hermes.sandbox.docker import DockerProvider
from pytest_hermes.sandbox.local import LocalProvider
from pytest_hermes.sandbox.protocol import Sandbox, SandboxProvider
from pytest_hermes.task import SandboxSpec
from pytest_hermes.tools.toolbox import Toolbox

TEXT = "".join(f"line {number} of a file that an agent reads\n" for number in range(100))
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "terminal": ("terminal", {"command": "echo hello"}),
    "read_file": ("read_file", {"path": "file.txt"}),
    "write_file": ("write_file", {"path": "file.txt", "content": TEXT}),
}


def own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def measure(name: str, doers: Sequence[Callable[[], Awaitable[object]]], calls: int) -> None:
    """Every doer in turn `calls` times, all of them at once; one line of results."""
    waits: list[float] = []

    async def repeat(do: Callable[[], Awaitable[object]], times: int) -> None:
        for _ in range(times):
            began = time.perf_counter()
            await do()
            waits.append(time.perf_counter() - began)

    await asyncio.gather(*(repeat(do, 1) for do in doers))  # shells start
    waits.clear()
    cpu, began = own_cpu_s(), time.perf_counter()
    await asyncio.gather(*(repeat(do, calls) for do in doers))
    wall, cpu = time.perf_counter() - began, own_cpu_s() - cpu
    print(
        f"  {len(doers):2d} x {name:<22} {statistics.median(waits) * 1000:8.2f} ms {len(waits) / wall:8.0f}/s "
        f"{cpu / len(waits) * 1000:7.3f} ms CPU",
        flush=True,
    )


def caller(box: Toolbox, name: str, arguments: dict[str, Any]) -> Callable[[], Awaitable[object]]:
    async def call() -> None:
        result = json.loads(await box.call(name, arguments))
        if result.get("error"):
            raise RuntimeError(f"{name}: {result['error']}")

    return call


def command(sandbox: Sandbox) -> Callable[[], Awaitable[object]]:
    async def run() -> None:
        if (await sandbox.exec("echo hello")).stdout != b"hello\n":
            raise RuntimeError("a command gave the wrong output")

    return run


async def backend(provider: SandboxProvider, spec: SandboxSpec, counts: Sequence[int], calls: int) -> None:
    try:
        for count in counts:
            sandboxes = await asyncio.gather(*(provider.create(request(spec)) for _ in range(count)))
            boxes = [Toolbox(sandbox, None) for sandbox in sandboxes]
            for box in boxes:
                await box.call("write_file", {"path": "file.txt", "content": TEXT})
            each = max(10, calls // count)
            await measure("exec per command", [command(sandbox) for sandbox in sandboxes], max(3, each // 10))
            for name, (tool, arguments) in CALLS.items():
                await measure(name, [caller(box, tool, arguments) for box in boxes], each)
            await asyncio.gather(*(box.aclose() for box in boxes))
            await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
    finally:
        await provider.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", nargs="+", default=["local", "docker"], choices=["local", "confined", "docker"])
    parser.add_argument("--image", default="hermes-test/base:local")
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--sandboxes", type=int, nargs="+", default=[1, 8, 32])
    options = parser.parse_args()
    for name in options.backend:
        print(name)
        provider: SandboxProvider
        provider = DockerProvider() if name == "docker" else LocalProvider(confine="off" if name == "local" else "on")
        spec = SandboxSpec(image=options.image if name == "docker" else None)
        asyncio.run(backend(provider, spec, options.sandboxes, options.calls))


if __name__ == "__main__":
    main()
