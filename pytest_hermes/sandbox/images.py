"""Images of a run: by name (pulled when missing) or built from a task's directory (tagged by content).

Over all processes of a user an image is pulled or built once: under a file lock, and looked for again once the lock is
held, so whoever waited uses what the other one made.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from pytest_hermes.errors import ImageError, SandboxUnavailable
from pytest_hermes.sandbox.docker_client import translated
from pytest_hermes.sandbox.protocol import SandboxRequest
from pytest_hermes.sandbox.starts import Slots, runtime_directory
from pytest_hermes.task import DirectoryFiles, ImageBuild, slug

if TYPE_CHECKING:
    import aiodocker

log = logging.getLogger(__name__)

_PULL_TRIES = 3
_FIRST_BACK_OFF_S = 1.0
_TAIL_LINES = 20


def build_tag(task_id: str, build: ImageBuild) -> str:
    """The tag of a built image: the task's slug and a digest over the context's files and the Dockerfile's name."""
    digest = hashlib.sha256(f"{build.dockerfile}\0{DirectoryFiles(build.context).digest()}".encode()).hexdigest()
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
        seen: set[str] = set()
        async for event in self._client.images.pull(reference, stream=True):
            if "error" in event:
                raise ImageError(str(event["error"]))
            status = str(event.get("status", ""))
            line = f"{event['id']}: {status}" if event.get("id") else status
            if status and "progressDetail" in event and event["progressDetail"]:
                continue
            if line and line not in seen:
                seen.add(line)
                self._progress(f"{reference}: {line}")

    async def _build(self, reference: str, build: ImageBuild, task_id: str, *, force: bool) -> None:
        tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._progress(f"building {reference}")
        builder = _Builder(reference, build, no_cache=force)
        loop = asyncio.get_running_loop()

        def line(text: str) -> None:
            tail.append(text)
            loop.call_soon_threadsafe(self._progress, f"{reference}: {text}")

        try:
            await asyncio.to_thread(builder.run, line)
        except asyncio.CancelledError:
            builder.stop()
            raise
        except ImageError as error:
            output = "\n".join(tail)
            raise ImageError(
                f"task {task_id}: image {reference} could not be built from {build.context}: {error}\n{output}"
            ) from error
        self._progress(f"built {reference}")


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


class _Builder:
    """One build through the docker package, in a thread; `stop` ends it by closing its connection."""

    def __init__(self, reference: str, build: ImageBuild, *, no_cache: bool) -> None:
        self._reference = reference
        self._build = build
        self._no_cache = no_cache
        self._client: Any = None

    def run(self, line: Callable[[str], None]) -> None:
        """Raises ImageError with the daemon's last word."""
        try:
            import docker
            import docker.errors
            import requests
        except ImportError as error:
            raise SandboxUnavailable(
                f"building an image needs the package docker ({error}): pip install 'pytest-hermes[docker]'"
            ) from error
        from pytest_hermes.sandbox.docker_client import daemon_url

        dockerfile = self._build.context / self._build.dockerfile
        if not dockerfile.is_file():
            raise ImageError(f"no {self._build.dockerfile} in {self._build.context}")
        url = daemon_url()
        try:
            self._client = docker.from_env() if url is None else docker.DockerClient(base_url=url)
            events = self._client.api.build(
                path=str(self._build.context),
                dockerfile=self._build.dockerfile,
                tag=self._reference,
                nocache=self._no_cache,
                rm=True,
                forcerm=True,
                decode=True,
            )
            for event in events:
                for text in str(event.get("stream", "")).splitlines():
                    if text.strip():
                        line(text.rstrip())
                if "error" in event:
                    raise ImageError(str(event["error"]).strip())
        except (docker.errors.DockerException, requests.RequestException) as error:
            raise ImageError(str(error)) from error
        finally:
            self.stop()

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
