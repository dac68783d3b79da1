"""Hooks that pytest-hermes calls."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_hermes.config import Settings
    from pytest_hermes.sandbox.protocol import Sandbox
    from pytest_hermes.task import Task


@pytest.hookspec(firstresult=True)
def pytest_hermes_make_sandbox(task: Task, settings: Settings) -> AbstractAsyncContextManager[Sandbox] | None:
    """Provision a task's sandbox yourself: return an async context manager that yields a Sandbox, or None.

    Called on the engine's event loop, once per try; the first result that is not None is used. Errors that derive from
    `pytest_hermes.errors.SandboxError` are infrastructure (retried, then `invalid`).
    """
