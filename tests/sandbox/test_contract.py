"""The contract suite over every backend that runs here."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_hermes.sandbox.contract import SandboxContract
from pytest_hermes.sandbox.docker import DockerProvider
from pytest_hermes.sandbox.local import LocalProvider
from pytest_hermes.sandbox.shell_contract import ShellContract
from pytest_hermes.task import SandboxSpec


class TestLocal(SandboxContract, ShellContract):
    @pytest.fixture
    def provider(self, tmp_path: Path) -> LocalProvider:
        return LocalProvider(confine="off", root=tmp_path / "s")


@pytest.mark.requires("bwrap")
class TestConfined(SandboxContract, ShellContract):
    @pytest.fixture
    def provider(self, tmp_path: Path) -> LocalProvider:
        return LocalProvider(confine="on", root=tmp_path / "s")


@pytest.mark.requires("docker")
class TestDocker(SandboxContract, ShellContract):
    @pytest.fixture(autouse=True)
    def _with_image(self, image: str) -> None:
        self.spec = SandboxSpec(image=image, network=False)

    @pytest.fixture
    def provider(self) -> DockerProvider:
        return DockerProvider(starts=8)
