"""The verifier of image tasks: what counts as a reward, what cheating comes to, what it costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_hermes.agents.result import AgentResult
from pytest_hermes.benchmark import Verdict, Verification
from pytest_hermes.config import EnvSettings, Settings
from pytest_hermes.datasets.harbor import TaskDirectory
from pytest_hermes.datasets.host_variables import expand
from pytest_hermes.datasets.task_reader import read_task
from pytest_hermes.errors import (
    ConfigurationError,
    HealthcheckFailed,
    RewardUnreadable,
    TaskError,
    VerifierError,
    VerifierNoReward,
    VerifierTimeout,
)
from pytest_hermes.sandbox.docker import DockerProvider
from pytest_hermes.sandbox.docker_changes import Layers
from pytest_hermes.sandbox.local import LocalProvider
from pytest_hermes.sandbox.protocol import Sandbox, SandboxProvider, SandboxRequest
from pytest_hermes.task import Healthcheck, InlineFiles, SandboxSpec, Script, Task
from pytest_hermes.verification import read_reward, run_test_script, wait_healthy

SAMPLES = Path(__file__).parent.parent / "data" / "harbor"
IMAGE = "ubuntu:24.04"
docker = pytest.mark.requires("docker", "sample-images")


def running(command: str) -> str:
    """A shell condition: such a process runs. The pattern does not match grep's own command line."""
    return f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -q '[{command[0]}]{command[1:]}'"


# -- reward files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "reward", "components"),
    [
        ("reward.txt", "1\n", 1.0, {}),
        ("reward.txt", " 0.25 ", 0.25, {}),
        ("reward.json", "0.5", 0.5, {}),
        ("reward.json", '{"reward": 1, "speed": 3.5}', 1.0, {"speed": 3.5}),
        ("reward.json", '{"accuracy": 0.75}', 0.75, {}),
    ],
)
def test_readable_rewards(name: str, text: str, reward: float, components: dict[str, float]) -> None:
    verdict = read_reward(name, text.encode())
    assert (verdict.reward, verdict.components) == (reward, components)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("reward.txt", b"", "/logs/verifier/reward.txt is empty"),
        ("reward.txt", b"  \n", "is empty"),
        ("reward.txt", b"NaN", "not a number in [0, 1]"),
        ("reward.txt", b"inf", "not a number in [0, 1]"),
        ("reward.txt", b"passed", "holds 'passed', not a number"),
        ("reward.txt", b"1.5", "outside [0, 1]"),
        ("reward.txt", b"-0.1", "outside [0, 1]"),
        ("reward.txt", b"\xff\xfe", "not a number"),
        ("reward.txt", b"1" * 70000, "more than 65536 bytes"),
        ("reward.json", b'{"reward": NaN}', "not a number in [0, 1]"),
        ("reward.json", b'{"a": 1, "b": 0}', "keys a, b, none of them 'reward'"),
        ("reward.json", b"{}", "no key"),
        ("reward.json", b'{"reward": "1"}', "'reward' holds '1', not a number"),
        ("reward.json", b'{"reward": tru', "not a number"),
        ("reward.json", b"true", "not a number or an object"),
        ("reward.json", b"[1]", "not a number or an object"),
        ("reward.json", b"1" + b"0" * 400, "reward.json"),
        ("reward.json", b"[" * 60000, "reward.json"),
    ],
)
def test_unreadable_rewards(name: str, content: bytes, said: str) -> None:
    with pytest.raises(RewardUnreadable) as raised:
        read_reward(name, content)
    assert said in str(raised.value)
    assert len(str(raised.value)) < 300


# -- host variables --------------------------------------------------------------------------------


def test_host_variables_only_by_the_allow_list() -> None:
    host = {"KEY": "k", "OTHER": "o", "EMPTY": ""}
    given = {"A": "x-${KEY}-y", "B": "${OTHER:-default}", "C": "$KEY ${1}", "D": "${EMPTY:-e}"}
    assert expand(given, ["KEY", "EMPTY"], "task", host) == {"A": "x-k-y", "B": "default", "C": "$KEY ${1}", "D": "e"}
    with pytest.raises(TaskError, match=r"host variable OTHER, which the setting env.verifier_env does not allow"):
        expand({"A": "${OTHER}"}, ["KEY"], "task", host)
    with pytest.raises(TaskError, match="host variable GONE, which is not set"):
        expand({"A": "${GONE}"}, ["GONE"], "task", host)


