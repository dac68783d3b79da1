"""What only the Docker backend has: limits, the daemon's ways to fail, images, who ended a container."""

from __future__ import annotations

import asyncio
import io
import os
import secrets
import subprocess
import sys
import tarfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_hermes.errors import (
    ImageError,
    SandboxKilled,
    SandboxLost,
    SandboxUnavailable,
    TaskError,
)
from pytest_hermes.sandbox.contract_case import RUN, archive_of, request, sleepers, unique_seconds
from pytest_hermes.sandbox.docker import DockerProvider
from pytest_hermes.sandbox.docker_exec import DockerExec
from pytest_hermes.sandbox.docker_sandbox import DockerSandbox
from pytest_hermes.sandbox.shell import ShellSession
from pytest_hermes.task import ImageBuild, SandboxSpec

pytestmark = pytest.mark.requires("docker")


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=True).stdout.strip()


def inside(spec: SandboxSpec, body: Callable[[DockerSandbox], Awaitable[None]], **changes: object) -> None:
    async def whole() -> None:
        provider = DockerProvider()
        try:
            await body(await provider.create(request(spec, **changes)))
        finally:
            await provider.aclose()

    asyncio.run(asyncio.wait_for(whole(), 120))


def test_greatest_age(image: str) -> None:
    """A container that nobody removes ends itself."""

    async def body(sandbox: DockerSandbox) -> None:
        ended = ("docker", "wait", sandbox.id)
        assert await asyncio.to_thread(lambda: subprocess.check_output(ended, timeout=60).strip()) == b"0"
        with pytest.raises(SandboxLost, match="greatest age"):
            await sandbox.check()

    inside(SandboxSpec(image=image), body, lifetime_s=0.5)


def test_limits(image: str) -> None:
    """Memory, processes, CPU, no network, user, working directory and environment hold."""

    async def body(sandbox: DockerSandbox) -> None:
        hungry = await sandbox.exec("x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}", timeout_s=60)
        assert hungry.exit_code != 0
        await sandbox.check()
        bomb = await sandbox.exec("for i in $(seq 200); do sleep 5 & done; wait", timeout_s=60)
        assert b"fork" in bomb.stderr
        await sandbox.check()
        assert (await sandbox.exec("grep -c : /proc/net/dev")).stdout.strip() == b"1"
        assert (await sandbox.exec("id -u; pwd; echo $GIVEN")).stdout == b"1234\n/work/dir\nyes\n"
        assert (await sandbox.exec("id -u", user="root")).stdout == b"0\n"

    spec = SandboxSpec(
        image=image,
        memory_mb=64,
        pids=64,
        cpus=0.5,
        network=False,
        user="1234",
        workdir="/work/dir",
        env={"GIVEN": "yes"},
    )
    inside(spec, body)


