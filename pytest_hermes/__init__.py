"""pytest-hermes: benchmarks, training data and RL rollouts of tool-calling models, as ordinary pytest items.

The public names; each is imported when it is first used, so that `import pytest_hermes` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_hermes.agents.protocol import Agent, AgentContext
    from pytest_hermes.agents.result import AgentResult
    from pytest_hermes.benchmark import Benchmark, Verdict, Verification
    from pytest_hermes.datasets.dataset import rows
    from pytest_hermes.datasets.harbor import load_tasks
    from pytest_hermes.failures import TaskFailed
    from pytest_hermes.limits import Limits
    from pytest_hermes.rollout import Rollout
    from pytest_hermes.task import DirectoryFiles, InlineFiles, SandboxSpec, Script, Task
    from pytest_hermes.tool_context import ToolContext
    from pytest_hermes.tools.own import tool
    from pytest_hermes.tools.tool import ToolFailure
    from pytest_hermes.tools.workspace import Workspace
    from pytest_hermes.verification import run_test_script

__version__ = "0.1.0"

_HOMES = {
    "Agent": "agents.protocol",
    "AgentContext": "agents.protocol",
    "AgentResult": "agents.result",
    "Benchmark": "benchmark",
    "DirectoryFiles": "task",
    "InlineFiles": "task",
    "Limits": "limits",
    "Rollout": "rollout",
    "SandboxSpec": "task",
    "Script": "task",
    "Task": "task",
    "TaskFailed": "failures",
    "ToolContext": "tool_context",
    "ToolFailure": "tools.tool",
    "Verdict": "benchmark",
    "Verification": "benchmark",
    "Workspace": "tools.workspace",
    "load_tasks": "datasets.harbor",
    "rows": "datasets.dataset",
    "run_test_script": "verification",
    "tool": "tools.own",
}

__all__ = [
    "Agent",
    "AgentContext",
    "AgentResult",
    "Benchmark",
    "DirectoryFiles",
    "InlineFiles",
    "Limits",
    "Rollout",
    "SandboxSpec",
    "Script",
    "Task",
    "TaskFailed",
    "ToolContext",
    "ToolFailure",
    "Verdict",
    "Verification",
    "Workspace",
    "__version__",
    "load_tasks",
    "rows",
    "run_test_script",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pytest_hermes' has no attribute {name!r}")
    return getattr(importlib.import_module(f"pytest_hermes.{_HOMES[name]}"), name)
