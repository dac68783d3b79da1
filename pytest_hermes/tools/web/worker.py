"""The process that reads pages: takes one after another from the socket at descriptor 0, ends with its parent.

A message is two frames, each a length of 8 bytes and so many bytes: a header in JSON and a body. The first is an empty
one, sent when it is ready. Asked with the fields of a `Page`, it answers `{"title"}` and the text, or `{"error"}`;
`"spent": true` says that it wants to be replaced.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import select
import signal
import socket
import struct
import threading
from pathlib import Path
from typing import Any, BinaryIO

from pytest_hermes.tools.tool import ToolFailure
from pytest_hermes.tools.web.extract import EXTRACT_TIMEOUT_S, readable
from pytest_hermes.tools.web.fetch import Page
from pytest_hermes.tools.web.workers import message

MEMORY_BYTES = 1_000_000_000
SPENT_KB = 300_000
"""Above, what one page has left behind may be too much for the next."""
MAX_TEXT_CHARS = 10_000_000


def main() -> None:
    """Serve until the parent is gone."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for package in ("trafilatura", "pypdf"):  # now, and not within the first page's time
        importlib.import_module(package)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with socket.socket(fileno=0) as parent, parent.makefile("rb") as stream:
        parent.sendall(message({}, b""))
        while True:
            fields, body = json.loads(_frame(stream)), _frame(stream)
            # Where a parser keeps the interpreter to itself, the thread cannot see the parent's end.
            signal.alarm(int(EXTRACT_TIMEOUT_S) + 5)
            header, text = _answer(Page(**fields, body=body))
            signal.alarm(0)
            header["spent"] = _resident_kb() > SPENT_KB
            parent.sendall(message(header, text))


def _resident_kb() -> int:
    """What this process holds now. `ru_maxrss` would not do: it begins with the size of the harness that forked it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


def _frame(stream: BinaryIO) -> bytes:
    length = stream.read(8)
    if len(length) < 8:
        raise SystemExit(0)
    (size,) = struct.unpack("!Q", length)
    return stream.read(size)


def _answer(page: Page) -> tuple[dict[str, Any], bytes]:
    try:
        found = readable(page)
        text = found.text
        if len(text) > MAX_TEXT_CHARS:
            text = f"{text[:MAX_TEXT_CHARS]}\n\n[{len(text) - MAX_TEXT_CHARS:,} characters left out]"
        return {"title": found.title}, text.encode("utf-8", "replace")
    except ToolFailure as failure:
        return {"error": str(failure)}, b""
    except MemoryError:
        return {"error": "The page takes too much memory to be turned into text."}, b""
    except Exception as error:  # noqa: BLE001 - parsers raise anything on damaged input
        return {"error": f"The page could not be read: {type(error).__name__}: {str(error)[:200]}"}, b""


def _end_with_parent() -> None:
    hangup = select.poll()
    hangup.register(0, 0)
    hangup.poll()
    os._exit(0)
