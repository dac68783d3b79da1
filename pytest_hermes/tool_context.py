"""The synchronous face of a rollout's sandbox: what verifiers, test bodies and reward functions call.

Methods and result keys are those of hermes environments. Every call runs on the engine's loop and waits for its end: a
thread blocks, a coroutine that is driven (`bridge`) waits as in an `await`. Calls at once run side by side. The tools
here are fresh ones over the same sandbox: files and processes of the agent are there, its shell state (cwd, variables,
functions, PATH) is not. Results are whole (1 MB of a command's output) and never stored in the sandbox. A lost sandbox
is raised; what goes wrong with files in a living one is in the result.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import io
import json
import os
import posixpath
import tarfile
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_hermes import bridge
from pytest_hermes.errors import SandboxError, SandboxLost, TransferError
from pytest_hermes.tools.terminal import run_command
from pytest_hermes.tools.toolbox import Toolbox
from pytest_hermes.tools.toolsets import Selection

if TYPE_CHECKING:
    from pytest_hermes.sandbox.protocol import Sandbox

OUTPUT_WINDOW = 1_000_000
READ_LINES = 2_000
_UNBOUNDED = 1 << 40
_MAX_LINKS = 10

T = TypeVar("T")


class ToolContext:
    """See the module docstring. `sandbox` is the rollout's, `task_id` names it.

    Successive `terminal` calls share one shell of their own, so `cd` and `export` hold from call to call; a call made
    while another one runs gets a further shell, which starts in the sandbox's working directory.
    """

    def __init__(
        self, toolbox: Toolbox, sandbox: Sandbox, loop: asyncio.AbstractEventLoop, *, task_id: str | None = None
    ) -> None:
        self.sandbox = sandbox
        self.task_id = task_id or sandbox.id
        self._agent_tools = toolbox
        self._loop = loop
        self._idle: list[tuple[int, Toolbox]] = []
        self._made = 0
        self._lock = threading.Lock()

    # -- commands and tools --------------------------------------------------------------------------

    def terminal(self, command: str, timeout: float = 180) -> dict[str, Any]:
        """Run a command: `{"output", "exit_code", "error"}`; exit code 124 after `timeout` seconds."""
        return self._with_tools(lambda tools: run_command(tools.workspace, command, timeout_s=timeout))

    def read_file(self, path: str) -> dict[str, Any]:
        """The first 2,000 lines of a file, numbered, as the tool `read_file` gives them."""
        return self._tool("read_file", {"path": path, "limit": READ_LINES})

    def write_file(self, path: str, content: str) -> dict[str, Any]:
        return self._tool("write_file", {"path": path, "content": content})

    def search(self, query: str, path: str = ".") -> dict[str, Any]:
        """Lines that match a regular expression, as the tool `search_files` gives them."""
        return self._tool("search_files", {"pattern": query, "path": path})

    def call_tool(self, name: str, args: Mapping[str, Any] | str | None = None) -> str:
        """Any tool by name; its JSON result. `process` and `todo` see the agent's processes and list."""
        return self._with_tools(lambda tools: tools.call(name, args))

    def _tool(self, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.call_tool(name, args))
        return result

    # -- transfers -----------------------------------------------------------------------------------

    def upload_file(self, local: str | os.PathLike[str], remote: str) -> dict[str, Any]:
        """Copy a file into the sandbox, mode kept: `{"exit_code": 0, "output": "", "bytes": n}`, or -1 and `error`."""
        source = Path(local)
        if not source.is_file():
            return {"exit_code": -1, "output": "", "error": f"Local file not found: {source}"}
        place = self._place(remote)
        folder, name = posixpath.split(place)
        return self._upload({name: source}, folder)[0]

    def upload_dir(self, local: str | os.PathLike[str], remote: str) -> list[dict[str, Any]]:
        """Copy a directory's files into `remote`; one result per file as in `upload_file`, with its `path`."""
        source = Path(local)
        if not source.is_dir():
            return [{"exit_code": -1, "output": "", "error": f"Local directory not found: {source}"}]
        files = {path.relative_to(source).as_posix(): path for path in sorted(source.rglob("*")) if path.is_file()}
        return self._upload(files, self._place(remote)) if files else []

    def _upload(self, files: Mapping[str, Path], folder: str) -> list[dict[str, Any]]:
        buffer = io.BytesIO()
        sizes = {}
        with tarfile.open(fileobj=buffer, mode="w", dereference=True) as archive:
            for name, path in files.items():
                info = archive.gettarinfo(str(path), arcname=name)
                if info.islnk():  # a second name of a file that is in the archive already: send it again
                    info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
                info.uid = info.gid = 0
                info.uname = info.gname = ""
                with path.open("rb") as content:
                    archive.addfile(info, content)
                sizes[name] = info.size
        try:
            arrived = self._transfer(lambda: self._send(buffer.getvalue(), folder, list(files)))
        except TransferError as error:
            return [{"exit_code": -1, "output": "", "error": str(error), "path": name} for name in files]
        results = []
        for name, size in sizes.items():
            result: dict[str, Any] = {"exit_code": 0, "output": "", "error": None, "path": name, "bytes": size}
            if arrived.get(name) != size:
                found = f"{arrived[name]} bytes" if name in arrived else "nothing"
                result |= {"exit_code": -1, "error": f"{name}: sent {size} bytes, the sandbox has {found}"}
            results.append(result)
        return results

    async def _send(self, archive: bytes, folder: str, names: list[str]) -> dict[str, int]:
        """Unpack `archive` below `folder`; the sizes that the sandbox then has."""
        await self.sandbox.upload_tar(archive, folder)
        listed = await self.sandbox.exec(
            ["xargs", "-0", "stat", "-L", "-c", "%s"],
            stdin=b"\0".join(f"./{name}".encode(errors="surrogateescape") for name in names),
            cwd=folder,
            user="root",
            timeout_s=120,
            max_output=max(1_000_000, 32 * len(names)),
        )
        sizes = listed.stdout.split()
        if len(sizes) != len(names):
            said = listed.stderr.decode(errors="replace").strip()[:300]
            raise TransferError(f"{folder}: {len(names)} files were sent, {len(sizes)} are there. {said}")
        return {name: int(size) for name, size in zip(names, sizes, strict=True)}

    def download_file(self, remote: str, local: str | os.PathLike[str]) -> dict[str, Any]:
        """Copy a file out of the sandbox: `{"success": True, "bytes": n}`, or False and `error`."""
        place = self._place(remote)
        for _ in range(_MAX_LINKS):
            archive = self._fetch(place)
            if isinstance(archive, str):
                return {"success": False, "error": archive}
            with tarfile.open(fileobj=io.BytesIO(archive)) as members:
                member = members.next()
                if member is None or member.isdir():
                    return {"success": False, "error": f"{place} is a directory; use download_dir"}
                if member.issym():
                    place = posixpath.join(posixpath.dirname(place), member.linkname)
                    continue
                content = members.extractfile(member)
                data = content.read() if content else b""
            if len(data) != member.size:
                return {"success": False, "error": f"{place}: {member.size} bytes expected, {len(data)} arrived"}
            target = Path(local)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            target.chmod(member.mode & 0o777 | 0o600)
            return {"success": True, "bytes": len(data)}
        return {"success": False, "error": f"{remote}: too many symbolic links"}

    def download_dir(self, remote: str, local: str | os.PathLike[str]) -> list[dict[str, Any]]:
        """Copy a directory's files out of the sandbox into `local`; one result per file, with its `path`.

        Members that would leave `local` (by name or by link) are refused one by one.
        """
        place = self._place(remote).rstrip("/") or "/"
        archive = self._fetch(place)
        if isinstance(archive, str):
            return [{"success": False, "error": archive}]
        target = Path(local)
        results = []
        with tarfile.open(fileobj=io.BytesIO(archive)) as members:
            for number, member in enumerate(members):
                _, _, inner = member.name.removeprefix("./").partition("/")
                if number == 0 and not member.isdir():
                    return [{"success": False, "error": f"{place} is not a directory; use download_file"}]
                target.mkdir(parents=True, exist_ok=True)
                if not inner:
                    continue
                linkname = member.linkname.removeprefix("./").partition("/")[2] if member.islnk() else member.linkname
                try:
                    members.extract(member.replace(name=inner, linkname=linkname), target, filter="data")
                except (tarfile.TarError, OSError) as error:
                    results.append({"success": False, "path": inner, "error": str(error)})
                    continue
                if not member.isdir():
                    results.append({"success": True, "path": inner, "bytes": (target / inner).lstat().st_size})
        return results

    def _fetch(self, place: str) -> bytes | str:
        """The archive of a file or directory, or why there is none."""
        try:
            return self._transfer(lambda: self.sandbox.download_tar(place))
        except FileNotFoundError:
            return f"No such file or directory: {place}"
        except (TransferError, ValueError) as error:
            return str(error)

    def _transfer(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """`_wait` for a transfer. What goes wrong with files of a living sandbox (the agent may have put a link loop or
        a file in the way) is a TransferError and thus the caller's to judge, not the infrastructure's."""
        try:
            return self._wait(start)
        except (SandboxLost, TransferError):
            raise
        except SandboxError as error:
            self._wait(self.sandbox.check)
            raise TransferError(str(error)) from error

    def _place(self, remote: str) -> str:
        if remote == "~" or remote.startswith("~/"):
            remote = posixpath.join(self.sandbox.home, remote[2:])
        return posixpath.normpath(posixpath.join(self.sandbox.workdir, remote))

    # -- waiting -------------------------------------------------------------------------------------

    def cleanup(self) -> None:
        """End the shells of this context. Idempotent; the sandbox is the engine's to remove."""
        self._wait(self.aclose)

    async def aclose(self) -> None:
        """`cleanup` for callers on the engine's loop."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, tools in idle:
            await tools.aclose()

    def _with_tools(self, use: Callable[[Toolbox], Coroutine[Any, Any, T]]) -> T:
        number, tools = self._take()
        try:
            return self._wait(lambda: use(tools))
        finally:
            with self._lock:
                self._idle.append((number, tools))

    def _take(self) -> tuple[int, Toolbox]:
        """The oldest idle tools, so that successive calls share one shell; new ones if all are busy."""
        with self._lock:
            if self._idle:
                oldest = min(self._idle, key=lambda entry: entry[0])
                self._idle.remove(oldest)
                return oldest
            self._made += 1
            number = self._made
        settings = dataclasses.replace(
            self._agent_tools.settings,
            default_result_size_chars=_UNBOUNDED,
            turn_budget_chars=_UNBOUNDED,
            tool_result_overrides={},
            context_window_tokens=None,
        )
        return number, Toolbox(
            self.sandbox,
            Selection((), (), own=self._agent_tools.selection.own),
            settings=settings,
            output_window=OUTPUT_WINDOW,
            state=self._agent_tools.state,
            answers_all=True,
        )

    def _wait(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a coroutine run on the engine's loop. An exception that strikes this thread or task while it
        waits (KeyboardInterrupt, an alarm, a cancellation) cancels the coroutine, which ends the remote command."""
        if self._loop.is_closed() or not self._loop.is_running():
            raise RuntimeError("ToolContext was used after its rollout's engine had stopped.")
        if bridge.is_driven():
            return bridge.wait(lambda: self._future(start))
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            raise RuntimeError(
                "ToolContext is synchronous and was called on the engine's own event loop from a callback or a task "
                "that no verifier started, so it would block that loop for ever. Call it in the verifier's coroutine, "
                "from a thread (await asyncio.to_thread(...)), or await the toolbox or sandbox instead."
            )
        future: concurrent.futures.Future[T] = asyncio.run_coroutine_threadsafe(start(), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _future(self, start: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
        """The coroutine at work on the engine's loop, as a future of the running one."""
        if asyncio.get_running_loop() is self._loop:
            return self._loop.create_task(start())
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(start(), self._loop))
