"""Images by name come from a registry once, whoever asks; a stumble is repeated, what cannot help is not."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
from doubles.registry import Registry, serving

from pytest_hermes.errors import ImageError
from pytest_hermes.sandbox import images
from pytest_hermes.sandbox.docker_client import connect
from pytest_hermes.sandbox.images import Images
from pytest_hermes.sandbox.protocol import SandboxRequest
from pytest_hermes.task import SandboxSpec

pytestmark = pytest.mark.requires("docker")


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving(secrets.token_bytes(20)) as running:
        yield running


@pytest.fixture
def reference(registry: Registry) -> Iterator[str]:
    name = f"{registry.host}/task/{secrets.token_hex(4)}:1"
    yield name
    subprocess.run(["docker", "image", "rm", "-f", name], capture_output=True)


def ensure(*references: str, build_timeout_s: float = 60.0) -> list[str]:
    """Ask for images, all at once, in one process; the lines of progress."""
    said: list[str] = []

    async def work() -> None:
        client = await connect()
        try:
            there = Images(client, said.append)
            requests = [
                SandboxRequest(SandboxSpec(image=name), {}, "one", 60.0, build_timeout_s) for name in references
            ]
            done = await asyncio.gather(*(there.ensure(request) for request in requests), return_exceptions=True)
            for error in done:
                if isinstance(error, BaseException):
                    raise error
        finally:
            await client.close()

    asyncio.run(work())
    return said


def test_an_image_is_pulled_once_with_progress(registry: Registry, reference: str) -> None:
    said = ensure(*[reference] * 8)
    assert said[0] == f"pulling {reference}" and said[-1] == f"pulled {reference}"
    assert any("Pull complete" in line for line in said)
    assert registry.layers == 1
    asked = registry.manifests
    assert ensure(reference) == [] and registry.manifests == asked, "what is here is not asked for"


def test_processes_wait_for_the_one_that_pulls(registry: Registry, reference: str) -> None:
    program = textwrap.dedent(
        """
        import asyncio, sys
        from pytest_hermes.sandbox.docker_client import connect
        from pytest_hermes.sandbox.images import Images
        from pytest_hermes.sandbox.protocol import SandboxRequest
        from pytest_hermes.task import SandboxSpec

        async def work():
            client = await connect()
            request = SandboxRequest(SandboxSpec(image=sys.argv[1]), {}, "one", 60.0, 60.0)
            await Images(client, print).ensure(request)
            await client.close()

        asyncio.run(work())
        """
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, reference], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sum(f"pulling {reference}" in output for output in outputs) == 1 and registry.layers == 1


def test_a_registry_that_stumbles_is_asked_again(
    registry: Registry, reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_FIRST_BACK_OFF_S", 0.01)
    registry.faults = [503, 429]
    said = ensure(reference)
    assert sum("again in" in line for line in said) >= 1 and said[-1] == f"pulled {reference}"


def test_a_registry_that_stays_down_is_an_image_error(
    registry: Registry, reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_FIRST_BACK_OFF_S", 0.01)
    registry.faults = [503] * 100
    with pytest.raises(
        ImageError, match=rf"task one: image {reference} is not on this machine and could not be pulled"
    ):
        ensure(reference)
    assert len(registry.faults) < 98, "asked more than once"


def test_what_the_registry_does_not_have_is_not_asked_for_again(registry: Registry) -> None:
    with pytest.raises(ImageError, match=r"could not be pulled: .*(not found|unknown)"):
        ensure(f"{registry.host}/task/none:missing")
    methods = [method for method, path in registry.requests if "/manifests/" in path]
    assert len(methods) == len(set(methods)), "one HEAD, one GET"


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_a_long_pull_is_in_the_progress_line(
    pytester: pytest.Pytester, registry: Registry, reference: str, processes: tuple[str, ...]
) -> None:
    registry.slowness_s = 3.0
    pytester.makeconftest("import pytest_hermes.reporting\npytest_hermes.reporting.PROGRESS_EVERY_S = 0.5\n")
    pytester.makepyfile(
        f"""
        from pytest_hermes import Benchmark, SandboxSpec, Task

        tasks = [Task(id=f"t{{n}}", prompt="x", sandbox=SandboxSpec(image={reference!r})) for n in range(2)]
        benchmark = Benchmark("pulling", tasks=tasks, verify=lambda v: 1.0)

        @benchmark.parametrize
        def test_task(rollout): rollout.check()
        """
    )
    options = ["--hermes-agent=nop", "--hermes-sandbox=docker", "--hermes-retries=0", "--hermes-run-dir=runs"]
    result = pytester.runpytest_subprocess(*options, *processes)
    result.stdout.fnmatch_lines([f"*hermes* 0 done (none)*pulling {registry.host}*"])
    assert registry.layers == 1
    (run,) = (path for path in (pytester.path / "runs").iterdir() if path.is_dir())
    assert [path.read_text() for path in (run / "progress").iterdir()] == [""]


def test_dockers_own_package_may_be_imported_by_two_threads_at_once() -> None:
    """Pull and build begin together in a run: each imports what it needs, in a thread."""
    program = textwrap.dedent(
        """
        import threading
        from pathlib import Path
        from pytest_hermes.sandbox import images
        from pytest_hermes.task import ImageBuild, InlineFiles

        together, failed = threading.Barrier(2), []

        def begin(work):
            together.wait()
            try:
                work()
            except BaseException as error:
                failed.append(repr(error))

        build = ImageBuild(InlineFiles({"Dockerfile": "FROM x"}))
        works = [lambda: images._context_archive(build).close(), lambda: images._pull_credentials("a/b:1")]
        threads = [threading.Thread(target=begin, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(failed)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
