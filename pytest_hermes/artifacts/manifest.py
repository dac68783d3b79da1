"""`run.json`: what a run was made of, enough to repeat or compare it. Keys are never in it."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_hermes.config import Settings
from pytest_hermes.errors import TaskError

if TYPE_CHECKING:
    from pytest_hermes.datasets.dataset import Provenance
    from pytest_hermes.job import Job

PACKAGES = ("pytest-hermes", "pytest", "pytest-xdist", "aiohttp", "openai", "aiodocker")
HIDDEN = "***"
_SECRET_NAME = re.compile(r"(key|token|secret|password|authorization|credentials?)$", re.IGNORECASE)


def manifest(
    *,
    jobs: Sequence[Job],
    arguments: Sequence[str],
    root: Path,
    skipped: Mapping[str, str],
    sources: Mapping[str, Provenance],
    sections: Mapping[str, str] | None = None,
    resumed_from: Path | None = None,
) -> dict[str, Any]:
    """The manifest at the run's start: `jobs` are what the run selected, `skipped` what of it pytest skips
    (node id -> reason), `sources` where benchmarks found their tasks, `sections` the import paths of their sections."""
    settings = settings_by_benchmark(jobs)
    return {
        "started": time.time(),
        "benchmarks": sorted(settings),
        "command": ["pytest", *(_masked(argument) for argument in arguments)],
        "resumed_from": resumed_from and str(resumed_from),
        "settings": settings,
        "datasets": datasets(jobs, sources),
        "sections": {name: path for name, path in (sections or {}).items() if name in settings},
        "skipped": dict(skipped),
        "versions": {"python": sys.version.split()[0], **_versions()},
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "git": _git(root),
    }


def datasets(jobs: Sequence[Job], sources: Mapping[str, Provenance]) -> dict[str, dict[str, Any]]:
    """Benchmark -> where its tasks came from, and `tasks`: id -> digest of those that were selected."""
    found: dict[str, dict[str, Any]] = {}
    for job in jobs:
        if job.benchmark not in found:
            source = sources.get(job.benchmark)
            found[job.benchmark] = {**(source.as_json() if source else {}), "tasks": {}}
        digests = found[job.benchmark]["tasks"]
        if job.task.id not in digests:
            try:
                digests[job.task.id] = job.task.digest
            except (TaskError, OSError):
                digests[job.task.id] = None  # its files cannot be read; the task's own row says so
    return found


def settings_by_benchmark(jobs: Sequence[Job]) -> dict[str, dict[str, Any]]:
    """Benchmark -> `env` and `openai`, and `benchmark`: what its definition decides besides."""
    found: dict[str, dict[str, Any]] = {}
    for job in jobs:
        if job.benchmark not in found:
            found[job.benchmark] = {**settings_json(job.settings), "benchmark": _definition(job)}
        found[job.benchmark]["benchmark"]["timeout_s"].setdefault(job.node_id.partition("[")[0], job.agent_cap_s)
    return found


def _definition(job: Job) -> dict[str, Any]:
    """What a benchmark's definition decides. Of tests whose mark describes the task, the task's digest says it."""
    if job.verify is None:
        return {"timeout_s": {}}
    return {
        "toolsets": job.toolsets and list(job.toolsets),
        "tools": {tool.name: {"description": tool.description, "parameters": tool.parameters} for tool in job.tools},
        "limits": dataclasses.asdict(job.limits),
        "pass_threshold": job.pass_threshold,
        "timeout_s": {},
    }


def settings_json(settings: Settings) -> dict[str, Any]:
    """Settings as JSON values, the key and what is called a key inside of other values left out."""
    shown: dict[str, Any] = _without_secrets(dataclasses.asdict(settings))
    return shown


def _without_secrets(value: Any, name: str = "") -> Any:
    if isinstance(value, Mapping):
        return {key: _without_secrets(entry, str(key)) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_secrets(entry, name) for entry in value]
    return HIDDEN if isinstance(value, str) and value and _SECRET_NAME.search(name) else value


def _masked(argument: str) -> str:
    return "openai.api_key=***" if "api_key" in argument else argument


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _git(root: Path) -> dict[str, Any] | None:
    """Commit and whether the work tree differs; None outside a checkout or without git."""

    def run(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = run("rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": bool(run("status", "--porcelain", "--untracked-files=no"))}
