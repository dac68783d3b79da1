"""What the tools of one rollout share: the agent's kept shell, a control shell of our own, and file access.

The agent's shell runs its `terminal` commands and remembers cwd and exported variables. The control shell serves file
tools and process bookkeeping: it runs as the agent's user, so the agent's permissions hold, but knows nothing of the
agent's functions, aliases or PATH. Both start when first needed. Scripts use sh, coreutils, grep and find only.
"""

from __future__ import annotations

import asyncio
import dataclasses
import posixpath
import re
import shlex
import uuid
from typing import TYPE_CHECKING

from pytest_hermes.tools.tool import ToolFailure

if TYPE_CHECKING:
    from pytest_hermes.episode import Episode
    from pytest_hermes.sandbox.protocol import Sandbox
    from pytest_hermes.sandbox.shell import ShellResult, ShellSession
    from pytest_hermes.tools.state import RolloutState
    from pytest_hermes.tools.toolbox import ToolSettings

CONTROL_TIMEOUT_S = 60.0
INLINE_INPUT_BYTES = 48_000
"""Up to here an input travels inside the script through the kept shell; above, an exec with stdin is faster."""
MAX_PATH_CHARS = 4_095
MAX_EDIT_BYTES = 16_000_000


@dataclasses.dataclass(frozen=True)
class Written:
    """What `Workspace.write` did. `path` is where the bytes went (symbolic links followed)."""

    path: str
    dirs_created: bool


