"""`terminal`: a command in the rollout's kept shell, in the foreground or as a managed background process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_hermes.tools.pty import under_terminal
from pytest_hermes.tools.tool import Result, Tool, boolean, integer, object_schema, string
from pytest_hermes.tools.workspace import Workspace, text_of

OUTPUT_WINDOW_CHARS = 50_000
HEAD_SHARE = 0.4


async def _run(workspace: Workspace, arguments: Mapping[str, Any]) -> Result:
    command: str = arguments["command"]
    if not command.strip():
        return refusal("The command is empty. Give a shell command.")
    if "\0" in command:
        return refusal(
            "The command contains a NUL byte, which no shell takes. Remove it, or write the bytes with printf."
        )
    workdir = workspace.resolve(arguments["workdir"]) if arguments.get("workdir") else None
    terminal = bool(arguments["pty"])
    if arguments["background"]:
        return await workspace.state.processes.start(workspace, command, workdir, terminal=terminal)
    settings = workspace.settings
    timeout_s = arguments.get("timeout", settings.terminal_timeout_s)
    if timeout_s > settings.max_foreground_timeout_s:
        return refusal(
            f"Foreground timeout {timeout_s}s exceeds the maximum of {settings.max_foreground_timeout_s:g}s. Use a "
            f"smaller timeout, or background=true and process(action='wait')."
        )
    if terminal:
        command = await under_terminal(workspace, command, typed=False)
    return await run_command(workspace, command, timeout_s=timeout_s, workdir=workdir)


async def run_command(workspace: Workspace, command: str, *, timeout_s: float, workdir: str | None = None) -> Result:
    """Run a foreground command to its end or time-out; a failed one is told apart from a dead sandbox.

    Raises SandboxLost or SandboxKilled.
    """
    done = await workspace.run(command, timeout_s=timeout_s, workdir=workdir)
    if done.exit_code != 0 or done.timed_out:
        await workspace.sandbox.check()
    output = window(text_of(done.output), workspace.output_window, done.output_bytes)
    if done.timed_out:
        note = f"[Command timed out after {timeout_s:g}s]"
        return {"output": f"{output.rstrip()}\n{note}" if output else note, "exit_code": 124, "error": None}
    return {"output": output, "exit_code": done.exit_code, "error": None}


def window(text: str, size: int, written_bytes: int = 0) -> str:
    """`text`, or its first 40 % and last 60 % of `size` characters with a line between that says what is missing.

    `written_bytes` is what the command wrote in all, where `text` lost its own middle already.
    """
    if len(text) <= size:
        return text
    head, tail = text[: int(size * HEAD_SHARE)], text[len(text) - size + int(size * HEAD_SHARE) :]
    omitted, total, unit = len(text) - size, len(text), "chars"
    if written_bytes > len(text.encode(errors="replace")):
        omitted, total, unit = written_bytes - len(head.encode()) - len(tail.encode()), written_bytes, "bytes"
    return f"{head}\n\n[OUTPUT TRUNCATED - {omitted} {unit} omitted out of {total} total]\n\n{tail}"


def refusal(error: str) -> Result:
    """The result of a command that was not run."""
    return {"output": "", "exit_code": -1, "error": error, "status": "error"}


TERMINAL = Tool(
    "terminal",
    "Run a shell command in the sandbox. The shell is kept: working directory and exported variables stay from call to "
    "call. Returns output (stdout and stderr together) and exit code; a time-out gives exit code 124 and the output so "
    "far. Long output loses its middle.\n"
    "Foreground (default): returns as soon as the command ends. Background (background=true): for servers and long "
    "work; returns a session_id for the process tool.\n"
    "For files prefer read_file, write_file, patch and search_files over cat, heredocs, sed and grep. Commands have no "
    "terminal and no stdin: use non-interactive flags, or pty=true for programs that need a terminal; with "
    "background=true the process tool types into it.",
    object_schema(
        ["command"],
        command=string("The shell command to run"),
        background=boolean("Run in the background; manage it with the process tool"),
        timeout=integer("Seconds to wait at most in the foreground", minimum=1),
        workdir=string("Directory to run this command in (default: where the shell stands)"),
        pty=boolean("Run under a pseudo-terminal, in a shell of its own: its cd and export do not stay"),
    ),
    _run,
)
