"""What only the local backend has: confinement, what it hides, what it leaves behind when its owner is killed."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pytest_hermes import transfers
from pytest_hermes.errors import SandboxKilled, SandboxLost, SandboxUnavailable, TransferError
from pytest_hermes.sandbox import bubblewrap, proctable
from pytest_hermes.sandbox.contract_case import archive_of, request, sleepers, unique_seconds
from pytest_hermes.sandbox.labels import Owner
from pytest_hermes.sandbox.local import LocalProvider, allowed_environment
from pytest_hermes.sandbox.local_sandbox import LocalSandbox
from pytest_hermes.sandbox.protocol import PartlyRead
from pytest_hermes.sandbox.shell import ShellSession
from pytest_hermes.task import SandboxSpec

SECRET = "sk-not-for-the-agent"
confined = pytest.mark.requires("bwrap")


def inside(provider: LocalProvider, body: Callable[[LocalSandbox], Awaitable[None]], **spec: object) -> None:
    async def whole() -> None:
        sandbox = await provider.create(request(dataclasses.replace(SandboxSpec(), **spec)))  # type: ignore[arg-type]
        try:
            await body(sandbox)
        finally:
            await provider.aclose()

    asyncio.run(asyncio.wait_for(whole(), 60))


def on_host(seconds: str) -> list[int]:
    """Processes of this machine with `seconds` in their command line."""
    found = []
    for pid in proctable.pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        stat = proctable.read_stat(pid)
        if seconds.encode() in words and pid != os.getpid() and stat is not None and stat.state != "Z":
            found.append(pid)
    return found


@pytest.fixture(params=["off", pytest.param("on", marks=confined)])
def provider(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalProvider:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("PASSED", "on purpose")
    return LocalProvider(confine=request.param, root=tmp_path / "s", env_passthrough=["PASSED"])


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalProvider:
    """A confined provider in a harness that has a key in its environment."""
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    return LocalProvider(confine="on", root=tmp_path / "s")


def test_environment_is_an_allow_list(provider: LocalProvider) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        shell = ShellSession(sandbox)
        for shown in ((await sandbox.exec("env")).stdout.decode(), (await shell.run("env")).output.decode()):
            names = {line.partition("=")[0] for line in shown.splitlines()}
            assert SECRET not in shown
            assert "PASSED=on purpose" in shown
            assert f"HOME={sandbox.home}" in shown
            own = {"HERMES_EXEC", "HERMES_SESSION", "PWD", "OLDPWD", "SHLVL", "_", "PASSED"}
            assert names - own <= {*allowed_environment([]), "HOME", "TMPDIR", "USER", "SHELL"}
        await shell.close()

    inside(provider, body)


def test_close_leaves_nothing(provider: LocalProvider) -> None:
    """Not even what put itself into a session of its own."""
    seconds = unique_seconds()

    async def body(sandbox: LocalSandbox) -> None:
        shell = ShellSession(sandbox)
        await shell.run(
            f"setsid sleep {seconds} & nohup sh -c 'sleep {seconds}' >/dev/null 2>&1 & chmod 0 .; mkdir -p d/e"
        )
        await sandbox.exec(f"(setsid sleep {seconds} >/dev/null 2>&1 &)")
        assert len(on_host(seconds)) >= 3
        await sandbox.close()
        assert on_host(seconds) == []
        assert not sandbox.directory.exists()

    inside(provider, body)


def test_close_under_cancellation(provider: LocalProvider) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        closing = asyncio.ensure_future(sandbox.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await sandbox.close()
        assert not sandbox.directory.exists()

    inside(provider, body)


def test_image_tasks_are_refused(provider: LocalProvider) -> None:
    with pytest.raises(SandboxUnavailable, match="--hermes-sandbox=docker"):
        asyncio.run(provider.create(request(SandboxSpec(image="debian"), task_id="needs-image")))


def test_memory_limit(provider: LocalProvider) -> None:
    """A process that wants more data memory than the task has does not get it."""

    async def body(sandbox: LocalSandbox) -> None:
        grab = [sys.executable, "-c", "x = bytearray(300_000_000); print(len(x))"]
        result = await sandbox.exec(grab)
        assert result.exit_code != 0
        assert b"MemoryError" in result.stderr

    inside(provider, body, memory_mb=200)


def test_directory_removed_from_outside_is_lost(provider: LocalProvider) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        shutil.rmtree(sandbox.directory)
        with pytest.raises(SandboxLost):
            await sandbox.check()

    inside(provider, body)


@pytest.mark.parametrize("confine", ["off", pytest.param("on", marks=confined)])
def test_killed_owner_is_reaped(tmp_path: Path, confine: str) -> None:
    """kill -9 of the owner: nothing is left after reaping, and nothing but the orphan is touched."""
    seconds = unique_seconds()
    script = f"""
