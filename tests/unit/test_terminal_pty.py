"""`terminal(pty=true)`: programs that need a terminal, over script(1) and over python3, on each backend."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import secrets
import shlex
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_hermes.sandbox.labels import Owner
from pytest_hermes.sandbox.protocol import Sandbox, SandboxRequest
from pytest_hermes.task import SandboxSpec
from pytest_hermes.tools.toolbox import Toolbox

docker = pytest.mark.requires("docker")
MAKERS = [
    "local-script",
    "local-python3",
    pytest.param("confined-script", marks=pytest.mark.requires("bwrap")),
    pytest.param("docker-script", marks=docker),
    pytest.param("docker-python3", marks=[docker, pytest.mark.requires("sample-images")]),
]


@dataclasses.dataclass
class Agent:
    """A toolbox, called from test code as a model would call it."""

    toolbox: Toolbox
    wait: Callable[[Coroutine[Any, Any, Any]], Any]

    def __call__(self, name: str, **arguments: Any) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.wait(self.toolbox.call(name, arguments)))
        return result

    def terminal(self, command: str, **more: Any) -> dict[str, Any]:
        return self("terminal", command=command, pty=True, **more)

    def start(self, command: str) -> str:
        session: str = self.terminal(command, background=True)["session_id"]
        return session

    def until(self, session: str, text: str) -> str:
        """Poll until the process has written `text`; each look is a command, which is pause enough."""
        while True:
            found = self("process", action="log", session_id=session)
            if text in found["output"]:
                output: str = found["output"]
                return output
            assert found["status"] == "running", found

    def left(self, seconds: str) -> int:
        pattern = f"sleep.{seconds[:-1]}[{seconds[-1]}]"
        done = self.wait(self.toolbox.sandbox.exec(f"cat /proc/[0-9]*/cmdline 2>/dev/null | grep -ac '{pattern}'"))
        return int(done.stdout)


def path_without(folder: Path, *programs: str) -> str:
    """A directory with the programs of this machine except some."""
    folder.mkdir()
    for directory in ("/usr/bin", "/bin"):
        for path in Path(directory).iterdir():
            if not path.name.startswith(programs) and not (folder / path.name).exists():
                (folder / path.name).symlink_to(path)
    return str(folder)


@pytest.fixture
def make_agent(tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    closers: list[Callable[[], Any]] = []

    def wait(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, 60), loop).result()

    def make(kind: str, env: dict[str, str] | None = None) -> Agent:
        backend, _, maker = kind.partition("-")
        hidden = {"script": (), "python3": ("script",), "none": ("script", "python")}[maker]
        spec: dict[str, Any] = {"env": dict(env or {})}
        if backend == "docker":
            from pytest_hermes.sandbox.docker import DockerProvider

            provider: Any = DockerProvider()
            spec["image"] = "hermes-test/base:local" if maker == "script" else "python:3.13-slim-bookworm"
        else:
            from pytest_hermes.sandbox.local import LocalProvider

            provider = LocalProvider(confine="on" if backend == "confined" else "off", root=tmp_path / "s")
            if hidden:
                spec["env"]["PATH"] = path_without(tmp_path / "bin", *hidden)
        labels = Owner.here(run="pty-test").labels()

        async def create() -> Sandbox:
            return await provider.create(SandboxRequest(SandboxSpec(**spec), labels, "pty", 600, 600))

        sandbox = wait(create())
        if backend == "docker" and maker == "python3":
            wait(sandbox.exec("rm -f /usr/bin/script", user="root"))
        toolbox = Toolbox(sandbox, ["terminal"])

        async def close() -> None:
            await toolbox.aclose()
            await sandbox.close()
            await provider.aclose()

        closers.append(lambda: wait(close()))
        return Agent(toolbox, wait)

    try:
        yield make
    finally:
        for close in closers:
            close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(params=MAKERS)
def agent(request: pytest.FixtureRequest, make_agent: Callable[[str], Agent]) -> Agent:
    return make_agent(request.param)


def test_a_foreground_command_has_a_terminal(agent: Agent) -> None:
    plain = agent("terminal", command="test -t 0 || test -t 1 || echo none")
    assert plain["output"] == "none\n"
    seen = agent.terminal("test -t 0 && test -t 1 && test -t 2 && stty size && tty >/dev/null && echo both; echo é")
    assert seen == {"output": "40 120\nboth\né\n", "exit_code": 0, "error": None}


def test_exit_codes_cwd_and_variables(agent: Agent) -> None:
    agent("terminal", command="mkdir -p d && cd d && export A='x  y'; B=not_exported")
    assert agent.terminal('echo "$A${B-} ${PWD##*/}"; exit 7') == {"output": "x  y d\n", "exit_code": 7, "error": None}
    assert agent.terminal("kill -9 $$")["exit_code"] == 137
    assert agent.terminal("false")["exit_code"] == 1
    assert agent.terminal("cd /; export A=changed")["exit_code"] == 0
    assert agent("terminal", command='echo "$A ${PWD##*/}"')["output"] == "x  y d\n"
    assert agent.terminal("pwd", workdir="/usr")["output"] == "/usr\n"
    assert agent.terminal("echo \"it's\" '$A' `echo b`")["output"] == "it's $A b\n"


def test_a_foreground_reader_gets_the_end_of_input(agent: Agent) -> None:
    assert agent.terminal('read -r x; echo "end $?"; cat; echo over', timeout=20)["output"] == "end 1\nover\n"


@pytest.mark.parametrize("size", [60_000, 131_072, 400_000])
def test_a_command_of_any_length(agent: Agent, size: int) -> None:
    agent("terminal", command="readonly d=1 c=1")
    word = "it's 'ü' $HOME " + "x" * size
    command = f"printf %s {shlex.quote(word)} | sha256sum; test -t 0 && exit 5"
    digest = hashlib.sha256(word.encode()).hexdigest()
    assert agent.terminal(command) == {"output": f"{digest}  -\n", "exit_code": 5, "error": None}
    started = agent.terminal(command, background=True)
    ended = agent("process", action="wait", session_id=started["session_id"], timeout=60)
    assert (ended["status"], ended["exit_code"]) == ("exited", 5) and digest in ended["output"]


PASSWORD = """
import sys, termios
mode = termios.tcgetattr(0)
mode[3] &= ~termios.ECHO
for number in range(3):
    {pause}
    termios.tcsetattr(0, termios.TCSAFLUSH, mode)
    print(number, repr(sys.stdin.readline()), flush=True)
