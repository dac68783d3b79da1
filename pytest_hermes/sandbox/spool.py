"""An archive from a sandbox, in bounded memory: what is large goes through a temporary file of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import tempfile
from collections.abc import AsyncIterator
from typing import IO

from pytest_hermes import unpacking
from pytest_hermes.errors import TransferError
from pytest_hermes.sandbox.protocol import PartlyRead, ReadProblem, Sandbox, StreamsTar

SPOOL_BYTES = 8_000_000
"""An archive is kept in memory up to here, and in a temporary file beyond."""
HELD_BYTES = 1_000_000


@dataclasses.dataclass(frozen=True)
class Spooled:
    """An archive at its start, and what could not be read for it."""

    archive: IO[bytes]
    problems: tuple[ReadProblem, ...] = ()


@contextlib.asynccontextmanager
async def spooled(sandbox: Sandbox, source: str, *, max_bytes: int) -> AsyncIterator[Spooled]:
    """The tar archive of the file or directory `source`, or of what could be read of it.

    Raises what `Sandbox.download_tar` raises but PartlyRead, and TransferError when this machine's disk is full.
    """
    with tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES, buffering=0) as spool:
        problems: tuple[ReadProblem, ...] = ()
        try:
            await _fetch(sandbox, source, spool, max_bytes)
        except PartlyRead as error:
            problems = error.problems
            if error.archive is not None:
                await asyncio.to_thread(_write, spool, error.archive)
        spool.seek(0)
        yield Spooled(spool, problems)


async def _fetch(sandbox: Sandbox, source: str, spool: IO[bytes], max_bytes: int) -> None:
    if not isinstance(sandbox, StreamsTar):
        archive = await sandbox.download_tar(source, max_bytes=max_bytes)
        await asyncio.to_thread(_write, spool, archive)
        return
    held = bytearray()

    async def add(data: bytes) -> None:
        held.extend(data)
        if len(held) >= HELD_BYTES:
            await asyncio.to_thread(_write, spool, bytes(held))
            held.clear()

    partly: PartlyRead | None = None
    try:
        await sandbox.stream_tar(source, add, max_bytes=max_bytes)
    except PartlyRead as error:
        partly = error
    await asyncio.to_thread(_write, spool, bytes(held))
    if partly is not None:
        raise partly


def _write(spool: IO[bytes], data: bytes) -> None:
    try:
        written = spool.write(data)
    except OSError as error:
        raise TransferError(f"no place for the archive on this machine: {unpacking.reason(error)}") from error
    if written != len(data):
        raise TransferError("no place for the archive on this machine: the disk is full")
