"""`process`: background processes of a rollout: started by `terminal(background=true)`, managed here.

A process lives in the sandbox, not in us: a small runner there keeps its pid, exit code, stdin (a fifo) and output
(its start and its latest 4 MB or more) in a private directory, so that it outlives shells and our toolbox.
Nothing polls: who waits reads a fifo that ends when the process does.
"""

from __future__ import annotations

import dataclasses
import shlex
import time
import uuid
from collections.abc import Mapping
from typing import Any

from pytest_hermes.tools.pty import END_OF_INPUT, under_terminal
from pytest_hermes.tools.tool import Result, Tool, ToolFailure, integer, object_schema, string
from pytest_hermes.tools.workspace import Workspace, quote, text_of

ACTIONS = ("list", "poll", "log", "wait", "kill", "write", "submit", "close")
POLL_CHARS = 1_000
END_CHARS = 2_000
LOG_LINES = 200
LOG_CHARS = 50_000
LOG_BYTES = 1_000_000
STDIN_TIMEOUT_S = 10.0
START_TIMEOUT_S = 30.0


@dataclasses.dataclass
class Process:
    """A background process. `folder` holds its files in the sandbox; `exit_code` is set once it was seen to end."""

    id: str
    command: str
    cwd: str
    folder: str
    pid: int
    started: float
    terminal: bool = False
    """Whether it runs under a pseudo-terminal."""
    exit_code: int | None = None
    killed: bool = False

    def head(self) -> Result:
        return {"session_id": self.id, "command": self.command[:1000], "status": self.status}

    @property
    def status(self) -> str:
        return "running" if self.exit_code is None else "exited"