"""
KEY = """
import os, time, tty
time.sleep(0.3)
tty.setraw(0)
print(repr(os.read(0, 1)))
"""


@pytest.mark.parametrize("kind", ["local-script", "local-python3"])
def test_readers_that_throw_away_what_was_typed_meet_the_end_of_input_as_well(
    make_agent: Callable[[str], Agent], kind: str
) -> None:
    agent = make_agent(kind)
    for pause in ("pass", "import time; time.sleep(0.2)"):
        found = agent.terminal(f"python3 -c {shlex.quote(PASSWORD.format(pause=pause))}", timeout=20)
        assert (found["output"], found["exit_code"]) == ("0 ''\n1 ''\n2 ''\n", 0)
    found = agent.terminal(f"python3 -c {shlex.quote(KEY)}", timeout=20)
    assert found["output"].strip() == repr(b"\x04") and found["exit_code"] == 0
    found = agent.terminal("read -rsp 'Password: ' p; echo \"end $?\"; python3 -c 'import getpass; getpass.getpass()'")
    assert found["exit_code"] == 1 and "end 1" in found["output"] and "EOFError" in found["output"]


@pytest.mark.parametrize("kind", ["local-script", "local-python3"])
def test_the_shells_functions_are_not_in_the_way_of_a_terminal(make_agent: Callable[[str], Agent], kind: str) -> None:
    agent = make_agent(kind)
    agent("terminal", command='for f in mktemp mkfifo rm printf sleep kill; do eval "$f() { return 9; }"; done')
    assert agent.terminal("cat; echo over", timeout=20) == {"output": "over\n", "exit_code": 0, "error": None}


UNUSABLE = ("/nonexistent", "/proc", "/dev/null", "relative", " ", "-x")


def test_no_temporary_directory_is_no_hindrance(agent: Agent) -> None:
    for folder in UNUSABLE:
        agent("terminal", command=f"export TMPDIR={shlex.quote(folder)}")
        for command in ("cat; test -t 0 && exit 5", f"cat; test -t 0 && exit 5 # {'x' * 150_000}"):
            assert agent.terminal(command, timeout=20) == {"output": "", "exit_code": 5, "error": None}, folder
    assert agent("terminal", command="ls -d /tmp/hermes-pty-* relative")["exit_code"] != 0


@pytest.mark.parametrize("kind", ["local-script", "local-python3"])
def test_a_long_command_that_is_not_run_leaves_no_file(
    make_agent: Callable[..., Agent], kind: str, tmp_path: Path
) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    agent = make_agent(kind, {"TMPDIR": str(folder)})
    long = f"echo ran # {'x' * 150_000}"
    for background in (False, True):
        assert agent.terminal(long, workdir="/nonexistent", background=background)["exit_code"] != 0
    agent("terminal", command="export TMPDIR=/proc")
    failed = agent.terminal(long, background=True)
    assert failed["exit_code"] == -1 and "could not be started: mkdir" in failed["error"]
    assert agent.terminal(long) == {"output": "ran\n", "exit_code": 0, "error": None}
    assert list(folder.glob("hermes-pty-*")) == []


def test_a_time_out_ends_everything_that_it_started(agent: Agent) -> None:
    seconds = f"47{secrets.randbelow(10**6):06d}"
    command = f"echo part; (setsid sleep {seconds} &); nohup sleep {seconds} & trap '' HUP INT TERM; sleep {seconds}"
    result = agent.terminal(command, timeout=2)
    assert result["exit_code"] == 124 and result["output"].startswith("part\n")
    assert agent.left(seconds) == 0
    assert agent("terminal", command="echo on")["output"] == "on\n"


def test_megabytes_of_output(agent: Agent) -> None:
    result = agent.terminal("seq 200000; echo last")
    assert result["output"].startswith("1\n2\n") and result["output"].endswith("200000\nlast\n")
    assert "TRUNCATED" in result["output"]


def test_a_password_prompt_is_answered_and_not_shown(agent: Agent) -> None:
    session = agent.start('read -rsp \'Password: \' p; echo; echo "got ${#p}"; read -r q; echo "and $q"; exit 3')
    agent.until(session, "Password: ")
    assert agent("process", action="submit", session_id=session, data="s3cret!")["status"] == "ok"
    assert "s3cret" not in agent.until(session, "got 7")
    agent("process", action="write", session_id=session, data="seen\r")
    ended = agent("process", action="wait", session_id=session, timeout=30)
    assert (ended["status"], ended["exit_code"]) == ("exited", 3)
    assert ended["output"].endswith("seen\nand seen\n") and "s3cret" not in ended["output"]


def test_an_interactive_shell_is_typed_into_and_closed(agent: Agent) -> None:
    session = agent.start("PS1='ready> ' bash --norc --noprofile -i")
    agent.until(session, "ready> ")
    agent("process", action="submit", session_id=session, data="echo $((6*7))")
    agent.until(session, "42")
    agent("process", action="submit", session_id=session, data="echo g$((1))o; sleep 600")
    agent.until(session, "g1o")
    agent("process", action="write", session_id=session, data="\x03")  # Ctrl-C reaches what runs in the terminal
    agent("process", action="submit", session_id=session, data="echo st$((1))ll")
    agent.until(session, "st1ll")
    assert agent("process", action="poll", session_id=session)["status"] == "running"
    agent("process", action="close", session_id=session)
    ended = agent("process", action="wait", session_id=session, timeout=30)
    assert ended["status"] == "exited"


def test_kill_ends_the_tree_of_a_background_terminal(agent: Agent) -> None:
    seconds = f"48{secrets.randbelow(10**6):06d}"
    session = agent.start(f"(setsid sleep {seconds} &); sleep {seconds} & echo up; trap '' HUP TERM; sleep {seconds}")
    agent.until(session, "up")
    assert agent("process", action="kill", session_id=session)["status"] == "killed"
    assert agent.left(seconds) == 0


def test_a_background_child_does_not_keep_a_terminal_from_ending(agent: Agent) -> None:
    result = agent.terminal("(trap '' HUP; sleep 30) & echo done", timeout=20)
    assert (result["output"], result["exit_code"]) == ("done\n", 0)


@pytest.mark.parametrize("kind", ["local-script", "local-python3"])
def test_a_python_console(make_agent: Callable[[str], Agent], kind: str) -> None:
    agent = make_agent(kind)
    session = agent.start("python3 -q -i")
    agent.until(session, ">>> ")
    agent("process", action="submit", session_id=session, data="import sys; print(sys.stdin.isatty(), 6 * 7)")
    agent.until(session, "True 42")
    agent("process", action="submit", session_id=session, data="raise SystemExit(5)")
    assert agent("process", action="wait", session_id=session, timeout=30)["exit_code"] == 5


def test_without_any_maker_it_says_so(make_agent: Callable[[str], Agent]) -> None:
    agent = make_agent("local-none")
    for background in (False, True):
        result = agent.terminal("echo x", background=background)
        assert result["exit_code"] == -1 and "script (util-linux) or python3" in result["error"]
    assert agent("terminal", command="echo x", pty=False)["output"] == "x\n"


def test_the_parameter_is_that_of_hermes() -> None:
    from pytest_hermes.tools.terminal import TERMINAL

    found = TERMINAL.parameters["properties"]["pty"]
    assert (found["type"], found["default"]) == ("boolean", False)