import asyncio, sys
from pathlib import Path
from pytest_hermes.sandbox.contract_case import request
from pytest_hermes.sandbox.local import LocalProvider
from pytest_hermes.sandbox.shell import ShellSession
from pytest_hermes.task import SandboxSpec
async def main():
    provider = LocalProvider(confine={confine!r}, root=Path({str(tmp_path / "s")!r}))
    sandbox = await provider.create(request(SandboxSpec()))
    await ShellSession(sandbox).run("setsid sleep {seconds} & setsid sleep {seconds} &")
    print("ready", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"ready\n"

    async def whole() -> None:
        provider = LocalProvider(confine=confine, root=tmp_path / "s")  # type: ignore[arg-type]
        mine = await provider.create(request(SandboxSpec()))
        assert await provider.reap() == 0
        owner.kill()
        owner.wait()
        assert await provider.reap() == 1
        deadline = time.monotonic() + 5
        while on_host(seconds) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        assert on_host(seconds) == []
        await mine.check()
        await provider.aclose()
        assert sorted(path.name for path in (tmp_path / "s").iterdir()) == []

    try:
        asyncio.run(whole())
    finally:
        owner.kill()
        owner.stdout.close()


@pytest.mark.parametrize("confine", ["off", pytest.param("on", marks=confined)])
def test_interpreter_exit_cleans_up(tmp_path: Path, confine: str) -> None:
    """A program that forgets to close its sandboxes leaves none."""
    seconds = unique_seconds()
    script = f"""
import asyncio
from pathlib import Path
from pytest_hermes.sandbox.contract_case import request
from pytest_hermes.sandbox.local import LocalProvider
from pytest_hermes.task import SandboxSpec
async def main():
    provider = LocalProvider(confine={confine!r}, root=Path({str(tmp_path / "s")!r}))
    sandbox = await provider.create(request(SandboxSpec()))
    await sandbox.exec("setsid sleep {seconds} >/dev/null 2>&1 &")
    return provider, sandbox
kept = asyncio.run(main())
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60)
    assert on_host(seconds) == []
    assert list((tmp_path / "s").iterdir()) == []


# -- confinement ---------------------------------------------------------------------------------


@confined
def test_no_key_in_any_process(closed: LocalProvider) -> None:
    """Key leaks 1 and 2: neither the parent's nor the init process's environment is to be had."""

    async def body(sandbox: LocalSandbox) -> None:
        look = "cat /proc/$PPID/environ /proc/[0-9]*/environ /proc/1/environ 2>/dev/null | tr '\\0' '\\n'"
        shell = ShellSession(sandbox)
        for shown in ((await sandbox.exec(look)).stdout, (await shell.run(look)).output):
            assert b"HOME=" in shown
            assert SECRET.encode() not in shown
        pids = (await sandbox.exec("ls /proc | grep -c '^[0-9]'")).stdout
        assert int(pids) < 12
        await shell.close()

    inside(closed, body)


@confined
def test_unconfined_parent_is_readable(tmp_path: Path) -> None:
    """Why confinement is there: without it the scrubbed environment alone does not keep the key."""
    script = f"""
import asyncio
from pathlib import Path
from pytest_hermes.sandbox.contract_case import request
from pytest_hermes.sandbox.local import LocalProvider
from pytest_hermes.task import SandboxSpec
async def main():
    provider = LocalProvider(confine="off", root=Path({str(tmp_path / "s")!r}))
    sandbox = await provider.create(request(SandboxSpec()))
    print((await sandbox.exec("tr '\\\\0' '\\\\n' </proc/$PPID/environ")).stdout.decode())
    await provider.aclose()
asyncio.run(main())
"""
    env = {**os.environ, "OPENAI_API_KEY": SECRET}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert SECRET in done.stdout


@confined
def test_host_is_read_only_and_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No write outside the sandbox's own directories; homes, the current directory, sockets and `hide` are empty."""
    secret = tmp_path / "project"
    secret.mkdir()
    (secret / "answers.txt").write_text("42")
    other = tmp_path / "other"
    other.mkdir()
    (other / "answers.txt").write_text("42")
    monkeypatch.chdir(secret)
    provider = LocalProvider(confine="on", root=tmp_path / "s", hide=[other])

    async def body(sandbox: LocalSandbox) -> None:
        for place in ("/usr", "/etc", "/var", "/sys"):
            assert (await sandbox.exec(["touch", f"{place}/x"])).exit_code != 0
        for path in (secret, other):
            assert (await sandbox.exec(["cat", f"{path}/answers.txt"])).exit_code != 0
        for gone in ("/var/run/docker.sock", "/run/docker.sock", "/etc/shadow", Path.home() / ".ssh"):
            shown = await sandbox.exec(["head", "-c", "1", str(gone)])
            assert shown.stdout == b""
        for escape in (
            "mount -o remount,rw /usr && touch /usr/x",
            "unshare -Urm sh -c 'mount -o remount,rw /usr && touch /usr/x'",
            "mknod /tmp/disk b 8 0 && head -c 1 /tmp/disk",
            "kill -9 1; kill -0 $PPID && [ $PPID != 0 ]",
            ": >/proc/sys/kernel/printk",
            ": >/proc/sysrq-trigger",
            ": >/proc/irq/default_smp_affinity",
        ):
            assert (await sandbox.exec(escape)).exit_code != 0, escape
        capabilities = (await sandbox.exec("grep -E 'CapEff|CapBnd' /proc/self/status")).stdout.split()
        assert capabilities[1::2] == [b"0" * 16] * 2
        assert (await sandbox.exec([sys.executable, "-c", "print(1)"])).stdout == b"1\n"
        await sandbox.check()

    inside(provider, body)


@confined
def test_own_top_level_directories(closed: LocalProvider, tmp_path: Path) -> None:
    """`/tests` and `/logs` can be made, are the sandbox's own, and a working directory anywhere too."""
    assert not Path("/own-tests").exists()

    async def body(sandbox: LocalSandbox) -> None:
        assert (await sandbox.exec("pwd")).stdout == b"/own-tests/deep\n"
        await sandbox.write_file("/own-logs/verifier/reward.txt", b"1")
        assert await sandbox.read_file("/own-logs/verifier/reward.txt") == b"1"
        assert (await sandbox.exec("echo x > y; cat y")).stdout == b"x\n"
        assert not Path("/own-tests").exists()
        assert not Path("/own-logs").exists()

    inside(closed, body, workdir="/own-tests/deep")


@confined
def test_bound_directory_is_writable(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    provider = LocalProvider(confine="on", root=tmp_path / "s", bind=[state])

    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.exec(f"echo kept > {state}/file")
        assert (state / "file").read_text() == "kept\n"

    inside(provider, body)


@confined
def test_no_network(closed: LocalProvider) -> None:
    """Neither other hosts nor services of this one."""

    async def body(sandbox: LocalSandbox) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        assert (await sandbox.exec(f"exec 3<>/dev/tcp/127.0.0.1/{port}")).exit_code != 0
        assert (await sandbox.exec("cat /proc/net/dev | grep -c :")).stdout.strip() == b"1"
        server.close()

    inside(closed, body, network=False)


def test_no_network_needs_confinement(tmp_path: Path) -> None:
    provider = LocalProvider(confine="off", root=tmp_path / "s")
    with pytest.raises(SandboxUnavailable, match="network"):
        asyncio.run(provider.create(request(SandboxSpec(network=False))))


@confined
def test_killed_from_inside(closed: LocalProvider) -> None:
    """`kill -9 -1` ends the sandbox, and that is the agent's doing."""

    async def body(sandbox: LocalSandbox) -> None:
        shell = ShellSession(sandbox)
        await shell.run("echo")
        with pytest.raises(SandboxKilled):
            await shell.run("kill -9 -1; sleep 1; kill -9 -1", timeout_s=20)
            await shell.run("true")
        with pytest.raises(SandboxKilled):
            await sandbox.exec("true")
        await shell.close()

    inside(closed, body)


@confined
def test_ordinary_user() -> None:
    """Confinement does not need root: commands, files, the kept shell, time-outs, no network, the process limit."""
    if os.getuid() != 0:
        pytest.skip("the other tests of this file ran as an ordinary user already")
    package = Path(__file__).parents[2]
    root = Path(tempfile.mkdtemp(prefix="as-nobody-"))
    os.chown(root, 65534, 65534)
    script = f"""
import asyncio
from pathlib import Path
from pytest_hermes.sandbox.labels import Owner
from pytest_hermes.sandbox.local import LocalProvider
from pytest_hermes.sandbox.protocol import SandboxRequest
from pytest_hermes.sandbox.shell import ShellSession
from pytest_hermes.task import SandboxSpec
async def main():
    provider = LocalProvider(confine="on", root=Path({str(root)!r}) / "s")
    spec = SandboxSpec(network=False, workdir="/own", pids=40)
    sandbox = await provider.create(SandboxRequest(spec, Owner.here(run="r").labels(), "t", 60.0, 60.0))
    await sandbox.write_file("/own-tests/a", b"x")
    assert await sandbox.read_file("/own-tests/a") == b"x"
    assert (await sandbox.exec("pwd; exit 3")).exit_code == 3
    assert (await sandbox.exec("cat /proc/[0-9]*/environ | grep -c KEEP_OUT")).stdout == b"0\\n"
    assert b"fork" in (await sandbox.exec("for i in $(seq 60); do sleep 1 & done", timeout_s=20)).stderr
    shell = ShellSession(sandbox)
    await shell.run("cd /usr; export A=1")
    assert (await shell.run("setsid sleep 77 & sleep 77", timeout_s=0.3)).timed_out
    assert (await shell.run("pwd; echo $A")).output == b"/usr\\n1\\n"
    left = await shell.run("cat /proc/[0-9]*/cmdline | tr -d '\\\\0' | grep -c 'sleep[7]7'")
    assert left.output == b"0\\n"
    await shell.close()
    await provider.aclose()
    print("good")
asyncio.run(main())
"""
    line = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3"]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1", "KEEP_OUT": "1"}
    try:
        able = [*line, "-c", "import sys, pytest_hermes.task; sys.exit(sys.version_info < (3, 11))"]
        if subprocess.run(able, env=env, cwd="/", capture_output=True).returncode != 0:
            pytest.skip("an ordinary user here has no Python 3.11 that may read this checkout")
        done = subprocess.run([*line, "-c", script], env=env, cwd="/", capture_output=True, text=True, timeout=60)
        assert done.stdout == "good\n", done.stderr
    finally:
        shutil.rmtree(root)


def test_confine_on_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "why_unusable", lambda: "no bwrap on PATH")
    with pytest.raises(SandboxUnavailable, match=r"no bwrap on PATH.*--hermes-local-confine=off"):
        LocalProvider(confine="on", root=tmp_path / "s")
    assert not LocalProvider(confine="auto", root=tmp_path / "s").confined


