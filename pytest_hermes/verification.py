"""Verification by a task's test script, in the sandbox that the agent left, and the healthcheck before the agent.

`run_test_script` is the verifier of image tasks: `/tests` and `/logs/verifier` are emptied, the tests uploaded, the
script run by a fresh command, and the reward read in that same command the moment the script ends. A reward file that
appears at any other time, and an uploaded test that was changed, are tampering: reward 0. Other signs are recorded as
evidence; where the script gave a reward in spite of them, it runs once more without what they point at, and the lower
reward counts. It costs three commands and one upload, and the same again for a second run.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import io
import json
import posixpath
import tarfile
from collections.abc import Mapping

from pytest_hermes.benchmark import Verdict, Verification, keeps_own_clock, reward_of_object, valid_reward
from pytest_hermes.datasets.host_variables import expand
from pytest_hermes.errors import (
    ConfigurationError,
    HealthcheckFailed,
    RewardUnreadable,
    TaskError,
    TransferError,
    VerifierError,
    VerifierNoReward,
    VerifierTimeout,
)
from pytest_hermes.sandbox.protocol import ExecResult, Sandbox
from pytest_hermes.set_aside import HOUSEKEEPING_TIMEOUT_S, changed_tools, described, set_aside
from pytest_hermes.task import FileTree, Healthcheck
from pytest_hermes.verifier_scripts import AFTERWARDS, DECOY, PREPARE, VERIFY, report_lines, shell

TAIL_CHARS = 4000
REWARD_FILES = ("reward.json", "reward.txt")
REWARD_MAX_BYTES = 65536
HOST_BACKENDS = frozenset({"local", "ssh"})
"""Backends whose `/tests` and `/logs` may be the host's own."""


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
    script = _Script(tests.entry, tests.user, env, *await asyncio.to_thread(_packed, tests.files))
    changes = await changed_tools(v.sandbox, quick=True)
    signs = await _prepare(v.sandbox, tests.user)
    signs.evidence += described(changes)
    verdict = await _run(v, script, signs)
    if verdict.reward > 0 and (signs.suspects or changes):
        verdict = await _without_what_was_left(v, script, verdict, signs)
    if verdict.reward > 0 and signs.running:
        verdict = await _beside_what_runs(v, script, verdict)
    return verdict


@dataclasses.dataclass(frozen=True)
class _Script:
    """The test script, ready to be uploaded and run; `sums` are its files' sha256."""

    entry: str
    user: str | None
    env: Mapping[str, str]
    archive: bytes
    sums: dict[str, str]


@dataclasses.dataclass
class _Signs:
    """What preparing the sandbox showed: reward files that came back at once, evidence in sentences, and the paths that
    the verifier's tools may obey."""

    early: list[str]
    evidence: list[str]
    suspects: list[str]
    running: list[str]
    """Names of the processes that the agent left."""


async def _run(v: Verification, script: _Script, signs: _Signs) -> Verdict:
    """One run of the script in a prepared sandbox. Tampering with its reward or its files is a verdict of 0."""
    await _upload(v.sandbox, script.archive)
    result = await v.sandbox.exec(
        shell(VERIFY, "verify", script.entry, str(REWARD_MAX_BYTES), *REWARD_FILES),
        timeout_s=v.timeout_s,
        env=script.env,
        user=script.user or "root",
    )
    report = _Report.of(result)
    changed, reappeared = await _afterwards(v.sandbox, script.sums, signs.evidence)
    output = result.stdout.decode(errors="replace")[-TAIL_CHARS:]
    tampering = [f"tests changed while they ran: {', '.join(changed)}."] if changed else []
    if early := [*signs.early, *report.early]:
        tampering.append(f"/logs/verifier/{early[0]} appeared before the verifier had started.")
    # A script that was cut off or killed leaves its reward file: only one that was read and deleted can come back.
    if back := [name for name in reappeared if report.ended]:
        tampering.append(f"/logs/verifier/{back[0]} appeared again after it had been read and deleted.")
    if tampering:
        return _tampering(0.0, [*tampering, *signs.evidence], output, result.exit_code)
    try:
        verdict = _reward(v, report, result)
    except VerifierError as error:
        error.output = output
        raise
    verdict.output, verdict.exit_code, verdict.evidence = output, result.exit_code, signs.evidence
    return verdict


async def _upload(sandbox: Sandbox, archive: bytes) -> None:
    """Raises VerifierError, not TransferError, where something took the place of the directory that was just made."""
    try:
        await sandbox.upload_tar(archive, "/tests")
    except TransferError as error:
        found = await sandbox.exec("[ -d /tests ] && [ ! -L /tests ]", timeout_s=HOUSEKEEPING_TIMEOUT_S, user="root")
        if found.exit_code == 0:
            raise
        raise VerifierError(f"the tests cannot be uploaded: {error}") from error


def _tampering(reward: float, evidence: list[str], output: str, exit_code: int | None) -> Verdict:
    return Verdict(reward, output=output, exit_code=exit_code, evidence=evidence, cause="tampering")


async def _beside_what_runs(v: Verification, script: _Script, verdict: Verdict) -> Verdict:
    """The verdict, unless what the agent left running gives a reward to a script that gives 0."""
    decoy = await asyncio.to_thread(_with_decoy, script)
    found = await _run(v, decoy, _Signs([], [], [], []))
    if found.reward == 0 and found.cause is None:
        return verdict
    sign = f"A script that gives 0 had the reward {found.reward:g}: a process of the agent's wrote it."
    return _tampering(0.0, [found.evidence[0] if found.cause else sign, *verdict.evidence], verdict.output, None)


