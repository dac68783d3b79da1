"""The tool `terminal` over every backend: what ends a shell, what escapes a time-out, floods, background processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_hermes.sandbox.contract_case import ESCAPES, request, sleepers, unique_seconds, until_sleepers
from pytest_hermes.sandbox.protocol import Sandbox, SandboxProvider
from pytest_hermes.sandbox.shell import ShellSession
from pytest_hermes.sandbox.shell_contract import ENDERS
from pytest_hermes.task import SandboxSpec
from pytest_hermes.tools.toolbox import Toolbox

Body = Callable[["Terminal"], Awaitable[None]]


class Terminal:
    """The toolbox of an agent in a sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.tools = Toolbox(sandbox, ["terminal"])

    async def __call__(self, command: str, **more: Any) -> dict[str, Any]:
        return await self.call("terminal", command=command, **more)

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(await self.tools.call(name, arguments))
        return result


Run = Callable[[Body], None]


@pytest.fixture(
    params=[
        "local",
        pytest.param("confined", marks=pytest.mark.requires("bwrap")),
        pytest.param("docker", marks=pytest.mark.requires("docker")),
    ]
)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs a test's coroutine with an agent's tools in a fresh sandbox of each backend."""
    spec = SandboxSpec()
    if request.param == "docker":
        spec = SandboxSpec(image=request.getfixturevalue("image"), network=False)

    def provider() -> SandboxProvider:
        if request.param == "docker":
            from pytest_hermes.sandbox.docker import DockerProvider

            return DockerProvider(starts=8)
        from pytest_hermes.sandbox.local import LocalProvider

        return LocalProvider(confine="on" if request.param == "confined" else "off", root=tmp_path / "s")

    def run(body: Body) -> None:
        asyncio.run(asyncio.wait_for(within(provider(), spec, body), 300))

    return run


async def within(provider: SandboxProvider, spec: SandboxSpec, body: Body) -> None:
    terminal = Terminal(await provider.create(request(spec)))
    try:
        await body(terminal)
    finally:
        await terminal.tools.aclose()
        await terminal.sandbox.close()
        await provider.aclose()


def test_what_ends_a_shell_ends_only_its_command(run: Run) -> None:
    async def body(terminal: Terminal) -> None:
        await terminal("cd /usr/lib; export A='x  y'; f() { echo F; }")
        for ender, code in ENDERS.items():
            found = await terminal(f"echo seen; {ender}", timeout=30)
            assert found["output"].startswith("seen\n"), ender
            assert found["exit_code"] == code if code is not None else found["exit_code"] not in (0, 124), ender
            assert (await terminal('echo "$A"; f; pwd'))["output"] == "x  y\nF\n/usr/lib\n", ender

    run(body)


def test_what_escapes_a_plain_kill_does_not_escape_a_time_out(run: Run) -> None:
    async def body(terminal: Terminal) -> None:
        earlier = unique_seconds()
        await terminal(f"export A=1; nohup sleep {earlier} >/dev/null 2>&1 &")
        for name, text in ESCAPES.items():
            seconds = unique_seconds()
            found = await terminal(f"echo partial; {text.format(t=seconds)}", timeout=1)
            assert found["exit_code"] == 124, name
            assert found["output"].startswith("partial\n") and "timed out after 1s" in found["output"], name
            assert await sleepers(terminal.sandbox, seconds) == 0, name
            assert (await terminal("echo $A"))["output"] == "1\n", name
        assert await sleepers(terminal.sandbox, earlier) == 1

    run(body)


def test_kill_takes_everything_that_a_background_process_started(run: Run) -> None:
    async def body(terminal: Terminal) -> None:
        for name, text in ESCAPES.items():
            seconds = unique_seconds()
            started = await terminal(text.format(t=seconds), background=True)
            await until_sleepers(terminal.sandbox, seconds, 1)
            killed = await terminal.call("process", action="kill", session_id=started["session_id"])
            assert killed["status"] == "killed", name
            assert await sleepers(terminal.sandbox, seconds) == 0, name

    run(body)


def test_background_jobs_outlive_their_command_the_shell_and_the_tools(run: Run) -> None:
    async def body(terminal: Terminal) -> None:
        jobs = {"plain": "sleep {t} &", "nohup": "nohup sleep {t} &", "setsid": "setsid sleep {t} >/dev/null 2>&1 &"}
        seconds = {name: unique_seconds() for name in jobs}
        for name, text in jobs.items():
            assert (await terminal(text.format(t=seconds[name]), timeout=20))["exit_code"] == 0
        assert (await terminal("exit 3"))["exit_code"] == 3
        await terminal.tools.aclose()
        assert {name: await sleepers(terminal.sandbox, seconds[name]) for name in jobs} == dict.fromkeys(jobs, 1)

    run(body)


# -- floods ------------------------------------------------------------------------------------------------

FLOOD = 2_000_000_000
GROWTH_MAX_MB = 50
FLOODS = {
    "one line": f"echo first; head -c {FLOOD} /dev/zero | tr '\\0' z; echo last",
    "lines": f"echo first; yes 0123456789abcdef | head -c {FLOOD}; echo last",
}


@pytest.mark.slow
@pytest.mark.parametrize("flood", FLOODS)
def test_two_gigabytes_of_output_cost_no_memory(run: Run, growth: type[Any], flood: str) -> None:
    async def body(terminal: Terminal) -> None:
        shell = ShellSession(terminal.sandbox)
        await shell.run("true")
        await terminal("true")
        with growth() as grown:
            result = await shell.run(FLOODS[flood], timeout_s=200, max_output=100_000)
        assert (result.exit_code, result.output_bytes) == (0, FLOOD + len("first\nlast\n"))
        assert result.output.startswith(b"first\n") and result.output.endswith(b"last\n")
        assert grown.mb < GROWTH_MAX_MB
        await shell.close()
        with growth() as grown:
            found = await terminal(FLOODS[flood], timeout=200)
        assert found["exit_code"] == 0 and len(found["output"]) < 51_000
        assert found["output"].startswith("first\n") and found["output"].endswith("last\n")
        assert grown.mb < GROWTH_MAX_MB

    run(body)


@pytest.mark.slow
def test_a_background_flood_is_drained_between_commands(run: Run, growth: type[Any]) -> None:
    async def body(terminal: Terminal) -> None:
        seconds = unique_seconds()
        with growth() as grown:
            await terminal(f"(yes | head -c {FLOOD}; exec sleep {seconds}) &")
            await until_sleepers(terminal.sandbox, seconds, 1)
            assert (await terminal("echo on"))["output"].endswith("on\n")
        assert grown.mb < GROWTH_MAX_MB

    run(body)
