"""Sandboxes in Docker or Podman containers, by the daemon's API.

One container per sandbox: an init process, `sleep infinity`, the image's own WORKDIR and user, the task's limits. The
daemon, not the client, is what limits throughput (about 8 starts and 45 execs a second on two cores), hence the start
semaphore across processes here and the kept shell above.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import re
import secrets
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pytest_hermes.errors import SandboxError, SandboxStartError, TaskError
from pytest_hermes.sandbox import docker_archive
from pytest_hermes.sandbox.docker_client import connect, remove, translated
from pytest_hermes.sandbox.docker_sandbox import DockerSandbox
from pytest_hermes.sandbox.labels import PREFIX, Owner
from pytest_hermes.sandbox.protocol import SandboxRequest
from pytest_hermes.sandbox.starts import Slots, runtime_directory

if TYPE_CHECKING:
    import aiodocker

    from pytest_hermes.sandbox.images import Images

log = logging.getLogger(__name__)

DEFAULT_PIDS = 4096


class DockerProvider:
    """Makes `DockerSandbox`es. `starts` containers at most are being started at once, over all processes of the user.

    `progress` gets one line per step of an image's pull or build; default is the log.
    """

    backend = "docker"
    confined = True

    def __init__(
        self,
        *,
        starts: int = 8,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._progress = progress or log.info
        self._slots = Slots(runtime_directory(), "docker-start", starts)
        self._connecting = asyncio.Lock()
        self._client: aiodocker.Docker | None = None
        self._images: Images | None = None
        self._open: weakref.WeakSet[DockerSandbox] = weakref.WeakSet()

    async def _connected(self) -> tuple[aiodocker.Docker, Images]:
        async with self._connecting:
            if self._client is None or self._images is None:
                from pytest_hermes.sandbox.images import Images

                self._client = await connect()
                self._images = Images(self._client, self._progress)
            return self._client, self._images

    async def create(self, request: SandboxRequest) -> DockerSandbox:
        """See `SandboxProvider.create`. The image is pulled or built first, outside the start semaphore."""
        client, images = await self._connected()
        spec = request.spec
        if not spec.needs_image:
            raise TaskError(
                f"task {request.task_id} names no image, which --hermes-sandbox=docker needs: give the task an image, "
                "or use --hermes-sandbox=local"
            )
        image = await images.ensure(request)
        async with self._slots.slot():
            starting = asyncio.ensure_future(self._start(client, image, request))
            try:
                return await asyncio.shield(starting)
            except asyncio.CancelledError:
                # A start that was begun is carried to its end, so that no half-made container is forgotten.
                with contextlib.suppress(SandboxError):
                    await (await starting).close()
                raise

    async def _start(self, client: aiodocker.Docker, image: str, request: SandboxRequest) -> DockerSandbox:
        import aiodocker
        import aiohttp

        doing = f"task {request.task_id}: start a container of {image}"
        name = f"pytest-hermes-{_name_slug(request.task_id)}-{secrets.token_hex(4)}"
        container = None
        try:
            container = await client.containers.create(self._configuration(image, request), name=name)
            await container.start()
            info = await container.show()
            home = await _home(client, info)
        except BaseException as error:
            if container is not None:
                with contextlib.suppress(SandboxError):
                    await asyncio.shield(remove(container))
            if isinstance(error, aiodocker.DockerError | aiohttp.ClientError | ConnectionError):
                raise _start_error(error, doing) from error
            raise
        sandbox = DockerSandbox(client, container, info, home=home)
        self._open.add(sandbox)
        return sandbox

    def _configuration(self, image: str, request: SandboxRequest) -> dict[str, Any]:
        spec = request.spec
        host: dict[str, Any] = {
            "Init": True,
            "NetworkMode": "bridge" if spec.network else "none",
            "PidsLimit": spec.pids or DEFAULT_PIDS,
        }
        if spec.cpus is not None:
            host["NanoCpus"] = int(spec.cpus * 1e9)
        if spec.memory_mb is not None:
            host["Memory"] = host["MemorySwap"] = spec.memory_mb << 20
        found: dict[str, Any] = {
            "Image": image,
            "Entrypoint": [],
            "Cmd": ["sleep", str(math.ceil(request.lifetime_s))],  # ends itself if nobody is left to remove it
            "Labels": {**request.labels, PREFIX: "1", f"{PREFIX}.task": request.task_id},
            "Env": [f"{key}={value}" for key, value in spec.env.items()],
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": host,
        }
        if spec.workdir is not None:
            found["WorkingDir"] = spec.workdir
        if spec.user is not None:
            found["User"] = spec.user
        return found

    async def reap(self, *, run_id: str | None = None) -> int:
        """See `SandboxProvider.reap`."""
        from pytest_hermes.sandbox.reap import is_reapable

        client, _ = await self._connected()
        removed = 0
        filters = json.dumps({"label": [f"{PREFIX}=1"]})
        for container in await client.containers.list(all=True, filters=filters):
            if is_reapable(Owner.read(container["Labels"]), run_id):
                await remove(container)
                removed += 1
        return removed

    async def aclose(self) -> None:
        """See `SandboxProvider.aclose`."""
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._open)))
        client, self._client = self._client, None
        if client is not None:
            await client.close()


def _name_slug(task_id: str) -> str:
    return re.sub(r"[^a-z0-9_.-]+", "-", task_id.lower()).strip("-._")[:32] or "task"


def _start_error(error: Exception, doing: str) -> Exception:
    text = str(error)
    if '"sleep"' in text and "executable file not found" in text:
        return SandboxStartError(f"{doing}: the image has no `sleep`, which keeps a sandbox's container alive")
    found = translated(error, doing)
    return SandboxStartError(str(found)) if type(found) is SandboxError else found


async def _home(client: aiodocker.Docker, info: Mapping[str, Any]) -> str:
    """HOME of the container's user: its environment's, else the one in its /etc/passwd."""
    for entry in info["Config"]["Env"] or ():
        if entry.startswith("HOME="):
            return str(entry.removeprefix("HOME="))
    user = str(info["Config"]["User"] or "root").partition(":")[0]
    if user in ("root", "0"):
        return "/root"
    with contextlib.suppress(OSError):
        passwd = await docker_archive.read(client, info["Id"], "/etc/passwd", max_bytes=1_000_000)
        for line in passwd.decode(errors="replace").splitlines():
            fields = line.split(":")
            if len(fields) >= 6 and user in (fields[0], fields[2]):
                return fields[5] or "/"
    return "/"