def _with_decoy(script: _Script) -> _Script:
    buffer, sums = io.BytesIO(), dict(script.sums)
    with (
        tarfile.open(fileobj=io.BytesIO(script.archive)) as source,
        tarfile.open(fileobj=buffer, mode="w") as target,
    ):
        for member in source:
            content = source.extractfile(member)
            if content is not None and posixpath.normpath(member.name) == script.entry:
                first, _, rest = content.read().partition(b"\n")
                text = first * first.startswith(b"#!") + DECOY.encode() + rest
                member.size, sums[member.name] = len(text), hashlib.sha256(text).hexdigest()
                target.addfile(member, io.BytesIO(text))
    return dataclasses.replace(script, archive=buffer.getvalue(), sums=sums)


async def _without_what_was_left(v: Verification, script: _Script, first: Verdict, seen: _Signs) -> Verdict:
    """The verdict once the script has run again without what the agent left for its tools: the lower reward counts."""
    aside = await set_aside(v.sandbox, v.task)
    if not aside:
        return first
    try:
        signs = await _prepare(v.sandbox, script.user)
        seen.running += signs.running  # seen by the system's own programs now
        second = await _run(v, script, signs)
    except (VerifierNoReward, VerifierTimeout, RewardUnreadable) as error:
        second = Verdict(0.0, output=f"{error.output}\n{error}".lstrip())
    again = [path for path in aside.renamed if path in signs.suspects] + await aside.put_back()
    if again:
        evidence = [f"{again[0]} was there again after it had been set aside.", *first.evidence]
        return _tampering(0.0, evidence, second.output, second.exit_code)
    tested = f"The tests ran once more without {aside}: the reward was {first.reward:g} before"
    if second.reward >= first.reward and second.cause is None:
        first.evidence = [*first.evidence, f"{tested}, and no lower then."]
        return first
    evidence = [f"{tested} and {second.reward:g} then.", *second.evidence[:1] * bool(second.cause), *first.evidence]
    verdict = _tampering(second.reward, evidence, second.output, second.exit_code)
    verdict.components = second.components
    return verdict


@dataclasses.dataclass
class _Report:
    """What the VERIFY command said: `found` is (kind, content) by reward file."""

    early: list[str] = dataclasses.field(default_factory=list)
    found: dict[str, tuple[str, bytes]] = dataclasses.field(default_factory=dict)
    ended: bool = False
    killed: bool = False
    """The script died by a signal: the shell said so in words of its own."""

    @staticmethod
    def of(result: ExecResult) -> _Report:
        report = _Report()
        words = [line for line in result.stderr.splitlines() if line.strip() and b"\t" not in line]
        report.killed = bool(words) and (result.exit_code or 0) > 128
        for kind, name, content in report_lines(result.stderr):
            if kind == "early":
                report.early.append(name)
            elif kind == "exit":
                report.ended = True
            elif kind in ("file", "link", "directory", "special") and name in REWARD_FILES:
                report.found[name] = (kind, bytes.fromhex(content))
        return report


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


async def _prepare(sandbox: Sandbox, user: str | None) -> _Signs:
    """Empty the verifier's directories, and look around."""
    result = await sandbox.exec(
        shell(PREPARE, "prepare", user or "", sandbox.workdir, *REWARD_FILES),
        timeout_s=HOUSEKEEPING_TIMEOUT_S,
        user="root",
        cwd="/",
    )
    lines = report_lines(result.stdout)
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
    return _Signs(
        early=[name for kind, name, _ in lines if kind == "early"],
        evidence=list(dict.fromkeys(found)),
        suspects=[path for kind, path, _ in lines if kind in ("shadow", "replaced", "planted", "program")],
        running=[name for kind, name, _ in lines if kind == "running"],
    )


async def _afterwards(sandbox: Sandbox, sums: dict[str, str], evidence: list[str]) -> tuple[list[str], list[str]]:
    """The uploaded tests that are no longer what they were, and the reward files that are there (removed here)."""
    listing = "".join(f"{digest}  {name}\n" for name, digest in sums.items())
    result = await sandbox.exec(
        shell(AFTERWARDS, "afterwards", *REWARD_FILES),
        timeout_s=HOUSEKEEPING_TIMEOUT_S,
        user="root",
        cwd="/",
        stdin=listing.encode(),
    )
    lines = report_lines(result.stdout)
    if ("done", "", "") not in lines:
        said = result.stderr.decode(errors="replace")[-TAIL_CHARS:]
        raise VerifierError(f"what the verifier left cannot be read (status {result.exit_code})", output=said)
    if any(kind == "blind" for kind, _, _ in lines):
        evidence.append("The image has no sha256sum: changes of the tests were not looked for.")
    return [name for kind, name, _ in lines if kind == "changed"], [name for kind, name, _ in lines if kind == "again"]


def _reward(v: Verification, report: _Report, result: ExecResult) -> Verdict:
    if result.timed_out:
        raise VerifierTimeout(f"the verifier did not end within {v.timeout_s:g} s")
    if not report.ended or report.killed:
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
