"""ToolContext: the synchronous face that verifiers and reward functions use, from plain threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_hermes.sandbox.labels import Owner
from pytest_hermes.sandbox.protocol import Sandbox, SandboxRequest
from pytest_hermes.task import SandboxSpec
from pytest_hermes.tool_context import ToolContext
from pytest_hermes.tools.toolbox import Toolbox

BACKENDS = [
    "local",
    pytest.param("docker", marks=[pytest.mark.requires("docker"), pytest.mark.requires("sample-images")]),
]


class Rollout:
    """What a verifier is given: a context, and the toolbox that the agent used."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sandbox: Sandbox) -> None:
        self.loop, self.sandbox = loop, sandbox
        self.agent = Toolbox(sandbox, ["terminal"])
        self.ctx = ToolContext(self.agent, sandbox, loop)

    def wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def agent_runs(self, command: str, **more: Any) -> dict[str, Any]:
        return json.loads(self.wait(self.agent.call("terminal", {"command": command, **more})))

    def processes(self, text: str) -> str:
        look = f"for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline 2>/dev/null | grep -x '{text} '; done; true"
        return self.wait(self.sandbox.exec(look)).stdout.decode()


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(params=BACKENDS)
def rollout(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rollout]:
    with running_loop() as loop:

        async def provision() -> tuple[Any, Sandbox]:
            spec: dict[str, Any] = {}
            if request.param == "local":
                from pytest_hermes.sandbox.local import LocalProvider

                provider: Any = LocalProvider(confine="off", root=tmp_path / "sandboxes")
            else:
                from pytest_hermes.sandbox.docker import DockerProvider

                provider, spec = DockerProvider(), {"image": "python:3.13-slim-bookworm", "workdir": "/srv"}
            labels = Owner.here(run="context-test").labels()
            return provider, await provider.create(SandboxRequest(SandboxSpec(**spec), labels, "ctx", 600, 600))

        async def teardown() -> None:
            await rollout.agent.aclose()
            await sandbox.close()
            await provider.aclose()

        provider, sandbox = asyncio.run_coroutine_threadsafe(provision(), loop).result()
        rollout = Rollout(loop, sandbox)
        try:
            yield rollout
        finally:
            rollout.ctx.cleanup()
            rollout.wait(teardown())


def test_the_agents_files_and_processes_are_there_but_not_its_shell_state(rollout: Rollout) -> None:
    rollout.agent_runs("echo made >by_agent; (sleep 4713 &)")
    rollout.agent_runs("cd /; export PATH=/evil LEAK=1; ls() { echo evil; }; alias cat='echo evil'; umask 0")
    result = rollout.ctx.terminal('cat by_agent; ls; echo "${LEAK-none} $PWD"')
    assert result == {"output": f"made\nby_agent\nnone {rollout.sandbox.workdir}\n", "exit_code": 0, "error": None}
    assert "sleep 4713" in rollout.ctx.terminal("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")["output"]
    assert rollout.ctx.read_file("by_agent")["content"] == "1|made"


def test_results_have_the_keys_that_reward_functions_read(rollout: Rollout) -> None:
    ctx = rollout.ctx
    assert ctx.terminal("exit 4")["exit_code"] == 4
    timed_out = ctx.terminal("echo part; sleep 30", timeout=1)
    assert timed_out["exit_code"] == 124 and timed_out["output"].startswith("part\n")
    assert ctx.write_file("d/f.txt", "hello\n")["bytes_written"] == 6
    assert ctx.read_file("d/f.txt")["content"] == "1|hello"
    assert "error" in ctx.read_file("none")
    assert ctx.search("hel+o")["matches"] == [{"path": "d/f.txt", "line": 1, "content": "hello"}]
    assert json.loads(ctx.call_tool("terminal", {"command": "echo x"}))["output"] == "x\n"
    assert "Unknown tool" in json.loads(ctx.call_tool("nope"))["error"]
    assert (ctx.task_id, ctx.sandbox) == (rollout.sandbox.id, rollout.sandbox)
    assert rollout.agent.calls == []


def test_successive_commands_share_a_shell(rollout: Rollout) -> None:
    rollout.ctx.terminal("mkdir sub; cd sub; export A=7")
    assert rollout.ctx.terminal('echo "$A ${PWD##*/}"')["output"] == "7 sub\n"


