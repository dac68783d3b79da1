"""What an agent left that the verifier's tools would obey, taken away so that the test script can run without it.

Nothing is taken away on suspicion alone: the script has given a reward, and runs once more. What pip and apt have in
their books, what the task speaks of by name, and whatever the image has itself stays.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import io
import re
import tarfile
from collections.abc import Iterable, Sequence

from pytest_hermes.errors import VerifierError
from pytest_hermes.sandbox.protocol import ChangedFile, Sandbox, SeesChanges
from pytest_hermes.task import Task
from pytest_hermes.verifier_scripts import JUDGE, PUT_BACK, SET_ASIDE, report_lines, shell

HOUSEKEEPING_TIMEOUT_S = 60.0
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/opt", "/root/.local/bin")
PRELOAD = "/etc/ld.so.preload"
RESTORED_MOST = 100
NAMED_MOST = 5


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Names that a task may ask for ("write a conftest.py"): then the file is the work itself.
_ASKED = _words(
    "conftest.py pytest.ini .pytest.ini pyproject.toml tox.ini setup.cfg sitecustomize.py usercustomize.py uv.toml"
    " pip.conf .curlrc ld.so.preload"
)
# What the verification itself runs in the sandbox, and the libraries of these programs.
_HOUSEKEEPING = _words(
    "sh dash bash busybox ash coreutils env ls rm mv mkdir find touch chmod chown cat head od tr sha256sum md5sum grep"
    " sed wc readlink cmp"
)
_CORE_LIBRARY = re.compile(
    r".*/(ld[^/]*|libc|libc-[\d.]+|libc\.musl-[^/]+|libdl|libpthread|libselinux|libpcre2-8|libtinfo|libacl|libattr)"
    r"\.so[.\d]*"
)
_BIN = re.compile(r"(?:/usr|/usr/local|/opt/[^/]+|/root/\.local)?/s?bin/([^/]+)")
_TOOL = re.compile(r"python[\d.]*|pytest|py\.test|uvx?|curl|wget|pip[\d.]*")
_LIBRARY = re.compile(r"(/usr|/usr/local)?/lib\w*(/[^/]+-linux-[^/]+)?/[^/]+\.so[.\d]*")
# The standard library, site files, pytest; not other packages, which agents upgrade.
_PYTHON = re.compile(
    r"/(usr|usr/local|opt/[^/]+)/lib/python3[^/]*/((?!(site|dist)-packages/).*\.(py|so)"
    r"|(site|dist)-packages/([^/]+\.(py|pth)|(pytest|_pytest|pluggy|iniconfig|packaging)/.*\.py))"
)
_RECORD = re.compile(r".*-packages/[^/]+\.dist-info/RECORD")
_SYSTEM_BIN = ("/usr/bin", "/bin", "/usr/sbin", "/sbin")


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _is_housekeeping(path: str) -> bool:
    program = _BIN.fullmatch(path)
    return bool((program and program[1] in _HOUSEKEEPING) or _CORE_LIBRARY.fullmatch(path))


def _matters(file: ChangedFile) -> bool:
    """Whether a changed file can change what the verifier's tools do."""
    path = file.path
    program = _BIN.fullmatch(path)
    if path == PRELOAD:
        return True
    if file.is_added:  # one that only comes before the system's own matters; others are looked for in the sandbox
        return bool(program and program[1] in _HOUSEKEEPING and _folder(path) in _SYSTEM_BIN)
    if program:
        return program[1] in _HOUSEKEEPING or bool(_TOOL.fullmatch(program[1]))
    return any(kind.fullmatch(path) for kind in (_LIBRARY, _CORE_LIBRARY, _PYTHON, _RECORD))


async def changed_tools(sandbox: Sandbox, *, quick: bool) -> list[ChangedFile]:
    """Files of the verifier's tools that are not the image's any more, where the backend can tell."""
    if not isinstance(sandbox, SeesChanges):
        return []
    return [file for file in await sandbox.changed_files(SYSTEM, quick=quick) if _matters(file)]


def described(changed: Sequence[ChangedFile]) -> list[str]:
    """Evidence of changed system files, in one sentence."""
    paths = [file.path for file in changed if _is_evidence(file)]
    return [f"System files were changed by the agent: {_few(paths)}."] if paths else []


def _is_evidence(file: ChangedFile) -> bool:
    return not _RECORD.fullmatch(file.path) and (file.path == PRELOAD or not file.is_added)


def _few(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - NAMED_MOST} more" if len(paths) > NAMED_MOST else ""
    return ", ".join(paths[:NAMED_MOST]) + more


