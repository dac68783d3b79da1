"""Providers of the contract suite, and the image that container backends run."""

from __future__ import annotations

import functools
import os
import subprocess

import pytest

FALLBACK = "phx/standin:debian"


@functools.cache
def _image() -> str | None:
    for name in (os.environ.get("HERMES_TEST_IMAGE", "hermes-test/base:local"), FALLBACK):
        if subprocess.run(["docker", "image", "inspect", name], capture_output=True).returncode == 0:
            return name
    return None


@pytest.fixture
def image() -> str:
    """An image with bash and coreutils that is on this machine; nothing is pulled."""
    found = _image()
    if found is None:
        reason = "no test image: set HERMES_TEST_IMAGE to one with bash (default hermes-test/base:local)"
        if "docker" in os.environ.get("HERMES_TEST_REQUIRE", "").split(","):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return found