def test_the_agents_background_processes_can_be_looked_at(rollout: Rollout) -> None:
    session = rollout.agent_runs("echo up; exec sleep 4714", background=True)["session_id"]
    assert (
        json.loads(rollout.ctx.call_tool("process", {"action": "poll", "session_id": session}))["status"] == "running"
    )
    assert json.loads(rollout.ctx.call_tool("process", {"action": "kill", "session_id": session}))["status"] == "killed"


def test_a_megabyte_of_output_is_whole(rollout: Rollout) -> None:
    output = rollout.ctx.terminal("seq 140000")["output"]
    assert output == "".join(f"{n}\n" for n in range(1, 140_001))


def test_files_go_in_and_out_unchanged(rollout: Rollout, tmp_path: Path) -> None:
    data = bytes(range(256)) * 4_000
    source = tmp_path / "it's a $file"
    source.write_bytes(data)
    source.chmod(0o754)
    sent = rollout.ctx.upload_file(source, "in/deep/it's $(x) `y`")
    assert (sent["exit_code"], sent["bytes"]) == (0, len(data))
    assert rollout.ctx.terminal("stat -c %a in/deep/it*")["output"] == "754\n"
    back = rollout.ctx.download_file("in/deep/it's $(x) `y`", tmp_path / "out" / "f")
    assert back == {"success": True, "bytes": len(data)}
    assert (tmp_path / "out" / "f").read_bytes() == data and os.access(tmp_path / "out" / "f", os.X_OK)


def test_transfers_that_cannot_be_done_say_so(rollout: Rollout, tmp_path: Path) -> None:
    ctx = rollout.ctx
    assert ctx.upload_file(tmp_path / "none", "x")["exit_code"] == -1
    assert ctx.upload_dir(tmp_path / "none", "x")[0]["exit_code"] == -1
    assert ctx.download_file("none", tmp_path / "x") == {
        "success": False,
        "error": f"No such file or directory: {rollout.sandbox.workdir}/none",
    }
    ctx.terminal("mkdir dir; : >empty; ln -s empty link; ln -s loop loop")
    assert "download_dir" in ctx.download_file("dir", tmp_path / "x")["error"]
    assert "download_file" in ctx.download_dir("empty", tmp_path / "x")[0]["error"]
    assert ctx.download_dir("none", tmp_path / "x")[0]["success"] is False
    assert ctx.download_file("empty", tmp_path / "e") == {"success": True, "bytes": 0}
    assert ctx.download_file("link", tmp_path / "l") == {"success": True, "bytes": 0}
    assert ctx.download_file("loop", tmp_path / "x")["success"] is False
    (tmp_path / "f").write_text("x")
    assert ctx.upload_file(tmp_path / "f", "empty/below/f")["exit_code"] == -1
    assert ctx.upload_file(tmp_path / "f", "loop/f")["exit_code"] == -1


def test_an_upload_onto_a_directory_leaves_it_as_it_is(rollout: Rollout, tmp_path: Path) -> None:
    ctx = rollout.ctx
    ctx.terminal("mkdir -p app/src app/empty; echo precious >app/src/main.c; mkdir up; mkdir -p up/b")
    (tmp_path / "f").write_text("x")
    for place in ("app", "app/src", "app/empty"):
        assert "directory" in ctx.upload_file(tmp_path / "f", place)["error"].lower()
    assert ctx.terminal("cat app/src/main.c; ls -d app/empty")["output"] == "precious\napp/empty\n"
    for name in ("a", "b", "c"):
        (tmp_path / "tree" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "tree" / name).write_text(name)
    sent = {entry["path"]: entry["exit_code"] for entry in ctx.upload_dir(tmp_path / "tree", "up")}
    assert sent == {"a": 0, "b": -1, "c": 0}


def test_files_of_the_kernel_are_no_empty_downloads(rollout: Rollout, tmp_path: Path) -> None:
    for place in ("/proc/version", "/sys/kernel"):
        assert "size of their own" in rollout.ctx.download_file(place, tmp_path / "f")["error"]
        (entry,) = rollout.ctx.download_dir(place, tmp_path / "d")
        assert not entry["success"] and "size of their own" in entry["error"]
    assert rollout.ctx.upload_file(Path("/etc/hostname"), "/proc/version")["exit_code"] == -1