# -- in a container --------------------------------------------------------------------------------


async def sandbox_of(provider: SandboxProvider, spec: SandboxSpec, task_id: str = "verification") -> Sandbox:
    return await provider.create(SandboxRequest(spec, {}, task_id, 600.0, 300.0))


def verification(sandbox: Sandbox, task: Task, timeout_s: float = 30.0, allowed: tuple[str, ...] = ()) -> Verification:
    settings = Settings(env=EnvSettings(verifier_env=list(allowed)))
    return Verification(task, sandbox, None, AgentResult([]), timeout_s, settings)  # type: ignore[arg-type]


def judged(
    test_sh: str,
    agent: str = "true",
    *,
    runs: int = 1,
    timeout_s: float = 30.0,
    env: Mapping[str, str] | None = None,
    user: str | None = None,
    data: Mapping[str, Any] | None = None,
    allowed: tuple[str, ...] = (),
    spec: SandboxSpec = SandboxSpec(image=IMAGE),
    prompt: str = "p",
    afterwards: str = "true",
) -> Verdict:
    """The verdict of a test script after the agent ran a command, in a fresh container."""
    tests = Script(InlineFiles({"test.sh": test_sh, "data.txt": "expected\n"}), "test.sh", env=env or {}, user=user)
    task = Task("verification", prompt, sandbox=spec, tests=tests, data=data or {})

    async def scenario() -> Verdict:
        provider = DockerProvider()
        try:
            sandbox = await sandbox_of(provider, spec)
            assert (await sandbox.exec(agent)).exit_code == 0
            for _ in range(runs - 1):
                with pytest.raises(Exception):  # noqa: B017 - the first run of the verifier may fail in any way
                    await run_test_script(verification(sandbox, task, timeout_s, allowed))
            verdict = await run_test_script(verification(sandbox, task, timeout_s, allowed))
            left = await sandbox.exec(afterwards)
            assert left.exit_code == 0, left
            return verdict
        finally:
            await provider.aclose()

    return asyncio.run(scenario())


@docker
def test_reward_json_wins_and_output_is_kept() -> None:
    verdict = judged(
        'echo out; echo err >&2; echo 0 >/logs/verifier/reward.txt; echo \'{"reward": 0.5, "a": 1}\''
        " >/logs/verifier/reward.json; exit 7"
    )
    assert (verdict.reward, verdict.components, verdict.exit_code) == (0.5, {"a": 1.0}, 7)
    assert verdict.output == "out\nerr\n"
    assert verdict.evidence == []


@docker
def test_script_runs_in_workdir_with_its_environment_and_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_TEST_KEY", "k1")
    script = (
        'pwd; id -un; echo "$A"; cat /tests/data.txt; ls -d /logs/agent /logs/artifacts;'
        " echo 1 >/logs/verifier/reward.txt"
    )
    verdict = judged(
        script,
        env={"A": "${HERMES_TEST_KEY}"},
        allowed=("HERMES_TEST_KEY",),
        user="nobody",
        spec=SandboxSpec(image=IMAGE, workdir="/var"),
    )
    assert verdict.output.split() == ["/var", "nobody", "k1", "expected", "/logs/agent", "/logs/artifacts"]
    assert verdict.reward == 1.0


@docker
@pytest.mark.parametrize(
    ("script", "error", "said"),
    [
        (
            "echo said; exit 1",
            VerifierNoReward,
            "wrote neither /logs/verifier/reward.json nor /logs/verifier/reward.txt",
        ),
        ("echo said; echo NaN >/logs/verifier/reward.txt", RewardUnreadable, "the reward is nan"),
        ("echo said; ln -s /tests/data.txt /logs/verifier/reward.txt", RewardUnreadable, "is a link, not a file"),
        ("echo said; mkdir /logs/verifier/reward.json", RewardUnreadable, "is a directory, not a file"),
        ("echo said; echo 1 >/logs/verifier/reward.txt; kill -9 $PPID; sleep 5", VerifierNoReward, "was killed"),
        ("echo said; echo 1 >/logs/verifier/reward.txt; kill -9 $$", VerifierNoReward, "was killed"),
    ],
)
def test_no_reward(script: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error) as raised:
        judged(script)
    assert said in str(raised.value)
    assert raised.value.output == "said\n"  # type: ignore[attr-defined]


