"""The contract of a sandbox backend, as a pytest class to inherit from.

A backend's own test says what it has and gives a fresh provider per test; everything else is here:

    from pytest_hermes.sandbox.contract import SandboxContract

    class TestMine(SandboxContract):
        spec = SandboxSpec(image="python:3.13-slim")

        @pytest.fixture
        def provider(self):
            return MyProvider()

The kept shell's contract is `shell_contract.ShellContract`, to be inherited from as well.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import resource
import time

import pytest

from pytest_hermes.errors import SandboxLost
from pytest_hermes.sandbox.contract_case import (
    ESCAPES,
    RUN,
    in_sandbox,
    request,
    sleepers,
    unique_seconds,
    until_sleepers,
)
from pytest_hermes.sandbox.files_contract import FilesContract
from pytest_hermes.sandbox.labels import Owner
from pytest_hermes.sandbox.protocol import Sandbox, SandboxProvider
from pytest_hermes.task import SandboxSpec


class SandboxContract(FilesContract):
    """See the module docstring. Attributes say what a backend has not."""

    spec = SandboxSpec()
    separate_streams = True
    """False where the backend cannot keep stderr apart."""

    # -- commands ------------------------------------------------------------------------------

    @in_sandbox()
    async def test_streams(self, sandbox: Sandbox) -> None:
        """stdout and stderr come apart and whole."""
        result = await sandbox.exec("echo out; echo err >&2; printf tail")
        if self.separate_streams:
            assert (result.stdout, result.stderr) == (b"out\ntail", b"err\n")
        assert result.exit_code == 0
        assert not result.timed_out
        assert not result.truncated

    @in_sandbox()
    async def test_exit_codes(self, sandbox: Sandbox) -> None:
        """A command's own code comes back unchanged."""
        for code in (0, 1, 42, 125, 255):
            assert (await sandbox.exec(f"exit {code}")).exit_code == code

    @in_sandbox()
    async def test_signals_are_128_plus(self, sandbox: Sandbox) -> None:
        """A command that dies of signal n gives 128 + n."""
        for number in (9, 15):
            assert (await sandbox.exec(["bash", "-c", f"kill -{number} $$; sleep 5"])).exit_code == 128 + number

    @in_sandbox()
    async def test_arguments_are_verbatim(self, sandbox: Sandbox) -> None:
        """No shell between an argument vector and the program."""
        arguments = ["a b", "$HOME", "*", "'\"\\", "é\u4e2d", "-n", ""]
        result = await sandbox.exec(["printf", "[%s]", *arguments])
        assert result.stdout.decode() == "".join(f"[{argument}]" for argument in arguments)

    @in_sandbox()
    async def test_missing_program(self, sandbox: Sandbox) -> None:
        """127 and a reason, on stderr."""
        result = await sandbox.exec(["no-such-program-here"])
        assert result.exit_code == 127
        assert result.stdout == b""
        assert b"no-such-program-here" in result.stderr

    @in_sandbox()
    async def test_directory(self, sandbox: Sandbox) -> None:
        """Commands start in the working directory, or in `cwd`; relative is to the working directory; missing: 126."""
        assert (await sandbox.exec(["pwd"])).stdout.decode().strip() == sandbox.workdir
        assert (await sandbox.exec("pwd", cwd="/usr/lib")).stdout == b"/usr/lib\n"
        assert (await sandbox.exec("mkdir -p sub/er")).exit_code == 0
        inner = (await sandbox.exec("pwd", cwd="sub/er")).stdout.decode().strip()
        assert inner == f"{sandbox.workdir.rstrip('/')}/sub/er"
        lost = await sandbox.exec("pwd", cwd="/no/such/directory")
        assert lost.exit_code == 126
        assert b"/no/such/directory" in lost.stderr

    @in_sandbox(env={"FROM_SPEC": "spec value"})
    async def test_environment(self, sandbox: Sandbox) -> None:
        """The spec's variables, a command's own on top, and none left for the next command."""
        show = 'printf "%s|%s" "$FROM_SPEC" "$OWN"'
        assert (await sandbox.exec(show, env={"OWN": "a b\nc"})).stdout == b"spec value|a b\nc"
        assert (await sandbox.exec(show, env={"FROM_SPEC": "other"})).stdout == b"other|"
        assert (await sandbox.exec(show)).stdout == b"spec value|"

    @in_sandbox()
    async def test_stdin(self, sandbox: Sandbox) -> None:
        """3 MB arrive, then the end of input, and output can still be read; no stdin is an empty one."""
        data = bytes(range(256)) * 12_000
        result = await sandbox.exec("sha256sum; echo after", stdin=data, timeout_s=60)
        assert result.stdout.split() == [hashlib.sha256(data).hexdigest().encode(), b"-", b"after"]
        assert (await sandbox.exec("cat; echo end", timeout_s=20)).stdout == b"end\n"
        assert (await sandbox.exec("exit 7", stdin=data, timeout_s=20)).exit_code == 7

    @in_sandbox()
    async def test_bytes(self, sandbox: Sandbox) -> None:
        """Unicode in the command, every byte in the output."""
        assert (await sandbox.exec("printf '%s' 'naïve 中文 🎈'")).stdout.decode() == "naïve 中文 🎈"
        octal = "".join(f"\\{byte:03o}" for byte in range(256))
        assert (await sandbox.exec(["printf", octal])).stdout == bytes(range(256))

    @in_sandbox()
    async def test_long_command(self, sandbox: Sandbox) -> None:
        """A command longer than one argument may be on Linux."""
        result = await sandbox.exec(f"x={'y' * 400_000}; echo ${{#x}}; exit 5", timeout_s=60)
        assert (result.stdout, result.exit_code) == (b"400000\n", 5)

    @in_sandbox()
    async def test_output_is_cut_in_the_middle(self, sandbox: Sandbox) -> None:
        """Beyond `max_output` head and tail stay, a line says what is missing, the count is of all."""
        result = await sandbox.exec("echo first; seq 1 200000; echo last", max_output=2_000)
        assert result.truncated
        assert len(result.stdout) <= 2_000
        assert result.stdout.startswith(b"first\n1\n2\n")
        assert result.stdout.endswith(b"199999\n200000\nlast\n")
        assert b"bytes cut" in result.stdout
        assert result.stdout_bytes == len("first\nlast\n") + sum(len(str(n)) + 1 for n in range(1, 200_001))

    @in_sandbox()
    async def test_200_megabytes(self, sandbox: Sandbox) -> None:
        """Much output costs time, not memory."""
        await self._drains(sandbox, 200_000_000)

    @pytest.mark.slow
    @in_sandbox()
    async def test_2_gigabytes(self, sandbox: Sandbox) -> None:
        """The same, more than any memory would forgive."""
        await self._drains(sandbox, 2_000_000_000)

    async def _drains(self, sandbox: Sandbox, size: int) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = await sandbox.exec(f"head -c {size} /dev/zero", max_output=100_000, timeout_s=240)
        assert (result.exit_code, result.stdout_bytes) == (0, size)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64_000

    @in_sandbox()
    async def test_background_child_does_not_hold_the_command(self, sandbox: Sandbox) -> None:
        """The end of the main process is the end, and the background child lives on."""
        seconds = unique_seconds()
        began = time.monotonic()
        result = await sandbox.exec(f"sleep {seconds} & echo started; exit 3", timeout_s=30)
        assert (result.stdout, result.exit_code) == (b"started\n", 3)
        assert time.monotonic() - began < 5
        assert await sleepers(sandbox, seconds) == 1

    @in_sandbox()
    async def test_command_that_closes_its_streams(self, sandbox: Sandbox) -> None:
        """The end of the streams is not the end of the command."""
        result = await sandbox.exec("exec >&- 2>&-; sleep 0.5; exit 4", timeout_s=30)
        assert result.exit_code == 4
        assert result.duration_s >= 0.4

    @pytest.mark.parametrize("escape", list(ESCAPES))
    def test_timeout_kills_the_tree(self, provider: SandboxProvider, escape: str) -> None:
        """At the time limit nothing of the command is left, what it wrote is, and earlier background jobs live."""

        async def body(_: object, sandbox: Sandbox) -> None:
            seconds, earlier = unique_seconds(), unique_seconds()
            await sandbox.exec(f"sleep {earlier} >/dev/null 2>&1 & true")
            command = f"echo partial; {ESCAPES[escape].format(t=seconds)}"
            result = await sandbox.exec(command, timeout_s=1)
            assert (result.exit_code, result.timed_out, result.stdout) == (None, True, b"partial\n")
            assert result.duration_s < 10
            assert await sleepers(sandbox, seconds) == 0
            assert await sleepers(sandbox, earlier) == 1

        in_sandbox()(body)(self, provider)

    @in_sandbox()
    async def test_cancellation_kills_the_tree(self, sandbox: Sandbox) -> None:
        """A cancelled call kills its command, and the sandbox goes on."""
        seconds = unique_seconds()
        running = asyncio.ensure_future(sandbox.exec(f"setsid sleep {seconds} & sleep {seconds}"))
        await until_sleepers(sandbox, seconds, 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await sleepers(sandbox, seconds) == 0
        assert (await sandbox.exec("echo on")).stdout == b"on\n"

    @in_sandbox()
    async def test_32_at_once(self, sandbox: Sandbox) -> None:
        """Concurrent commands do not mix."""
        results = await asyncio.gather(*(sandbox.exec(f"echo {n}; sleep 0.2; exit {n}") for n in range(32)))
        assert [(r.stdout, r.exit_code) for r in results] == [(b"%d\n" % n, n) for n in range(32)]

    @in_sandbox()
    async def test_root(self, sandbox: Sandbox) -> None:
        """`user="root"` is accepted everywhere."""
        result = await sandbox.exec("echo fine", user="root")
        assert (result.stdout, result.exit_code) == (b"fine\n", 0)

    @in_sandbox()
    async def test_stream(self, sandbox: Sandbox) -> None:
        """A two-way stream echoes, ends with its command and gives its code."""
        stream = await sandbox.open_stream(["bash", "--noprofile", "--norc"])
        await stream.write(b"echo one; read x; echo got $x; exit 6\nhello\n")
        output = b""
        while chunk := await stream.read():
            output += chunk
        assert output == b"one\ngot hello\n"
        assert await stream.exit_code() == 6
        await stream.close()
        await stream.close()

    # -- life ------------------------------------------------------------------------------------

    @in_sandbox()
    async def test_alive(self, sandbox: Sandbox) -> None:
        """A new sandbox answers its probe, has a home that exists and absolute paths."""
        await sandbox.check()
        assert sandbox.workdir.startswith("/")
        assert (await sandbox.exec('cd "$0" && test -w .', cwd="/", env={})).exit_code is not None
        assert (await sandbox.exec(["test", "-d", sandbox.home])).exit_code == 0

    @in_sandbox()
    async def test_close_is_idempotent(self, sandbox: Sandbox) -> None:
        """Closed twice at once and again; then every call says that it is gone."""
        await asyncio.gather(sandbox.close(), sandbox.close())
        await sandbox.close()
        with pytest.raises(SandboxLost):
            await sandbox.exec("true")
        with pytest.raises(SandboxLost):
            await sandbox.check()

    @in_sandbox()
    async def test_close_ends_running_commands(self, sandbox: Sandbox) -> None:
        """A command that runs while the sandbox closes ends; it does not hang."""
        running = asyncio.ensure_future(sandbox.exec("sleep 100"))
        await sandbox.exec("true")
        await sandbox.close()
        done, _ = await asyncio.wait([running], timeout=10)
        assert done
        running.exception()

    def test_sandboxes_are_apart(self, provider: SandboxProvider) -> None:
        """What one writes to its home is not in another's."""

        async def whole() -> None:
            first, second = await asyncio.gather(*(provider.create(request(self.spec)) for _ in range(2)))
            await first.write_file(f"{first.home}/secret", b"1")
            with pytest.raises(FileNotFoundError):
                await second.read_file(f"{second.home}/secret")
            assert first.id != second.id
            await provider.aclose()
            with pytest.raises(SandboxLost):
                await first.check()

        asyncio.run(whole())

    def test_reaping(self, provider: SandboxProvider) -> None:
        """A living owner's sandbox stays; a dead owner's and, at a run's end, the run's own are removed."""

        async def whole() -> None:
            dead = Owner.here(run="other", item="dead")
            labels = dataclasses.replace(dead, pid=2**22 + 1, started="1.00").labels()
            foreign = dataclasses.replace(dead, host="elsewhere", pid=2**22 + 1).labels()
            expired = dataclasses.replace(dead, host="elsewhere", lease_until=1.0).labels()
            alive = await provider.create(request(self.spec))
            orphan = await provider.create(request(self.spec, labels=labels))
            away = await provider.create(request(self.spec, labels=foreign))
            late = await provider.create(request(self.spec, labels=expired))
            try:
                assert await provider.reap() >= 2
                await alive.check()
                await away.check()
                for gone in (orphan, late):
                    with pytest.raises(SandboxLost):
                        await gone.check()
                assert await provider.reap(run_id="no such run") == 0
                assert await provider.reap(run_id=RUN) >= 1
                with pytest.raises(SandboxLost):
                    await alive.check()
            finally:
                await provider.aclose()

        asyncio.run(whole())