def test_a_log_that_is_written_to_keeps_no_other_file_back(rollout: Rollout, tmp_path: Path) -> None:
    rollout.agent_runs("mkdir live; echo keep >live/result.txt")
    rollout.agent_runs("(while :; do date; done >>live/server.log) >/dev/null 2>&1 &")
    for number in range(5):
        found = {entry["path"]: entry["success"] for entry in rollout.ctx.download_dir("live", tmp_path / f"d{number}")}
        assert found.keys() <= {"result.txt", "server.log"} and found["result.txt"] and all(found.values())


def test_directories_go_in_and_out(rollout: Rollout, tmp_path: Path) -> None:
    source = tmp_path / "tree"
    for number in range(300):
        path = source / f"d{number % 7}" / f"f {number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * number)
    os.link(source / "d1" / "f 1", source / "hard")
    (source / "soft").symlink_to("d2/f 2")
    sent = rollout.ctx.upload_dir(source, "up")
    assert len(sent) == 302 and all(entry["exit_code"] == 0 for entry in sent)
    results = rollout.ctx.download_dir("up", tmp_path / "down")
    assert len(results) == 302 and all(entry["success"] for entry in results)
    for path in source.rglob("*"):
        if path.is_file():
            assert (tmp_path / "down" / path.relative_to(source)).read_bytes() == path.read_bytes()


def test_a_download_cannot_leave_its_directory(rollout: Rollout, tmp_path: Path) -> None:
    rollout.ctx.terminal("mkdir evil; ln -s /etc evil/out; ln -s ../../../x evil/up; echo ok >evil/ok")
    results = {entry["path"]: entry["success"] for entry in rollout.ctx.download_dir("evil", tmp_path / "down")}
    assert results == {"out": False, "up": False, "ok": True}
    assert sorted(path.name for path in (tmp_path / "down").iterdir()) == ["ok"]


def test_many_threads_at_once(rollout: Rollout) -> None:
    def work(number: int) -> bool:
        name = f"file{number}"
        rollout.ctx.write_file(f"{rollout.sandbox.workdir}/{name}", f"{number}\n")
        output = rollout.ctx.terminal(f"sleep 0.2; cat {rollout.sandbox.workdir}/{name}")["output"]
        return output == f"{number}\n" and rollout.ctx.read_file(f"{rollout.sandbox.workdir}/{name}")["content"] == (
            f"1|{number}"
        )

    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(32)))
    assert time.monotonic() - began < 5  # 6.4 s of sleeping, one after the other


class Alarm(Exception):
    pass


@pytest.mark.parametrize("how", ["alarm", "keyboard"])
def test_an_exception_that_interrupts_the_wait_ends_the_remote_command(rollout: Rollout, how: str) -> None:
    def ring(*_: object) -> None:
        raise Alarm if how == "alarm" else KeyboardInterrupt

    rollout.ctx.terminal("true")
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(Alarm if how == "alarm" else KeyboardInterrupt):
            rollout.ctx.terminal("setsid sleep 4715")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert rollout.ctx.terminal("echo on")["output"] == "on\n"  # waits for the kill to be over
    assert rollout.processes("sleep 4715") == ""


def test_cleanup_may_be_repeated_and_followed_by_calls(rollout: Rollout) -> None:
    assert rollout.ctx.terminal("true")["exit_code"] == 0
    rollout.ctx.cleanup()
    rollout.ctx.cleanup()
    assert rollout.ctx.terminal("echo x")["output"] == "x\n"


class NoSandbox:
    id = workdir = home = backend = "none"


def test_on_the_engines_own_loop_it_refuses_instead_of_waiting_for_ever() -> None:
    async def reward() -> None:
        loop = asyncio.get_running_loop()
        toolbox = Toolbox(NoSandbox(), [])  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match=r"synchronous.*engine's own event loop.*asyncio.to_thread"):
            ToolContext(toolbox, toolbox.sandbox, loop).terminal("true")

    asyncio.run(reward())


def test_after_the_engine_has_stopped_it_refuses() -> None:
    with running_loop() as loop:
        toolbox = Toolbox(NoSandbox(), [])  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="after its rollout's engine had stopped"):
        ToolContext(toolbox, toolbox.sandbox, loop).terminal("true")