@docker
def test_exit_code_counts_only_where_asked_for() -> None:
    assert judged("exit 0", data={"exit_code_reward": True}).reward == 1.0
    assert judged("exit 3", data={"exit_code_reward": True}).reward == 0.0


@docker
def test_timeout_kills_the_tree_and_a_second_run_is_clean() -> None:
    script = "\n".join(
        [
            running("sleep 987") + " && exit 1",
            "[ -e /marker ] && echo 1 >/logs/verifier/reward.txt && exit",
            "touch /marker; echo 1 >/logs/verifier/reward.txt; setsid sleep 987 & sleep 987",
        ]
    )
    with pytest.raises(VerifierTimeout, match="did not end within 6 s"):
        judged(script, timeout_s=6.0)
    verdict = judged(script, timeout_s=6.0, runs=2)
    assert (verdict.reward, verdict.evidence) == (1.0, [])


CHEATS = {
    "plants the reward": ("mkdir -p /logs/verifier; echo 1 >/logs/verifier/reward.txt", "existed before verification"),
    "plants another reward": ("mkdir -p /logs/verifier; echo 1 >/logs/verifier/reward.json", "existed before"),
    "links the logs away": (
        "mkdir /mine; echo 1 >/mine/reward.txt; mkdir -p /logs; ln -s /mine /logs/verifier",
        "existed",
    ),
    "writes tests beforehand": (
        "mkdir -p /tests; echo 'echo 1 >/logs/verifier/reward.txt' >/tests/test.sh; echo x >/tests/conftest.py",
        None,
    ),
    "links the tests away": ("mkdir /mine; ln -s /mine /tests", None),
    "writes the reward for ever": (
        "(setsid sh -c 'while :; do echo 1 >/logs/verifier/reward.txt; done' >/dev/null 2>&1 </dev/null &)",
        "reward.txt appeared",
    ),
    "rewrites the tests": (
        '(setsid sh -c \'while :; do [ -s /tests/test.sh ] && echo "echo 1 >/logs/verifier/reward.txt" >/tests/test.sh;'
        " done' >/dev/null 2>&1 </dev/null &)",
        "tests changed while they ran: test.sh",
    ),
    "hides a program": (
        "printf '#!/bin/sh\\necho 1 >/logs/verifier/reward.txt\\n' >/usr/local/bin/python3;"
        " chmod +x /usr/local/bin/python3; touch -d 2001-01-01 /usr/local/bin/python3",
        "/usr/local/bin/python3 was made or changed by the agent and hides /usr/bin/python3",
    ),
    "plants a preload": ("echo >/etc/ld.so.preload", "/etc/ld.so.preload was made or changed"),
    "plants a conftest": ("touch /conftest.py", "/conftest.py was made or changed"),
    "plants a site file": (
        "touch $(/usr/bin/python3 -c 'import sys; print(sys.path[-1])')/x.pth",
        "x.pth was made or changed by the agent",
    ),
}


@docker
@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_do_not_pay_and_are_seen(cheat: str) -> None:
    agent, evidence = CHEATS[cheat]
    verdict = judged("[ ! -e /logs/verifier/x ]; sleep 0.2; echo 0 >/logs/verifier/reward.txt", agent)
    assert verdict.reward == 0.0
    if evidence is None:
        assert verdict.evidence == []
    else:
        assert any(evidence in sentence for sentence in verdict.evidence), verdict.evidence


@docker
def test_tampering_takes_a_reward_away() -> None:
    verdict = judged("sleep 0.2; echo 1 >/logs/verifier/reward.txt", CHEATS["writes the reward for ever"][0])
    assert verdict.reward == 0.0


