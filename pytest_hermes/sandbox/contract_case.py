"""What contract tests are made of: a request, a test in a fresh sandbox, processes that can be told apart."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import secrets
import tarfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

from pytest_hermes.sandbox.labels import Owner
from pytest_hermes.sandbox.protocol import Sandbox, SandboxProvider, SandboxRequest
from pytest_hermes.task import SandboxSpec

RUN = f"contract-{secrets.token_hex(4)}"

ESCAPES = {
    "child": "sleep {t} & wait",
    "setsid": "setsid sleep {t} & sleep {t}",
    "nohup": "nohup sleep {t} >/dev/null 2>&1 & sleep {t}",
    "double_fork": "( ( sleep {t} & ) & ) ; sleep {t}",
    "double_fork_setsid": "( setsid sh -c 'sleep {t} & sleep {t}' & ) ; sleep {t}",
    "ignores_term": "trap '' TERM HUP INT; sleep {t}; sleep {t}",
    "closed_streams": "exec >/dev/null 2>&1; sleep {t}",
    "stops_itself": "sleep {t} & kill -STOP $$; sleep {t}",
    "pipeline": "sleep {t} | cat",
    "next_command": "sleep {t}; sleep {t}; sleep {t}",
}
"""Ways in which processes get out of a plain kill; `{t}` is a number that nothing else sleeps for."""


def request(spec: SandboxSpec, task_id: str = "contract", **changes: Any) -> SandboxRequest:
    """A request as the engine makes it, owned by this process."""
    made = SandboxRequest(
        spec=spec,
        labels=Owner.here(run=RUN, item="contract").labels(),
        task_id=task_id,
        lifetime_s=600.0,
        build_timeout_s=300.0,
    )
    return dataclasses.replace(made, **changes)


def in_sandbox(**changes: Any) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Make a pytest function of an async one that is given a started sandbox (`changes` go into the spec)."""

    def decorate(body: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        def run(self: Any, provider: SandboxProvider) -> None:
            async def whole() -> None:
                sandbox = await provider.create(request(dataclasses.replace(self.spec, **changes)))
                try:
                    await body(self, sandbox)
                finally:
                    await sandbox.close()
                    await provider.aclose()

            asyncio.run(asyncio.wait_for(whole(), 300))

        run.__name__, run.__doc__ = body.__name__, body.__doc__
        return run

    return decorate


async def sleepers(sandbox: Sandbox, seconds: str) -> int:
    """How many processes in the sandbox have `seconds` in their command line."""
    pattern = f"{seconds[:-1]}[{seconds[-1]}]"
    found = await sandbox.exec(["sh", "-c", f"grep -lsa '{pattern}' /proc/[0-9]*/cmdline | wc -l"])
    return int(found.stdout)


async def until_sleepers(sandbox: Sandbox, seconds: str, count: int) -> None:
    """Wait until `sleepers` finds `count`; every look is a command, which is pause enough."""
    while await sleepers(sandbox, seconds) < count:
        pass


_numbers = iter(range(7_000_001, 8_000_000))


def unique_seconds() -> str:
    """A number of seconds that no other process of this machine sleeps for."""
    return f"{next(_numbers)}{time.time_ns() % 1_000_000:06d}"


def archive_of(files: dict[str, tuple[bytes, int]]) -> bytes:
    """A tar archive of (content, mode) by name."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, (content, mode) in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), mode
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
