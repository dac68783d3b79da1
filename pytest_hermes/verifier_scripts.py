"""The shell commands of a verification: what the sandbox runs before, around and after the test script.

Each is one command. Reports are lines of tab-separated fields, a kind first; `report_lines` reads them. They need a
POSIX shell and the usual small programs, and use the system's own: the agent may have put others before them.
"""

from __future__ import annotations

from collections.abc import Sequence

_SYSTEM_PATH = "PATH=/usr/bin:/bin:/usr/sbin:/sbin:$PATH; export LC_ALL=C"

# Says what was made or changed since the sandbox's first process started; by ctime, which `touch` cannot set back.
# Needs `workdir`, `image_path` and a writable directory `scratch`.
_LOOK = r"""
started=$scratch/.started
boot=; while read -r key value; do if [ "$key" = btime ]; then boot=$value; fi; done </proc/stat
read -r line </proc/1/stat; set -- ${line##*) }
touch -d "@$((boot + ${20} / 100))" $started || say blind 'touch'
newer=-cnewer; find / -prune -cnewer $started >/dev/null 2>&1 || newer=-newer
is_new() { [ -n "$(find "$1" -prune $newer $started)$(find -L "$1" -prune $newer $started)" ]; }
look() {
  set -f; IFS=:
  for name in python python3 pytest uv uvx curl bash; do
    first=; hidden=
    for folder in $HOME/.local/bin $image_path; do
      if [ ! -f "$folder/$name" ] || [ ! -x "$folder/$name" ]; then continue; fi
      if [ -z "$first" ]; then first=$folder/$name
      elif [ -z "$hidden" ] && [ ! "$folder/$name" -ef "$first" ]; then hidden=$folder/$name; fi
    done
    if [ -z "$first" ] || ! is_new "$first"; then continue; fi
    if [ -n "$hidden" ]; then say shadow "$first" "$hidden"
    else case $name in python*|bash) say replaced "$first";; *) say program "$first";; esac; fi
  done 2>/dev/null
  unset IFS; set +f
  {
    find /conftest.py /pytest.ini /.pytest.ini /pyproject.toml /tox.ini /setup.cfg /etc/ld.so.preload \
      "$workdir/conftest.py" "$workdir/sitecustomize.py" "$workdir/usercustomize.py" \
      /etc/uv/uv.toml "$HOME/.config/uv/uv.toml" /etc/pip.conf "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf" \
      "$HOME/.curlrc" "$HOME/.config/.curlrc" /usr/lib/python3*.zip /usr/local/lib/python3*.zip \
      /usr/lib/python3*/pytest* /usr/lib/python3*/_pytest -prune $newer $started
    find /usr/lib/python3* /usr/local/lib/python3* /opt/*/lib/python3* "$HOME"/.local/lib/python3* -maxdepth 2 \
      \( -name '*.pth' -o -name conftest.py -o -name sitecustomize.py -o -name usercustomize.py \) $newer $started
    # `python3 -m pytest` finds these before the installed pytest; a project of that name has them by right.
    if [ ! -e "$workdir/setup.py" ] && [ ! -e "$workdir/pyproject.toml" ]; then
      find "$workdir/pytest.py" "$workdir/pytest" "$workdir/_pytest" "$workdir/pluggy.py" "$workdir/pluggy" \
        -prune $newer $started
    fi
  } 2>/dev/null | while IFS= read -r path; do say planted "$path"; done
}
"""

# $1: user of the verifier ("" is root); $2: working directory; $3...: reward files.
_PREPARE = r"""
image_path=$PATH; SYSTEM_PATH
user=$1 workdir=$2; shift 2
say() { printf '%s\t%s\t%s\n' "$@"; }
for name in "$@"; do
  path=/logs/verifier/$name
  if [ -e "$path" ] || [ -L "$path" ]; then say reward "$path"; fi
done
if [ -L /logs ] || [ ! -d /logs ]; then rm -rf /logs; mkdir /logs; fi
for folder in /tests /logs/verifier; do
  rm -rf "$folder" 2>/dev/null || find "$folder" -mindepth 1 -delete
  mkdir -p "$folder" && chmod 755 "$folder"
  left=$(ls -A "$folder")
  case $left in
    '') [ ! -L "$folder" ] || say stuck "$folder" ;;
    reward.json|reward.txt) say early "$left" ;;
    *) say stuck "$folder" ;;
  esac
done
mkdir -p /logs/agent /logs/artifacts
if [ -n "$user" ]; then chown "$user" /logs/verifier; fi
scratch=/logs/verifier
LOOK
look
rm -f $started
# What the agent left running: not the sandbox's first two processes, no shell that waits for commands from outside
# (its parent is 0), and not this command.
second=; for folder in /proc/[0-9]*; do
  pid=${folder#/proc/}
  if [ "$pid" != 1 ] && { [ -z "$second" ] || [ "$pid" -lt "$second" ]; }; then second=$pid; fi
done
for folder in /proc/[0-9]*; do
  pid=${folder#/proc/}
  case $pid in 1|$second|$$) continue ;; esac
  read -r line <$folder/stat || continue
  name=${line#*(}; name=${name%)*}; set -- ${line##*) }
  case $1:$2:$name in Z:*|*:$$:*|*:0:bash|*:0:sh|*:0:dash|*:0:busybox|*:0:ash) continue ;; esac
  say running "$name"
done 2>/dev/null
say ready
"""

