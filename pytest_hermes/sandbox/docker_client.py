"""The connection to a Docker (or Podman) daemon, and its errors in our words."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import socket
import urllib.parse
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_hermes.errors import ImageError, SandboxError, SandboxLost, SandboxStartError, SandboxUnavailable

if TYPE_CHECKING:
    import aiodocker
    from aiodocker.containers import DockerContainer

_DEFAULT_SOCKET = "/var/run/docker.sock"
CONTACT_S = 5.0


def daemon_url() -> str | None:
    """Where the daemon is: DOCKER_HOST, else the first socket of Docker or Podman; None leaves it to Docker contexts.

    Without any socket, Docker's usual one, so that the error names it.
    """
    if host := os.environ.get("DOCKER_HOST"):
        return host
    if os.environ.get("DOCKER_CONTEXT") or _current_context():
        return None
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    candidates = [
        Path(_DEFAULT_SOCKET),
        Path.home() / ".docker/run/docker.sock",
        Path(runtime, "docker.sock"),
        Path(runtime, "podman/podman.sock"),
        Path("/run/podman/podman.sock"),
    ]
    for path in candidates:
        try:
            if path.is_socket():
                return f"unix://{path}"
        except PermissionError:
            continue
    return f"unix://{_DEFAULT_SOCKET}"


def _current_context() -> str:
    folder = Path(os.environ.get("DOCKER_CONFIG", Path.home() / ".docker"))
    try:
        name = json.loads((folder / "config.json").read_text()).get("currentContext", "")
    except (OSError, ValueError):
        return ""
    return "" if name == "default" else str(name)


def check_reachable(*, needs_image: bool) -> None:
    """Raise SandboxUnavailable, as `connect` would, where the package or the daemon is missing; imports nothing heavy.

    Only where the daemon's address is plain to see; one behind ssh or a Docker context is left to `connect`.
    `needs_image` says that no other backend would do.
    """
    if importlib.util.find_spec("aiodocker") is None:
        raise SandboxUnavailable(_no_package("it is not installed"))
    url = daemon_url() or ""
    parts = urllib.parse.urlsplit(url)
    try:
        if parts.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(CONTACT_S)
                client.connect(parts.path)
        elif parts.scheme in ("tcp", "http", "https") and parts.hostname and parts.port:
            socket.create_connection((parts.hostname, parts.port), CONTACT_S).close()
    except OSError as error:
        raise SandboxUnavailable(_no_contact(url, {error.errno}, needs_image=needs_image)) from error


async def connect() -> aiodocker.Docker:
    """A connected client. SandboxUnavailable says which of package, daemon or permission is missing."""
    try:
        import aiodocker
    except ImportError as error:
        raise SandboxUnavailable(_no_package(str(error))) from error
    url = daemon_url()
    try:
        client = aiodocker.Docker(url=url)
    except ValueError as error:
        raise SandboxUnavailable(f"--hermes-sandbox=docker: {url or 'the Docker context'}: {error}") from error
    # Every kept shell holds a connection: aiohttp's limit of 100 would stop the 101st rollout for ever.
    client.connector._limit = 0
    try:
        await client.version()
    except Exception as error:
        await client.close()
        raise unreachable(error, url) from error
    return client


def unreachable(error: Exception, url: str | None) -> Exception:
    """What a failed first contact means; errors that are no connection's come back as they are."""
    import aiodocker
    import aiohttp

    place = url or "the current Docker context's address"
    if isinstance(error, aiodocker.DockerError) and error.status != 900:
        return SandboxUnavailable(f"--hermes-sandbox=docker: the daemon at {place} answers {error}")
    if not isinstance(error, aiohttp.ClientError | OSError | aiodocker.DockerError):
        return error
    cause: BaseException | None = error
    numbers: set[int | None] = set()
    while cause is not None:
        numbers.add(getattr(cause, "errno", None))
        cause = cause.__cause__ or cause.__context__
    return SandboxUnavailable(_no_contact(place, numbers, needs_image=False))


def _no_package(reason: str) -> str:
    return f"--hermes-sandbox=docker needs the package aiodocker ({reason}): pip install 'pytest-hermes[docker]'"


def _no_contact(place: str, numbers: Collection[int | None], *, needs_image: bool) -> str:
    otherwise = "" if needs_image else ", or use --hermes-sandbox=local"
    if errno.EACCES in numbers:
        return (
            f"--hermes-sandbox=docker: no permission to use {place}. Join its group (sudo usermod -aG docker "
            f"{os.environ.get('USER', '$USER')}, then log in again){otherwise}"
        )
    return f"--hermes-sandbox=docker: no Docker daemon at {place}. Start it{otherwise}"


def translated(error: Exception, doing: str) -> Exception:
    """A daemon's or connection's error as one of ours; `doing` says what was asked, with the sandbox or image."""
    import aiodocker
    import aiohttp

    if isinstance(error, aiodocker.DockerError):
        message = error.message if isinstance(error.message, str) else str(error.message)
        if "no space left" in message.lower():
            return SandboxStartError(
                f"{doing}: the Docker daemon's disk is full ({message}). Free some, for example by docker system prune"
            )
        if error.status == 404 and "no such image" in message.lower():
            return ImageError(f"{doing}: {message}")
        if error.status == 900:
            return SandboxLost(f"{doing}: the Docker daemon does not answer ({message})")
        return SandboxError(f"{doing}: the Docker daemon says: {message.strip()} (status {error.status})")
    if isinstance(error, aiohttp.ClientError | ConnectionError):
        return SandboxLost(f"{doing}: the Docker daemon does not answer ({error})")
    return error


async def remove(container: DockerContainer) -> None:
    """Remove a container with its volumes; one that is gone, or being removed, is fine."""
    import aiodocker
    import aiohttp

    try:
        await container.delete(force=True, v=True)
    except aiodocker.DockerError as error:
        if error.status not in (404, 409):
            raise translated(error, f"docker sandbox {container.id[:12]}: remove") from error
    except (aiohttp.ClientError, ConnectionError) as error:
        raise translated(error, f"docker sandbox {container.id[:12]}: remove") from error