def test_web_and_browser_tools_that_cannot_work_say_why(rollout: Rollout, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [key for key in os.environ if key.endswith(("_API_KEY", "_URL"))]:
        monkeypatch.delenv(name)
    found = rollout.ctx.web_search("pytest")
    assert found.keys() == {"error"} and "web_search cannot work here" in found["error"]
    refused = json.dumps(rollout.ctx.web_extract("http://127.0.0.1:9/"))  # by the tool, or for want of its packages
    assert "error" in refused
    assert refused == json.dumps(rollout.ctx.web_extract(["http://127.0.0.1:9/"]))


def test_names_modes_links_and_empty_directories_survive_both_ways(rollout: Rollout, tmp_path: Path) -> None:
    source = tmp_path / "tree"
    names = ["plain", "žluťoučký kůň 日本 🎉", "new\nline", "-rf *", "x" * 250, "deep/" * 20 + "f", "'\"$(id)`"]
    for name in [*names, os.fsdecode(b"not utf-8 \xff\xfe")]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(repr(name))
    modes = {"plain": 0o640, "-rf *": 0o755, "'\"$(id)`": 0o400}
    for name, mode in modes.items():
        (source / name).chmod(mode)
    (source / "empty/inner").mkdir(parents=True)
    (source / "soft").symlink_to("plain")
    (source / "broken").symlink_to("nowhere")
    (source / "folder").symlink_to("empty")
    os.mkfifo(source / "pipe")

    sent = {entry["path"]: entry for entry in rollout.ctx.upload_dir(source, "up")}
    failed = {name: entry["error"] for name, entry in sent.items() if entry["exit_code"] != 0}
    assert failed.keys() == {"broken", "folder", "pipe"} and "regular file" in failed["pipe"]
    assert len(sent) == len(names) + 5
    assert rollout.ctx.terminal("stat -c %a up/plain 'up/-rf *'; ls -A up/empty")["output"] == "640\n755\ninner\n"

    rollout.ctx.terminal("(cd up; ln -s plain inside; ln plain hard; mkfifo pipe; mkdir -p void/void)")
    back = {entry["path"]: entry["success"] for entry in rollout.ctx.download_dir("up", tmp_path / "down")}
    assert [name for name, arrived in back.items() if not arrived] == ["pipe"]
    for path in source.rglob("*"):
        if path.is_file():
            assert (tmp_path / "down" / path.relative_to(source)).read_bytes() == path.read_bytes()
    for name, mode in modes.items():
        assert (tmp_path / "down" / name).stat().st_mode & 0o777 == mode | 0o600
    assert (tmp_path / "down/empty/inner").is_dir() and (tmp_path / "down/void/void").is_dir()
    assert (tmp_path / "down/inside").readlink() == Path("plain")
    (tmp_path / "nothing").mkdir()
    assert rollout.ctx.upload_dir(tmp_path / "nothing", "made") == []
    assert rollout.ctx.terminal("ls -d made")["output"] == "made\n"


def test_one_file_that_cannot_be_sent_does_not_keep_the_others(rollout: Rollout, tmp_path: Path) -> None:
    source = tmp_path / "tree"
    source.mkdir()
    for name in ("a", "b/taken", "c", "d"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(name)
    rollout.ctx.terminal("mkdir up; echo >up/b")
    sent = {entry["path"]: entry["exit_code"] for entry in rollout.ctx.upload_dir(source, "up")}
    assert sent == {"a": 0, "b/taken": -1, "c": 0, "d": 0}
    assert rollout.ctx.terminal("cat up/a up/c up/d")["output"] == "acd"


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["2000 files", "one file"])
def test_200_megabytes_go_in_and_out_in_bounded_memory(
    rollout: Rollout, tmp_path: Path, growth: type[Any], shape: str
) -> None:
    source, count = tmp_path / "tree", 2000 if shape == "2000 files" else 1
    source.mkdir()
    block = os.urandom(100_000)
    for number in range(count):
        with (source / f"f{number}").open("wb") as file:
            for _ in range(2000 // count):
                file.write(b"%09d" % number + block)
    total = 2000 * 100_009
    rollout.ctx.terminal("true")
    with growth() as grown:
        sent = rollout.ctx.upload_dir(source, "up")
        assert sum(entry["bytes"] for entry in sent) == total and len(sent) == count
        back = rollout.ctx.download_dir("up", tmp_path / "down")
        assert sum(entry["bytes"] for entry in back) == total and all(entry["success"] for entry in back)
    for number in (0, count - 1):
        name = f"f{number}"
        assert (tmp_path / "down" / name).read_bytes() == (source / name).read_bytes()
    assert grown.mb < 100
