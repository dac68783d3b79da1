"""The kept shell's contract over a backend, as a pytest class to inherit from; see `contract`."""

from __future__ import annotations

import asyncio
import time

import pytest

from pytest_hermes.sandbox.contract_case import ESCAPES, in_sandbox, sleepers, unique_seconds, until_sleepers
from pytest_hermes.sandbox.protocol import Sandbox, SandboxProvider
from pytest_hermes.sandbox.shell import ShellSession
from pytest_hermes.task import SandboxSpec

ENDERS = {
    "exit 3": 3,
    "set -e; false; echo never": 1,
    "set -u; echo $no_such_variable; echo never": None,
    "exec sh -c 'exit 9'": 9,
    "exec no-such-program": 127,
    "kill -9 $$": 137,
    "kill -TERM $$; sleep 5": 143,
    "trap 'echo bye' EXIT; exit 4": 4,
    "mkdir -p /tmp/gone && cd /tmp/gone && rmdir /tmp/gone && exit 5": 5,
    "sleep 300 & exit 6": 6,
    "set -euo pipefail; false | true; echo never": 1,
    "(exit 7); exit": 7,
    "eval 'exit 8'": 8,
    "f9() { exit 9; }; f9": 9,
    "bash -c 'kill -9 $PPID'; sleep 5": 137,
    "exec 0</dev/null 1>/dev/null 2>&1; exit 10": 10,
    "set -e; cd /no/such; echo never": 1,
    "exit 300": 44,
}
"""Commands that end a plain shell, with the code that must come back (None: any but 0)."""
SURVIVED = {
    "echo 'unbalanced": 2,
    "if then": 2,
    "echo )": 2,
    "exec >/dev/null 2>&1": 0,
    "set -x": 0,
    "set -v": 0,
    "set -C": 0,
    "alias eval=false printf=false export=false": 0,
    "printf() { echo fake; }; export() { :; }": 0,
    "trap 'echo bye' EXIT": 0,
    "trap '' TERM INT HUP": 0,
    "return 3": None,
    "IFS=x; PATH=/nowhere": 0,
    "readonly A=1; shopt -s extglob nullglob": 0,
}
"""Commands that upset a shell without ending it."""