def test_command_that_starts_after_its_time(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon answers before it has started a command; killing waits for it, or the command would run on."""
    slow, order = 3, list[str]()
    real_state, real_kill = DockerExec.state, DockerSandbox.kill_marked

    async def state(running: DockerExec) -> dict[str, object]:
        nonlocal slow
        slow -= 1
        found = {"Running": False, "ExitCode": None} if slow >= 0 else await real_state(running)
        order.append("running" if found["Running"] else "not yet")
        return found

    async def kill(sandbox: DockerSandbox, marker: str) -> None:
        order.append("kill")
        await real_kill(sandbox, marker)

    monkeypatch.setattr(DockerExec, "state", state)
    monkeypatch.setattr(DockerSandbox, "kill_marked", kill)

    async def body(sandbox: DockerSandbox) -> None:
        seconds = unique_seconds()
        assert (await sandbox.exec(f"sleep {seconds}", timeout_s=0.01)).timed_out
        assert await sleepers(sandbox, seconds) == 0

    inside(SandboxSpec(image=image), body)
    assert order[: order.index("kill")] == ["not yet", "not yet", "not yet", "running"]


def test_files_of_a_tmpfs(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the daemon does not see comes and goes by commands, as part of a directory too."""
    real = DockerProvider._configuration

    def with_tmpfs(provider: DockerProvider, *arguments: Any) -> dict[str, Any]:
        found = real(provider, *arguments)
        found["HostConfig"]["Tmpfs"] = {"/app/cache": ""}
        return found

    monkeypatch.setattr(DockerProvider, "_configuration", with_tmpfs)

    async def body(sandbox: DockerSandbox) -> None:
        await sandbox.exec("echo 1 >/app/one; ln -s cache /app/link", user="root")
        await sandbox.upload_tar(archive_of({"two": (b"2\n", 0o644)}), "/app/link")
        await sandbox.write_file("/app/link/deep/three", b"3\n")
        assert (await sandbox.exec("cat /app/one /app/cache/two /app/cache/deep/three")).stdout == b"1\n2\n3\n"
        assert await sandbox.read_file("/app/link/two") == b"2\n"
        with tarfile.open(fileobj=io.BytesIO(await sandbox.download_tar("/app"))) as opened:
            assert {"app/one", "app/cache/two", "app/cache/deep/three"} <= set(opened.getnames())

    inside(SandboxSpec(image=image, user="1234"), body)


def test_container_is_labelled_and_named(image: str) -> None:
    async def body(sandbox: DockerSandbox) -> None:
        assert sandbox.id.startswith("pytest-hermes-a-task-with")
        shown = docker("inspect", sandbox.id, "--format", "{{json .Config.Labels}} {{.HostConfig.NanoCpus}}")
        for text in (
            '"pytest-hermes":"1"',
            f'"pytest-hermes.run":"{RUN}"',
            f'"pytest-hermes.pid":"{os.getpid()}"',
        ):
            assert text in shown
        assert shown.endswith(" 500000000")

    inside(SandboxSpec(image=image, cpus=0.5), body, task_id="A task/with: odd Name " + "x" * 60)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (["kill"], SandboxLost),
        (["stop", "-t", "0"], SandboxLost),
        (["rm", "-f"], SandboxLost),
        (None, SandboxKilled),
        ("kill 1", SandboxKilled),
    ],
    ids=["docker-kill", "docker-stop", "docker-rm", "kill-all-inside", "kill-1-inside"],
)
def test_who_ended_it(image: str, ends: list[str] | str | None, expected: type[Exception]) -> None:
    """Lost when the daemon was asked, killed when what ran inside did it; every call says so."""

    async def body(sandbox: DockerSandbox) -> None:
        shell = ShellSession(sandbox)
        await shell.run("true")
        if isinstance(ends, list):
            docker(*ends, sandbox.id)
        else:
            with pytest.raises(SandboxKilled):
                await shell.run(ends or "kill -9 -1; sleep 2; kill -9 -1", timeout_s=20)
                deadline = time.monotonic() + 10
                while time.monotonic() < deadline:
                    await shell.run("sleep 0.1")
        for call in (sandbox.exec("true"), sandbox.check(), shell.run("true"), sandbox.write_file("/x", b"")):
            with pytest.raises(expected):
                await call
        await shell.close()

    inside(SandboxSpec(image=image), body)


