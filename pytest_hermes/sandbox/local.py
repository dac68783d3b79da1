"""Sandboxes on this machine: a private directory as HOME and TMPDIR, an allow-listed environment, and, where
bubblewrap works, confinement.

Confined, a command cannot see the harness's processes, environment, home, current directory or daemons' sockets, cannot
write outside its own directories, and nothing of it outlives the sandbox. Unconfined, the environment is still scrubbed
and every process is still found and killed by its marker (unless it erases its environment), but a command runs as the
harness's own user: it can read that user's files and `/proc/<harness>/environ`, keys included.
"""

from __future__ import annotations

import asyncio
import atexit
import getpass
import json
import logging
import os
import secrets
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pytest_hermes.errors import SandboxStartError, SandboxUnavailable
from pytest_hermes.sandbox import bubblewrap, proctable
from pytest_hermes.sandbox.local_sandbox import OWNER_FILE, LocalSandbox, remove_directory
from pytest_hermes.sandbox.protocol import SandboxRequest
from pytest_hermes.task import SandboxSpec

log = logging.getLogger(__name__)

Confine = Literal["auto", "on", "off"]

_PASSED_ON = ("PATH", "LANG", "TERM", "TZ")


def default_root() -> Path:
    """Where local sandboxes live: a directory of this user's only, below the system's temporary directory."""
    return Path(tempfile.gettempdir(), f"hermes-{os.getuid()}")


def allowed_environment(passthrough: Iterable[str]) -> dict[str, str]:
    """The part of the harness's environment that a sandbox may see: an allow-list, never a block-list."""
    names = [*_PASSED_ON, *passthrough, *(name for name in os.environ if name.startswith("LC_"))]
    # Asked for one by one: pytest's thread sets and deletes PYTEST_CURRENT_TEST meanwhile.
    found = {name: value for name in names if (value := os.environ.get(name)) is not None}
    return {"PATH": os.defpath, "LANG": "C.UTF-8", "TERM": "dumb", **found}


class LocalProvider:
    """Makes `LocalSandbox`es below `root`.

    `confine`: `auto` takes bubblewrap where it works and else goes on without, with one warning; `on` insists; `off`
    never. `env_passthrough` names variables of the harness that commands may see. `bind` lists host directories that
    stay visible and writable at their own paths in confined sandboxes; `hide` lists directories that are made empty
    there, on top of homes, daemons' sockets and the harness's current directory.
    """

    backend = "local"

    def __init__(
        self,
        *,
        confine: Confine = "auto",
        root: Path | None = None,
        env_passthrough: Sequence[str] = (),
        bind: Sequence[Path] = (),
        hide: Sequence[Path] = (),
    ) -> None:
        reason = None if confine == "off" else bubblewrap.why_unusable()
        if confine == "on" and reason is not None:
            raise SandboxUnavailable(
                f"--hermes-local-confine=on: bubblewrap does not work here ({reason}). "
                "Install bubblewrap and util-linux and allow user namespaces, or use --hermes-local-confine=off"
            )
        if confine == "auto" and reason is not None:
            log.warning("local sandboxes run unconfined: bubblewrap does not work here (%s)", reason)
        self.confined = confine != "off" and reason is None
        self.root = (root or default_root()).resolve()
        _make_private(self.root)
        self._env = allowed_environment(env_passthrough)
        self._user, self._shell = _user_name(), shutil.which("bash") or "/bin/sh"
        self._mounts = (
            bubblewrap.Mounts(self.root, hide=hide, bind=bind, path_variable=self._env["PATH"])
            if self.confined
            else None
        )
        self._sweep = proctable.SessionSweep()
        self._open: weakref.WeakSet[LocalSandbox] = weakref.WeakSet()
        atexit.register(_abandon_all, self._open)

    async def create(self, request: SandboxRequest) -> LocalSandbox:
        """See `SandboxProvider.create`. An image task is refused: there is no image here."""
        spec = request.spec
        if spec.needs_image:
            raise SandboxUnavailable(
                f"task {request.task_id} needs an image, which local sandboxes do not have: use --hermes-sandbox=docker"
            )
        if not spec.network and self._mounts is None:
            raise SandboxUnavailable(
                f"task {request.task_id} wants no network, which an unconfined local sandbox cannot keep from it: "
                "use --hermes-local-confine=on (bubblewrap) or --hermes-sandbox=docker"
            )
        directory = self.root / f"w{secrets.token_hex(5)}"
        env = {
            **self._env,
            "HOME": str(directory / "home"),
            "TMPDIR": "/tmp" if self._mounts is not None else str(directory / "tmp"),
            "USER": "root" if self._mounts is not None else self._user,
            "SHELL": self._shell,
            **spec.env,
            proctable.SESSION_VARIABLE: directory.name,
        }
        try:
            self._lay_out(directory, spec, request.labels)
            holder = None
            if self._mounts is not None:
                arguments = self._mounts.arguments(
                    directory, network=spec.network, workdir=spec.workdir, readable=spec.readable
                )
                holder = await bubblewrap.Holder.start(arguments, env)
        except OSError as error:
            remove_directory(directory)
            raise SandboxStartError(f"local sandbox for task {request.task_id}: {error}") from error
        except BaseException:
            remove_directory(directory)
            raise
        sandbox = LocalSandbox(directory, spec, env=env, holder=holder, sweep=self._sweep)
        self._open.add(sandbox)
        return sandbox

    def _lay_out(self, directory: Path, spec: SandboxSpec, labels: Mapping[str, str]) -> None:
        path = str(directory)  # thousands of sandboxes: no path objects where strings do
        os.mkdir(path, 0o700)
        # The owner is on disk before anything else: a harness that dies here still leaves what reaping needs.
        with open(f"{path}/{OWNER_FILE}", "w") as file:
            json.dump(dict(labels), file)
        os.mkdir(f"{path}/home")
        os.mkdir(f"{path}/tmp")
        if self._mounts is None:
            if spec.workdir is not None:
                Path(spec.workdir).mkdir(parents=True, exist_ok=True)
            return
        (directory / "root").mkdir(mode=0o755)
        if spec.workdir is not None:
            if Path(spec.workdir).parts[1] in self._mounts.host_names:
                (directory / "work").mkdir()
            else:
                (directory / "root" / spec.workdir.lstrip("/")).mkdir(parents=True, exist_ok=True)

    async def reap(self, *, run_id: str | None = None) -> int:
        """See `SandboxProvider.reap`."""
        from pytest_hermes.sandbox.reap import reap_local

        return await asyncio.to_thread(reap_local, self.root, run_id)

    async def aclose(self) -> None:
        """See `SandboxProvider.aclose`."""
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._open)))


def _abandon_all(sandboxes: weakref.WeakSet[LocalSandbox]) -> None:
    for sandbox in list(sandboxes):
        sandbox.abandon()


def _make_private(root: Path) -> None:
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise SandboxUnavailable(f"{root} belongs to somebody else. Remove it or set another root for local sandboxes")


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