class ShellContract:
    """See the module docstring."""

    spec = SandboxSpec()

    @in_sandbox()
    async def test_shell_state_persists(self, sandbox: Sandbox) -> None:
        """Directory, variables, functions, aliases and umask from command to command."""
        shell = ShellSession(sandbox)
        assert (await shell.run("pwd")).output.decode() == f"{sandbox.workdir}\n"
        result = await shell.run("cd /usr/lib; export A='x  y'; f() { echo F$1; }; alias ll='echo LL'; umask 027")
        assert (result.exit_code, result.output, result.cwd) == (0, b"", "/usr/lib")
        seen = await shell.run('pwd; echo "$A"; f 2; ll; umask')
        assert seen.output == b"/usr/lib\nx  y\nF2\nLL\n0027\n"
        assert (await shell.run("false")).exit_code == 1
        assert (await shell.run("echo $?")).output == b"1\n"
        assert (await shell.run("cd() { builtin cd /usr; }; cd /etc; unset -f cd")).cwd == "/usr"
        assert (await shell.run("echo out; echo err >&2")).output == b"out\nerr\n"
        await shell.close()

    @pytest.mark.parametrize("ender", list(ENDERS))
    def test_shell_survives_its_end(self, provider: SandboxProvider, ender: str) -> None:
        """What ends the shell ends the command only: its code comes back, and the state is there for the next."""

        async def body(_: object, sandbox: Sandbox) -> None:
            shell = ShellSession(sandbox)
            await shell.run("cd /usr/lib; export A='x\ny'; f() { echo F; }; alias ll='echo LL'")
            result = await shell.run(f"echo seen; {ender}", timeout_s=30)
            assert result.output.startswith(b"seen\n")
            expected = ENDERS[ender]
            assert result.exit_code == expected if expected is not None else result.exit_code != 0
            assert result.restarted
            assert not result.timed_out
            after = await shell.run('echo "$A"; f; ll; pwd')
            assert after.output == b"x\ny\nF\nLL\n/usr/lib\n"
            await shell.close()

        in_sandbox()(body)(self, provider)

    @pytest.mark.parametrize("upset", list(SURVIVED))
    def test_shell_survives(self, provider: SandboxProvider, upset: str) -> None:
        """What upsets a shell neither ends the session nor shows our own text nor mixes up the next command."""

        async def body(_: object, sandbox: Sandbox) -> None:
            shell = ShellSession(sandbox)
            result = await shell.run(upset, timeout_s=30)
            expected = SURVIVED[upset]
            assert expected is None or result.exit_code == expected
            after = await shell.run("echo fine; false", timeout_s=30)
            assert b"fine\n" in after.output
            assert b"hermes" not in result.output + after.output
            assert after.exit_code == 1
            await shell.close()

        in_sandbox()(body)(self, provider)

    @in_sandbox()
    async def test_shell_output_is_exact(self, sandbox: Sandbox) -> None:
        """No newline added or taken, every byte, nothing for nothing, and text that looks like our record."""
        shell = ShellSession(sandbox)
        assert (await shell.run("printf abc")).output == b"abc"
        assert (await shell.run("true")).output == b""
        octal = "".join(f"\\{byte:03o}" for byte in range(256))
        assert (await shell.run(f"printf '{octal}'")).output == bytes(range(256))
        fake = b"\x1e" + b"0" * 32 + b" 0 /fake\x1e"
        result = await shell.run("printf '\\036%032d 0 /fake\\036' 0; env | grep -c HERMES_EXEC; exit_code() { :; }")
        assert result.output == fake + b"1\n"
        marker = (await shell.run("echo $HERMES_EXEC")).output.strip()
        assert (await shell.run("echo $HERMES_EXEC")).output.strip() != marker
        result = await shell.run(r"printf '\036%s 0 /fake\036' $HERMES_EXEC; (exit 8)")
        assert (result.exit_code, len(result.output)) == (8, len(marker) + len("\036\036 0 /fake"))
        assert result.cwd == sandbox.workdir
        await shell.close()

    @in_sandbox()
    async def test_shell_stdin_is_empty(self, sandbox: Sandbox) -> None:
        """A command that reads gets the end of input, not our next command."""
        shell = ShellSession(sandbox)
        assert (await shell.run("cat; read x; echo end", timeout_s=20)).output == b"end\n"
        assert (await shell.run("echo next", timeout_s=20)).output == b"next\n"
        await shell.close()

    @in_sandbox()
    async def test_shell_long_command(self, sandbox: Sandbox) -> None:
        """Megabytes of command, quotes and newlines included."""
        shell = ShellSession(sandbox)
        text = 'it\'s "long" $HOME\n' * 200_000
        result = await shell.run(f"cat > out <<'END'\n{text}END\nwc -c < out; export LONG=1", timeout_s=60)
        assert result.output.strip() == b"%d" % len(text)
        assert (await shell.run("echo $LONG")).output == b"1\n"
        await shell.close()

    @in_sandbox()
    async def test_shell_refuses_nul(self, sandbox: Sandbox) -> None:
        """A NUL byte is said to be one, and harms nothing."""
        shell = ShellSession(sandbox)
        with pytest.raises(ValueError, match="NUL"):
            await shell.run("echo a\0b")
        assert (await shell.run("echo on")).output == b"on\n"
        await shell.close()

    @in_sandbox()
    async def test_shell_output_is_cut(self, sandbox: Sandbox) -> None:
        """Head and tail of a flood, counted, in bounded memory."""
        shell = ShellSession(sandbox)
        result = await shell.run("echo first; head -c 50000000 /dev/zero; echo last", max_output=1_000)
        assert len(result.output) <= 1_000
        assert result.output.startswith(b"first\n")
        assert result.output.endswith(b"last\n")
        assert result.output_bytes == 50_000_011
        await shell.close()

    @in_sandbox()
    async def test_shell_floods_do_not_last(self, sandbox: Sandbox) -> None:
        """A flood that never ends is cut by the time-out; one from a background job neither blocks it nor us."""
        shell = ShellSession(sandbox)
        seconds = unique_seconds()
        result = await shell.run("echo first; yes", timeout_s=1, max_output=1_000)
        assert (result.exit_code, result.timed_out) == (124, True)
        assert result.output.startswith(b"first\ny\n") and len(result.output) <= 1_000 < result.output_bytes
        job = f"(head -c 20000000 /dev/zero | tr '\\0' z; echo; exec sleep {seconds}) &"
        assert (await shell.run(job, timeout_s=30)).exit_code == 0
        await until_sleepers(sandbox, seconds, 1)  # it has written all that it had: nothing waits for us to run more
        after = await shell.run("echo after", timeout_s=30)
        assert after.exit_code == 0 and after.output.endswith(b"after\n")
        await shell.close()

    @in_sandbox()
    async def test_shell_cwd_argument(self, sandbox: Sandbox) -> None:
        """`cwd` is a `cd` that stays; a missing one fails the command."""
        shell = ShellSession(sandbox)
        assert (await shell.run("pwd", cwd="/usr/lib")).output == b"/usr/lib\n"
        assert (await shell.run("pwd")).output == b"/usr/lib\n"
        lost = await shell.run("echo never", cwd="/no/such")
        assert lost.exit_code != 0
        assert b"never" not in lost.output
        assert b"/no/such" in lost.output
        await shell.close()

    @in_sandbox()
    async def test_shell_background_job(self, sandbox: Sandbox) -> None:
        """A job does not hold its command, outlives it and the shell, and its output is not lost."""
        shell = ShellSession(sandbox)
        seconds = unique_seconds()
        began = time.monotonic()
        result = await shell.run(f"sleep {seconds} & (sleep 0.3; echo from job) & echo started", timeout_s=30)
        assert result.output == b"started\n"
        assert time.monotonic() - began < 2
        assert (await shell.run("sleep 0.6; echo done")).output == b"from job\ndone\n"
        assert (await shell.run("exit 1")).restarted
        assert await sleepers(sandbox, seconds) == 1
        await shell.close()
        assert await sleepers(sandbox, seconds) == 1

    @pytest.mark.parametrize("escape", [*ESCAPES, "loop", "subshell_loop", "background_loop", "stopped"])
    def test_shell_timeout(self, provider: SandboxProvider, escape: str) -> None:
        """124, partial output, nothing of the command left and nothing of it run afterwards; earlier jobs and the
        state live, a `cd` of the very command included."""
        loops = {
            "loop": "x={t}; while :; do :; done",
            "subshell_loop": "( : {t}; while :; do :; done )",
            "background_loop": "( while :; do sleep {t} & sleep 0.1; kill $!; done ) & wait",
            "stopped": "sleep {t} & kill -STOP $!; wait",
        }

        async def body(_: object, sandbox: Sandbox) -> None:
            shell = ShellSession(sandbox)
            seconds, earlier = unique_seconds(), unique_seconds()
            await shell.run(f"export A=1; sleep {earlier} & (while :; do sleep 0.{earlier}; done) & disown")
            await until_sleepers(sandbox, earlier, 2)
            text = {**ESCAPES, **loops}[escape].format(t=seconds)
            began = time.monotonic()
            result = await shell.run(f"echo partial; cd /usr/lib; {text}; touch /tmp/never-{seconds}", timeout_s=1)
            assert (result.exit_code, result.timed_out) == (124, True)
            assert result.output.startswith(b"partial\n")
            assert time.monotonic() - began < 10
            assert await sleepers(sandbox, seconds) == 0
            await until_sleepers(sandbox, earlier, 2)  # the loop's sleep may just be ending
            after = await shell.run(f"echo $A; ls /tmp/never-{seconds}; pwd", timeout_s=20)
            assert after.output.startswith(b"1\nls:")
            if escape not in ("loop", "ignores_term"):
                assert after.output.endswith(b"/usr/lib\n")
            await shell.close()

        in_sandbox()(body)(self, provider)

    @in_sandbox()
    async def test_shell_cancellation(self, sandbox: Sandbox) -> None:
        """A cancelled command is killed; the session goes on with its state."""
        shell = ShellSession(sandbox)
        seconds = unique_seconds()
        await shell.run("cd /usr/lib; export A=1")
        running = asyncio.ensure_future(shell.run(f"setsid sleep {seconds} & sleep {seconds}"))
        await until_sleepers(sandbox, seconds, 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await sleepers(sandbox, seconds) == 0
        assert (await shell.run("echo $A; pwd", timeout_s=20)).output == b"1\n/usr/lib\n"
        await shell.close()

    @in_sandbox()
    async def test_shell_serialises(self, sandbox: Sandbox) -> None:
        """Calls at once run one after the other, in order."""
        shell = ShellSession(sandbox)
        await shell.run("export N=0")
        results = await asyncio.gather(*(shell.run("export N=$((N+1)); sleep 0.01; echo $N") for _ in range(20)))
        assert [int(result.output) for result in results] == list(range(1, 21))
        await shell.close()

    @in_sandbox()
    async def test_shell_close(self, sandbox: Sandbox) -> None:
        """Closing is idempotent, and a closed session starts anew."""
        shell = ShellSession(sandbox)
        await shell.run("cd /usr/lib")
        await shell.close()
        await shell.close()
        assert (await shell.run("pwd")).output == b"/usr/lib\n"
        await shell.close()

    @in_sandbox()
    async def test_shell_without_stream(self, sandbox: Sandbox) -> None:
        """Where there is no two-way stream: directory, exports and codes all the same, an exec per command."""

        class NoStream:
            def __getattr__(self, name: str) -> object:
                return getattr(sandbox, name)

            async def open_stream(self, *_: object, **__: object) -> None:
                raise NotImplementedError

        shell = ShellSession(NoStream())  # type: ignore[arg-type]
        assert (await shell.run("cd /usr/lib; export A=7; printf abc; exit 3")).output == b"abc"
        result = await shell.run("pwd; echo $A; echo err >&2; false")
        assert (result.output, result.exit_code, result.cwd) == (b"/usr/lib\n7\nerr\n", 1, "/usr/lib")
        assert (await shell.run("echo partial; sleep 60", timeout_s=1)).exit_code == 124
        assert (await shell.run("cat; pwd")).output == b"/usr/lib\n"
        await shell.close()
