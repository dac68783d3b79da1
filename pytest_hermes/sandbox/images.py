"""Images of a run: by name (pulled when missing) or built from a task's directory (tagged by content).

Over all processes of a user an image is pulled or built once: under a file lock, and looked for again once the lock is
held, so whoever waited uses what the other one made.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import hashlib
import json
import logging
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pytest_hermes.errors import ImageError, SandboxUnavailable
from pytest_hermes.sandbox.docker_client import translated
from pytest_hermes.sandbox.protocol import SandboxRequest
from pytest_hermes.sandbox.starts import Slots, runtime_directory
from pytest_hermes.task import ImageBuild, slug

if TYPE_CHECKING:
    import aiodocker
    import aiohttp

log = logging.getLogger(__name__)
_importing = threading.Lock()

_PULL_TRIES = 3
_FIRST_BACK_OFF_S = 1.0
_TAIL_LINES = 20


def build_tag(task_id: str, build: ImageBuild) -> str:
    """The tag of a built image: the task's slug and a digest over the context's files and the Dockerfile's name."""
    digest = hashlib.sha256(f"{build.dockerfile}\0{build.files.digest()}".encode()).hexdigest()
    return f"pytest-hermes/{slug(task_id)}:{digest[:12]}"


class Images:
    """Makes sure that an image is there. One per provider; lives on its loop."""

    def __init__(self, client: aiodocker.Docker, progress: Callable[[str], None]) -> None:
        self._client = client
        self._progress = progress
        self._ready: dict[str, asyncio.Task[None]] = {}

    async def ensure(self, request: SandboxRequest) -> str:
        """The reference of the image that a request needs. ImageError with the log's tail."""
        spec = request.spec
        if spec.build is not None:
            build = spec.build
            reference = await asyncio.to_thread(build_tag, request.task_id, build)
            force = request.force_build
        else:
            assert spec.image is not None
            reference, force = spec.image, False
        key = f"{reference} forced" if force else reference
        making = self._ready.get(key)
        if making is None or (making.done() and (making.cancelled() or making.exception() is not None)):
            making = self._ready[key] = asyncio.ensure_future(self._make(reference, request, force=force))
        # Others may wait for the same image: one who gives up must not take it from them.
        await asyncio.shield(making)
        return reference

    async def _make(self, reference: str, request: SandboxRequest, *, force: bool) -> None:
        if not force and await self._is_present(reference):
            return
        limit_s = request.build_timeout_s or None
        async with self._locked(reference) as directory_key:
            done = runtime_directory() / f"built-{directory_key}"
            run = request.labels.get("pytest-hermes.run", "")
            if force and done.is_file() and done.read_text() == run and run:
                return
            if not force and await self._is_present(reference):
                return
            what = "build" if request.spec.build is not None else "pull"
            try:
                async with asyncio.timeout(limit_s):
                    if request.spec.build is not None:
                        await self._build(reference, request.spec.build, request.task_id, force=force)
                    else:
                        await self._pull(reference, request.task_id)
            except TimeoutError as error:
                raise ImageError(
                    f"task {request.task_id}: {what} of image {reference} did not end within {limit_s:g} s"
                ) from error
            if force:
                done.write_text(run)

    @contextlib.asynccontextmanager
    async def _locked(self, reference: str) -> AsyncIterator[str]:
        key = hashlib.sha256(reference.encode()).hexdigest()[:16]
        async with Slots(runtime_directory(), f"image-{key}", 1).slot():
            yield key

    async def _is_present(self, reference: str) -> bool:
        import aiodocker
        import aiohttp

        try:
            await self._client.images.inspect(reference)
        except aiodocker.DockerError as error:
            if error.status == 404:
                return False
            raise translated(error, f"image {reference}") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise translated(error, f"image {reference}") from error
        return True

    async def _pull(self, reference: str, task_id: str) -> None:
        import aiodocker
        import aiohttp

        wait_s = _FIRST_BACK_OFF_S
        for attempt in range(1, _PULL_TRIES + 1):
            self._progress(f"pulling {reference}")
            try:
                await self._pull_once(reference)
            except (aiodocker.DockerError, aiohttp.ClientError, ConnectionError, ImageError) as error:
                reason = str(error.message) if isinstance(error, aiodocker.DockerError) else str(error)
                if _is_final(reason) or attempt == _PULL_TRIES:
                    raise ImageError(
                        f"task {task_id}: image {reference} is not on this machine and could not be pulled: {reason}"
                    ) from error
                self._progress(f"pulling {reference}: {reason}; again in {wait_s:g} s")
                await asyncio.sleep(wait_s)
                wait_s *= 4
            else:
                self._progress(f"pulled {reference}")
                return

    async def _pull_once(self, reference: str) -> None:
        name, _, digest = reference.partition("@")
        is_tagged = digest or ":" in name.rpartition("/")[2]
        params = {"fromImage": reference} if is_tagged else {"fromImage": reference, "tag": "latest"}
        headers = await asyncio.to_thread(_pull_credentials, reference)
        seen: set[str] = set()
        async for event in self._events("images/create", params, headers):
            line = ": ".join(str(event[key]) for key in ("id", "status") if event.get(key))
            if line and not event.get("progressDetail") and line not in seen:
                seen.add(line)
                self._progress(f"{reference}: {line}")

    async def _build(self, reference: str, build: ImageBuild, task_id: str, *, force: bool) -> None:
        import aiodocker
        import aiohttp

        tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._progress(f"building {reference}")
        params = {"t": reference, "dockerfile": build.dockerfile, "rm": "1", "forcerm": "1", "nocache": str(int(force))}
        try:
            context = await asyncio.to_thread(_context_archive, build)
            with context:
                headers = {"Content-Type": "application/x-tar", **await asyncio.to_thread(_build_credentials)}
                async for event in self._events("build", params, headers, context):
                    for text in str(event.get("stream", "")).splitlines():
                        if text.strip():
                            tail.append(text.rstrip())
                            self._progress(f"{reference}: {text.rstrip()}")
        except (ImageError, aiodocker.DockerError, aiohttp.ClientError, ConnectionError) as error:
            reason = str(error.message) if isinstance(error, aiodocker.DockerError) else str(error)
            output = "\n".join(["", *tail])
            raise ImageError(
                f"task {task_id}: image {reference} could not be built from {build.context}: {reason}{output}"
            ) from error
        self._progress(f"built {reference}")

    async def _events(
        self, path: str, params: Mapping[str, str], headers: Mapping[str, str], data: IO[bytes] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """The daemon's progress stream, one JSON object a line; its `error` becomes an ImageError.

        The answer is closed whatever happens: that is what ends a build whose time is up.
        """
        import aiohttp

        forever = aiohttp.ClientTimeout(total=None, sock_read=None)
        async with self._client._query(
            path, "POST", params=dict(params), headers=dict(headers), data=data, timeout=forever
        ) as response:
            try:
                async for line in _lines(response.content):
                    event = json.loads(line)
                    if "error" in event:
                        raise ImageError(str(event["error"]).strip())
                    yield event
            finally:
                response.close()


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length: aiohttp's own reader refuses long ones, and a RUN may print one."""
    held = bytearray()
    async for chunk in content.iter_any():
        *whole, last = (held + chunk).split(b"\n")
        held = bytearray(last)
        for line in whole:
            if line.strip():
                yield bytes(line)
    if held.strip():
        yield bytes(held)


def _is_final(reason: str) -> bool:
    """Whether trying again cannot help."""
    low = reason.lower()
    words = (
        "not found",
        "denied",
        "unauthorized",
        "does not exist",
        "invalid reference",
        "manifest unknown",
        "no space",
    )
    return any(word in low for word in words)


def _context_archive(build: ImageBuild) -> IO[bytes]:
    """The build context as a tar file, `.dockerignore` honoured. ImageError without a Dockerfile."""
    if isinstance(build.context, Path):
        return _archive_of(build.context, build.dockerfile)
    with tempfile.TemporaryDirectory(prefix="hermes-build-") as folder:
        for name, mode, content in build.context.entries():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(mode & 0o755 | 0o600)
        return _archive_of(Path(folder), build.dockerfile)


def _archive_of(context: Path, dockerfile: str) -> IO[bytes]:
    try:
        tar = _docker_package().utils.build.tar
    except ImportError as error:
        raise SandboxUnavailable(
            f"building an image needs the package docker ({error}): pip install 'pytest-hermes[docker]'"
        ) from error
    if not (context / dockerfile).is_file():
        raise ImageError(f"no {dockerfile} in {context}")
    ignore = context / ".dockerignore"
    lines = [line.strip() for line in ignore.read_text().splitlines()] if ignore.is_file() else []
    exclude = [line for line in lines if line and not line.startswith("#")]
    archive = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        tar(context, exclude=exclude, dockerfile=(dockerfile, None), fileobj=archive)
    except BaseException:
        archive.close()
        raise
    archive.seek(0)
    return archive


def _docker_package() -> Any:
    """Docker's own package. Its modules import each other in a circle, which breaks where two threads begin at once."""
    with _importing:
        import docker.auth
        import docker.utils.build

        return docker


def _pull_credentials(reference: str) -> dict[str, str]:
    """The header that logs in to an image's registry, from Docker's own configuration, if it knows that registry."""
    try:
        auth = _docker_package().auth
    except ImportError:
        return {}
    registry, _ = auth.resolve_repository_name(reference)
    found = auth.load_config().resolve_authconfig(registry)
    return {"X-Registry-Auth": auth.encode_header(found).decode()} if found else {}


def _build_credentials() -> dict[str, str]:
    """The same for a build, whose base images may come from any registry."""
    auth = _docker_package().auth
    found = auth.load_config().get_all_credentials()
    return {"X-Registry-Config": auth.encode_header(found).decode()} if found else {}
