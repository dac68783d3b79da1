"""Sandbox backends by name: those of this package and those of the entry-point group `pytest_hermes.sandboxes`.

An entry point names a callable that takes keyword options (`starts`, `confine`, `env_passthrough`, `progress`; more may
come, so accept `**options`) and returns a `SandboxProvider`. `progress` is called with a line per step of an image's
pull or build.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pytest_hermes.errors import ConfigurationError

if TYPE_CHECKING:
    from pytest_hermes.sandbox.protocol import SandboxProvider

ENTRY_POINTS = "pytest_hermes.sandboxes"
_NOT_BUILT = ("ssh", "singularity", "modal", "daytona")
DEFAULT_STARTS = 8


def _local(
    *,
    starts: int = DEFAULT_STARTS,
    confine: Literal["auto", "on", "off"] = "auto",
    env_passthrough: Sequence[str] = (),
    progress: Callable[[str], None] | None = None,
    root: Path | None = None,
) -> SandboxProvider:
    from pytest_hermes.sandbox.local import LocalProvider

    return LocalProvider(confine=confine, env_passthrough=env_passthrough, root=root)


def _docker(
    *,
    starts: int = DEFAULT_STARTS,
    confine: str = "auto",
    env_passthrough: Sequence[str] = (),
    progress: Callable[[str], None] | None = None,
) -> SandboxProvider:
    from pytest_hermes.sandbox.docker import DockerProvider

    return DockerProvider(starts=starts, progress=progress)


_BUILT_IN: dict[str, Callable[..., SandboxProvider]] = {"local": _local, "docker": _docker}


@functools.cache
def _installed() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=ENTRY_POINTS)}


def check_backend(name: str) -> None:
    """Raise ConfigurationError, with a close match, unless `name` is a backend. Imports none of them."""
    if name in _BUILT_IN or name in _installed():
        return
    if name in _NOT_BUILT:
        raise ConfigurationError(f"--hermes-sandbox={name}: this backend is not built yet. Use local or docker")
    known = sorted({*_BUILT_IN, *_installed()})
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise ConfigurationError(f"--hermes-sandbox={name}: no such backend.{hint} Known: {', '.join(known)}")


def check_usable(name: str, *, needs_image: bool) -> None:
    """Raise SandboxUnavailable if a backend cannot be used on this machine, as far as that is cheap to tell."""
    if name == "docker":
        from pytest_hermes.sandbox.docker_client import check_reachable

        check_reachable(needs_image=needs_image)


def make_provider(name: str, **options: object) -> SandboxProvider:
    """The provider of a backend. `options` are those of the backend; ConfigurationError for an unknown name."""
    check_backend(name)
    maker: Callable[..., SandboxProvider] = _BUILT_IN.get(name) or _installed()[name].load()
    return maker(**options)
