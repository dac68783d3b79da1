"""Removing sandboxes whose owner is dead, from outside the engine: after a killed worker, and `pytest-hermes reap`."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from pytest_hermes.artifacts.run_directory import RunIdentity
from pytest_hermes.errors import SandboxUnavailable


def reap(backends: list[str]) -> dict[str, int | str]:
    """Remove orphaned sandboxes of each backend; backend -> how many, or why it could not be asked."""

    async def one(backend: str) -> int | str:
        from pytest_hermes.sandbox.registry import make_provider

        provider = make_provider(backend)
        try:
            return await provider.reap()
        except SandboxUnavailable as error:
            return f"nothing removed: {_without_advice(str(error), backend)}"
        finally:
            await provider.aclose()

    async def every() -> dict[str, int | str]:
        return {backend: await one(backend) for backend in backends}

    return asyncio.run(every())


def _without_advice(text: str, backend: str) -> str:
    """The message without the option that a run would be given instead: here it says nothing."""
    text = text.removeprefix(f"--hermes-sandbox={backend}").lstrip(": ")
    return re.sub(r"(,? or|[.:]) use --hermes-[\w-]+=\w+.*$", "", text)


def reap_run(identity: RunIdentity) -> None:
    """Remove the orphans of this run's backends (those that its `run.json` names)."""
    run = identity.find()
    if run is not None:
        reap(backends_of(run))


def backends_of(run: Path) -> list[str]:
    """Sandbox backends that a run uses, by its manifest."""
    manifest: dict[str, Any] = json.loads((run / "run.json").read_text())
    return sorted({settings["env"]["terminal_backend"] for settings in manifest["settings"].values()})
