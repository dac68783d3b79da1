"""The shell text behind `ShellSession`: what is written to a kept bash, and the script of the exec-per-command form.

Everything of ours goes to /dev/null or through fd 198, so that `set -x`, `set -v` or a command's own `exec >file`
neither show it nor lose it. Builtins are called by `\\builtin`, past aliases and functions of the same name.
"""

from __future__ import annotations

import re
import shlex

MARK = b"\036"
"""Opens and closes a record (ASCII record separator)."""
ABORT_SIGNAL = 40
"""A real-time signal that nothing else uses; the shell's trap for it is `exit 124`."""

_FUNCTIONS = r"""
__hermes_save() {
  {
    \builtin export -p; \builtin declare -f; \builtin alias -p; \builtin umask -p
    [ -z "${1-}" ] || \builtin printf '\\builtin cd -- %q\n' "${PWD-}"
  } >|"$__hermes_state"
} 2>/dev/null
__hermes_traps() {
  \builtin local found
  found=$(\builtin trap -p EXIT)
  [ "$found" = "trap -- '__hermes_save cd' EXIT" ] && \builtin return 0
  \builtin trap '__hermes_save cd' EXIT
  \builtin eval "\builtin set -- $found"
  \builtin eval "${3-}"
}
__hermes_begin() {
  \builtin export HERMES_EXEC="$1"
  case $- in *e*) \builtin return 0 ;; esac
  \builtin return "$2"
}
__hermes_end() {
  \builtin local __hermes_status=$?
  case ${2-} in *t*) __hermes_traps </dev/null >&198 2>&198 198>&- ;; esac
  \builtin printf '\036%s %d %s\036' "$1" "$__hermes_status" "${PWD-}" >&198
  case ${2-} in *s*) __hermes_save ;; esac
  \builtin return 0
}
"""

_PRELUDE = r"""
exec 198>&1 >/dev/null 2>/dev/null
\builtin shopt -s expand_aliases
\builtin cd -- {cwd} || \builtin cd -- {workdir} || \builtin cd /
__hermes_dir=${{TMPDIR:-/tmp}}
__hermes_state={state}
[ -n "$__hermes_state" ] && [ -f "$__hermes_state" ] && . "$__hermes_state"
\builtin cd .
__hermes_state=${{__hermes_state:-$__hermes_dir/{name}}}
{functions}
\builtin trap 'exit 124' {signal}
\builtin trap '__hermes_save cd' EXIT
__hermes_save
\builtin printf '\036%s %d %s\n%s\n%s\036' {mark} 0 "$$" "${{__hermes_state%/*}}" "$PWD" >&198
"""

_REDIRECTED = "</dev/null >&198 2>&198 198>&-"
# What may change more than the directory (which every record tells). A change that this misses, one made inside a
# function say, is still saved when the shell ends by itself; only `exec` and `kill -9 $$` would lose it.
_CHANGES_STATE = re.compile(
    r"=|\(\)|(^|[\s;&|({])\.\s"
    r"|\b(export|declare|typeset|readonly|read|source|alias|unalias|unset|umask|function|eval|set|mapfile|readarray)\b"
)


def prelude(mark: str, name: str, state: str, cwd: str, workdir: str) -> str:
    """Sets up a fresh bash, from the state file `state` if there is one, and answers with pid, directory and cwd.

    Without `state` the file will be `name` in the sandbox's own temporary directory. A directory in the state file was
    saved at a shell's end and is newer than `cwd`.
    """
    return _PRELUDE.format(
        cwd=shlex.quote(cwd),
        workdir=shlex.quote(workdir),
        state=shlex.quote(state),
        name=name,
        functions=_FUNCTIONS,
        signal=ABORT_SIGNAL,
        mark=mark,
    )


def command_line(
    command: str, *, mark: str, exec_marker: str, last_status: int, cwd: str | None, file: str | None
) -> str:
    """One command for the kept bash, which sees `last_status` as `$?`; it reads `command` from `file` when given.

    Kept short, since bash reads it byte by byte. A command that sets an EXIT trap gets it run at its end, as `bash -c`
    would, so that the shell's own trap stays.
    """
    text = f'"$(<{shlex.quote(file)})"' if file is not None else shlex.quote(command)
    run = f"\\builtin eval {text} {_REDIRECTED}"
    if cwd is not None:
        run = f"\\builtin cd -- {shlex.quote(cwd)} 2>&198 && {run}"
    flags = ("s" if _CHANGES_STATE.search(command) else "") + ("t" if "trap" in command else "")
    return f"__hermes_begin {exec_marker} {last_status};{run};__hermes_end {mark} {flags}\n"


_EXEC = r"""exec 2>&1 </dev/null
[ -f {state} ] && . {state}
cd -- {cwd} || exit 126
trap '__hermes_status=$?; export -p >{state}; printf "\036%s %d %s\036" {mark} $__hermes_status "$PWD"' EXIT
eval {command}
"""


def exec_script(command: str, *, mark: str, state: str, cwd: str) -> str:
    """A POSIX script that runs one command with the kept state and ends its output with the record."""
    return _EXEC.format(command=shlex.quote(command), mark=mark, state=state, cwd=shlex.quote(cwd))
