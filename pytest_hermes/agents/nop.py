"""The agent that does nothing: a benchmark that passes it is broken (`--hermes-agent=nop`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_hermes.agents.result import AgentResult

if TYPE_CHECKING:
    from pytest_hermes.tools.toolbox import Toolbox


class NopAgent:
    """An `Agent` that leaves the sandbox as it is."""

    needs_model = False

    async def run(self, prompt: str, toolbox: Toolbox) -> AgentResult:
        return AgentResult(messages=[{"role": "user", "content": prompt}], finished_naturally=True)
