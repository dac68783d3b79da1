"""How terminal_test judges: by one expected file, or by a check program that is fed to Python in the sandbox."""

from __future__ import annotations

import json

from pytest_hermes.benchmark import Verdict, Verification, reward_of_object
from pytest_hermes.errors import RewardUnreadable, VerifierNoReward, VerifierTimeout
from pytest_hermes.sandbox.protocol import OutputTooLarge
from pytest_hermes.task import InlineFiles


async def verify(v: Verification) -> Verdict:
    """The verdict on one task; parts that a check names are components, the reward is their share that succeeded."""
    if "expect" in v.task.data:
        return await _expected_file(v, **v.task.data["expect"])
    return await _check_program(v)


async def _expected_file(v: Verification, path: str, content: str) -> Verdict:
    """1.0 if the file holds the content (blank ends aside), 0.5 if it contains it, else 0.0."""
    try:
        raw = await v.sandbox.read_file(f"{v.sandbox.home}/{path}", max_bytes=100_000)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return Verdict(0.0, output=f"~/{path} is not there")
    except OutputTooLarge:
        return Verdict(0.0, output=f"~/{path} is far too large")
    found = raw.decode(errors="replace").strip()
    reward = 1.0 if found == content else 0.5 if content in found else 0.0
    return Verdict(reward, output=f"~/{path} holds {found[:500]!r}, wanted {content!r}")


async def _check_program(v: Verification) -> Verdict:
    assert v.task.tests is not None and isinstance(v.task.tests.files, InlineFiles)
    program = v.task.tests.files.files[v.task.tests.entry]
    result = await v.sandbox.exec(
        ["python3", "-I", "-"], stdin=str(program).encode(), cwd=v.sandbox.home, timeout_s=v.timeout_s
    )
    output = (result.stdout + result.stderr).decode(errors="replace")
    if result.timed_out:
        raise VerifierTimeout(f"the check did not end within {v.timeout_s:g} s", output=output)
    lines = result.stdout.decode(errors="replace").splitlines()
    if not lines:
        raise VerifierNoReward(f"the check printed nothing (exit code {result.exit_code})", output=output)
    try:
        verdict = reward_of_object(json.loads(lines[-1]))
    except (ValueError, AttributeError):
        raise RewardUnreadable(f"the check ended with {lines[-1][:80]!r}, not a reward", output=output) from None
    verdict.output, verdict.exit_code = "\n".join(lines[:-1]), result.exit_code
    return verdict
