"""What a kill finds in the process table while processes are just becoming other programs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_hermes.sandbox import proctable

MARKED = {**os.environ, "HERMES_EXEC": "mark-1", "HERMES_SESSION": "session-1"}
BARE = b"\0PATH=/usr/bin\0"
MID_EXEC = b"\0"


@pytest.fixture
def shell() -> Iterator[subprocess.Popen[bytes]]:
    """A shell without a marker, in a session of its own, as a kept one is."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True) as process:
        yield process


def first_seen_as(shown: bytes, pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look at a process's environment shows `shown`, the later ones what it really is."""
    looks = [shown]
    real = proctable.read_environ
    monkeypatch.setattr(proctable, "read_environ", lambda other: looks.pop() if other == pid and looks else real(other))


def ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        return process.wait(timeout=5) == -9
    except subprocess.TimeoutExpired:
        process.kill()
        return False


def test_subshell_that_becomes_a_marked_program(
    shell: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen without its marker by one rule and with it by the other, it belongs to the command all the same."""
    with subprocess.Popen(["sleep", "60"], env=MARKED, process_group=0) as child:
        real = proctable.read_stat
        monkeypatch.setattr(
            proctable,
            "read_stat",
            lambda pid: stat._replace(session=shell.pid) if (stat := real(pid)) and pid == child.pid else stat,
        )
        first_seen_as(BARE, child.pid, monkeypatch)
        proctable.kill_marked("mark-1", shell_pid=shell.pid, not_before_s=proctable.boot_uptime_s() - 5)
        assert ended(child)
    assert shell.poll() is None
    shell.communicate()


@pytest.mark.parametrize("kill", ["command", "session"])
def test_program_in_the_middle_of_its_exec(kill: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "60"], env=MARKED, start_new_session=True) as child:
        first_seen_as(MID_EXEC, child.pid, monkeypatch)
        monkeypatch.setattr(proctable, "_is_becoming", lambda pid: pid == child.pid)
        if kill == "command":
            proctable.kill_marked("mark-1")
        else:
            proctable.kill_sessions({b"session-1"})
        assert ended(child)


def test_other_commands_jobs_live(shell: subprocess.Popen[bytes]) -> None:
    with subprocess.Popen(["sleep", "60"], env={**MARKED, "HERMES_EXEC": "mark-2"}) as other:
        proctable.kill_marked("mark-1", shell_pid=shell.pid, not_before_s=proctable.boot_uptime_s() - 5)
        assert other.poll() is None
        other.kill()
    shell.communicate()


def test_what_has_no_environment_for_good_is_not_waited_for() -> None:
    with subprocess.Popen(["sleep", "60"], env={}) as child, subprocess.Popen(["true"]) as dead:
        os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
        while b"sleep" not in Path(f"/proc/{child.pid}/cmdline").read_bytes():
            os.sched_yield()
        assert not proctable._is_becoming(child.pid)
        assert not proctable._is_becoming(dead.pid)
        assert not proctable._is_becoming(2)  # kthreadd, or nothing
        child.kill()
