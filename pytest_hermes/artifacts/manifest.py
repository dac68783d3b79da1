"""`run.json`: what a run was made of, enough to repeat or compare it. Keys are never in it."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_hermes.config import Settings

PACKAGES = ("pytest-hermes", "pytest", "pytest-xdist", "aiohttp", "openai", "aiodocker")
SECRET_OPTIONS = ("--hermes-set",)


def manifest(
    *, settings: Mapping[str, Settings], arguments: Sequence[str], root: Path, benchmarks: Sequence[str]
) -> dict[str, Any]:
    """The manifest at the run's start."""
    return {
        "started": time.time(),
        "benchmarks": list(benchmarks),
        "command": ["pytest", *(_masked(argument) for argument in arguments)],
        "settings": {name: settings_json(value) for name, value in settings.items()},
        "versions": {"python": sys.version.split()[0], **_versions()},
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "git": _git(root),
    }


def settings_json(settings: Settings) -> dict[str, Any]:
    """Settings as JSON values, the key left out."""
    values = dataclasses.asdict(settings)
    if values["openai"]["api_key"]:
        values["openai"]["api_key"] = "***"
    return values


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