class ProcessTable:
    """The background processes of one rollout, by session id."""

    def __init__(self) -> None:
        self._processes: dict[str, Process] = {}

    async def start(self, workspace: Workspace, command: str, workdir: str | None, *, terminal: bool = False) -> Result:
        """Start `command` with the agent's shell's cwd and exported variables. The result of `terminal`."""
        identity = f"proc_{uuid.uuid4().hex[:12]}"
        cwd = workdir or workspace.cwd
        script = _START.replace("@ID@", identity).replace("@RUNNER@", shlex.quote(_RUNNER))
        run = await under_terminal(workspace, command, typed=True) if terminal else command
        script = script.replace("@COMMAND@", shlex.quote(run))
        done = await workspace.run(script, timeout_s=START_TIMEOUT_S, workdir=workdir)
        before, _, last = text_of(done.output).rpartition("\n@")
        pid, _, folder = last.strip().partition(" ")
        if not pid.isdigit():
            await workspace.sandbox.check()
            said = (before + last).strip()[:500] or f"exit code {done.exit_code}"
            raise ToolFailure(f"The background process could not be started: {said}", exit_code=-1, output="")
        process = Process(identity, command, cwd, quote(folder), int(pid), time.time(), terminal)
        self._processes[identity] = process
        return {
            "output": "Background process started",
            "session_id": identity,
            "pid": process.pid,
            "exit_code": 0,
            "error": None,
        }

    async def list(self, workspace: Workspace) -> Result:
        entries = []
        for process in self._processes.values():
            tail = await self._refresh(workspace, process, 200)
            started = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(process.started))
            entry = {**process.head(), "cwd": process.cwd, "pid": process.pid, "started_at": started}
            entry |= {"uptime_seconds": int(time.time() - process.started), "output_preview": tail}
            entries.append(entry | _ending(process))
        return {"processes": entries}

    async def poll(self, workspace: Workspace, process: Process) -> Result:
        tail = await self._refresh(workspace, process, POLL_CHARS)
        uptime = int(time.time() - process.started)
        return (
            process.head() | {"pid": process.pid, "uptime_seconds": uptime, "output_preview": tail} | _ending(process)
        )

    async def log(self, workspace: Workspace, process: Process, offset: int | None, limit: int) -> Result:
        """Lines of the output; without offset the last `limit`. A gap in the middle is a line of its own."""
        await self._refresh(workspace, process, 0)
        output = await workspace.script(
            f"( cd {process.folder} && if [ $(cat head old new 2>/dev/null | wc -c) -le {2 * LOG_BYTES} ]; then "
            f"cat head old new; else head -c {LOG_BYTES} head; printf '\\n[... output left out ...]\\n'; "
            f"cat head old new | tail -c {LOG_BYTES}; fi ) 2>/dev/null",
            max_output=3 * LOG_BYTES,
        )
        lines = text_of(output).split("\n")
        if lines and lines[-1] == "":
            lines.pop()
        chosen = lines[-limit:] if offset is None else lines[max(0, offset) : max(0, offset) + limit]
        text = "\n".join(chosen)
        result = process.head() | {"output": text[-LOG_CHARS:], "total_lines": len(lines)}
        if len(text) > LOG_CHARS:
            result["note"] = (
                f"The first {len(text) - LOG_CHARS} characters of this page are left out; use a smaller limit."
            )
        return result | {"showing": f"{len(chosen)} lines"} | _ending(process)

    async def wait(self, workspace: Workspace, process: Process, timeout: int | None) -> Result:
        """Until the process ends, at most `timeout` and never longer than a foreground command may take."""
        most = workspace.settings.max_foreground_timeout_s
        seconds = min(float(timeout or workspace.settings.terminal_timeout_s), most)
        await self._await_end(workspace, process, seconds)
        tail = await self._refresh(workspace, process, END_CHARS)
        result = process.head() | {"output": tail} | _ending(process)
        if process.exit_code is None:
            result["status"] = "timeout"
            result["note"] = f"Still running after {seconds:g}s."
        if timeout and timeout > most:
            result["timeout_note"] = f"The wait of {timeout}s was cut to the maximum of {most:g}s."
        return result

    async def kill(self, workspace: Workspace, process: Process) -> Result:
        """TERM, then KILL, for everything the process started, also in other sessions."""
        await self._refresh(workspace, process, 0)
        if process.exit_code is not None:
            tail = await self._refresh(workspace, process, END_CHARS)
            return process.head() | {"status": "already_exited", "output": tail} | _ending(process)
        await workspace.sandbox.kill_marked(process.id)
        await self._await_end(workspace, process, 5.0)
        tail = await self._refresh(workspace, process, END_CHARS)
        if process.exit_code is None:
            raise ToolFailure(f"{process.id} did not end; it may run as another user.", status="error")
        process.killed = True
        return process.head() | {"status": "killed", "output": tail} | _ending(process)

    async def write(self, workspace: Workspace, process: Process, data: str) -> Result:
        await self._expect_running(workspace, process)
        raw = data.encode()
        script = f"cd {process.folder} && [ ! -e closed ] && (payload 1<>in) && echo ok || echo closed"
        try:
            output = await workspace.script(script, payload=raw, timeout_s=STDIN_TIMEOUT_S, may_repeat=False)
        except ToolFailure as failure:
            raise ToolFailure(
                f"{process.id} did not take its input within {STDIN_TIMEOUT_S:g} s; it may have taken a part. Does it "
                f"read stdin? ({failure})",
                status="error",
            ) from None
        if output.strip() != b"ok":
            raise ToolFailure(f"The stdin of {process.id} is closed.", status="error")
        return {"status": "ok", "bytes_written": len(raw)}

    async def close(self, workspace: Workspace, process: Process) -> Result:
        await self._expect_running(workspace, process)
        if process.terminal:
            await self.write(workspace, process, END_OF_INPUT)
        end = ":" if process.terminal else "kill $(cat holder) 2>/dev/null"
        await workspace.script(f"cd {process.folder} && : >closed && {end}")
        return {"status": "ok", "message": "stdin closed"}

    def find(self, session_id: str | None) -> Process:
        if not session_id:
            raise ToolFailure("process: session_id is required for this action. Use action='list' to see them.")
        if session_id not in self._processes:
            known = ", ".join(self._processes) or "none"
            raise ToolFailure(f"No process with ID {session_id[:100]}. Known: {known}.", status="not_found")
        return self._processes[session_id]

    async def _expect_running(self, workspace: Workspace, process: Process) -> None:
        await self._refresh(workspace, process, 0)
        if process.exit_code is not None:
            raise ToolFailure("Process has already finished", status="already_exited", exit_code=process.exit_code)

    async def _refresh(self, workspace: Workspace, process: Process, tail_chars: int) -> str:
        """See whether the process has ended; the last `tail_chars` of its output."""
        size = 4 * tail_chars
        ended = process.exit_code is not None
        tails = f"; {{ tail -c {size} head; tail -c {size} old; tail -c {size} new; }} 2>/dev/null | tail -c {size}"
        output = await workspace.script(
            f"( cd {process.folder} 2>/dev/null || {{ kill -0 {process.pid} && echo running || echo gone; exit; }} "
            f"2>/dev/null\n"
            f"if [ -e exit ]; then {'' if ended else _UNTIL_LOGGED}cat exit; "
            f"elif kill -0 $(cat runner) 2>/dev/null; then echo running; "
            f"elif [ -e exit ]; then cat exit; else echo gone; fi{tails if tail_chars else ''} )",
            max_output=size + 1000,
        )
        state, _, tail = output.partition(b"\n")
        if state.isdigit():
            process.exit_code = int(state)
        elif state == b"gone":  # the runner itself was killed, and took the exit code with it
            process.exit_code = 137
        return text_of(tail)[-tail_chars:] if tail_chars else ""

    async def _await_end(self, workspace: Workspace, process: Process, seconds: float) -> None:
        await workspace.script(
            f"( cd {process.folder} && {_until('done', 'exit', seconds)} ) 2>/dev/null", timeout_s=seconds + 30.0
        )


def _ending(process: Process) -> Result:
    if process.exit_code is None:
        return {}
    return {"exit_code": process.exit_code, "completion_reason": "killed" if process.killed else "exited"}


