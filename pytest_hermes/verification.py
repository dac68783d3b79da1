"""Verification by a task's test script, in the sandbox that the agent left, and the healthcheck before the agent.

`run_test_script` is the verifier of image tasks: `/tests` and `/logs/verifier` are emptied, the tests uploaded, the
script run by a fresh command, and the reward read in that same command the moment the script ends. A reward file that
appears at any other time, and an uploaded test that was changed, are tampering: reward 0. Other signs are recorded as
evidence and left to the reader. It costs three commands and one upload.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import io
import json
import tarfile

from pytest_hermes.benchmark import Verdict, Verification, keeps_own_clock, reward_of_object, valid_reward
from pytest_hermes.datasets.host_variables import expand
from pytest_hermes.errors import (
    ConfigurationError,
    HealthcheckFailed,
    RewardUnreadable,
    TaskError,
    VerifierError,
    VerifierNoReward,
    VerifierTimeout,
)
from pytest_hermes.sandbox.protocol import ExecResult, Sandbox
from pytest_hermes.task import FileTree, Healthcheck

TAIL_CHARS = 4000
REWARD_FILES = ("reward.json", "reward.txt")
REWARD_MAX_BYTES = 65536
HOUSEKEEPING_TIMEOUT_S = 60.0
HOST_BACKENDS = frozenset({"local", "ssh"})
"""Backends whose `/tests` and `/logs` may be the host's own."""

# The system's own programs first: the agent may have put others before them. Reports are lines of tab-separated fields.
SYSTEM_PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin:$PATH; export LC_ALL=C"

# $1: user of the verifier ("" is root); $2: working directory; $3...: reward files.
PREPARE = r"""
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

# What was made or changed since the sandbox's first process started; by ctime, which `touch` cannot set back.
started=/logs/verifier/.started
boot=; while read -r key value; do if [ "$key" = btime ]; then boot=$value; fi; done </proc/stat
read -r line </proc/1/stat; set -- ${line##*) }
touch -d "@$((boot + ${20} / 100))" $started || say blind 'touch'
newer=-cnewer; find / -prune -cnewer $started >/dev/null 2>&1 || newer=-newer
is_new() { [ -n "$(find "$1" -prune $newer $started)$(find -L "$1" -prune $newer $started)" ]; }
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
  else case $name in python*|bash) say replaced "$first";; esac; fi
done 2>/dev/null
unset IFS; set +f
{
  find /conftest.py /pytest.ini /.pytest.ini /pyproject.toml /tox.ini /setup.cfg /etc/ld.so.preload \
    "$workdir/conftest.py" "$workdir/sitecustomize.py" "$workdir/usercustomize.py" \
    /etc/uv/uv.toml "$HOME/.config/uv/uv.toml" /etc/pip.conf "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf" \
    -prune $newer $started
  find /usr/lib/python3* /usr/local/lib/python3* /opt/*/lib/python3* "$HOME"/.local/lib/python3* -maxdepth 2 \
    \( -name '*.pth' -o -name conftest.py -o -name sitecustomize.py -o -name usercustomize.py \) $newer $started
} 2>/dev/null | while IFS= read -r path; do say planted "$path"; done
rm -f $started
say ready
""".replace("SYSTEM_PATH", SYSTEM_PATH)

# $1: script below /tests; $2: largest reward file; $3...: reward files. The report goes to stderr; the script's
# own stdout and stderr both go to stdout.
VERIFY = r"""
say() { printf '%s\t%s\t%s\t%s\n' "$@" >&2; }
entry=$1 most=$2; shift 2
for name in "$@"; do
  path=/logs/verifier/$name
  if [ -e "$path" ] || [ -L "$path" ]; then say early "$name"; fi
done
shell=/bin/bash; [ -x $shell ] || shell=bash
$shell "/tests/$entry" </dev/null 2>&1
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
""".replace("SYSTEM_PATH", SYSTEM_PATH)

# stdin: lines for `sha256sum -c`; $1...: reward files.
AFTERWARDS = r"""
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
""".replace("SYSTEM_PATH", SYSTEM_PATH)