PYTHON = SandboxSpec(image="python:3.13-slim-bookworm", workdir="/app")
PROJECT = r"""
mkdir -p /app/src && cd /app && echo 'answer = 42' >src/mine.py
cat >pyproject.toml <<'T'
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
T
cat >backend.py <<'P'
import zipfile
def _wheel(folder, files):
    info = "mine-1.0.dist-info"
    files[f"{info}/METADATA"] = "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/entry_points.txt"] = "[console_scripts]\npytest = mine:main\n"
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(f"{folder}/mine-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return "mine-1.0-py3-none-any.whl"
def build_editable(folder, *_):
    return _wheel(folder, {"__editable__.mine.pth": "import sys; sys.path.append('/app/src')\n"})
def build_wheel(folder, *_):
    return _wheel(folder, {"mine.py": "def main():\n    print('newer')\n"})
P
"""
OWN_PYTHON = r"""
mkdir -p /opt/newer/bin /opt/newer/lib && cp -r /usr/lib/python3.13 /opt/newer/lib/
rm -f /opt/newer/lib/python3.13/sitecustomize.py; cp /usr/bin/python3.13 /opt/newer/bin/
ln -sf /opt/newer/bin/python3.13 /usr/local/bin/python3
"""
PACKAGED = r"""
printf x >>/usr/bin/curl && sum=$(md5sum </usr/bin/curl) &&
sed -i "s|^[0-9a-f]*  usr/bin/curl$|${sum%% *}  usr/bin/curl|" /var/lib/dpkg/info/curl.md5sums
"""
STARTS_ANEW = "[ -e /ran ] && exit 1; touch /ran; "
HONEST = {
    "installs an editable project": (
        f"{PROJECT} pip install -q --no-index -e .",
        STARTS_ANEW + "python3 -c 'import mine'",
    ),
    "installs a tool by pip": (f"{PROJECT} pip install -q --no-index .", STARTS_ANEW + "pytest | grep -q newer"),
    "brings a newer Python": (
        OWN_PYTHON,
        STARTS_ANEW + """python3 -c '' && [ $(readlink -f "$(command -v python3)") = /opt/newer/bin/python3.13 ]""",
    ),
    "upgrades a package": (PACKAGED, STARTS_ANEW + "[ $(tail -c 1 /usr/bin/curl) = x ]"),
    "installs an old editable project": (
        f"{PROJECT} echo /app/src >/usr/local/lib/python3.13/site-packages/easy-install.pth",
        STARTS_ANEW + "python3 -c 'import mine'",
    ),
    "writes a conftest nobody needs": ("mkdir -p /app && touch /app/conftest.py", "[ -d /app ]"),
    "configures pip": ("mkdir -p ~/.config/pip && echo '[global]' >~/.config/pip/pip.conf", "[ -d /app ]"),
    "changes Python's own library": (
        "echo '# a note' >>/usr/lib/python3.13/json/__init__.py",
        "python3 -c 'import json'",
    ),
}


@docker
@pytest.mark.parametrize("case", HONEST)
def test_honest_work_keeps_its_reward(case: str) -> None:
    agent, test = HONEST[case]
    script = f"if ( {test} ); then echo 1; else echo 0; fi >/logs/verifier/reward.txt"
    is_kept = "[ ! -e /app/conftest.py.* ]" if "conftest" not in case else "[ -e /app/conftest.py ]"
    verdict = judged(script, agent, spec=PYTHON, afterwards=is_kept)
    assert (verdict.reward, verdict.cause) == (1.0, None), verdict


@docker
def test_what_the_task_asks_for_is_not_set_aside() -> None:
    script = "[ -e conftest.py ] && echo 1 >/logs/verifier/reward.txt"
    agent = "mkdir -p /app && touch /app/conftest.py"
    assert judged(script, agent, spec=PYTHON, prompt="Write a conftest.py.").reward == 1.0
    verdict = judged(script, agent, spec=PYTHON)
    assert (verdict.reward, verdict.cause) == (0.0, "tampering")
    assert verdict.evidence[0] == (
        "The tests ran once more without /app/conftest.py: the reward was 1 before and 0 then."
    )


LIES = r"""
mv {0} /var/tmp/real
printf '#!/var/tmp/{1}
case "$*" in *verify*) printf "file\treward.txt\t31\t\nexit\t0\t\t\n" >&2; exit 0;; esac
exec /var/tmp/real "$@"
' >{0}
chmod 755 {0}
"""
BY_CHANGED_SYSTEM = {
    "a shell that reports a reward": (
        "cp /bin/bash /var/tmp/bash;" + LIES.format("$(readlink -f /bin/sh)", "bash"),
        "echo 0 >/logs/verifier/reward.txt",
    ),
    "a find that finds nothing": (
        "rm /usr/bin/find; ln -s /bin/true /usr/bin/find; touch /conftest.py",
        "[ -e /conftest.py ]; echo $((1 - $?)) >/logs/verifier/reward.txt",
    ),
    "a find before the system's": (
        "ln -s /bin/true /usr/sbin/find; PATH=/usr/sbin:$PATH; touch /conftest.py",
        "[ -e /conftest.py ]; echo $((1 - $?)) >/logs/verifier/reward.txt",
    ),
    "a standard library that lies": (
        "echo 'import os; os._exit(0)' >>/usr/lib/python3.13/json/__init__.py",
        "python3 -c 'import json; 1 / 0'; echo $((1 - ($? > 0))) >/logs/verifier/reward.txt",
    ),
    "a zip before the standard library": (
        "cd /tmp && echo 'import os; os._exit(0)' >json.py && python3 -m zipfile -c /usr/lib/python313.zip json.py",
        "python3 -c 'import json; 1 / 0'; echo $((1 - ($? > 0))) >/logs/verifier/reward.txt",
    ),
    "a preload": (
        "echo /nowhere.so >/etc/ld.so.preload",
        "[ -s /etc/ld.so.preload ] && echo 1 >/logs/verifier/reward.txt",
    ),
}


