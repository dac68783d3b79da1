"""Confinement of the local backend: one bubblewrap holder per sandbox, whose namespaces every command enters.

The holder is the sandbox's PID 1: kernel namespaces for users, processes, IPC, host name and mounts (and network, when
the task wants none), started with a scrubbed environment. Commands enter by `nsenter` and drop every capability by
`setpriv`, so the kept shell, plain execs, the verifier and background processes see one process table, keep real pipes,
and all die with the holder, which dies with the harness. Works alike as root and as an ordinary user.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pytest_hermes.errors import SandboxKilled, SandboxStartError
from pytest_hermes.sandbox.spawn import HostProcess

PROGRAMS = ("bwrap", "nsenter", "setpriv")
# The information about the holder comes before its mounts are made: only its own word says that they are.
_READY = b"ready\n"
_HOLD = "echo ready; exec sleep infinity"
_SPECIAL = {"dev", "proc", "tmp", "run"}
_MASKED_FILES = ("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers")
_MASKED_DIRECTORIES = ("/etc/ssh", "/etc/docker", "/etc/sudoers.d", "/home", "/root", "/run", "/var/lib/docker")
# Files of these belong to the host's root whatever the namespace: without capabilities root may still write them.
_READ_ONLY_PROC = ("bus", "fs", "irq", "sys", "sysrq-trigger", "acpi", "scsi", "mtrr")
# Where daemons mount and unmount containers' file systems: a bind of a directory above fails while one comes or goes.
_CONTAINER_STORES = tuple(
    Path("/var/lib", name) for name in ("containerd", "containers", "docker", "kubelet", "lxc", "lxd")
)
_PROGRAM_NAMES = {"bin", "etc", "lib", "lib32", "lib64", "libx32", "sbin", "usr"}
_RESOLVER_DIRECTORIES = ("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager")


@functools.cache
def why_unusable() -> str | None:
    """None when bubblewrap confines here, else the reason; tried once per process with a real sandbox."""
    for program in PROGRAMS:
        if shutil.which(program) is None:
            return f"no {program} on PATH"
    if not sys.platform.startswith("linux"):
        return "bubblewrap needs Linux"
    try:
        done = subprocess.run(
            ["bwrap", *_NAMESPACES, *_top_level(_PROGRAM_NAMES), "--dev", "/dev", "--proc", "/proc", "true"],
            env={"PATH": os.environ.get("PATH", os.defpath)},
            capture_output=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode != 0:
        return done.stderr.decode(errors="replace").strip()[-300:] or f"bwrap exits {done.returncode}"
    return None


# uid 0 inside: with any other uid bubblewrap nests a second user namespace that nsenter could not enter in one step.
_NAMESPACES = (
    *("--unshare-user", "--uid", "0", "--gid", "0"),
    *("--unshare-pid", "--unshare-ipc", "--unshare-uts"),
    *("--die-with-parent", "--cap-drop", "ALL"),
)


def _is_directory(path: Path) -> bool:
    """False also for what this user may not even look at."""
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises PermissionError


def _top_level(names: Iterable[str]) -> list[str]:
    """Arguments that put these entries of the host's root into the sandbox, read-only."""
    return [word for name in sorted(names) for word in _read_only(Path("/", name))]


def _read_only(path: Path) -> list[str]:
    """Arguments for one entry: bound whole, unless container stores lie below it; those are left out."""
    if path.is_symlink():
        return ["--symlink", os.readlink(path), str(path)]  # noqa: PTH115 - as it is, not resolved
    if path in _CONTAINER_STORES:
        return ["--dir", str(path)]
    if _is_directory(path) and any(store.is_relative_to(path) and _is_directory(store) for store in _CONTAINER_STORES):
        children = [word for child in sorted(path.iterdir()) for word in _read_only(child)]
        return ["--tmpfs", str(path), *children, "--remount-ro", str(path)]
    return ["--ro-bind", str(path), str(path)] if os.path.exists(path) else []  # noqa: PTH110 - as _is_directory


def _under(path: Path, parents: Iterable[Path]) -> bool:
    return any(path.is_relative_to(parent) for parent in parents)


def _kept_directories(hidden: Sequence[Path], path_variable: str) -> list[Path]:
    """Directories below `hidden` that programs on PATH need: the entries themselves and the Pythons behind them."""
    wanted = [Path(sys.prefix), Path(sys.base_prefix)]
    entries = [Path(entry) for entry in path_variable.split(os.pathsep) if entry.startswith("/")]
    wanted += [entry.parent if entry.name == "shims" else entry for entry in entries]
    for name in ("python3", "python", "node", "uv"):
        found = shutil.which(name, path=path_variable)
        if found is not None:
            real = Path(found).resolve()
            wanted.append(real.parent.parent if real.parent.name == "bin" else real.parent)
    if pyenv := os.environ.get("PYENV_ROOT"):
        wanted.append(Path(pyenv))
    kept: list[Path] = []
    for directory in sorted(set(wanted)):
        is_secret_root = any(hide.is_relative_to(directory) for hide in hidden)
        if (
            _under(directory, hidden)
            and _is_directory(directory)
            and not is_secret_root
            and not _under(directory, kept)
        ):
            kept.append(directory)
    return kept


