"""What all tests share: parts of this machine that a test needs, and files made for it."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from doubles.loopback import LoopbackServer

from pytest_hermes.sandbox.bubblewrap import why_unusable
from pytest_hermes.tools.browser.executable import why_unavailable as why_no_browser
from pytest_hermes.tools.toolbox import ToolSettings

pytest_plugins = ["pytester"]
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of tests start a pytest each: compile once, not in each

OPTIONS_OF_INNER_RUNS = "-p no:hypothesispytest -p no:anyio"
"""Their import would be half of each of those processes' time, and no test is about them."""
os.environ["PYTEST_ADDOPTS"] = OPTIONS_OF_INNER_RUNS

REQUIRED = {part.strip() for part in os.environ.get("HERMES_TEST_REQUIRE", "").split(",") if part.strip()}
"""Parts that must be there: a test of a listed part fails instead of skipping."""


@functools.cache
def missing(part: str) -> str | None:
    """Why a part cannot be used here, or None if it can."""
    if part == "docker":
        if shutil.which("docker") is None:
            return "no docker command"
        found = subprocess.run(["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True)
        return None if found.returncode == 0 else f"no Docker daemon answers: {found.stderr.strip()[:200]}"
    if part == "bwrap":
        return why_unusable()
    if part == "sample-images":
        if reason := missing("docker"):
            return reason
        found = subprocess.run(["docker", "image", "inspect", "ubuntu:24.04"], capture_output=True)
        return None if found.returncode == 0 else "no base images: run tests/images/build.sh"
    if part == "chromium":
        return why_no_browser(ToolSettings())
    return f"unknown part {part!r}"


@pytest.fixture
def pytester(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """pytest's own, which takes the options out of the environment."""
    monkeypatch.setenv("PYTEST_ADDOPTS", OPTIONS_OF_INNER_RUNS)
    return pytester


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("requires"):
        for part in mark.args:
            reason = missing(part)
            if reason is None:
                continue
            if part in REQUIRED or (part == "sample-images" and "docker" in REQUIRED):
                pytest.fail(f"HERMES_TEST_REQUIRE names {part}: {reason}", pytrace=False)
            pytest.skip(f"{part}: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test marked `alone` runs while the other xdist workers of the run do nothing."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    with Path(tempfile.gettempdir(), f"hermes-tests-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        return (yield)


Respond = Callable[[str, str, Mapping[str, str]], tuple[int, str, str]]


@pytest.fixture(scope="session")
def serving() -> Callable[[Respond], AbstractContextManager[str]]:
    """Serve HTTP on a loopback port: `with serving(respond) as url`, where `respond(method, path, headers)` gives
    status, content type and body."""

    @contextlib.contextmanager
    def serve(respond: Respond) -> Iterator[str]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, kind, text = respond(self.command, self.path, self.headers)
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                """Nothing on the terminal."""

        server = LoopbackServer(Handler)
        try:
            yield server.url
        finally:
            server.close()

    return serve


@pytest.fixture(scope="session")
def test_image() -> str:
    """An image with bash, coreutils and python3 that is here (tests/images/build.sh makes it)."""
    for name in (os.environ.get("HERMES_TEST_IMAGE", "hermes-test/base:local"), "phx/standin:debian"):
        if subprocess.run(["docker", "image", "inspect", name], capture_output=True).returncode == 0:
            return name
    reason = "no image to run: tests/images/build.sh makes hermes-test/base:local"
    if "docker" in REQUIRED:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


class Growth:
    """How far this process grew at its largest, in MB, while something ran."""

    def __enter__(self) -> Growth:
        Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark back
        self._before = self._look("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        self.mb = (self._look("VmHWM") - self._before) / 1024

    @staticmethod
    def _look(field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field))


@pytest.fixture
def growth() -> type[Growth]:
    return Growth