@dataclasses.dataclass
class SetAside:
    """What was taken away: `renamed` in the sandbox, `restored` to the image's content (by path, what was there)."""

    sandbox: Sandbox
    renamed: list[str]
    restored: dict[str, str]

    def __bool__(self) -> bool:
        return bool(self.renamed or self.restored)

    def __str__(self) -> str:
        return _few([*self.restored, *self.renamed])

    async def put_back(self) -> list[str]:
        """Rename back what was renamed. The paths where the same things were there again by then."""
        again = []
        for path, digest in self.restored.items():
            if await _digest(self.sandbox, path) == digest:
                again.append(path)
        if self.renamed:
            lines = await _run(self.sandbox, shell(PUT_BACK, "put-back", "1"), self.renamed)
            again += [path for kind, path in lines if kind == "back"]
        return again


async def set_aside(sandbox: Sandbox, task: Task) -> SetAside:
    """Take away what the agent left for the verifier's tools; first, from outside, what our own commands would obey."""
    prompt = task.prompt
    asked = [name for name in _ASKED if name in prompt]
    changed = [file for file in await changed_tools(sandbox, quick=False) if _name(file.path) not in asked]
    # For these nobody's books are asked: the commands that read the books run by them. An honest upgrade loses nothing,
    # a distribution's C library and shell are interchangeable within a release.
    core = [file for file in changed if file.path == PRELOAD or _is_housekeeping(file.path)]
    restored = await _restore(sandbox, core)
    rest = [file.path for file in changed if file not in core]
    if rest:
        lines = await _run(sandbox, shell(JUDGE, "judge", sandbox.workdir), rest)
        honest = {path for kind, path in lines if kind == "honest"}
        suspect = [file for file in changed if file.path in rest and file.path not in honest and _is_evidence(file)]
        restored |= await _restore(sandbox, suspect[:RESTORED_MOST])
    stays = [*restored, *(file.path for file in changed if not file.is_added)]
    words = " ".join(["", *asked, ""])
    lines = await _run(sandbox, shell(SET_ASIDE, "set-aside", sandbox.workdir, words), stays)
    return SetAside(sandbox, [path for kind, path in lines if kind == "aside"], restored)


async def _restore(sandbox: Sandbox, files: Sequence[ChangedFile]) -> dict[str, str]:
    """Give these files the image's content. By path, the digest of what was there where that was something else."""
    if not files or not isinstance(sandbox, SeesChanges):
        return {}
    theirs = {file.path: await _digest(sandbox, file.path) for file in files}
    # A new program before the system's own becomes a link to that; the image may have it in any system directory.
    hidden = {
        file.path: [f"{folder}/{_name(file.path)}" for folder in _SYSTEM_BIN if folder != _folder(file.path)]
        for file in files
        if file.is_added and file.path != PRELOAD
    }
    wanted = [*theirs, *(path for paths in hidden.values() for path in paths if path not in theirs)]
    archive = await sandbox.original_files(list(dict.fromkeys(wanted)))
    found, buffer = {}, io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(archive)) as source, tarfile.open(fileobj=buffer, mode="w") as target:
        members = {f"/{member.name}": member for member in source}
        for path, digest in theirs.items():
            if member := members.get(path):
                content = source.extractfile(member) if member.isreg() else None
                data = content.read() if content is not None else member.linkname.encode()
                if hashlib.sha256(data).hexdigest() == digest:
                    continue
                target.addfile(member, io.BytesIO(data) if member.isreg() else None)
            elif path == PRELOAD:
                member = tarfile.TarInfo(path[1:])  # an empty one does nothing; nobody outside can remove a file
                target.addfile(member)
            elif original := next((other for other in hidden.get(path, ()) if other in members), None):
                member = tarfile.TarInfo(path[1:])
                member.type, member.linkname = tarfile.SYMTYPE, original
                target.addfile(member)
            else:
                continue
            found[path] = digest
    if found:
        await sandbox.upload_tar(buffer.getvalue(), "/")
    return found


async def _digest(sandbox: Sandbox, path: str) -> str:
    """The sha256 of a file's content, or of where a link points; "" where neither is."""
    try:
        archive = await sandbox.download_tar(path)
    except OSError:
        return ""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        member = opened.next()
        if member is None or not (member.isreg() or member.issym()):
            return ""
        content = opened.extractfile(member) if member.isreg() else None
        data = content.read() if content is not None else member.linkname.encode()
    return await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())


async def _run(sandbox: Sandbox, command: Sequence[str], paths: Iterable[str]) -> list[tuple[str, str]]:
    """The report of a command of ours, which gets `paths` on stdin. Raises VerifierError unless it came to its end."""
    result = await sandbox.exec(
        command,
        timeout_s=HOUSEKEEPING_TIMEOUT_S,
        user="root",
        cwd="/",
        stdin="".join(f"{path}\n" for path in paths).encode(),
    )
    lines = [(kind, path) for kind, path, _ in report_lines(result.stdout)]
    if ("ready", "") not in lines:
        said = result.stderr.decode(errors="replace")[-4000:]
        raise VerifierError(f"what the agent left cannot be set aside (status {result.exit_code})", output=said)
    return lines
