"""The agent that runs the task's own solution: a benchmark that fails it is broken (`--hermes-agent=oracle`).

The solution is uploaded and its entry run by bash in the work directory, as the agent's user, with the solution's
environment. Its exit status is recorded and not judged: what it left is what the verifier judges.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pytest_hermes.agents.result import AgentResult, TurnRecord
from pytest_hermes.errors import AgentError

if TYPE_CHECKING:
    from pytest_hermes.agents.protocol import AgentContext
    from pytest_hermes.sandbox.protocol import ExecResult
    from pytest_hermes.tools.toolbox import Toolbox

IMAGE_DIRECTORY = "/solution"
MAX_OUTPUT = 200_000


class OracleAgent:
    """An `Agent` that plays the solution of its context's task.

    The files go to `/solution` in image tasks, and below the sandbox's home where there is no image (there `/` is the
    host's); `SOLUTION_DIR` names the place in both. AgentError when the task has no solution.
    """

    needs_model = False

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._result = AgentResult(messages=[], stop_reason="error")

    async def run(self, prompt: str, toolbox: Toolbox) -> AgentResult:
        task, sandbox = self._context.task, self._context.sandbox
        self._result = result = AgentResult(messages=[{"role": "user", "content": prompt}], stop_reason="error")
        solution = task.solution
        if solution is None:
            raise AgentError(f"task {task.id!r} has no solution: the oracle agent cannot run it")
        directory = IMAGE_DIRECTORY if task.sandbox.needs_image else f"{sandbox.home.rstrip('/')}/.solution"
        script = f"{directory}/{solution.entry}"
        await sandbox.upload_tar(solution.files.tar(), directory)
        user = solution.user or task.sandbox.user
        if user not in (None, "root"):
            # The archive keeps the modes of the author's machine, which may shut out the agent's user.
            await sandbox.exec(["chmod", "-R", "a+rX", directory], user="root")
        call = {
            "id": "call_solution",
            "type": "function",
            "function": {"name": "oracle", "arguments": f'{{"script": "{solution.entry}"}}'},
        }
        note = f"Running the task's own solution, {script}."
        result.messages.append({"role": "assistant", "content": note, "tool_calls": [call]})
        began = time.perf_counter()
        done = await sandbox.exec(
            ["bash", script],
            cwd=sandbox.workdir,
            env={"SOLUTION_DIR": directory, **solution.env},
            user=solution.user,
            max_output=MAX_OUTPUT,
        )
        result.messages.append({"role": "tool", "tool_call_id": "call_solution", "content": _transcript(done)})
        result.turns.append(TurnRecord(1, tools_s=time.perf_counter() - began))
        result.turns_used, result.finished_naturally, result.stop_reason = 1, True, "finished"
        result.metadata["oracle_exit_code"] = done.exit_code
        return result

    def partial_result(self) -> AgentResult:
        """What has been done so far."""
        return self._result


def _transcript(done: ExecResult) -> str:
    parts: list[Any] = [done.stdout.decode("utf-8", "replace")]
    if done.stderr:
        parts.append("[stderr]\n" + done.stderr.decode("utf-8", "replace"))
    parts.append(f"[exit code {done.exit_code}]")
    return "\n".join(part.rstrip("\n") for part in parts if part)