# Put before a test script's own lines: it gives 0, and waits a moment before and after. Another reward is not its own.
DECOY = """
sleep 0.2
echo 0 >/logs/verifier/reward.txt
sleep 0.1
exit 0
"""

# $1: script below /tests; $2: largest reward file; $3...: reward files. The report goes to stderr; the script's
# own stdout and stderr both go to stdout. A shell says on stderr, too, that a program of its own died by a signal.
_VERIFY = r"""
say() { printf '%s\t%s\t%s\t%s\n' "$@" >&2; }
entry=$1 most=$2; shift 2
for name in "$@"; do
  path=/logs/verifier/$name
  if [ -e "$path" ] || [ -L "$path" ]; then say early "$name"; fi
done
shell=/bin/bash; [ -x $shell ] || shell=bash
(exec $shell "/tests/$entry" </dev/null 2>&1)
code=$?
SYSTEM_PATH
for name in "$@"; do
  path=/logs/verifier/$name
  if [ -L "$path" ]; then say link "$name"
  elif [ -d "$path" ]; then say directory "$name"
  elif [ -f "$path" ]; then say file "$name" "$(head -c $((most + 1)) "$path" | od -An -v -tx1 | tr -d ' \n')"
  elif [ -e "$path" ]; then say special "$name"
  else continue; fi
  rm -rf "$path"
done
say exit $code
exit $code
"""

# stdin: lines for `sha256sum -c`; $1...: reward files.
_AFTERWARDS = r"""
SYSTEM_PATH
say() { printf '%s\t%s\n' "$@"; }
if command -v sha256sum >/dev/null; then
  (cd /tests && sha256sum -c - 2>/dev/null) | while IFS= read -r line; do
    case $line in *': OK') ;; *) say changed "${line%: FAILED*}";; esac
  done
else say blind sha256sum; fi
for name in "$@"; do
  path=/logs/verifier/$name
  if [ -e "$path" ] || [ -L "$path" ]; then say again "$name"; rm -rf "$path"; fi
done
say done
"""

# Whether a file is somebody's honest work, by the books that installers keep. `listed FILE NAME RECORD...`: pip's,
# where a line begins with the file's name as seen from there, and its size (third field, may be empty) is right.
_HONEST = r"""
listed() {
  file=$1 name=$(printf '%s' "$2" | sed 's/[][\\.*^$]/\\&/g'); shift 2
  size=$(wc -c <"$file" 2>/dev/null | tr -d ' ')
  grep -qs -e "^$name,[^,]*,$size[[:space:]]*\$" -e "^$name,[^,]*,[[:space:]]*\$" "$@"  # pip ends lines by CR LF
}
# apt's: the path is in the package's list and, where the package says a checksum, that is right.
packaged() {
  alias=/usr${1#/usr}; [ "$alias" != "$1" ] || alias=${1#/usr}
  grep -qsxF -e "$1" -e "$alias" /var/lib/dpkg/info/*.list || return 1
  if [ -L "$1" ]; then return 0; fi
  sum=$(md5sum <"$1"); sum=${sum%% *}
  grep -qsxF -e "$sum  ${1#/}" -e "$sum  ${alias#/}" /var/lib/dpkg/info/*.md5sums
}
is_elf() { [ "$(head -c 4 "$1" | od -An -tx1 | tr -d ' \n')" = 7f454c46 ]; }
# A path file that only names directories, as old editable installs write it, runs nothing itself.
only_folders() {
  while IFS= read -r line || [ -n "$line" ]; do
    case $line in ''|'#'*) continue ;; esac
    case $line in /*) ;; *) line=${1%/*}/$line ;; esac
    if [ ! -d "$line" ] || [ -e "$line/sitecustomize.py" ] || [ -e "$line/usercustomize.py" ]; then return 1; fi
  done <"$1"
}
is_honest() {
  base=${1##*/} folder=${1%/*}
  if packaged "$1"; then return 0; fi
  case $1 in
    */bin/*)
      listed "$1" "../../../bin/$base" "$folder"/../lib/python3*/*-packages/*.dist-info/RECORD && return 0
      real=$(readlink -f "$1"); prefix=${real%/bin/*}
      case $base in
        # A Python that was built or downloaded has a standard library of its own; a link to the image's is no other.
        python*)
          case ${real##*/} in python*) ;; *) return 1 ;; esac
          if [ "$real" != "$1" ] && ! is_new "$real"; then return 0; fi
          is_elf "$real" && [ -n "$(find "$prefix"/lib/python3*/os.py "$prefix"/lib/python3*/encodings -prune)" ] ;;
        *) return 1 ;;
      esac 2>/dev/null ;;
    *)
      listed "$1" "$base" "$folder"/*.dist-info/RECORD && return 0
      case $base in *.pth) only_folders "$1" ;; *) return 1 ;; esac ;;
  esac
}
"""