def _until(fifo: str, mark: str, seconds: float) -> str:
    """Script: wait until the file `mark` exists, which its maker announces by ending, at most `seconds`.

    The fifo is open for writing in the maker alone, so reading it ends when the maker does. Fd 8 keeps the open from
    blocking; as it is closed before the look at `mark`, there is no moment in which an end could be missed.
    """
    most = max(1, round(seconds))
    return f"{{ exec 8<>{fifo} 7<{fifo} 8>&-; [ -e {mark} ] || timeout {most} cat <&7 >/dev/null; exec 7<&-; }}"


_UNTIL_LOGGED = _until("logged", "drained", 1.0) + "; "
"""A process that has ended may have left output in the pipe; a child that keeps the pipe open costs one second."""

# Arguments: folder, session id, shell, umask. `done` is held open by the left side of the pipe alone, `logged` by the
# right side alone; a child that keeps the pipe open delays only the latter. `started` (fd 8) ends with whoever should
# have written to it. A command longer than one argument may be (MAX_ARG_STRLEN) is run from its file.
_RUNNER = """d=$1 id=$2
sleep 2147483647 >"$d/in" 8>&- &
echo $! >"$d/holder"
echo $$ >"$d/runner"
{
  exec 9<>"$d/done"
  s='umask "$2"; f=$1/command; shift 2
  if [ $(wc -c <"$f") -lt 131072 ]; then set -- "$1" -c "$(cat "$f")"; else set -- "$1" "$f"; fi
  echo $$ >&8; exec "$@" 8>&-'
  HERMES_EXEC=$id sh -c "$s" sh "$d" "$4" "$3" <"$d/in" 2>&1 9>&-
  echo $? >"$d/exit.new"
  mv "$d/exit.new" "$d/exit"
  kill "$(cat "$d/holder")"
} | {
  exec 9<>"$d/logged" 8>&-
  f=head most=524288 had=0
  while :; do
    dd bs=65536 count=32 2>/dev/null >>"$d/$f" 9>&- || { cat >/dev/null; break; }
    has=$(wc -c <"$d/$f")
    [ "$has" -eq "$had" ] && break
    had=$has
    if [ "$had" -ge "$most" ]; then
      [ $f = new ] && mv "$d/new" "$d/old"
      f=new most=4194304 had=0
      : >"$d/new"
    fi
  done
  : >"$d/drained"
}"""

# `command` and `exec` go past the functions of the agent's shell; a variable of its own may be readonly.
_START = """(
hermes_u=$(command umask)
command umask 077
hermes_d=${TMPDIR:-/tmp}/.hermes-processes/@ID@
case $hermes_d in /*) ;; *) hermes_d=$(command pwd)/$hermes_d ;; esac
command mkdir -p "$hermes_d" || exit 1
command mkfifo "$hermes_d/in" "$hermes_d/done" "$hermes_d/logged" "$hermes_d/started" || exit 1
: >"$hermes_d/head" && : >"$hermes_d/new" && command printf '%s\\n' @COMMAND@ >"$hermes_d/command" || exit 1
hermes_s= hermes_b=sh
command -v setsid >/dev/null 2>&1 && hermes_s=setsid
command -v bash >/dev/null 2>&1 && hermes_b=bash
(
  exec </dev/null >/dev/null 2>"$hermes_d/trouble" 8>"$hermes_d/started"
  exec env HERMES_EXEC=run.@ID@ $hermes_s sh -c @RUNNER@ sh "$hermes_d" @ID@ $hermes_b "$hermes_u"
) &
command read -r hermes_pid <"$hermes_d/started" || { command cat "$hermes_d/trouble"; exit 1; }
command printf '\\n@%s %s\\n' "$hermes_pid" "$hermes_d"
)"""


async def _run(workspace: Workspace, arguments: Mapping[str, Any]) -> Result:
    table = workspace.state.processes
    action = arguments["action"]
    if action == "list":
        return await table.list(workspace)
    process = table.find(arguments.get("session_id"))
    match action:
        case "poll":
            return await table.poll(workspace, process)
        case "log":
            return await table.log(workspace, process, arguments.get("offset"), arguments.get("limit", LOG_LINES))
        case "wait":
            return await table.wait(workspace, process, arguments.get("timeout"))
        case "kill":
            return await table.kill(workspace, process)
        case "close":
            return await table.close(workspace, process)
    data = arguments.get("data", "")
    if action == "submit":
        data += "\r" if process.terminal else "\n"  # what the key Enter sends
    return await table.write(workspace, process, data)


PROCESS = Tool(
    "process",
    "Manage background processes started with terminal(background=true). Actions: 'list' (all), 'poll' (status and "
    "latest output), 'log' (output by lines), 'wait' (until it ends or timeout), 'kill', 'write' (send data to stdin "
    "as it is), 'submit' (send data and a newline), 'close' (end of stdin).",
    object_schema(
        ["action"],
        action=string("What to do", enum=list(ACTIONS)),
        session_id=string("Id from the terminal result; needed for every action but 'list'"),
        data=string("Text for 'write' and 'submit'"),
        timeout=integer("Seconds 'wait' blocks at most", minimum=1),
        offset=integer("First line for 'log', from 0 (default: the last 200 lines)"),
        limit=integer("Lines 'log' returns at most", minimum=1),
    ),
    _run,
)