def test_killed_owner_is_reaped(image: str) -> None:
    """kill -9 of the owner: the next reaping removes its container and nothing else."""
    script = f"""
import asyncio
import io
from pytest_hermes.sandbox.contract_case import RUN, archive_of, request
from pytest_hermes.sandbox.docker import DockerProvider
from pytest_hermes.task import SandboxSpec
async def main():
    sandbox = await DockerProvider().create(request(SandboxSpec(image={image!r})))
    print(sandbox.id, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    orphan = owner.stdout.readline().strip()

    async def body(mine: DockerSandbox) -> None:
        provider = DockerProvider()
        await provider.reap()
        assert docker("ps", "-q", "--filter", f"name={orphan}")
        owner.kill()
        owner.wait()
        assert await provider.reap() >= 1
        assert not docker("ps", "-aq", "--filter", f"name={orphan}")
        await mine.check()
        await provider.aclose()

    try:
        inside(SandboxSpec(image=image), body)
    finally:
        owner.kill()
        owner.stdout.close()


def test_cancelled_start_leaves_no_container(image: str) -> None:
    task = f"cancelled-{secrets.token_hex(4)}"

    async def whole() -> None:
        provider = DockerProvider()
        starting = asyncio.ensure_future(provider.create(request(SandboxSpec(image=image), task_id=task)))
        while not docker("ps", "-aq", "--filter", f"name={task}"):
            await asyncio.sleep(0.005)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await provider.aclose()

    asyncio.run(whole())
    assert not docker("ps", "-aq", "--filter", f"name={task}")


@pytest.fixture
def context(tmp_path: Path, image: str) -> Iterator[Path]:
    (tmp_path / "Dockerfile").write_text(
        f"FROM {image}\nARG x={secrets.token_hex(4)}\n"
        'COPY word /word\nWORKDIR /built\nENV HOME=/built\nENTRYPOINT ["false"]\n'
    )
    (tmp_path / "word").write_text(secrets.token_hex(8))
    yield tmp_path
    for found in docker("images", "-q", "--filter", "reference=pytest-hermes/built_task").split():
        subprocess.run(["docker", "rmi", "-f", found], capture_output=True)


def test_build(context: Path) -> None:
    """Built once for many at once, tagged by content, WORKDIR kept, ENTRYPOINT not run; changed content, other tag."""
    lines: list[str] = []

    async def build_and_look() -> str:
        provider = DockerProvider(progress=lines.append)
        spec = SandboxSpec(build=ImageBuild(context), network=False)
        first, second = await asyncio.gather(*(provider.create(request(spec, task_id="built task")) for _ in range(2)))
        assert (await first.exec("cat /word; echo; pwd")).stdout.decode().split() == [word, "/built"]
        assert (second.workdir, second.home) == ("/built", "/built")
        tag = docker("inspect", first.id, "--format", "{{.Config.Image}}")
        await provider.aclose()
        return tag

    word = (context / "word").read_text()
    tag = asyncio.run(build_and_look())
    assert tag.startswith("pytest-hermes/built_task:")
    assert sum(line.startswith("building ") for line in lines) == 1
    assert any("COPY word" in line for line in lines)
    lines.clear()
    assert asyncio.run(build_and_look()) == tag
    assert not lines
    word = secrets.token_hex(8)
    (context / "word").write_text(word)
    assert asyncio.run(build_and_look()) != tag


def test_failed_build_says_why(tmp_path: Path, image: str) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {image}\nRUN echo the reason is here && exit 7\n")
    with pytest.raises(ImageError, match=r"(?s)task broken-task.*code: 7.*the reason is here"):
        inside(SandboxSpec(build=ImageBuild(tmp_path)), _nothing, task_id="broken-task")
    (tmp_path / "Dockerfile").unlink()
    with pytest.raises(ImageError, match="no Dockerfile in"):
        inside(SandboxSpec(build=ImageBuild(tmp_path)), _nothing)


def test_slow_build_ends_at_its_limit(tmp_path: Path, image: str) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {image}\nRUN sleep 60 # {secrets.token_hex(4)}\n")
    began = time.monotonic()
    with pytest.raises(ImageError, match="did not end within 2 s"):
        inside(SandboxSpec(build=ImageBuild(tmp_path)), _nothing, build_timeout_s=2.0)
    assert time.monotonic() - began < 20


def test_missing_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that is nowhere: the task, the image, the reason; bounded in time."""
    monkeypatch.setattr("pytest_hermes.sandbox.images._FIRST_BACK_OFF_S", 0.01)
    with pytest.raises(ImageError, match=r"task contract: image 127\.0\.0\.1:9/no/such:image is not on this machine"):
        inside(SandboxSpec(image="127.0.0.1:9/no/such:image"), _nothing)


def test_no_image(image: str) -> None:
    with pytest.raises(TaskError, match="names no image"):
        inside(SandboxSpec(), _nothing)


def test_no_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(
        SandboxUnavailable, match=r"no Docker daemon at unix://.*none.sock. Start it, or use --hermes-sandbox"
    ):
        inside(SandboxSpec(image="x"), _nothing)


def test_no_permission(tmp_path: Path) -> None:
    """An ordinary user without the socket's group is told so."""
    from pytest_hermes.sandbox.docker_client import unreachable

    error = OSError()
    error.__cause__ = PermissionError(13, "Permission denied")
    assert "no permission to use unix:///x" in str(unreachable(error, "unix:///x"))


def test_disk_full() -> None:
    import aiodocker

    from pytest_hermes.sandbox.docker_client import translated

    error = aiodocker.DockerError(500, "write /var/lib/docker/tmp: no space left on device")
    assert "disk is full" in str(translated(error, "task x"))


async def _nothing(_: DockerSandbox) -> None:
    raise AssertionError("a sandbox was made")