class Workspace:
    """See the module docstring. One per toolbox; lives on the engine's loop."""

    def __init__(self, sandbox: Sandbox, settings: ToolSettings, state: RolloutState, output_window: int) -> None:
        self.sandbox = sandbox
        self.settings = settings
        self.state = state
        self.output_window = output_window
        """Characters of a command's output that `terminal` returns at most."""
        self.page_chars = 100_000
        """Characters of a file that `read_file` returns at most."""
        self.search_programs: str | None = None
        """Which grep the sandbox has, once `search_files` has looked."""
        self.episode: Episode | None = None
        """What may answer commands of the agent in its own way."""
        self.cwd = sandbox.workdir
        """Where the agent's shell stands; relative paths of file tools start here."""
        self._return_to: str | None = None
        self._agent: ShellSession | None = None
        self._control: ShellSession | None = None
        self._control_lock = asyncio.Lock()
        self._temporary: str | None = None

    async def run(self, command: str, *, timeout_s: float, workdir: str | None = None) -> ShellResult:
        """Run a command in the agent's kept shell; `workdir` holds for this command only."""
        if self.episode is not None and (answer := await self._of_episode(self.episode, command, timeout_s, workdir)):
            self._shell().last_status = answer.exit_code
            return answer
        # Four bytes hold any character, so the window in characters is cut from a window in bytes that is not smaller.
        result = await self._shell().run(
            command, timeout_s=timeout_s, max_output=4 * self.output_window, cwd=workdir or self._return_to
        )
        self._return_to = self.cwd if workdir else None
        self.cwd = self._return_to or result.cwd or self.cwd
        return result

    async def _of_episode(
        self, episode: Episode, command: str, timeout_s: float, workdir: str | None
    ) -> ShellResult | None:
        """What the episode answers, if it does. Raises EpisodeError."""
        from pytest_hermes.episode import of_the_episode
        from pytest_hermes.sandbox.shell import ShellResult

        with of_the_episode("answer"):
            answer = await episode.answer(command, self, timeout_s=timeout_s, workdir=workdir)
            if not isinstance(answer, ShellResult | None):
                raise TypeError(f"it returned {type(answer).__name__}, not a ShellResult")
        return answer

    def _shell(self) -> ShellSession:
        """The agent's; its bash starts with the first command."""
        if self._agent is None:
            from pytest_hermes.sandbox.shell import ShellSession

            self._agent = ShellSession(self.sandbox)
        return self._agent

    async def shell_state(self, further: str = "") -> bytes:
        """What decides the meaning of a command in the agent's shell, but its directory, as text to compare.

        `further` are commands whose output is part of it.
        """
        shell = self._shell()
        status = shell.last_status
        result = await shell.run(f"{_STATE}{further}", timeout_s=CONTROL_TIMEOUT_S, max_output=4_000_000)
        shell.last_status = status
        self.cwd = self._return_to or result.cwd or self.cwd
        return _PER_COMMAND.sub(b"", result.output)

    def resolve(self, path: str) -> str:
        """The absolute path in the sandbox that a tool's `path` argument means."""
        if not path:
            raise ToolFailure("path is empty. Give the path of a file or directory.")
        if "\0" in path:
            raise ToolFailure(f"{path[:80]!r} contains a NUL byte, which no path can hold. Remove it.")
        if len(path) > MAX_PATH_CHARS:
            raise ToolFailure(f"{path[:80]!r}… has {len(path)} characters; a path has {MAX_PATH_CHARS} at most.")
        if path == "~" or path.startswith("~/"):
            path = posixpath.join(self.sandbox.home, path[2:])
        return posixpath.join(self.cwd, path)

    async def script(
        self,
        body: str,
        *,
        payload: bytes | None = None,
        max_output: int = 1_000_000,
        timeout_s: float = CONTROL_TIMEOUT_S,
        may_repeat: bool = True,
    ) -> bytes:
        """Run a script in the control shell and return what it wrote; in it `payload` writes the given bytes.

        The script reports trouble in its output, not by exit code. Raises ToolFailure when it did not end in time.
        `may_repeat`: doing it a second time does no harm, should the shell be killed in the middle.
        """
        if payload is not None and not _fits_inline(payload):
            script = "payload() { cat; }\n" + body
            done = await self.sandbox.exec(
                script, stdin=payload, timeout_s=timeout_s, max_output=max_output, cwd=self.sandbox.workdir
            )
            output, timed_out = done.stdout, done.timed_out
        else:
            if payload is not None:
                body = f"payload() {{ printf %s {shlex.quote(payload.decode())}; }}\n{body}"
            async with self._control_lock:
                result = await self._control_run(body, timeout_s, max_output)
                if not result.output and not result.timed_out and (result.restarted or result.exit_code):
                    # The shell itself was killed under us (an agent's `kill -9 -1`); a living sandbox gets a new one.
                    await self.sandbox.check()
                    if not may_repeat:
                        raise ToolFailure("The shell was killed while it did this; part of it may have been done.")
                    result = await self._control_run(body, timeout_s, max_output)
            output, timed_out = result.output, result.timed_out
        if timed_out:
            raise ToolFailure(f"The sandbox did not answer within {timeout_s:g} s. Is it busy, or the file a device?")
        return output

    async def _control_run(self, body: str, timeout_s: float, max_output: int) -> ShellResult:
        if self._control is None:
            from pytest_hermes.sandbox.shell import ShellSession

            self._control = ShellSession(self.sandbox)
        return await self._control.run(body, timeout_s=timeout_s, max_output=max_output)

    async def read(self, path: str, *, max_bytes: int) -> bytes:
        """The first `max_bytes` of a file, as the agent's user sees it. Raises ToolFailure, `FileMissing` if it is not
        there."""
        place = quote(path)
        output = await self.script(
            f"if [ -d {place} ]; then echo dir; elif [ ! -e {place} ]; then echo missing; elif [ ! -r {place} ]; then "
            f"echo denied; elif [ ! -f {place} ]; then echo special; "
            f"else echo file; head -c {max_bytes} {place} 2>/dev/null; printf '\\n%d' $?; fi",
            max_output=max_bytes + 4096,
        )
        kind, _, content = output.partition(b"\n")
        match kind:
            case b"file":
                content, _, status = content.rpartition(b"\n")
                if status == b"0":
                    return content
                output = await self.script(f"head -c {max_bytes} {place} 2>&1 >/dev/null")
            case b"missing":
                raise FileMissing(path, await self._similar(path))
            case b"dir":
                raise ToolFailure(f"{path} is a directory. Use search_files with target='files', or terminal: ls.")
            case b"denied":
                raise ToolFailure(f"{path}: permission denied.")
            case b"special":
                raise ToolFailure(f"{path} is not a regular file (a device, pipe or socket). Use terminal.")
        raise ToolFailure(f"{path} could not be read: {text_of(output[:500]).strip() or 'no answer from the shell'}")

    async def _similar(self, path: str) -> list[str]:
        import difflib

        folder, name = posixpath.split(path.rstrip("/"))
        listing = await self.script(f"ls -a {quote(folder or '/')} 2>/dev/null | head -n 2000")
        names = [entry for entry in text_of(listing).splitlines() if entry not in (".", "..")]
        lower = {entry.lower(): entry for entry in names}
        close = [lower[entry] for entry in difflib.get_close_matches(name.lower(), lower, n=5, cutoff=0.6)]
        return [posixpath.join(folder, entry) for entry in close]

    async def write(self, path: str, data: bytes) -> Written:
        """Write a whole file as the agent's user: parents made, symbolic links followed, mode and owner kept.

        The new content is written beside the file and moved over it, unless that would change its owner, a second
        hard link or a mount; then it is written in place. Raises ToolFailure, and leaves the old content, on errors.
        """
        if path.endswith("/"):
            raise ToolFailure(f"{path} names a directory. Give the path of a file.")
        beside = f".hermes-{uuid.uuid4().hex[:12]}"
        body = _WRITE.replace("@PATH@", quote(path)).replace("@BESIDE@", beside)
        output = await self.script(body, payload=data)
        said, _, done = output.partition(f"\n@{beside} ".encode())
        made, _, place = done.partition(b"\n")
        if made in (b"made", b"kept"):
            return Written(place.removesuffix(b"\n").decode(errors="surrogateescape") or path, made == b"made")
        reason = _SHELL_PREFIX.sub("", text_of(said).replace(f"/{beside}", "").strip()) or "no answer from the shell"
        raise ToolFailure(f"{path} could not be written: {reason[:500]}")

    async def remove(self, path: str) -> None:
        """Delete a file. Raises ToolFailure."""
        output = await self.script(f"rm -- {quote(path)} 2>&1 && echo @ok")
        if not output.endswith(b"@ok\n"):
            raise ToolFailure(f"{path} could not be deleted: {text_of(output).strip()[:500]}")

    async def keep(self, name: str, data: bytes) -> str:
        """Write a file of ours below the sandbox's TMPDIR, else /tmp; its path. Raises ToolFailure."""
        if self._temporary is None:
            self._temporary = text_of(await self.script('printf %s "${TMPDIR:-/tmp}"')) or "/tmp"
        path = f"{self._temporary.rstrip('/')}/{name}"
        await self.write(path, data)
        return path

    async def aclose(self) -> None:
        """End both shells; what was started in the background goes on. Idempotent."""
        shells, self._agent, self._control = (self._agent, self._control), None, None
        for shell in shells:
            if shell is not None:
                await shell.close()


