"""The episode seam: what a benchmark keeps beside its agent during a rollout, such as a simulation or a user.

An episode begins when the sandbox is there and ends before it is removed. It may change what the agent's sandbox looks
like, answer terminal commands itself, and speak up after a turn: with a message, with a reward, or by ending the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from pytest_hermes.errors import EpisodeError, HermesError
from pytest_hermes.sandbox.protocol import Command, ExecResult, Sandbox, Stream
from pytest_hermes.shown import described

if TYPE_CHECKING:
    from pytest_hermes.config import Settings
    from pytest_hermes.sandbox.shell import ShellResult
    from pytest_hermes.task import Task
    from pytest_hermes.tools.workspace import Workspace


@dataclasses.dataclass(frozen=True)
class EpisodeContext:
    """What an episode begins with."""

    task: Task
    sandbox: Sandbox
    settings: Settings


@dataclasses.dataclass(frozen=True)
class TurnEnd:
    """What an episode says after a turn."""

    message: str | None = None
    """Said to the agent before its next turn."""
    is_over: bool = False
    """The episode has come to its end: the agent gets no further turn."""
    reward: float | None = None
    """What the turn itself earned (dense reward), where the episode knows."""


class Episode:
    """One per rollout; lives on the engine's loop. As it is, it changes nothing."""

    breaks_loops = False
    """True: turns that repeat themselves do not end the run; the episode does something about them."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        """What the agent works in: the rollout's sandbox, or a `SandboxWithVariables` of it."""

    async def answer(
        self, command: str, workspace: Workspace, *, timeout_s: float, workdir: str | None = None
    ) -> ShellResult | None:
        """The result of a command of the agent's that this episode runs in its own way; None: the shell does.

        It sees every command that the agent's shell would run, scripts of background processes included.
        """
        return None

    async def after_turn(self, turn: int) -> TurnEnd:
        """Called after the tool calls of turn `turn` (from 1), before the next model call."""
        return TurnEnd()


@contextlib.contextmanager
def of_the_episode(what: str) -> Iterator[None]:
    """What goes wrong inside is the episode's fault, not the agent's: EpisodeError. A HermesError speaks for itself."""
    task = asyncio.current_task()
    try:
        yield
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling():
            raise
        raise EpisodeError(f"the benchmark's episode, {what}: {described(error)}") from error
    except (HermesError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # SystemExit or pytest's own: the engine's loop would end with it
        raise EpisodeError(f"the benchmark's episode, {what}: {described(error)}") from error


async def asked(episode: Episode, turn: int) -> TurnEnd:
    """What the episode says after a turn. Raises EpisodeError for anything that is not a sound TurnEnd."""
    with of_the_episode("after_turn"):
        said = await episode.after_turn(turn)
        if not isinstance(said, TurnEnd):
            raise TypeError(f"it returned {type(said).__name__}, not a TurnEnd")
        if not isinstance(said.message, str | None):
            raise TypeError(f"message={said.message!r} is no text")
        if said.reward is not None and not (isinstance(said.reward, int | float) and math.isfinite(said.reward)):
            raise TypeError(f"reward={said.reward!r} is no finite number")
    return said


@contextlib.asynccontextmanager
async def begun(make: EpisodeFactory, context: EpisodeContext) -> AsyncIterator[Episode]:
    """The episode that `make` gives, with EpisodeErrors for what goes wrong on its ways in and out."""
    with of_the_episode("begins"):
        manager = make(context)
        episode = await manager.__aenter__()
    try:
        with of_the_episode("begins"):
            if not isinstance(episode, Episode):
                raise TypeError(f"it is of type {type(episode).__name__}, not an Episode")
        yield episode
    finally:
        with of_the_episode("ends"):
            await manager.__aexit__(None, None, None)


EpisodeFactory = Callable[[EpisodeContext], AbstractAsyncContextManager[Episode]]
"""Entered as the last part of provisioning, left as the first part of teardown. What it raises besides HermesErrors is
an EpisodeError; on the way out it is noted and changes no outcome."""


class SandboxWithVariables:
    """A sandbox (`Sandbox`) whose commands have further environment variables."""

    def __init__(self, sandbox: Sandbox, variables: Mapping[str, str]) -> None:
        self._sandbox = sandbox
        self._variables = dict(variables)
        self.id, self.backend = sandbox.id, sandbox.backend
        self.workdir, self.home = sandbox.workdir, sandbox.home

    async def exec(
        self,
        command: Command,
        *,
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | None = None,
        max_output: int = 1_000_000,
    ) -> ExecResult:
        variables = {**self._variables, **(env or {})}
        return await self._sandbox.exec(
            command, timeout_s=timeout_s, cwd=cwd, env=variables, user=user, stdin=stdin, max_output=max_output
        )

    async def open_stream(
        self, argv: Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> Stream:
        return await self._sandbox.open_stream(argv, cwd=cwd, env={**self._variables, **(env or {})})

    async def kill_marked(self, marker: str, *, shell_pid: int | None = None, since_s: float = 0.0) -> None:
        await self._sandbox.kill_marked(marker, shell_pid=shell_pid, since_s=since_s)

    async def read_file(self, path: str, *, max_bytes: int = 64_000_000) -> bytes:
        return await self._sandbox.read_file(path, max_bytes=max_bytes)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        await self._sandbox.write_file(path, data, mode=mode)

    async def upload_tar(self, archive: bytes, destination: str) -> None:
        await self._sandbox.upload_tar(archive, destination)

    async def download_tar(self, source: str, *, max_bytes: int = 512_000_000) -> bytes:
        return await self._sandbox.download_tar(source, max_bytes=max_bytes)

    async def check(self) -> None:
        await self._sandbox.check()

    async def close(self) -> None:
        await self._sandbox.close()
