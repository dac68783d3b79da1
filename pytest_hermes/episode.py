"""The episode seam: what a benchmark keeps beside its agent during a rollout, such as a simulation or a user.

An episode begins when the sandbox is there and ends before it is removed. It may change what the agent's sandbox looks
like, answer terminal commands itself, and speak up after a turn: with a message, with a reward, or by ending the run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from pytest_hermes.sandbox.protocol import Command, ExecResult, Sandbox, Stream

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

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        """What the agent works in: the rollout's sandbox, or a `SandboxWithVariables` of it."""

    async def answer(self, command: str, workspace: Workspace, *, timeout_s: float) -> ShellResult | None:
        """The result of a foreground terminal command that this episode runs in its own way; None: the shell does."""
        return None

    async def after_turn(self, turn: int) -> TurnEnd:
        """Called after the tool calls of turn `turn` (from 1), before the next model call."""
        return TurnEnd()


EpisodeFactory = Callable[[EpisodeContext], AbstractAsyncContextManager[Episode]]
"""Entered as the last part of provisioning, left as the first part of teardown. What it raises on the way in is an
error of the sandbox's start, unless it is a HermesError of its own."""


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