@keeps_own_clock
async def run_test_script(v: Verification) -> Verdict:
    """The verdict of the task's test script; see the module docstring.

    Raises VerifierTimeout, VerifierNoReward or RewardUnreadable (each with the output's tail) where the script gives no
    reward, and VerifierError where the sandbox cannot be prepared. `task.data["exit_code_reward"]` makes the exit
    status the reward when there is no reward file; without it the exit status counts for nothing.
    """
    tests = v.task.tests
    if tests is None:
        raise TaskError(f"task {v.task.id}: it has no tests")
    if v.sandbox.backend in HOST_BACKENDS:
        raise ConfigurationError(
            f"task {v.task.id}: its test script uses /tests and /logs, which are the host's own with the"
            f" {v.sandbox.backend} backend. Use --hermes-sandbox=docker"
        )
    env = expand(tests.env, v.settings.env.verifier_env or (), f"task {v.task.id}: [verifier] env")
    archive, sums = await asyncio.to_thread(_packed, tests.files)
    early, evidence = await _prepare(v.sandbox, tests.user)
    await v.sandbox.upload_tar(archive, "/tests")
    result = await v.sandbox.exec(
        ["/bin/sh", "-c", VERIFY, "verify", tests.entry, str(REWARD_MAX_BYTES), *REWARD_FILES],
        timeout_s=v.timeout_s,
        env=env,
        user=tests.user or "root",
    )
    report = _Report.of(result)
    changed, reappeared = await _afterwards(v.sandbox, sums, evidence)
    output = result.stdout.decode(errors="replace")[-TAIL_CHARS:]
    tampering = [f"tests changed while they ran: {', '.join(changed)}."] if changed else []
    if early := [*early, *report.early]:
        tampering.append(f"/logs/verifier/{early[0]} appeared before the verifier had started.")
    # A script that was cut off or killed leaves its reward file: only one that was read and deleted can come back.
    if back := [name for name in reappeared if report.ended]:
        tampering.append(f"/logs/verifier/{back[0]} appeared again after it had been read and deleted.")
    if tampering:
        return Verdict(0.0, output=output, exit_code=result.exit_code, evidence=[*tampering, *evidence])
    try:
        verdict = _reward(v, report, result)
    except VerifierError as error:
        error.output = output
        raise
    verdict.output, verdict.exit_code, verdict.evidence = output, result.exit_code, evidence
    return verdict


@dataclasses.dataclass
class _Report:
    """What the VERIFY command said: `found` is (kind, content) by reward file."""

    early: list[str] = dataclasses.field(default_factory=list)
    found: dict[str, tuple[str, bytes]] = dataclasses.field(default_factory=dict)
    ended: bool = False

    @staticmethod
    def of(result: ExecResult) -> _Report:
        report = _Report()
        for kind, name, content in _lines(result.stderr):
            if kind == "early":
                report.early.append(name)
            elif kind == "exit":
                report.ended = True
            elif kind in ("file", "link", "directory", "special") and name in REWARD_FILES:
                report.found[name] = (kind, bytes.fromhex(content))
        return report


def _lines(report: bytes) -> list[tuple[str, str, str]]:
    """The lines of a report as (kind, first field, second field)."""
    fields = ([*line.split("\t"), "", ""] for line in report.decode(errors="replace").splitlines() if "\t" in line)
    return [(line[0], line[1], line[2]) for line in fields]


def _packed(files: FileTree) -> tuple[bytes, dict[str, str]]:
    """The archive to upload and the sha256 of each file in it."""
    archive = files.tar()
    sums = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for member in members:
            content = members.extractfile(member)
            if content is not None:
                sums[member.name] = hashlib.sha256(content.read()).hexdigest()
    return archive, sums


async def _prepare(sandbox: Sandbox, user: str | None) -> tuple[list[str], list[str]]:
    """Empty the verifier's directories. The reward files that came back at once, and the evidence in sentences."""
    result = await sandbox.exec(
        ["/bin/sh", "-c", PREPARE, "prepare", user or "", sandbox.workdir, *REWARD_FILES],
        timeout_s=HOUSEKEEPING_TIMEOUT_S,
        user="root",
        cwd="/",
    )
    lines = _lines(result.stdout)
    stuck = [path for kind, path, _ in lines if kind == "stuck"]
    if stuck or ("ready", "", "") not in lines:
        why = f"{stuck[0]} cannot be emptied" if stuck else f"preparation ended with {result.exit_code}"
        said = result.stderr.decode(errors="replace")[-TAIL_CHARS:]
        raise VerifierError(f"the sandbox cannot be prepared for the verifier: {why}", output=said)
    sentences = {
        "reward": "{0} existed before verification; it was deleted.",
        "shadow": "{0} was made or changed by the agent and hides {1}.",
        "replaced": "{0} was replaced or changed by the agent.",
        "planted": "{0} was made or changed by the agent; the verifier's tools read it.",
    }
    found = [sentences[kind].format(first, second) for kind, first, second in lines if kind in sentences]
    return [name for kind, name, _ in lines if kind == "early"], list(dict.fromkeys(found))


