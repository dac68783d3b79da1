"""`terminal(pty=true)`: a command under a pseudo-terminal that the sandbox's own programs make.

util-linux's script(1), or python3 where there is none. The terminal has 40 rows of 120 columns and ends lines with a
plain newline; the end of input is Ctrl-D; the exit code is the command's.
"""

from __future__ import annotations

import dataclasses
import shlex
import uuid
from typing import TYPE_CHECKING

from pytest_hermes.tools.tool import ToolFailure
from pytest_hermes.tools.workspace import quote, text_of

if TYPE_CHECKING:
    from pytest_hermes.tools.workspace import Workspace

ROWS, COLUMNS = 40, 120
END_OF_INPUT = 32 * "\x04"
"""Ctrl-D ends what one reader reads; the next readers of a command that has several need one as well."""
ARGUMENT_BYTES = 100_000
"""A longer command line is run from a file: Linux allows 128 KiB for one argument."""
TYPING_INTERVAL_S = 0.5
"""Between the Ctrl-Ds that a foreground command gets after those."""


@dataclasses.dataclass
class _Maker:
    """What makes terminals in this sandbox, once that is known: a line of the probe's."""

    program: str = ""
    path: str = ""

    def line(self, command: str, *, typed: bool) -> str:
        """A command line that runs `command` under a terminal of this maker."""
        inner = shlex.quote(f"{_INNER} -c {quote(command)}")
        path = shlex.quote(self.path)
        if self.program == "python3":
            run = f"{path} -c {shlex.quote(_PYTHON)} {inner}"
        else:  # script runs its command by $SHELL, which need not be a shell
            run = f"HERMES_SHELL=${{SHELL-}} SHELL=/bin/sh {path} -qefc {inner} /dev/null"
        return run if typed else f"sh -c {shlex.quote(_NOBODY_TYPES.replace('@RUN@', run))}"


async def under_terminal(workspace: Workspace, command: str, *, typed: bool) -> str:
    """A command line that runs `command` in a shell of its own under a terminal: what comes in is what is typed, or,
    not `typed`, readers meet the end of input. Raises ToolFailure without a maker of terminals.
    """
    maker = workspace.state.part(_Maker)
    if not maker.path:
        found = text_of(await workspace.script(_PROBE)).strip()
        maker.program, _, maker.path = found.partition(" ")
    if not maker.path:
        raise ToolFailure(
            "pty=true needs script (util-linux) or python3 in the sandbox, and it has neither. Install one, or run the "
            "command without pty.",
            output="",
            exit_code=-1,
            status="error",
        )
    line = maker.line(command, typed=typed)
    if len(line.encode(errors="surrogateescape")) > ARGUMENT_BYTES:
        run = maker.line('eval "unset HERMES_PTY; $(cat "$HERMES_PTY"; rm -f "$HERMES_PTY")"', typed=typed)
        name = f"hermes-pty-{uuid.uuid4().hex[:12]}"
        line = _FROM_FILE.replace("@NAME@", name).replace("@RUN@", run).replace("@COMMAND@", quote(command))
    return line


# The line itself makes the file, by the shell's own printf, which takes any length: no file without a run. It runs in
# the agent's shell, where a variable of the agent's own may be readonly.
_FROM_FILE = """(
for hermes_d in "${TMPDIR:-/tmp}" /tmp /var/tmp /dev/shm .; do
  case $hermes_d in /*) ;; *) hermes_d=$(command pwd)/$hermes_d ;; esac
  HERMES_PTY=$hermes_d/@NAME@
  ( command umask 077; command printf %s @COMMAND@ >"$HERMES_PTY" ) 2>/dev/null && break
  command rm -f "$HERMES_PTY" 2>/dev/null || :
  HERMES_PTY=
done
case $HERMES_PTY in
  '') command echo "terminal: the command was NOT run: with pty=true one of this length needs a directory for a file, \
and TMPDIR, /tmp, /var/tmp, /dev/shm and the working directory cannot be written to" >&2; exit 126 ;;
esac
export HERMES_PTY
hermes_c=0
@RUN@ || hermes_c=$?
command rm -f "$HERMES_PTY"
exit $hermes_c
)"""

# Other programs of the name script lose the exit code.
_PROBE = """for p in script python3; do
  q=$(command -v $p) || continue
  case $p in
    script) "$q" --version 2>/dev/null </dev/null | grep -q util-linux || continue ;;
    python3) "$q" -c 'import fcntl, pty, termios' 2>/dev/null </dev/null || continue ;;
  esac
  echo "$p $q"; break
done"""

# A pipe that its reader holds open for writing, too: no end of file, on which script(1) sits for up to two seconds. It
# has no name (Linux opens one again below /proc), so it needs no directory that can be written to.
# Programs that ask for a password or a key throw away what was typed before, so Ctrl-D comes again and again.
_NOBODY_TYPES = f"""
: | {{
exec 3<>/proc/self/fd/0 || exit
printf '{END_OF_INPUT}' >&3
while {{ sleep {TYPING_INTERVAL_S} || sleep 1; }} && kill -0 $$; do printf '\\004'; done >&3 2>/dev/null &
@RUN@ <&3 3>&-
code=$?
exec 2>/dev/null
kill $!
exit $code
}}
""".replace("\x04", "\\004")

_INNER = (
    f"stty rows {ROWS} cols {COLUMNS} -onlcr 2>/dev/null; "
    'if [ -n "${HERMES_SHELL-}" ]; then SHELL=$HERMES_SHELL; elif [ -n "${HERMES_SHELL+x}" ]; then unset SHELL; fi; '
    "unset HERMES_SHELL; "
    "case ${TERM-dumb} in dumb) export TERM=xterm ;; esac; "
    "set -- sh; command -v bash >/dev/null 2>&1 && set -- bash; "
    # a shell's background jobs ignore these two, and so would all that they start
    'env --default-signal=INT,QUIT true 2>/dev/null && set -- env --default-signal=INT,QUIT "$@"; exec "$@"'
)

_PYTHON = f"""
import fcntl, os, pty, select, signal, struct, sys, termios
pid, tty = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", {ROWS}, {COLUMNS}, 0, 0))
    mode = termios.tcgetattr(0)
    mode[1] &= ~termios.ONLCR
    termios.tcsetattr(0, termios.TCSANOW, mode)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    os.execv("/bin/sh", ["sh", "-c", sys.argv[1]])
ended, wake = os.pipe()
os.set_blocking(wake, False)
os.set_blocking(tty, False)
signal.signal(signal.SIGCHLD, lambda *_: None)
signal.set_wakeup_fd(wake)
typed, reads, status = b"", [tty, 0, ended], None
while True:
    if status is None:
        found, code = os.waitpid(pid, os.WNOHANG)
        status = code if found else None
    ready, writable, _ = select.select(reads, [tty] if typed else [], [], None if status is None else 0)
    if ended in ready:
        os.read(ended, 4096)
    if tty in ready:
        try:
            data = os.read(tty, 65536)
        except OSError:  # nobody has the terminal open any more
            reads.remove(tty)
            data, typed = b"", b""
        while data:
            data = data[os.write(1, data):]
    elif status is not None:
        break
    if tty in writable and typed:
        typed = typed[os.write(tty, typed[:1024]):]
    if 0 in ready and len(typed) < 65536:
        data = os.read(0, 65536)
        typed += data or bytes([4])
        if not data:
            reads.remove(0)
code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
sys.exit(code)
"""
