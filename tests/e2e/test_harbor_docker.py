"""The sample tasks in docker: oracle, nop, and models behind a real loopback HTTP server."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from pytest_hermes.models.scripted import ScriptedServer

pytestmark = [pytest.mark.requires("docker", "sample-images")]
ONLY_FIX_GIT = "--hermes-task=fix-git"
SOLVE = [
    {"tool": "terminal", "arguments": {"command": "git reflog --format='%H %gs' | grep 'harbour chapter'"}},
    {
        "tool": "terminal",
        "arguments": {
            "command": "git cherry-pick -n $(git reflog --format='%H %gs' | grep 'harbour chapter' | cut -c1-40)"
        },
    },
    {"tool": "read_file", "arguments": {"path": "index.md"}},
    {
        "tool": "write_file",
        "arguments": {"path": "index.md", "content": "Title, second edition\n\nindex\n- harbour\n"},
    },
    {"tool": "terminal", "arguments": {"command": "git add -A && git commit -qm 'Bring it back'; git status -sb"}},
    {"content": "The chapter is back on main."},
]


@pytest.mark.parametrize("how", [["--hermes-concurrency=1"], ["--hermes-concurrency=8"], ["-n", "4"]], ids=" ".join)
def test_the_oracle_solves_every_sample(harbor, how):
    run = harbor("--hermes-agent=oracle", f"--junitxml={harbor.__name__}.xml", *how)
    assert "8 passed" in run.output and run.status == 0, run.output
    assert {row["reward"] for row in run.rows.values()} == {1.0}
    assert not any(row["verifier"]["evidence"] for row in run.rows.values())


@pytest.mark.parametrize("how", ["--hermes-concurrency=8", "-n4"])
def test_doing_nothing_solves_none_and_the_hanging_verifier_is_named(harbor, how):
    run = harbor("--hermes-agent=nop", how)
    assert "8 failed" in run.output and run.status == 1, run.output
    assert run.rows["slow-verifier"]["cause"] == "verifier_timeout"
    assert "verifier_timeout 1" in run.output
    assert {row["outcome"] for row in run.rows.values()} == {"failed"}
    assert run.rows["slow-verifier"]["reward"] == 0.0


def test_a_model_that_solves_the_task(harbor):
    run = harbor(ONLY_FIX_GIT, script={"default": SOLVE})
    assert run.status == 0, run.output
    row = run.rows["fix-git"]
    assert (row["outcome"], row["turns"], row["finished_naturally"]) == ("passed", 6, True)
    assert [message["role"] for message in row["messages"]] == ["user", *["assistant", "tool"] * 5, "assistant"]
    assert "Title, second edition" in row["messages"][6]["content"]
    assert len(row["turn_records"]) == 6
    for turn in row["turn_records"]:
        assert turn["model_s"] > 0 and turn["usage"]["prompt_tokens"] > 0 and turn["finish_reason"]
    assert row["usage"]["completion_tokens"] == sum(t["usage"]["completion_tokens"] for t in row["turn_records"])
    assert all(row["clocks"][phase] > 0 for phase in ("provision_s", "agent_s", "verify_s", "teardown_s"))


def test_a_model_that_only_talks(harbor):
    run = harbor(ONLY_FIX_GIT, script={"default": [{"content": "I would look at the reflog."}]})
    row = run.rows["fix-git"]
    assert run.status == 1 and (row["outcome"], row["reward"], row["turns"]) == ("failed", 0.0, 1)
    assert row["verifier"]["exit_code"] is not None


def test_a_model_that_loops(harbor):
    turn = {"tool": "terminal", "arguments": {"command": "git status"}, "repeat": True}
    row = harbor(ONLY_FIX_GIT, script={"default": [turn]}).rows["fix-git"]
    assert (row["outcome"], row["cause"], row["stop_reason"]) == ("failed", "loop", "loop")
    assert row["turns"] < 30


def test_a_model_that_never_ends_stops_at_the_turn_limit(harbor):
    turns = [{"tool": "terminal", "arguments": {"command": f"echo {n}"}} for n in range(20)]
    row = harbor(ONLY_FIX_GIT, "--hermes-max-turns=3", script={"default": turns}).rows["fix-git"]
    assert (row["cause"], row["turns"]) == ("max_turns", 3)


def test_invalid_json_is_answered_and_the_episode_goes_on(harbor):
    script = [{"tool": "terminal", "arguments": '{"command": "git sta'}, *SOLVE]
    row = harbor(ONLY_FIX_GIT, script={"default": script}).rows["fix-git"]
    assert row["outcome"] == "passed"
    assert "Invalid JSON" in row["messages"][2]["content"]
    assert row["tool_errors"][0]["tool_name"] == "terminal"


def test_a_server_that_stumbles_is_asked_again(harbor):
    faults = [{"status": 429, "headers": {"Retry-After": "0"}, "times": 1}, {"status": 500, "times": 1}]
    row = harbor(ONLY_FIX_GIT, script={"default": [*faults, *SOLVE]}).rows["fix-git"]
    assert (row["outcome"], row["turns"]) == ("passed", 6)
    assert row["turn_records"][0]["retries"] == 2
    assert row["tries"] == []


def test_a_server_that_is_down_is_infrastructure(harbor):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    down = ["--model=m", f"--hermes-base-url={url}", "--hermes-set", "openai.num_retries=1"]
    run = harbor(ONLY_FIX_GIT, *down, "--hermes-set", "env.retry_backoff=0")
    row = run.rows["fix-git"]
    assert run.status == 1 and "1 error" in run.output
    assert (row["outcome"], row["cause"], row["reward"]) == ("invalid", "model_unavailable", None)
    assert url in row["error"] and len(row["tries"]) == 1


def test_a_name_that_the_server_does_not_know_is_said_once_and_starts_no_further_sandbox(harbor):
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    server = ScriptedServer()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result()
    try:
        run = harbor("--model=gpt-unknown", f"--hermes-base-url={server.url()}", "--hermes-concurrency=1")
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
    rows = run.rows.values()
    assert {(row["outcome"], row["cause"]) for row in rows} == {("invalid", "model_not_found")}
    assert "gpt-unknown" in next(iter(rows))["error"]
    assert sum(bool(row["sandbox"]) for row in rows) == 1


def test_the_key_is_in_no_file_of_the_run(harbor):
    leak = [
        {"tool": "terminal", "arguments": {"command": "echo sk-test-key-0123456789"}},
        {"content": "sk-test-key-0123456789"},
    ]
    run = harbor(ONLY_FIX_GIT, script={"default": leak})
    files = [path for path in (run.folder / "runs").rglob("*") if path.is_file()]
    assert files and not [path for path in files if b"sk-test-key" in path.read_bytes()]