async def _afterwards(sandbox: Sandbox, sums: dict[str, str], evidence: list[str]) -> tuple[list[str], list[str]]:
    """The uploaded tests that are no longer what they were, and the reward files that are there (removed here)."""
    listing = "".join(f"{digest}  {name}\n" for name, digest in sums.items())
    result = await sandbox.exec(
        ["/bin/sh", "-c", AFTERWARDS, "afterwards", *REWARD_FILES],
        timeout_s=HOUSEKEEPING_TIMEOUT_S,
        user="root",
        cwd="/",
        stdin=listing.encode(),
    )
    lines = _lines(result.stdout)
    if ("done", "", "") not in lines:
        said = result.stderr.decode(errors="replace")[-TAIL_CHARS:]
        raise VerifierError(f"what the verifier left cannot be read (status {result.exit_code})", output=said)
    if any(kind == "blind" for kind, _, _ in lines):
        evidence.append("The image has no sha256sum: changes of the tests were not looked for.")
    return [name for kind, name, _ in lines if kind == "changed"], [name for kind, name, _ in lines if kind == "again"]


def _reward(v: Verification, report: _Report, result: ExecResult) -> Verdict:
    if result.timed_out:
        raise VerifierTimeout(f"the verifier did not end within {v.timeout_s:g} s")
    if not report.ended:
        raise VerifierNoReward(f"the verifier was killed (exit code {result.exit_code})")
    for name in REWARD_FILES:
        if name in report.found:
            kind, content = report.found[name]
            if kind != "file":
                raise RewardUnreadable(f"/logs/verifier/{name} is a {kind}, not a file")
            return read_reward(name, content)
    if v.task.data.get("exit_code_reward"):
        return Verdict(1.0 if result.exit_code == 0 else 0.0)
    raise VerifierNoReward(
        f"the verifier wrote neither {' nor '.join(f'/logs/verifier/{name}' for name in REWARD_FILES)}"
        f" (exit code {result.exit_code})"
    )


def read_reward(name: str, content: bytes) -> Verdict:
    """The reward in a reward file: a number, or in `reward.json` also an object of numbers. Raises RewardUnreadable."""
    where = f"/logs/verifier/{name}"
    if len(content) > REWARD_MAX_BYTES:
        raise RewardUnreadable(f"{where} holds more than {REWARD_MAX_BYTES} bytes")
    text = content.decode(errors="replace").strip()
    shown = text if len(text) <= 80 else text[:77] + "..."
    if not text:
        raise RewardUnreadable(f"{where} is empty")
    try:
        value = json.loads(text) if name.endswith(".json") else float(text)
    except (ValueError, RecursionError):
        raise RewardUnreadable(f"{where} holds {shown!r}, not a number") from None
    try:
        verdict = reward_of_object(value) if isinstance(value, dict) else None
        if verdict is None:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise RewardUnreadable(f"holds {shown!r}, not a number or an object of numbers")
            verdict = Verdict(float(value))
        verdict.reward = valid_reward(verdict.reward)
    except (RewardUnreadable, OverflowError) as error:
        raise RewardUnreadable(f"{where}: {error}") from None
    return verdict


async def wait_healthy(sandbox: Sandbox, check: Healthcheck) -> None:
    """Run the healthcheck until it exits 0. Raises HealthcheckFailed with the last output after `retries` failures;
    those within the start period do not count."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    failures = 0
    while True:
        result = await sandbox.exec(check.command, timeout_s=check.timeout_s)
        if result.exit_code == 0:
            return
        starting = loop.time() - began < check.start_period_s
        failures += not starting
        if failures >= check.retries:
            break
        await asyncio.sleep(check.start_interval_s if starting else check.interval_s)
    ended = f"took more than {check.timeout_s:g} s" if result.timed_out else f"exit code {result.exit_code}"
    output = (result.stdout + result.stderr).decode(errors="replace").strip()[-TAIL_CHARS:]
    raise HealthcheckFailed(
        f"healthcheck {check.command!r} failed {failures} times; the last time: {ended}\n{output}".rstrip()
    )
