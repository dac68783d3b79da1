"""Hostile pages in the worker processes: each fails alone and in time, and nothing is left behind."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_hermes.artifacts.run_directory import RunDirectory, RunIdentity
from pytest_hermes.services import Services
from pytest_hermes.tools.tool import ToolFailure
from pytest_hermes.tools.web import extract as extracting
from pytest_hermes.tools.web import workers
from pytest_hermes.tools.web.extract import extract
from pytest_hermes.tools.web.fetch import Page

pytest.importorskip("trafilatura")


def page(body: str | bytes, kind: str = "text/html") -> Page:
    return Page("http://a.example/", kind, None, body.encode() if isinstance(body, str) else body)


def bomb() -> bytes:
    """A PDF of one page whose content is 300 MB of text operators, deflated."""
    packer, unit = zlib.compressobj(9), b"BT /F1 9 Tf (aaaa) Tj ET\n" * 40_000
    content = b"".join(packer.compress(unit) for _ in range(300)) + packer.flush()
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R/Resources<<>>>>",
        b"<</Length %d/Filter/FlateDecode>>stream\n%s\nendstream" % (len(content), content),
    ]
    body, offsets = b"%PDF-1.4\n", []
    for number, item in enumerate(objects, 1):
        offsets.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, item)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    start = len(body)
    return body + b"xref\n0 5\n0000000000 65535 f \n" + table + b"trailer<</Size 5/Root 1 0 R>>\nstartxref\n%d" % start


LINES = f"<p>{'text<br>' * 19_000}</p>"
ENDLESS = f"<p {' '.join(f'a{n}=1' for n in range(200_000))}>text</p>"
HOSTILE = {
    "lines": page(LINES),
    "attributes": page(f"<p {' '.join(f'a{n}=1' for n in range(60_000))}>text</p>"),
    "links": page(f"<p>{'<a href=/x>text</a> ' * 18_000}</p>"),
    "colspan": page(f"<table>{'<tr><td colspan=1000>text</td></tr>' * 5_000}</table>"),
    "rows": page(f"<table>{'<tr><td>a</td><td>b</td></tr>' * 6_500}</table>"),
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    workers.stop()
    yield
    workers.stop()


@pytest.mark.asyncio
@pytest.mark.parametrize("name", [*HOSTILE, "bomb"])
async def test_a_hostile_page_ends_in_time_and_the_next_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await extract(page("<p>warm</p>"))
    monkeypatch.setattr(extracting, "EXTRACT_TIMEOUT_S", 2.0)
    hostile = page(bomb(), "application/pdf") if name == "bomb" else HOSTILE[name]
    try:
        async with asyncio.timeout(6):
            assert "text" in (await extract(hostile)).text or name in ("rows", "bomb")
    except ToolFailure as failure:
        assert "within 2 s" in str(failure) or "too much memory" in str(failure) or "could not be read" in str(failure)
    monkeypatch.setattr(extracting, "EXTRACT_TIMEOUT_S", 30.0)
    assert (await extract(page("<p>The answer is 42.</p>"))).text == "The answer is 42."


@pytest.mark.asyncio
async def test_slow_pages_only_delay_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extracting, "EXTRACT_TIMEOUT_S", 3.0)
    pages = [page(ENDLESS), page(ENDLESS), *(page(f"<p>page {n}</p>") for n in range(6))]
    slow, slower, *others = await asyncio.gather(*map(extract, pages), return_exceptions=True)
    assert [type(found) for found in (slow, slower)] == [ToolFailure] * 2, repr((slow, slower))[:300]
    assert [getattr(found, "text", found) for found in others] == [f"page {n}" for n in range(6)]


@pytest.mark.asyncio
async def test_a_worker_is_kept_and_a_dead_one_replaced() -> None:
    await extract(page("<p>one</p>"))
    (worker,) = workers._idle
    await extract(page("<p>two</p>"))
    assert workers._idle == [worker]
    os.kill(worker.pid, signal.SIGKILL)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    assert (await extract(page("<p>three</p>"))).text == "three"
    assert worker not in workers._all


@pytest.mark.asyncio
@pytest.mark.parametrize("missing", ["interpreter", "interpreter's name", "descriptors", "processes"])
async def test_a_worker_that_cannot_be_spawned_is_an_error_of_its_page(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE if missing == "descriptors" else errno.EAGAIN, "none left")

    before = sorted(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        if missing == "interpreter":
            patch.setattr(sys, "executable", "/nonexistent/python")
        elif missing == "interpreter's name":
            patch.setattr(sys, "executable", None)
        elif missing == "descriptors":
            patch.setattr(socket, "socketpair", refuse)
        else:
            patch.setattr(subprocess, "Popen", refuse)
        for _ in range(workers.WORKERS + 1):
            with pytest.raises(ToolFailure, match="the process that reads them did not start"):
                await extract(page("<p>one</p>"))
    assert sorted(os.listdir("/proc/self/fd")) == before and not workers._all
    assert (await extract(page("<p>two</p>"))).text == "two"


@pytest.mark.asyncio
async def test_idle_workers_end_with_the_run_and_busy_ones_of_others_do_not(tmp_path: Path) -> None:
    await extract(page("<p>one</p>"))
    (idle,) = workers._idle
    workers._idle.clear()
    task = asyncio.create_task(extract(page(ENDLESS)))
    while not workers._all - {idle}:
        await asyncio.sleep(0)
    (busy,) = workers._all - {idle}
    workers._idle.append(idle)
    run = RunDirectory(RunIdentity.new(tmp_path), "bench", "main")
    await Services(run, asyncio.get_running_loop(), lambda task, settings: None).aclose()
    assert idle.has_ended() and not busy.has_ended()
    assert workers._all == {busy} and workers._idle == []
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.asyncio
async def test_a_cancelled_page_ends_its_worker() -> None:
    task = asyncio.create_task(extract(page(ENDLESS)))
    while not workers._all:
        await asyncio.sleep(0)
    (worker,) = workers._all
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await asyncio.to_thread(worker.wait)
    assert workers._idle == []


@pytest.mark.asyncio
async def test_the_size_of_the_harness_does_not_spend_a_worker() -> None:
    large = b"x" * 400_000_000
    await extract(page("<p>one</p>"))
    assert len(workers._idle) == 1
    del large


@pytest.mark.asyncio
async def test_the_worker_knows_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAVILY_API_KEY", "key-secret-0123456789")
    await extract(page("<p>one</p>"))
    (worker,) = workers._idle
    assert b"key-secret" not in Path(f"/proc/{worker.pid}/environ").read_bytes()


@pytest.mark.parametrize("end", ["return", "os._exit(0)"])
def test_a_process_ends_at_once_and_takes_its_workers_along(end: str) -> None:
    """Also when the process had no chance to kill them."""
    script = f"""
        import asyncio, os
        from pytest_hermes.tools.web import workers
        from pytest_hermes.tools.web.extract import extract
        from pytest_hermes.tools.web.fetch import Page

        async def main():
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            await extract(Page("http://a.example/", "text/html", None, b"<p>warm</p>"))
            attributes = " ".join(f"a{{n}}=1" for n in range(200_000))
            slow = Page("http://a.example/", "text/html", None, f"<p {{attributes}}>text</p>".encode())
            task = asyncio.create_task(extract(slow))
            await asyncio.wait([task], timeout=1)
            assert not task.done()
            print(*[worker.pid for worker in workers._all], flush=True)
            {end}

        asyncio.run(main())
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=30, check=True
    )
    for pid in map(int, done.stdout.split()):
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            assert ended.poll(5_000), f"{pid} is left"
        finally:
            os.close(descriptor)