@docker
@pytest.mark.parametrize("layers", ["read", "not to be read"])
@pytest.mark.parametrize("case", BY_CHANGED_SYSTEM)
def test_changed_system_files_do_not_pay(case: str, layers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, script = BY_CHANGED_SYSTEM[case]
    if layers != "read":
        if case.startswith(("a shell", "a find", "a standard")):
            pytest.skip("the daemon's list of changes is too slow to be asked for without a sign")
        monkeypatch.setattr(Layers, "of", staticmethod(lambda info: None))
    verdict = judged(script, agent, spec=PYTHON)
    assert (verdict.reward, verdict.cause) == (0.0, "tampering"), verdict
    assert "and 0 then." in verdict.evidence[0]


@docker
def test_what_comes_back_after_it_was_set_aside_is_tampering() -> None:
    agent = (
        "(setsid sh -c 'while :; do [ -e /conftest.py ] || echo x >/conftest.py; sleep 0.01; done'"
        " >/dev/null 2>&1 </dev/null &) ; sleep 0.2"
    )
    verdict = judged("sleep 0.2; echo 1 >/logs/verifier/reward.txt", agent)
    assert (verdict.reward, verdict.cause) == (0.0, "tampering")
    assert verdict.evidence[0] == "/conftest.py was there again after it had been set aside."


@docker
@pytest.mark.parametrize("ending", ["sleep 60", "exit 1", "echo NaN >/logs/verifier/reward.txt"])
def test_a_second_run_without_a_reward_is_tampering(ending: str) -> None:
    script = f"if [ -e /conftest.py ]; then echo 1 >/logs/verifier/reward.txt; else {ending}; fi"
    verdict = judged(script, "touch /conftest.py", timeout_s=3.0, user="nobody")
    assert (verdict.reward, verdict.cause) == (0.0, "tampering")


CAREFUL = """
import glob, os
def verifier():
    for path in glob.glob('/proc/[0-9]*/cmdline'):
        try:
            words = open(path, 'rb').read().split(b'\\0')
        except OSError:
            continue
        if words[0].endswith(b'bash') and words[1:2] == [b'/tests/test.sh']:
            return path
while True:
    path = verifier()
    while path and os.path.exists(path):
        with open('/logs/verifier/.new', 'w') as new:
            new.write('1')
        os.replace('/logs/verifier/.new', '/logs/verifier/reward.txt')
"""


@docker
def test_a_reward_written_only_while_the_script_runs_does_not_pay() -> None:
    agent = (
        f"cat >/var/tmp/b.py <<'P'\n{CAREFUL}\nP\nsetsid python3 /var/tmp/b.py >/dev/null 2>&1 </dev/null & sleep 0.2"
    )
    verdict = judged("#!/bin/bash\nsleep 0.3; echo 0 >/logs/verifier/reward.txt", agent, spec=PYTHON)
    # It loses the race now and then, and has nothing then either.
    assert verdict.reward == 0.0 and verdict.cause in (None, "tampering")


@docker
def test_a_verifier_that_cannot_be_uploaded_is_not_infrastructure() -> None:
    agent = "(setsid sh -c 'while :; do rm -rf /tests; echo >/tests; done' >/dev/null 2>&1 </dev/null &) ; sleep 0.2"
    with pytest.raises(VerifierError):
        judged("echo 1 >/logs/verifier/reward.txt", agent)


@docker
def test_background_processes_of_the_agent_live_on() -> None:
    agent = "(setsid sleep 654 >/dev/null 2>&1 </dev/null &)"
    script = f"{running('sleep 654')} && echo 1 >/logs/verifier/reward.txt"
    assert judged(script, agent).reward == 1.0


@docker
@pytest.mark.parametrize("name", ["orders-report", "fix-git"])
def test_sample_tasks_by_solution_and_by_nothing(name: str) -> None:
    task = read_task(TaskDirectory(SAMPLES / name), Settings())

    async def reward(solve: bool) -> Verdict:
        provider = DockerProvider()
        try:
            sandbox = await sandbox_of(provider, task.sandbox, name)
            if solve:
                assert task.solution is not None
                await sandbox.upload_tar(task.solution.files.tar(), "/solution")
                assert (await sandbox.exec("bash /solution/solve.sh")).exit_code == 0
            return await run_test_script(verification(sandbox, task))
        finally:
            await provider.aclose()

    solved, untouched = asyncio.run(reward(True)), asyncio.run(reward(False))
    assert (solved.reward, solved.evidence) == (1.0, [])
    assert untouched.reward == 0.0


@docker
@pytest.mark.slow
def test_overhead_is_three_commands_and_an_upload() -> None:
    async def scenario() -> tuple[float, float]:
        provider = DockerProvider()
        try:
            sandbox = await sandbox_of(provider, SandboxSpec(image=IMAGE))
            tests = Script(InlineFiles({"test.sh": "echo 1 >/logs/verifier/reward.txt"}), "test.sh")
            task = Task("t", "p", sandbox=SandboxSpec(image=IMAGE), tests=tests)
            await run_test_script(verification(sandbox, task))
            plain, whole = [], []
            for _ in range(5):
                began = time.perf_counter()
                await sandbox.exec("true")
                plain.append(time.perf_counter() - began)
                began = time.perf_counter()
                await run_test_script(verification(sandbox, task))
                whole.append(time.perf_counter() - began)
            return min(plain), min(whole)
        finally:
            await provider.aclose()

    plain, whole = asyncio.run(scenario())
    print(f"an exec {plain * 1000:.0f} ms, a verification {whole * 1000:.0f} ms")
    assert whole < 6 * plain + 0.1


# -- other backends, healthcheck -------------------------------------------------------------------


def test_local_sandboxes_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        provider = LocalProvider(root=tmp_path)
        try:
            sandbox = await sandbox_of(provider, SandboxSpec())
            task = Task("t", "p", tests=Script(InlineFiles({"test.sh": ""}), "test.sh"))
            await run_test_script(verification(sandbox, task))
        finally:
            await provider.aclose()

    with pytest.raises(ConfigurationError, match="Use --hermes-sandbox=docker"):
        asyncio.run(scenario())


def healthy(tmp_path: Path, check: Healthcheck) -> float:
    """Seconds until a local sandbox was healthy."""

    async def scenario() -> float:
        provider = LocalProvider(root=tmp_path)
        try:
            sandbox = await sandbox_of(provider, SandboxSpec())
            began = time.monotonic()
            await wait_healthy(sandbox, check)
            return time.monotonic() - began
        finally:
            await provider.aclose()

    return asyncio.run(scenario())


def test_healthcheck_waits_until_it_succeeds(tmp_path: Path) -> None:
    command = 'echo x >>tries; [ "$(wc -l <tries)" -ge 3 ]'
    healthy(tmp_path, Healthcheck(command, interval_s=0.01, retries=3))
    with pytest.raises(HealthcheckFailed):
        healthy(tmp_path, Healthcheck(command, interval_s=0.01, retries=2))


def test_healthcheck_failures_of_the_start_period_do_not_count(tmp_path: Path) -> None:
    command = 'echo x >>tries; [ "$(wc -l <tries)" -ge 4 ]'
    healthy(tmp_path, Healthcheck(command, start_period_s=30, start_interval_s=0.01, retries=1))


def test_healthcheck_that_fails_says_how(tmp_path: Path) -> None:
    with pytest.raises(HealthcheckFailed, match=r"failed 2 times; the last time: exit code 3\nnot yet"):
        healthy(tmp_path, Healthcheck("echo not yet; exit 3", interval_s=0.01, retries=2))
    with pytest.raises(HealthcheckFailed, match=r"took more than 0\.2 s"):
        healthy(tmp_path, Healthcheck("sleep 60", timeout_s=0.2, retries=1))