def test_foreign_root_is_refused(tmp_path: Path) -> None:
    """Somebody else's directory at the predictable place is not used."""
    root = tmp_path / "s"
    root.symlink_to(tmp_path)
    if os.getuid() == 0:
        other = tmp_path / "other"
        other.mkdir()
        os.chown(other, 65534, 65534)
        with pytest.raises(SandboxUnavailable, match="belongs to somebody else"):
            LocalProvider(confine="off", root=other)


def test_stopped_command_times_out(provider: LocalProvider) -> None:
    """A command that stops itself is still ended at its limit."""

    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec("kill -STOP $$", timeout_s=0.3)
        assert result.timed_out
        assert result.duration_s < 5

    inside(provider, body)


def test_slow_process_table_hides_no_subshell(provider: LocalProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command started at once is found by its age, however long looking takes on a busy machine."""
    real = proctable.host_pid

    def slow(inner_pid: int, *, namespace_of: int) -> int | None:
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            found = real(inner_pid, namespace_of=namespace_of)
        return found

    monkeypatch.setattr(proctable, "host_pid", slow)

    async def body(sandbox: LocalSandbox) -> None:
        shell, seconds = ShellSession(sandbox), unique_seconds()
        loop = f"( while :; do sleep {seconds} & sleep 20; kill $!; done ) & wait"
        assert (await shell.run(loop, timeout_s=0.5)).timed_out
        await shell.close()
        assert await sleepers(sandbox, seconds) == 0

    inside(provider, body)


TARS = {
    "changed": "tar: top/log: file changed as we read it",
    "unreadable": "tar: top/log: Cannot open: Permission denied",
}


@pytest.mark.parametrize("code", [1, 2, 137])
@pytest.mark.parametrize("message", [*TARS.values(), ""], ids=[*TARS, "silent"])
def test_an_archive_is_kept_whatever_tar_says_after_it(tmp_path: Path, code: int, message: str) -> None:
    """In memory and streamed; an archive of nothing is an error with a reason."""
    fake = tmp_path / "bin/tar"
    fake.parent.mkdir()
    end = "kill -9 $$" if code == 137 else f"exit {code}"
    fake.write_text(f"#!/bin/sh\n[ -e nothing ] || /bin/tar \"$@\" || exit\necho '{message}' >&2\n{end}\n")
    fake.chmod(0o755)

    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.write_file("top/result", b"keep" * 50_000)
        chunks = bytearray()

        async def add(data: bytes) -> None:
            chunks.extend(data)

        with pytest.raises(PartlyRead) as packed:
            await sandbox.download_tar("top")
        with pytest.raises(PartlyRead) as streamed:
            await sandbox.stream_tar("top", add, max_bytes=1_000_000)
        assert packed.value.archive == chunks and len(chunks) > 200_000
        for found in (packed.value, streamed.value):
            names = [problem.name for problem in found.problems]
            assert names == (["top/log"] if message else [""])
            assert found.problems[0].reason == message.partition("log: ")[2] or str(code) in found.problems[0].reason
        fake.write_text(f"#!/bin/sh\n{end}\n")
        for broken in (sandbox.download_tar("top"), sandbox.stream_tar("top", add, max_bytes=1_000_000)):
            with pytest.raises(OSError, match=f"exit code {code} and said nothing"):
                await broken

    path = f"{fake.parent}:{os.environ['PATH']}"
    inside(LocalProvider(confine="off", root=tmp_path / "s"), body, env={"PATH": path})


@confined
def test_a_file_that_cannot_be_read_keeps_no_other_back(closed: LocalProvider, tmp_path: Path) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.exec("mkdir -p top/closed; cd top; echo 1 >ok; echo 2 >'no: ü'; chmod 0 'no: ü' closed")
        found = await transfers.download_directory(sandbox, f"{sandbox.home}/top", tmp_path / "d")
        assert sorted(found, key=lambda entry: entry["path"]) == [
            {"success": False, "path": "closed", "error": "Cannot open: Permission denied"},
            {"success": False, "path": "no: ü", "error": "Cannot open: Permission denied"},
            {"success": True, "path": "ok", "bytes": 2},
        ]
        for name in ("closed", "no: ü"):
            alone = await transfers.download_file(sandbox, f"{sandbox.home}/top/{name}", tmp_path / "f")
            assert alone == {"success": False, "error": f"Permission denied: {sandbox.home}/top/{name}"}

    inside(closed, body)


@confined
def test_uploads_of_very_many_long_names_are_looked_at_in_portions(closed: LocalProvider) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        files = {f"{'d' * 200}/{'e' * 200}/{n:0250d}": (b"x", 0o644) for n in range(1_000)}
        await sandbox.upload_tar(archive_of(files), "up")
        assert (await sandbox.exec("find up -type f | wc -l")).stdout.strip() == b"1000"
        await sandbox.exec(f"cd up/d*/e*; rm {0:0250d}; mkdir {0:0250d}")
        with pytest.raises(TransferError, match="Is a directory"):
            await sandbox.upload_tar(archive_of(files), "up")

    inside(closed, body)


def test_owner_of_this_process_is_alive() -> None:
    owner = Owner.here(run="r")
    assert not owner.is_dead()
    assert Owner.read(owner.labels()) == owner


@pytest.mark.requires("bwrap", "docker")
def test_containers_that_come_and_go_do_not_disturb_confined_sandboxes(tmp_path: Path, test_image: str) -> None:
    """A bind above a container store failed while the daemon mounted or unmounted there."""
    label = f"hermes-churn={tmp_path.name}"
    churn = "while :; do docker rm -f $(docker create --label $1 $0); docker run --rm --label $1 $0 true; done"
    with subprocess.Popen(
        ["bash", "-c", churn, test_image, label],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as daemon_at_work:
        try:

            async def body() -> None:
                provider = LocalProvider(confine="on", root=tmp_path)
                for _ in range(60):
                    sandbox = await provider.create(request(SandboxSpec()))
                    assert (await sandbox.exec("ls /var/lib | wc -l")).exit_code == 0
                    await sandbox.close()

            asyncio.run(body())
        finally:
            os.killpg(daemon_at_work.pid, signal.SIGKILL)
            daemon_at_work.wait()
            left = subprocess.check_output(["docker", "ps", "-aq", "--filter", f"label={label}"], text=True).split()
            subprocess.run(["docker", "rm", "-f", *left], capture_output=True)