ASIDE = ".set-aside-by-the-verifier"

# $1: working directory; $2: names that the task itself speaks of, between spaces; stdin: paths that stay in place.
# Renames what was planted, and programs that come before others, unless they are honest work:
# - what an installer has in its books was installed, not planted: pip writes .pth files and programs, apt both;
# - a conftest.py, an ini file or a tool's configuration that the tests need is one that the task speaks of;
# - a program in place of the image's is an upgrade if it is a whole one, and a mask if it is a script or a link.
_SET_ASIDE = r"""
image_path=$PATH; SYSTEM_PATH
workdir=$1 asked=$2 scratch=/tmp
say() { printf '%s\t%s\t%s\n' "$@"; }
stays=$(cat)
LOOK HONEST
look | while IFS="$(printf '\t')" read -r kind path hidden; do
  case "
$stays
" in *"
$path
"*) continue ;; esac
  case $kind in
    planted) case "$asked" in *" ${path##*/} "*) continue ;; esac ;;
    shadow) ;;
    # Hides nothing: a program of its own is what many tasks ask for, a script that only has its name is not.
    program) if is_elf "$(readlink -f "$path")"; then continue; fi ;;
    *) continue ;;
  esac
  if is_honest "$path"; then continue; fi
  mv "$path" "$path.ASIDE" && say aside "$path"
done
rm -f $started
say ready
"""

# $1: working directory; stdin: paths of changed files, image's record files among them. Which of them are honest work:
# those of a package that apt, and of a distribution that pip, put in the old one's place.
_JUDGE = r"""
image_path=$PATH; SYSTEM_PATH
workdir=$1 scratch=/tmp
say() { printf '%s\t%s\t%s\n' "$@"; }
LOOK HONEST
changed=$(cat)
printf '%s\n' "$changed" | while IFS= read -r path; do
  case $path in
    */*-packages/*)
      site=${path%%-packages/*}-packages
      for record in "$site"/*.dist-info/RECORD; do
        case "
$changed
" in *"
$record
"*) continue ;; esac
        if is_new "$record" && listed "$path" "${path#"$site"/}" "$record"; then say honest "$path"; break; fi
      done ;;
    *) if is_honest "$path"; then say honest "$path"; fi ;;
  esac
done
rm -f $started
say ready
"""

# $1: 1 to put things back; stdin: paths. Says which of them are there again with the same content.
_PUT_BACK = r"""
SYSTEM_PATH
say() { printf '%s\t%s\n' "$@"; }
while IFS= read -r path; do
  if [ -f "$path" ] && cmp -s "$path" "$path.ASIDE"; then say back "$path"; fi
  if [ -z "$1" ]; then continue; fi
  if [ -d "$path" ] && [ ! -L "$path" ]; then rm -rf "$path"; fi
  mv -f "$path.ASIDE" "$path"
done
say ready
"""


def _whole(text: str) -> str:
    for name, part in (("LOOK", _LOOK), ("HONEST", _HONEST), ("SYSTEM_PATH", _SYSTEM_PATH), (".ASIDE", ASIDE)):
        text = text.replace(name, part)
    return text


PREPARE, VERIFY, AFTERWARDS = _whole(_PREPARE), _whole(_VERIFY), _whole(_AFTERWARDS)
SET_ASIDE, JUDGE, PUT_BACK = _whole(_SET_ASIDE), _whole(_JUDGE), _whole(_PUT_BACK)


def shell(script: str, name: str, *arguments: str) -> Sequence[str]:
    """The argument vector that runs one of these."""
    return ["/bin/sh", "-c", script, name, *arguments]


def report_lines(report: bytes) -> list[tuple[str, str, str]]:
    """The lines of a report as (kind, first field, second field)."""
    fields = ([*line.split("\t"), "", ""] for line in report.decode(errors="replace").splitlines() if "\t" in line)
    return [(line[0], line[1], line[2]) for line in fields]