class Mounts:
    """The mount arguments that all sandboxes of a provider share, computed once.

    The host's top-level directories are bound read-only over a private writable root, so that a task may have its own
    `/app` or `/tests` where the host has none. Homes, `/run` (sockets of daemons), the harness's current directory and
    `hide` are empty inside.
    """

    def __init__(self, root: Path, *, hide: Sequence[Path], bind: Sequence[Path], path_variable: str) -> None:
        self.host_names = {entry.name for entry in Path("/").iterdir()}
        homes = [Path(pwd.getpwuid(os.getuid()).pw_dir), Path(os.environ.get("HOME", "/")), Path.cwd()]
        hidden = [Path(name) for name in _MASKED_DIRECTORIES if _is_directory(Path(name))]
        hidden += [path.resolve() for path in (*homes, *hide) if len(path.resolve().parts) > 1 and _is_directory(path)]
        hidden = [path for path in hidden if not _under(path, [Path("/usr"), Path("/bin"), Path("/lib")])]
        self._hidden = sorted({path for path in hidden if not _under(path, [Path("/tmp"), *_others(path, hidden)])})
        self._kept = _kept_directories([*self._hidden, Path("/tmp")], path_variable)
        self._system = _top_level(self.host_names - _SPECIAL)
        self._root = root
        self._bind = bind

    def arguments(
        self, directory: Path, *, network: bool, workdir: str | None, readable: Iterable[str] = ()
    ) -> list[str]:
        """bubblewrap's arguments for the sandbox that lives in `directory` (with `home`, `tmp` and `root` in it)."""
        words = [*_NAMESPACES, "--bind", f"{directory}/root", "/"]
        if not network:
            words.append("--unshare-net")
        words += self._system
        for path in self._hidden:
            words += ["--tmpfs", str(path)]
        for name in _MASKED_FILES:
            if os.access(name, os.F_OK):
                words += ["--ro-bind", "/dev/null", name]
        for name in _RESOLVER_DIRECTORIES:
            words += ["--ro-bind-try", name, name]
        words += ["--dev", "/dev", "--proc", "/proc"]
        for name in _READ_ONLY_PROC:
            words += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
        words += ["--bind", f"{directory}/tmp", "/tmp", "--tmpfs", str(self._root)]
        for path in self._kept:
            words += ["--ro-bind", str(path), str(path)]
        for name in sorted(readable):  # what lies above is bound before what lies in it
            words += ["--ro-bind", name, name]
        for path in self._bind:
            words += ["--bind", str(path), str(path)]
        words += ["--bind", f"{directory}/home", f"{directory}/home"]
        if workdir is not None and Path(workdir).parts[1:2] and Path(workdir).parts[1] in self.host_names:
            words += ["--bind", f"{directory}/work", workdir]
        return words


def _others(path: Path, paths: Iterable[Path]) -> list[Path]:
    return [other for other in paths if other != path]


class Holder:
    """The running bubblewrap of one sandbox. `entered(argv)` is the command line that runs `argv` inside."""

    def __init__(self, process: HostProcess, init_pid: int, init_directory: int, *, own_network: bool) -> None:
        self._process = process
        self._own_network = own_network
        self.init_pid = init_pid
        # An open /proc directory stays bound to that very process: its number cannot be reused under us.
        self._init_directory = init_directory

    @classmethod
    async def start(cls, mounts: Sequence[str], env: Mapping[str, str]) -> Holder:
        """Raises SandboxStartError with bubblewrap's own words."""
        loop = asyncio.get_running_loop()
        said = bytearray()
        told: asyncio.Future[int] = loop.create_future()

        def listen(data: bytes) -> None:
            said.extend(data)
            if said.endswith(_READY) and not told.done():
                told.set_result(0)

        info, info_end = os.pipe()
        try:
            process = HostProcess(
                ["bwrap", *mounts, "--info-fd", str(info_end), "--chdir", "/", "--", "sh", "-c", _HOLD],
                env=env,
                cwd="/",
                sinks=[listen],
                pass_fds=[info_end],
            )
        except BaseException:
            os.close(info)
            raise
        finally:
            os.close(info_end)
        ended: asyncio.Future[int] = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait([ended, told], return_when=asyncio.FIRST_COMPLETED)
            if not told.done():
                raise SandboxStartError(f"bubblewrap: {said.decode(errors='replace').strip()[-500:]}")
            init_pid = int(json.loads(os.read(info, 4096))["child-pid"])
            directory = os.open(f"/proc/{init_pid}", os.O_RDONLY | os.O_DIRECTORY)
        except BaseException:
            process.dispose()
            raise
        finally:
            ended.cancel()
            os.close(info)
        return cls(process, init_pid, directory, own_network="--unshare-net" in mounts)

    @property
    def is_alive(self) -> bool:
        return not self._process.has_exited

    def entered(self, argv: Sequence[str], *, limits: Sequence[str] = ()) -> list[str]:
        """Raises SandboxKilled when the namespaces are gone."""
        if self._init_directory < 0 or not self.is_alive:
            raise SandboxKilled("the local sandbox's init process is gone: what ran in it ended it")
        base = f"/proc/{os.getpid()}/fd/{self._init_directory}/ns"
        return [
            *("nsenter", f"--user={base}/user", "--preserve-credentials", f"--mount={base}/mnt", f"--pid={base}/pid"),
            *(f"--ipc={base}/ipc", f"--uts={base}/uts"),
            *((f"--net={base}/net",) if self._own_network else ()),
            "--",
            *(("prlimit", *limits, "--") if limits else ()),
            *("setpriv", "--pdeathsig", "KILL", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"),
            *("--no-new-privs", "--", *argv),
        ]

    async def close(self) -> None:
        """Kill everything inside; returns once it is gone."""
        self.kill()
        await self._process.wait()
        self._process.dispose()

    def kill(self) -> None:
        """The synchronous part of `close`, for the interpreter's exit too."""
        if self._init_directory >= 0:
            if self.is_alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.init_pid, signal.SIGKILL)
            os.close(self._init_directory)
            self._init_directory = -1
