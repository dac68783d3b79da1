"""`Sandbox.kill_marked` for backends that are only reached by commands: one POSIX script run inside the sandbox.

The rules are those of `proctable.started_by_shell`. The script says `ready`, then reads on stdin how many hundredths of
a second ago the command began: asking only then keeps the time that starting the script took out of the reckoning.

The family is looked for before the marker, so that a subshell which becomes a marked program between the two is found
by its marker. A process in the middle of an `execve` shows no environment: two rounds that found nothing are the end.
"""

from __future__ import annotations

KILL_SCRIPT = r"""
marker=$1 shell=$2
echo ready
read -r age || exit 0
read -r up _ </proc/uptime
begin=$(( ${up%.*}${up#*.} - age - 1 ))
strip() { while read -r line; do line=${line#/proc/}; printf '%s ' "${line%/environ}"; done; }
by_family() {
  all= marked=" $(grep -lsaF "HERMES_EXEC=" /proc/[0-9]*/environ | strip)"
  for entry in /proc/[0-9]*; do
    { read -r line <"$entry/stat"; } 2>/dev/null || continue
    pid=${entry#/proc/}
    set -- ${line##*) }
    [ "$1" = Z ] && continue
    eval "parent_$pid=$2 session_$pid=$4 start_$pid=${20} round_$pid=$round"
    all="$all $pid"
  done
  eval "home=\${session_$shell-}"
  [ -n "$home" ] || return 0
  for pid in $all; do
    case $marked in *" $pid "*) continue ;; esac
    [ "$pid" = "$shell" ] || [ "$pid" = $$ ] && continue
    current=$pid depth=0
    while [ $depth -lt 200 ]; do
      depth=$(( depth + 1 ))
      if [ "$current" = "$shell" ]; then printf '%s ' "$pid"; break; fi
      eval "start=\$start_$current parent=\$parent_$current session=\$session_$current"
      [ "$start" -lt "$begin" ] && break
      eval "known=\${round_$parent-} above=\${session_$parent-}"
      if [ "$known" != "$round" ] || [ "$above" != "$home" ]; then
        [ "$session" = "$home" ] && printf '%s ' "$pid"
        break
      fi
      current=$parent
    done
  done
}
round=0 quiet=0
while [ $round -lt 20 ] && [ $quiet -lt 2 ]; do
  round=$(( round + 1 ))
  found=
  [ -n "$shell" ] && found=$(by_family)
  found="$found$(grep -lsaF "HERMES_EXEC=$marker" /proc/[0-9]*/environ | strip)"
  if [ -n "$found" ]; then quiet=0; kill -9 $found 2>/dev/null; else quiet=$(( quiet + 1 )); fi
done
echo done
"""


def kill_argv(marker: str, shell_pid: int | None) -> list[str]:
    """The command line to run in the sandbox, as root."""
    return ["sh", "-c", KILL_SCRIPT, "sh", marker, "" if shell_pid is None else str(shell_pid)]