class FileMissing(ToolFailure):
    """There is no such file."""

    def __init__(self, path: str, similar: list[str]) -> None:
        hint = f" Did you mean {', '.join(similar)}?" if similar else ""
        details = {"similar_files": similar} if similar else {}
        super().__init__(f"File not found: {path}.{hint}", **details)


# The names of variables are such that no image or task sets them, where they are read before they are set.
_WRITE = """__hermes_in_place() {
  b=$t.old
  { [ -f "$p" ] && cp -- "$p" "$b" 2>/dev/null; } || { rm -f -- "$b" 2>/dev/null; b=; }
  w=0
  if [ -n "${1-}" ]; then cat "$1" >"$p" || w=1; else payload >"$p" || w=1; fi
  if [ $w = 1 ] && [ -n "$b" ]; then cat "$b" >"$p"; fi
  rm -f ${b:+"$b"} ${1:+"$1"}
  return $w
}
__hermes_write() {
  p=@PATH@ made=kept
  if [ -L "$p" ]; then
    q=$(readlink -f "$p" && echo x) || { echo "it is a symbolic link that leads nowhere"; return 1; }
    q=${q%x}
    p=${q%?}
  fi
  d=${p%/*} t=${p%/*}/@BESIDE@
  if [ ! -d "${d:-/}" ]; then mkdir -p "$d" || return 1; made=made; fi
  if [ -d "$p" ]; then echo "it is a directory"; return 1; fi
  if [ ! -e "$p" ]; then
    payload >"$t" && mv "$t" "$p" && return 0
    rm -f "$t"
    return 1
  fi
  if [ -p "$p" ] || [ -S "$p" ]; then echo "it is a pipe or socket; use terminal"; return 1; fi
  if [ ! -w "$p" ]; then echo "permission denied"; return 1; fi
  # links mode uid gid
  if [ -f "$p" ] && [ -w "${d:-/}" ] && s=$(stat -c '%h %a %u %g' "$p"); then set -- $s; else set --; fi
  if [ "${1-}" != 1 ] || ! { [ -O "$p" ] || [ "$(id -u)" = 0 ]; }; then __hermes_in_place; return; fi
  [ -n "${__hermes_umask-}" ] || __hermes_umask=$(umask)
  o=
  case $2 in 644) umask 022 ;; 664) umask 002 ;; 600) umask 077 ;; *) umask 077; o=other ;; esac
  if payload >"$t"; then w=0; else w=1; fi
  umask "$__hermes_umask"
  if [ $w = 1 ]; then rm -f "$t"; return 1; fi
  if { [ -O "$p" ] && [ -G "$p" ] && [ ! -g "$d" ]; } || chown "$3:$4" "$t" 2>/dev/null; then
    if [ -z "$o" ] || chmod "$2" "$t"; then
      mv -f "$t" "$p" 2>/dev/null && return 0
    fi
  fi
  __hermes_in_place "$t"
}
if __hermes_write 2>&1; then printf '\\n@@BESIDE@ %s\\n%s\\n' $made "$p"; fi"""
_STATE = (
    r"\builtin export -p; \builtin declare -f; \builtin alias -p; \builtin set +o; \builtin shopt -p; "
    r"\builtin umask -p; \builtin trap -p; \builtin ulimit -a; "
)
_PER_COMMAND = re.compile(rb"^declare -x (HERMES_EXEC|OLDPWD|PWD|_)(=.*)?\n", re.MULTILINE)
_SHELL_PREFIX = re.compile(r"^\S+: line \d+: ", re.MULTILINE)


def quote(path: str) -> str:
    """`path` as one word of a shell script. Raises ToolFailure for what no path or command can hold."""
    if "\0" in path:
        raise ToolFailure(f"{path[:80]!r} contains a NUL byte, which no path or command can hold. Remove it.")
    return shlex.quote(path)


def text_of(data: bytes) -> str:
    """Bytes as text that any JSON encoder and terminal log takes; undecodable bytes become U+FFFD."""
    return data.decode("utf-8", "replace")


def _fits_inline(payload: bytes) -> bool:
    if len(payload) > INLINE_INPUT_BYTES or b"\0" in payload:
        return False
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
