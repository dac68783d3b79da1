"""A loopback hub: data set repositories below a directory, `ROOT/<org>/<name>/...`, that speaks the Hugging Face wire.

With HF_ENDPOINT set to its address, `huggingface_hub` and `datasets` resolve, download, cache and build as they do from
the real one. A repository's `main` is a commit made from its files' content, so that a changed file is a new commit.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from doubles.loopback import LoopbackServer

LARGE = (".parquet", ".gz", ".tar")


class Repository:
    """The files of one data set as they are now."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        listing = [(name, hashlib.sha256(content).hexdigest()) for name, content in self.files.items()]
        self.commit = hashlib.sha1(json.dumps(listing).encode()).hexdigest()

    def info(self) -> dict[str, object]:
        return {
            "_id": "0" * 24,
            "id": self.name,
            "author": self.name.split("/")[0],
            "sha": self.commit,
            "private": False,
            "gated": False,
            "disabled": False,
            "lastModified": "2026-01-01T00:00:00.000Z",
            "createdAt": "2026-01-01T00:00:00.000Z",
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "siblings": [{"rfilename": name} for name in self.files],
        }

    def entry(self, name: str) -> dict[str, object]:
        content = self.files[name]
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        found: dict[str, object] = {"type": "file", "oid": blob, "size": len(content), "path": name}
        if name.endswith(LARGE):
            oid = hashlib.sha256(content).hexdigest()
            found["lfs"] = {"oid": oid, "size": len(content), "pointerSize": 130}
        return found

    def tree(self, below: str, *, recursive: bool) -> list[dict[str, object]]:
        prefix = f"{below}/" if below else ""
        names = [name for name in self.files if name.startswith(prefix)]
        parts = [name.removeprefix(prefix).split("/") for name in names]
        deep = {
            prefix + "/".join(part[:n])
            for part in parts
            for n in range(1, len(part) if recursive else min(2, len(part)))
        }
        folders = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": folder} for folder in sorted(deep)]
        return [*folders, *(self.entry(n) for n, part in zip(names, parts, strict=True) if recursive or len(part) == 1)]


class Hub(LoopbackServer):
    """A running hub. `requests` are the (method, path) it was asked, in order."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.requests: list[tuple[str, str]] = []
        self._repositories: dict[str, Repository] = {}
        super().__init__(type("Handler", (_Handler,), {"hub": self}))

    def repository(self, name: str) -> Repository | None:
        folder = self.root / name
        if not folder.is_dir():
            return None
        return self._repositories.setdefault(name, Repository(name, folder))

    def changed(self) -> None:
        """The files below the root were changed."""
        self._repositories.clear()


@contextlib.contextmanager
def serving(root: Path) -> Iterator[Hub]:
    """A hub on a free loopback port."""
    hub = Hub(root)
    try:
        yield hub
    finally:
        hub.close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length)
        url = urllib.parse.urlsplit(self.path)
        self.hub.requests.append((self.command, url.path))
        parts = [urllib.parse.unquote(part) for part in url.path.strip("/").split("/")]
        if parts[0] == "api":
            self._api(parts[2:], urllib.parse.parse_qs(url.query))
        elif "resolve" in parts:
            self._file(parts)
        else:
            self._missing("EntryNotFound", url.path)

    do_POST = do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""

    def _api(self, parts: list[str], query: dict[str, list[str]]) -> None:
        repository = self.hub.repository("/".join(parts[:2]))
        what, rest = (parts[2] if len(parts) > 2 else "revision"), parts[3:]
        if repository is None:
            self._missing("RepoNotFound", "/".join(parts[:2]))
        elif what != "refs" and rest and rest[0] not in ("main", repository.commit):
            self._missing("RevisionNotFound", rest[0])
        elif what == "revision":
            self._send(repository.info())
        elif what == "tree":
            recursive = query.get("recursive", ["false"])[0].lower() in ("1", "true")
            self._send(repository.tree("/".join(rest[1:]), recursive=recursive))
        elif what == "paths-info":
            wanted = json.loads(self.body).get("paths", [])
            self._send([repository.entry(name) for name in wanted if name in repository.files])
        elif what == "refs":
            main = {"name": "main", "ref": "refs/heads/main", "targetCommit": repository.commit}
            self._send({"branches": [main], "converts": [], "tags": []})
        else:
            self._missing("EntryNotFound", what)

    def _file(self, parts: list[str]) -> None:
        at = parts.index("resolve")
        repository = self.hub.repository("/".join(parts[at - 2 : at]))
        revision, name = parts[at + 1], "/".join(parts[at + 2 :])
        if repository is None:
            self._missing("RepoNotFound", "/".join(parts))
        elif revision not in ("main", repository.commit):
            self._missing("RevisionNotFound", revision)
        elif name not in repository.files:
            self._missing("EntryNotFound", name)
        else:
            content, entry = repository.files[name], repository.entry(name)
            headers = {"X-Repo-Commit": repository.commit, "ETag": f'"{entry["oid"]}"', "Accept-Ranges": "bytes"}
            if "lfs" in entry:
                oid = hashlib.sha256(content).hexdigest()
                headers |= {"ETag": f'"{oid}"', "X-Linked-ETag": f'"{oid}"', "X-Linked-Size": str(len(content))}
            status = 200
            if (wanted := self.headers.get("Range", "")).startswith("bytes="):
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                begin, end = int(first or 0), min(int(last or len(content)), len(content) - 1)
                headers["Content-Range"] = f"bytes {begin}-{end}/{len(content)}"
                status, content = 206, content[begin : end + 1]
            self._send(content, status, headers)

    def _missing(self, code: str, what: str) -> None:
        self._send({"error": what}, 404, {"X-Error-Code": code, "X-Error-Message": f"not found: {what}"})

    def _send(self, content: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for key, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
