"""The tools in real sandboxes, local and docker: what a model's call does and what it gets to see."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_hermes.errors import SandboxKilled, SandboxLost
from pytest_hermes.sandbox.labels import Owner
from pytest_hermes.sandbox.protocol import Sandbox, SandboxRequest
from pytest_hermes.task import SandboxSpec
from pytest_hermes.tools.toolbox import Toolbox, ToolSettings

BACKENDS = [
    "local",
    pytest.param("docker", marks=[pytest.mark.requires("docker"), pytest.mark.requires("sample-images")]),
]


@asynccontextmanager
async def sandbox_of(backend: str, root: Path, **spec: Any) -> AsyncIterator[Sandbox]:
    if backend == "local":
        from pytest_hermes.sandbox.local import LocalProvider

        provider: Any = LocalProvider(confine="off", root=root)
    else:
        from pytest_hermes.sandbox.docker import DockerProvider

        spec.setdefault("image", "python:3.13-slim-bookworm")
        provider = DockerProvider()
    request = SandboxRequest(SandboxSpec(**spec), Owner.here(run="tools-test").labels(), "tools", 600, 600)
    try:
        sandbox = await provider.create(request)
        try:
            yield sandbox
        finally:
            await sandbox.close()
    finally:
        await provider.aclose()


class Desk:
    """A toolbox that is called from test code as a model would call it."""

    def __init__(self, toolbox: Toolbox, loop: asyncio.AbstractEventLoop) -> None:
        self.toolbox, self.loop = toolbox, loop
        self.sandbox = toolbox.sandbox

    def wait(self, awaitable: Awaitable[Any], timeout: float = 60) -> Any:
        async def bounded() -> Any:
            return await asyncio.wait_for(awaitable, timeout)

        return asyncio.run_coroutine_threadsafe(bounded(), self.loop).result()

    def raw(self, name: str, arguments: Any, call_id: str | None = None) -> str:
        return self.wait(self.toolbox.call(name, arguments, call_id=call_id))

    def __call__(self, name: str, **arguments: Any) -> dict[str, Any]:
        return json.loads(self.raw(name, json.dumps(arguments)))

    def sh(self, command: str) -> str:
        """Run a command beside the tools, as a check of what they did."""
        done = self.wait(self.sandbox.exec(command))
        assert done.exit_code == 0, done
        return done.stdout.decode()


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


MakeDesk = Callable[..., Desk]


@pytest.fixture(scope="module", params=BACKENDS)
def shared_sandbox(
    request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sandbox]:
    """One sandbox for the tests that only write below their own directory."""
    context = sandbox_of(request.param, tmp_path_factory.mktemp("sandboxes"))
    run = lambda awaitable: asyncio.run_coroutine_threadsafe(awaitable, loop).result()  # noqa: E731
    sandbox = run(context.__aenter__())
    yield sandbox
    run(context.__aexit__(None, None, None))


@pytest.fixture
def desks(
    shared_sandbox: Sandbox, loop: asyncio.AbstractEventLoop, request: pytest.FixtureRequest
) -> Iterator[MakeDesk]:
    made: list[Desk] = []

    def make(toolsets: list[str] | None = None, **settings: Any) -> Desk:
        desk = Desk(Toolbox(shared_sandbox, toolsets, settings=ToolSettings(**settings)), loop)
        made.append(desk)
        return desk

    yield make
    for desk in made:
        desk.wait(desk.toolbox.aclose())


@pytest.fixture
def desk(desks: MakeDesk, request: pytest.FixtureRequest) -> Desk:
    desk = desks()
    folder = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)
    assert desk("terminal", command=f"mkdir -p {folder} && cd {folder}")["exit_code"] == 0
    return desk


# -- terminal and process ----------------------------------------------------------------------------


def test_the_shell_is_kept_between_calls(desk: Desk) -> None:
    assert desk("terminal", command="export A=5; mkdir -p d; cd d") == {"output": "", "exit_code": 0, "error": None}
    assert desk("terminal", command='echo "$A ${PWD##*/}"; echo err >&2; exit 3')["exit_code"] == 3
    assert desk("terminal", command='echo "$A ${PWD##*/}"')["output"] == "5 d\n"


def test_workdir_holds_for_one_command(desk: Desk) -> None:
    assert desk("terminal", command="pwd; X=1", workdir="/tmp")["output"] == "/tmp\n"
    assert desk("terminal", command="echo ${PWD##*/}")["output"].startswith("test_workdir_holds")
    assert "No such file" in desk("terminal", command="pwd", workdir="/nowhere")["output"]


def test_a_time_out_gives_124_and_what_was_written(desk: Desk) -> None:
    result = desk("terminal", command="echo before; sleep 30; echo after", timeout=1)
    assert result["exit_code"] == 124 and result["output"].startswith("before\n")
    assert result["output"].endswith("[Command timed out after 1s]") and "after\n" not in result["output"]
    assert desk("terminal", command="echo alive")["output"] == "alive\n"


def test_long_output_loses_its_middle(desk: Desk) -> None:
    output = desk("terminal", command="seq 1000000")["output"]
    assert output.startswith("1\n2\n") and output.endswith("1000000\n")
    assert 50_000 <= len(output) <= 50_200 and "bytes omitted out of 6888896 total" in output
    assert 19_900 < output.index("[OUTPUT TRUNCATED") < 20_100


def test_output_is_shown_as_it_is(desk: Desk) -> None:
    result = desk("terminal", command=r"printf 'sk-proj-abcdef0123456789 \033[31mred\033[0m \xff\xfe é'")
    assert result["output"] == "sk-proj-abcdef0123456789 \x1b[31mred\x1b[0m \ufffd\ufffd é"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"command": "sleep 1", "timeout": 9999}, "exceeds the maximum of 600s"),
        ({"command": "a\0b"}, "NUL byte"),
        ({"command": "  "}, "empty"),
    ],
)
def test_commands_that_cannot_be_run_are_refused_with_a_reason(desk: Desk, arguments: Any, error: str) -> None:
    result = desk("terminal", **arguments)
    assert result["exit_code"] == -1 and error in result["error"]


def test_a_background_process_from_start_to_end(desk: Desk) -> None:
    desk("terminal", command="export WHO=me")
    started = desk("terminal", command='echo "hi $WHO"; read line; echo "got $line"; umask; exit 7', background=True)
    session = started["session_id"]
    assert started["exit_code"] == 0 and started["pid"] > 0
    assert desk("process", action="poll", session_id=session)["status"] == "running"
    assert [entry["session_id"] for entry in desk("process", action="list")["processes"]] == [session]
    assert desk("process", action="submit", session_id=session, data="it's")["status"] == "ok"
    ended = desk("process", action="wait", session_id=session, timeout=20)
    umask = desk("terminal", command="umask")["output"]
    assert (ended["status"], ended["exit_code"]) == ("exited", 7)
    assert ended["output"] == f"hi me\ngot it's\n{umask}"
    log = desk("process", action="log", session_id=session, offset=1, limit=1)
    assert (log["output"], log["total_lines"], log["showing"]) == ("got it's", 3, "1 lines")
    assert desk("process", action="write", session_id=session, data="x")["error"] == "Process has already finished"


def test_end_of_input_ends_a_reader(desk: Desk) -> None:
    session = desk("terminal", command="wc -c", background=True)["session_id"]
    data = "x" * 100_000
    assert desk("process", action="write", session_id=session, data=data)["bytes_written"] == 100_000
    assert desk("process", action="close", session_id=session)["status"] == "ok"
    ended = desk("process", action="wait", session_id=session, timeout=20)
    assert (ended["exit_code"], ended["output"].strip()) == (0, "100000")


def test_waiting_for_a_process_has_an_end_and_kill_takes_the_whole_tree(desk: Desk) -> None:
    command = "(setsid sleep 4711 &) ; (nohup sleep 4711 >/dev/null 2>&1 &) ; trap '' TERM; sleep 4711"
    session = desk("terminal", command=command, background=True)["session_id"]
    waited = desk("process", action="wait", session_id=session, timeout=1)
    assert waited["status"] == "timeout" and "exit_code" not in waited
    killed = desk("process", action="kill", session_id=session)
    assert killed["status"] == "killed" and killed["exit_code"] > 128
    assert desk("process", action="kill", session_id=session)["status"] == "already_exited"
    left = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline 2>/dev/null | grep -x 'sleep 4711 ' ; done; true"
    assert desk.sh(left) == ""


def test_background_output_is_bounded_in_the_sandbox(desk: Desk) -> None:
    session = desk("terminal", command="echo first; seq 6000000; echo last", background=True)["session_id"]
    assert desk("process", action="wait", session_id=session, timeout=50)["exit_code"] == 0
    log = desk("process", action="log", session_id=session)
    assert log["output"].endswith("6000000\nlast")
    first = desk("process", action="log", session_id=session, offset=0, limit=2)
    assert first["output"] == "first\n1"
    kept = desk.sh(f"du -sk ${{TMPDIR:-/tmp}}/.hermes-processes/{session} | cut -f1")
    assert int(kept) < 20_000  # of 47 MB written


def test_a_background_process_outlives_the_toolbox(desks: MakeDesk) -> None:
    first = desks()
    pid = first("terminal", command="exec sleep 4712", background=True)["pid"]
    first.wait(first.toolbox.aclose())
    assert first.sh(f"kill -0 {pid} && kill {pid} && echo there") == "there\n"


def test_a_process_whose_files_were_removed_can_still_be_killed(desk: Desk) -> None:
    started = desk("terminal", command="exec sleep 4716", background=True)
    session = started["session_id"]
    desk("terminal", command=f"rm -r ${{TMPDIR:-/tmp}}/.hermes-processes/{session}")
    assert desk("process", action="poll", session_id=session)["status"] == "running"
    assert desk("process", action="kill", session_id=session)["status"] == "killed"


def test_a_log_that_was_removed_costs_neither_the_process_nor_the_machine(desk: Desk) -> None:
    command = "until [ -e go ]; do sleep 0.1; done; seq 1000000; echo whole >done; rm go"
    session = desk("terminal", command=command, background=True)["session_id"]
    desk("terminal", command=f"rm -r ${{TMPDIR:-/tmp}}/.hermes-processes/{session}; touch go")
    desk("terminal", command="while [ -e go ]; do sleep 0.1; done; cat done", timeout=30)
    assert desk("terminal", command="cat done")["output"] == "whole\n"
    runners = (
        f"for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline 2>/dev/null | grep -a 'sh [p]{session[1:]}'; done; true"
    )
    desk("terminal", command="sleep 1")
    assert desk.sh(runners) == ""


@pytest.mark.parametrize("size", [131_000, 131_071, 131_072, 3_000_000])
def test_a_background_command_of_any_length(desk: Desk, size: int) -> None:
    command = 'echo begun; read -r x; echo "got $x"; exit 3 # '
    command += "é" * ((size - len(command)) // 2)
    command += "x" * (size - len(command.encode()))
    session = desk("terminal", command=command, background=True)["session_id"]
    desk("process", action="submit", session_id=session, data="it")
    ended = desk("process", action="wait", session_id=session, timeout=20)
    assert (ended["output"], ended["exit_code"]) == ("begun\ngot it\n", 3)


def test_a_background_process_that_cannot_be_started_says_why_at_once(desk: Desk) -> None:
    """A shell can be found for neither the process nor what watches over it."""
    programs = "mkdir mkfifo cat env"
    desk(
        "terminal",
        command=f"mkdir few; for p in {programs}; do ln -s $(command -v $p) few/; done; export PATH=$PWD/few",
    )
    result = desk("terminal", command="echo hi", background=True)
    assert "could not be started" in result["error"] and "No such file or directory" in result["error"]
    assert desk.toolbox.calls[-1].duration_s < 10


def test_neither_a_relative_tmpdir_nor_functions_of_the_shell_break_background_processes(desk: Desk) -> None:
    names = "mkdir mkfifo umask read cat printf pwd sh bash env setsid"
    desk("terminal", command=f'export TMPDIR=below; for f in {names}; do eval "$f() {{ return 9; }}"; done')
    session = desk("terminal", command='read -r x; echo "got $x"', background=True)["session_id"]
    desk("terminal", command="cd /")
    assert desk("process", action="submit", session_id=session, data="it")["status"] == "ok"
    ended = desk("process", action="wait", session_id=session, timeout=20)
    assert (ended["output"], ended["exit_code"]) == ("got it\n", 0)


@pytest.mark.parametrize("action", ["poll", "kill", "write"])
def test_an_unknown_process_is_named(desk: Desk, action: str) -> None:
    assert "No process with ID nope" in desk("process", action=action, session_id="nope")["error"]
    assert "session_id is required" in desk("process", action=action)["error"]


# -- files -------------------------------------------------------------------------------------------


def test_read_file_pages(desk: Desk) -> None:
    desk("terminal", command="seq 1000 >n; seq 200000 >big; printf 'a\\nb' >short; : >empty")
    page = desk("read_file", path="n", offset=999)
    assert page["content"] == "999|999\n1000|1000" and page["total_lines"] == 1000 and not page["truncated"]
    page = desk("read_file", path="n", limit=2)
    assert (page["content"], page["truncated"], page["next_offset"]) == ("1|1\n2|2", True, 3)
    big = desk("read_file", path="big", offset=150_000, limit=3)
    assert big["content"] == "150000|150000\n150001|150001\n150002|150002" and big["total_lines"] == 200_000
    assert big["file_size"] == 1_288_895
    assert desk("read_file", path="short")["content"] == "1|a\n2|b"
    assert desk("read_file", path="empty")["hint"] == "The file is empty."
    assert "past the end: 2 lines" in desk("read_file", path="short", offset=9)["hint"]


def test_a_second_read_returns_content_again(desk: Desk) -> None:
    desk("write_file", path="f", content="x\n")
    assert desk("read_file", path="f") == desk("read_file", path="f")
    assert desk("read_file", path="f")["content"] == "1|x"


def test_read_file_of_unusual_content(desk: Desk) -> None:
    desk("terminal", command=r"printf 'a\r\nb\r\n' >crlf; printf 'caf\xe9\n' >latin; printf '\x89PNG\0\0' >i.png")
    desk("terminal", command=r"head -c 5000 /dev/zero | tr '\0' x >long; head -c 300000 /dev/zero >zeros; mkfifo pipe")
    assert desk("read_file", path="crlf") | {"content": "1|a\n2|b", "line_endings": "CRLF"} == desk(
        "read_file", path="crlf"
    )
    latin = desk("read_file", path="latin")
    assert latin["content"] == "1|caf\ufffd" and "UTF-8" in latin["encoding_note"]
    image = desk("read_file", path="i.png")
    assert image["is_image"] and image["is_binary"] and image["content"] == ""
    long = desk("read_file", path="long")["content"]
    assert long.endswith("x... [line cut, 5000 characters]") and len(long) < 2100
    zeros = desk("read_file", path="zeros")
    assert zeros["is_binary"] and zeros["file_size"] == 300_000
    assert "not a regular file" in desk("read_file", path="pipe")["error"]
    assert "is a directory" in desk("read_file", path=".")["error"]
    missing = desk("read_file", path="lattin")
    assert missing["error"].startswith("File not found") and missing["similar_files"][0].endswith("/latin")
    assert desk("read_file", path="/proc/self/status")["content"].startswith("1|Name:")


@pytest.mark.parametrize("name", ["with 'quotes' and \"more\" $HOME", "new\nline", "-n", "ünï", "~x", "a\\b`c`"])
def test_any_file_name(desk: Desk, name: str) -> None:
    assert desk("write_file", path=name, content="1\n")["bytes_written"] == 2
    assert desk("read_file", path=name)["content"] == "1|1"
    assert desk("patch", path=name, old_string="1", new_string="2")["success"]
    assert desk("terminal", command="cat ./*")["output"] == "2\n"


@pytest.mark.parametrize("content", ["", "x", "a\0b\n", "'\\''\n", "é" * 300_000, "\n" * 10, "x\r\n", "%s %d \\n"])
def test_written_content_is_exact(desk: Desk, content: str) -> None:
    result = desk("write_file", path="deep/er/f", content=content)
    assert result["bytes_written"] == len(content.encode()) and result["dirs_created"]
    assert result["files_modified"] == [result["resolved_path"]]
    assert desk.wait(desk.sandbox.read_file(result["resolved_path"])) == content.encode()


def test_writing_keeps_mode_and_follows_links(desk: Desk) -> None:
    desk("terminal", command="echo 1 >s.sh; chmod 751 s.sh; ln -s s.sh link; ln s.sh hard")
    path = desk("write_file", path="link", content="2\n")["resolved_path"]
    assert path.endswith("/s.sh")
    assert desk("terminal", command="stat -c %a s.sh; cat hard; test -L link && ls -A")["output"] == (
        "751\n2\nhard\nlink\ns.sh\n"
    )
    assert "it is a directory" in desk("write_file", path=".", content="")["error"]
    desk("terminal", command="mkfifo queue")
    assert "pipe or socket" in desk("write_file", path="queue", content="x")["error"]
    assert "could not be written" in desk("write_file", path="s.sh/x", content="")["error"]
    assert "could not be written" in desk("write_file", path="/proc/x/y", content="")["error"]


ONLY_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root writes what nobody may")


@pytest.mark.parametrize(
    "mode", ["644", "664", "600", "640", "755", "4751", "2664", "200", pytest.param("444", marks=ONLY_ROOT)]
)
@pytest.mark.parametrize("folder_mode", ["755", "2775"])
def test_writing_keeps_mode_owner_and_group(desk: Desk, mode: str, folder_mode: str) -> None:
    is_root = os.geteuid() == 0
    owners = ["0:0", "1234:0", "0:1234", "1234:1235"] if is_root else [f"{os.geteuid()}:{os.getegid()}"]
    for owner in owners:
        chown = f"chown {owner} d/f; " if is_root else ""
        desk("terminal", command=f"umask 022; mkdir d; chmod {folder_mode} d; echo 1 >d/f; {chown}chmod {mode} d/f")
        before = desk("terminal", command="stat -c '%a %u %g' d/f")["output"]
        assert desk("write_file", path="d/f", content=f"{owner}\n")["bytes_written"] == len(owner) + 1
        assert desk("terminal", command="stat -c '%a %u %g' d/f; ls -A d")["output"] == f"{before}f\n"
        assert desk("terminal", command="chmod u+r d/f; cat d/f; rm -r d")["output"] == f"{owner}\n"
    desk("write_file", path="new", content="")
    assert desk("terminal", command="stat -c %a new")["output"] == "644\n"


def test_links_are_followed_or_refused(desk: Desk) -> None:
    desk("terminal", command="ln -s nodir/deep/x away; ln -s b a; ln -s a b; ln -s $'odd\\n' link; echo old >odd")
    for name in ("away", "a"):
        assert "a symbolic link that leads nowhere" in desk("write_file", path=name, content="x")["error"]
        assert desk("terminal", command=f"test -L {name} && echo link")["output"] == "link\n"
    assert desk("write_file", path="link", content="new")["bytes_written"] == 3
    assert desk("terminal", command="cat odd $'odd\\n'")["output"] == "old\nnew"


@pytest.mark.parametrize("name", ["a\n@b", "a\n@ok made\nx", "a\n@failed", "-", "$d", "a\n"])
def test_what_was_written_is_told_whatever_its_name(desk: Desk, name: str) -> None:
    for content in ("one", "two"):
        written = desk("write_file", path=name, content=content)
        assert written["resolved_path"].endswith(f"/{name}") and written["dirs_created"] is False
    assert desk("read_file", path=name)["content"] == "1|two"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can use a small file system")
def test_a_full_disk_leaves_what_was_there(desk: Desk) -> None:
    mounted = desk("terminal", command="mkdir small && mount -t tmpfs -o size=64k none small && pwd")
    if mounted["exit_code"]:
        pytest.skip("nothing can be mounted here")
    place = mounted["output"].strip()
    try:
        desk("terminal", command="echo old >small/one; echo old >small/two; ln small/two small/hard")
        for name in ("one", "two", "new"):
            failed = desk("write_file", path=f"small/{name}", content="x" * 80_000)
            assert "No space left" in failed["error"] and ".hermes-" not in failed["error"]
        assert desk("terminal", command="cat small/one small/two small/hard; ls -A small")["output"] == (
            "old\nold\nold\nhard\none\ntwo\n"
        )
    finally:
        assert desk("terminal", command=f"umount {place}/small")["exit_code"] == 0


def test_files_that_cannot_be_read_say_so(desk: Desk) -> None:
    failed = desk("read_file", path="/proc/self/mem")
    assert "/proc/self/mem could not be read: " in failed["error"] and "nput/output error" in failed["error"]


def test_an_agents_readonly_variables_do_not_stop_background_processes(desk: Desk) -> None:
    desk("terminal", command="readonly d=1 u=1 s=1 b=1 pid=1 p=1 t=1 q=1 m=1")
    started = desk("terminal", command="echo on", background=True)
    assert "on\n" in desk("process", action="wait", session_id=started["session_id"], timeout=20)["output"]
    assert desk("write_file", path="f", content="x")["bytes_written"] == 1


def test_input_is_never_sent_twice(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_hermes.tools.process.STDIN_TIMEOUT_S", 1.0)
    desk("terminal", command="mkfifo go")
    started = desk("terminal", command="cat <go >/dev/null; wc -c", background=True)
    session = started["session_id"]
    told = [desk("process", action="write", session_id=session, data="x" * 48_000) for _ in range(3)]
    assert "may have taken a part" in json.dumps(told)
    desk("terminal", command=": >go")
    desk("process", action="close", session_id=session)
    counted = desk("process", action="wait", session_id=session, timeout=30)["output"]
    assert int(counted) <= 3 * 48_000


def test_home_and_the_shells_directory_are_where_paths_start(desk: Desk) -> None:
    assert desk("write_file", path="~/tilde", content="")["resolved_path"] == f"{desk.sandbox.home}/tilde"
    desk("terminal", command="mkdir -p sub; cd sub")
    assert desk("write_file", path="f", content="")["resolved_path"].endswith("/sub/f")


def test_patch_keeps_bytes_that_are_not_utf8(desk: Desk) -> None:
    desk("terminal", command=r"printf 'caf\xe9 one\r\ntwo\r\n' >f")
    result = desk("patch", path="f", old_string="two\n", new_string="three\n")
    assert result["success"] and "+three" in result["diff"]
    assert desk("terminal", command="od -An -c f | tr -d ' \\n'")["output"] == r"caf351one\r\nthree\r\n"


def test_a_v4a_patch_is_applied_as_a_whole_or_not_at_all(desk: Desk) -> None:
    desk("terminal", command="echo 1 >a; echo x >b; chmod 755 b; mkdir dir; echo 9 >z")
    refused = desk("patch", mode="patch", patch="*** Update File: a\n@@\n-1\n+2\n*** Update File: b\n@@\n-nope\n+y\n")
    assert refused["success"] is False and "b, hunk 1" in refused["error"]
    midway = desk("patch", mode="patch", patch="*** Update File: a\n@@\n-1\n+2\n*** Add File: a/b\n+y\n")
    assert midway["success"] is False and "nothing was changed" in midway["error"]
    assert desk("terminal", command="cat a b z")["output"] == "1\nx\n9\n"
    done = desk(
        "patch",
        mode="patch",
        patch="*** Begin Patch\n*** Update File: a\n@@\n-1\n+2\n*** Add File: new/n\n+n\n*** Move File: b -> c\n"
        "*** Delete File: z\n*** End Patch",
    )
    assert done["files_modified"] == ["a"] and done["files_created"] == ["new/n", "c"]
    assert done["files_deleted"] == ["b", "z"]
    assert desk("terminal", command="cat a new/n c; stat -c %a c; ls")["output"] == "2\nn\nx\n755\na\nc\ndir\nnew\n"


def test_patch_mode_replace_may_be_left_out(desk: Desk) -> None:
    desk("write_file", path="f", content="a a\n")
    assert "2 times" in desk("patch", path="f", old_string="a", new_string="b")["error"]
    assert desk("patch", path="f", old_string="a", new_string="b", replace_all="true")["replacements"] == 2
    assert "missing: old_string, new_string" in desk("patch", path="f")["error"]
    assert "needs the argument 'patch'" in desk("patch", mode="patch")["error"]


def test_search_content(desk: Desk) -> None:
    desk(
        "terminal",
        command="mkdir -p src/.git .hid; printf 'one\\ntwo 22\\nthree\\n' | tee src/a.py .hid/b.txt src/.git/c",
    )
    desk("terminal", command="cp src/a.py 'src/x:1:y z.py'; printf 'two\\0 22' >src/bin")
    found = desk("search_files", pattern=r"two \d+", file_glob="*.py")
    assert found["total_count"] == 2
    assert {match["path"] for match in found["matches"]} == {"src/a.py", "src/x:1:y z.py"}
    assert found["matches"][0]["line"] == 2 and found["matches"][0]["content"] == "two 22"
    around = desk("search_files", pattern="two", path="src/a.py", context=1)["matches"]
    assert [(match["line"], match.get("context", False)) for match in around] == [(1, True), (2, False), (3, True)]
    everywhere = desk("search_files", pattern="two", output_mode="files_only")
    assert everywhere["files"] == [".hid/b.txt", "src/a.py", "src/x:1:y z.py"]
    counts = desk("search_files", pattern="o", output_mode="count", path="src")
    assert counts["counts"] == {"src/a.py": 2, "src/x:1:y z.py": 2} and counts["total_count"] == 4
    limited = desk("search_files", pattern="e", limit=1, offset=1)
    assert len(limited["matches"]) == 1 and limited["truncated"] and limited["total_count"] == 6
    assert desk("search_files", pattern="zzz") == {"total_count": 0, "matches": []}
    assert "not valid" in desk("search_files", pattern="(")["error"]
    assert "path not found" in desk("search_files", pattern="x", path="nowhere")["error"]


def test_search_files_by_name(desk: Desk) -> None:
    desk(
        "terminal",
        command="mkdir -p a/b .git; touch -d @100 a/old.py; touch -d @200 a/b/new.py; touch .git/x.py 'n m.py'",
    )
    assert desk("search_files", pattern="*.py", target="files")["files"] == ["n m.py", "a/b/new.py", "a/old.py"]
    assert desk("search_files", pattern="a/**/*.py", target="files")["files"] == ["a/b/new.py", "a/old.py"]
    assert desk("search_files", pattern="b/*.py", target="files", path="a")["files"] == ["a/b/new.py"]
    limited = desk("search_files", pattern="*", target="files", limit=1)
    assert limited["total_count"] == 3 and limited["truncated"] and len(limited["files"]) == 1


@pytest.mark.requires("docker")
@pytest.mark.requires("sample-images")
def test_searching_the_whole_file_system_leaves_the_kernels_out(
    loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with sandbox_of("docker", tmp_path, workdir="/") as sandbox:
            toolbox = Toolbox(sandbox, None)
            await toolbox.call("write_file", {"path": "/opt/deep/needle.txt", "content": "n33dle\n"})
            for path in ("/", "."):
                found = json.loads(await toolbox.call("search_files", {"pattern": "^n33dle$", "path": path}))
                assert [match["path"].lstrip("/") for match in found["matches"]] == ["opt/deep/needle.txt"]
            names = json.loads(await toolbox.call("search_files", {"pattern": "cmdline", "target": "files"}))
            assert not [name for name in names["files"] if name.lstrip("/").startswith("proc")]
            await toolbox.aclose()

    asyncio.run_coroutine_threadsafe(scenario(), loop).result()


@pytest.mark.parametrize("program", ["rg", "grep -EIZ", "grep -E"])
def test_searching_with_another_program_finds_the_same(desk: Desk, program: str) -> None:
    if program == "rg" and desk("terminal", command="command -v rg")["exit_code"]:
        pytest.skip("no ripgrep in the sandbox")
    desk("terminal", command="mkdir d; printf 'one\\ntwo\\n' >d/a.py; printf 'two\\n' >b.txt")
    desk.toolbox.workspace.search_programs = program
    assert desk("search_files", pattern="two")["matches"] == [
        {"path": "b.txt", "line": 1, "content": "two"},
        {"path": "d/a.py", "line": 2, "content": "two"},
    ] or desk("search_files", pattern="two")["matches"] == [
        {"path": "d/a.py", "line": 2, "content": "two"},
        {"path": "b.txt", "line": 1, "content": "two"},
    ]
    assert desk("search_files", pattern="a @b")["total_count"] == 0
    assert desk("search_files", pattern="two", file_glob="*.py", output_mode="count")["counts"] == {"d/a.py": 1}
    around = desk("search_files", pattern="two", path="d", context=1)["matches"]
    assert [(match["line"], match.get("context", False)) for match in around] == [(1, True), (2, False)]
    assert "not valid" in desk("search_files", pattern="(")["error"]
    assert desk("search_files", pattern="*.py", target="files")["files"] == ["d/a.py"]


# -- the toolbox -------------------------------------------------------------------------------------


def test_mistakes_of_a_model_are_answered(desk: Desk) -> None:
    assert json.loads(desk.raw("nope\ud800", "{}"))["error"].startswith(
        "Unknown tool 'nope?'. Available tools: ['patch'"
    )
    assert "Invalid JSON" in json.loads(desk.raw("terminal", "{"))["error"]
    assert "must be a JSON object" in json.loads(desk.raw("terminal", "[]"))["error"]
    assert "missing required argument 'command'" in json.loads(desk.raw("terminal", None))["error"]
    assert "NUL" in desk("read_file", path="a\0b")["error"]
    assert "lone surrogate" in json.loads(desk.raw("write_file", '{"path": "f", "content": "\\ud800"}'))["error"]
    assert desk("write_file", path="huge", content="x" * 10_000_000)["bytes_written"] == 10_000_000
    assert desk("terminal", command="# " + "x" * 10_000_000 + "\necho ok")["output"] == "ok\n"
    assert desk("patch", path="f", old_string="x" * 10_000_000, new_string="")["error"].startswith("File not found")


def test_calls_are_recorded_as_given(desk: Desk) -> None:
    desk.toolbox.calls.clear()
    desk("terminal", command="echo x")
    desk.raw("read_file", '{"path": "none"}')
    first, second = desk.toolbox.calls
    assert (first.name, json.loads(first.arguments)) == ("terminal", {"command": "echo x"})  # type: ignore[arg-type]
    assert first.error is None and first.result_length > 0 and 0 < first.duration_s < 10
    assert second.error is not None and second.error.startswith("File not found")


def test_only_reads_are_parallel_safe(desk: Desk) -> None:
    assert desk.toolbox.parallel_safe(["read_file", "search_files", "todo", "read_file"])
    assert not desk.toolbox.parallel_safe(["read_file", "terminal"])
    assert not desk.toolbox.parallel_safe(["patch", "write_file"])


def test_only_enabled_tools_answer(desks: MakeDesk) -> None:
    desk = desks(["file"])
    assert desk.toolbox.names == {"read_file", "write_file", "patch", "search_files"}
    assert {schema["function"]["name"] for schema in desk.toolbox.schemas} == desk.toolbox.names
    assert "Unknown tool 'terminal'" in desk("terminal", command="x")["error"]


def test_todo_keeps_a_list_per_rollout(desks: MakeDesk) -> None:
    one, other = desks(), desks()
    one("todo", todos=[{"id": "a", "content": "first", "status": "pending"}, {"id": "b", "content": "second"}])
    changed = one("todo", todos=[{"id": "a", "status": "completed"}, {"id": "c", "content": "third"}], merge=True)
    assert [(item["id"], item["status"]) for item in changed["todos"]] == [
        ("a", "completed"),
        ("b", "pending"),
        ("c", "pending"),
    ]
    assert changed["summary"] == {"total": 3, "pending": 2, "in_progress": 0, "completed": 1, "cancelled": 0}
    assert one("todo") == changed and other("todo")["todos"] == []
    assert "needs 'content'" in one("todo", todos=[{"id": "z"}], merge=True)["error"]
    assert "must be one of" in one("todo", todos=[{"id": "z", "content": "", "status": "done"}])["error"]


def test_an_oversize_result_is_stored_and_can_be_read(desks: MakeDesk) -> None:
    desk = desks(context_window_tokens=8_000, preview_size_chars=200)
    result = desk.raw("terminal", '{"command": "seq 5000; exit 3"}', call_id="call/../1")
    assert result.startswith("<persisted-output>") and result.endswith("</persisted-output>")
    assert '"exit_code": 3' in result and "Preview" in result and len(result) < 900
    path = result.split("Full output saved to: ")[1].splitlines()[0]
    assert path.endswith("/hermes-results/call_.._1.txt")
    assert desk("read_file", path=path, offset=4999, limit=2)["content"] == "4999|4999\n5000|5000"
    again = desk.raw("terminal", '{"command": "seq 5000"}', call_id="call/../1")
    assert "call_.._1-2.txt" in again
    page = desk("read_file", path=path, limit=2000)
    assert page["truncated"] and len(page["content"]) <= 8_000


def test_a_turn_is_fitted_by_storing_the_largest_first(desks: MakeDesk) -> None:
    desk = desks(turn_budget_chars=30_000, preview_size_chars=100)
    results = [("a", "terminal", "x" * 9_000), ("b", "terminal", "y" * 20_000), ("c", "read_file", "z" * 15_000)]
    fitted = desk.wait(desk.toolbox.fit_turn(results))
    assert [len(text) > 5_000 for text in fitted] == [True, False, True]
    assert fitted[1].startswith("<persisted-output>") and sum(map(len, fitted)) <= 30_000
    within = [("a", "terminal", "x")]
    assert desk.wait(desk.toolbox.fit_turn(within)) == ["x"]


def test_a_lost_shell_does_not_lose_the_tools(desk: Desk) -> None:
    desk("write_file", path="f", content="1\n")
    if desk.sandbox.backend == "docker":  # every shell, the tools' own included
        every = 'for p in /proc/[0-9]*; do [ "$(cat $p/comm)" = bash ] && kill -9 ${p#/proc/}; done'
        desk("terminal", command=every)
    else:
        desk("terminal", command="kill -9 $$")
    assert desk("read_file", path=desk.toolbox.workspace.resolve("f"))["content"] == "1|1"
    assert desk("terminal", command="echo back")["output"] == "back\n"


@pytest.mark.requires("docker")
@pytest.mark.requires("sample-images")
def test_file_tools_act_as_the_agents_user(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with sandbox_of("docker", tmp_path, user="nobody", workdir="/tmp") as sandbox:
            toolbox = Toolbox(sandbox, None)

            async def call(name: str, **arguments: Any) -> dict[str, Any]:
                return json.loads(await toolbox.call(name, arguments))

            assert "permission denied" in (await call("read_file", path="/etc/shadow"))["error"]
            assert "ermission denied" in (await call("write_file", path="/etc/x", content=""))["error"]
            assert "permission denied" in (await call("write_file", path="/etc/passwd", content=""))["error"]
            assert (await call("write_file", path="mine", content="é" * 100_000))["bytes_written"] == 200_000
            assert (await call("terminal", command="stat -c %U mine"))["output"] == "nobody\n"
            # as `RUN chown -R agent /app` leaves it: the group is one that the agent cannot give
            await sandbox.exec("mkdir app; echo old >app/f; chown -R nobody:root app; chmod 640 app/f", user="root")
            for content in ("new\n", "é" * 100_000):
                assert "error" not in await call("write_file", path="app/f", content=content)
                assert (await call("terminal", command="stat -c '%U %G %a' app/f; ls -A app"))["output"] == (
                    "nobody root 640\nf\n"
                )
            assert (await sandbox.read_file("app/f")).decode() == content
            await toolbox.aclose()

    asyncio.run_coroutine_threadsafe(scenario(), loop).result()


@pytest.mark.requires("docker")
@pytest.mark.requires("sample-images")
def test_a_sandbox_that_goes_away_is_no_tool_error(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with sandbox_of("docker", tmp_path) as sandbox:
            toolbox = Toolbox(sandbox, None)
            await toolbox.call("terminal", {"command": "true"})
            process = await asyncio.create_subprocess_exec("docker", "rm", "-f", sandbox.id, stdout=-3)
            await process.wait()
            for name, arguments in [("terminal", {"command": "true"}), ("read_file", {"path": "x"})]:
                with pytest.raises((SandboxLost, SandboxKilled)):
                    await asyncio.wait_for(toolbox.call(name, arguments), 30)
            assert toolbox.calls[-1].error is not None and "Sandbox" in toolbox.calls[-1].error
            await toolbox.aclose()

    asyncio.run_coroutine_threadsafe(scenario(), loop).result()


def test_mode_bits_of_new_files_follow_the_umask(desk: Desk) -> None:
    path = desk("write_file", path="f", content="")["resolved_path"]
    mode = int(desk.sh(f"stat -c %a '{path}'"), 8)
    assert mode & stat.S_IRUSR and not mode & stat.S_IWOTH
