"""A loopback image registry that speaks Docker's registry protocol, version 2, with one small image under any name.

Docker's daemon takes registries on 127.0.0.1 without TLS. `faults` are statuses that the next requests for a manifest
are answered with; `slowness_s` is how long it takes over a layer.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import tarfile
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

from doubles.loopback import LoopbackServer

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


class Registry(LoopbackServer):
    """A running registry. `requests` are the (method, path) it was asked."""

    def __init__(self, content: bytes = b"hello\n") -> None:
        self.requests: list[tuple[str, str]] = []
        self.faults: list[int] = []
        self.slowness_s = 0.0
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w") as tar:
            info = tarfile.TarInfo("greeting")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        layer = gzip.compress(plain.getvalue(), mtime=0)
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"WorkingDir": "/app"},
                "rootfs": {"type": "layers", "diff_ids": [_digest(plain.getvalue())]},
            }
        ).encode()
        self.manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {"mediaType": CONFIG, "size": len(config), "digest": _digest(config)},
                "layers": [{"mediaType": LAYER, "size": len(layer), "digest": _digest(layer)}],
            }
        ).encode()
        self.blobs = {_digest(blob): blob for blob in (layer, config)}
        super().__init__(type("Handler", (_Handler,), {"registry": self}))

    @property
    def manifests(self) -> int:
        """How often a manifest was asked for."""
        return sum("/manifests/" in path for _, path in self.requests)

    @property
    def layers(self) -> int:
        """How often the layer was fetched."""
        (layer,) = (entry["digest"] for entry in json.loads(self.manifest)["layers"])
        return sum(path.endswith(layer) for method, path in self.requests if method == "GET")


@contextlib.contextmanager
def serving(content: bytes = b"hello\n") -> Iterator[Registry]:
    """A registry on a free loopback port."""
    registry = Registry(content)
    try:
        yield registry
    finally:
        registry.close()


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    registry: Registry
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        registry = self.registry
        registry.requests.append((self.command, self.path))
        kind, _, name = (
            self.path.removeprefix("/v2/").rpartition("/")[0].rpartition("/")[2],
            "",
            self.path.rpartition("/")[2],
        )
        if self.path == "/v2/":
            self._send(b"{}", "application/json")
        elif kind == "manifests" and registry.faults:
            self._send(
                b'{"errors": [{"code": "UNAVAILABLE", "message": "later"}]}', "application/json", registry.faults.pop(0)
            )
        elif kind == "manifests" and name != "missing":
            self._send(registry.manifest, MANIFEST)
        elif kind == "blobs" and name in registry.blobs:
            time.sleep(registry.slowness_s)
            self._send(registry.blobs[name], "application/octet-stream")
        else:
            self._send(
                b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}', "application/json", 404
            )

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""

    def _send(self, body: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": str(len(body)), "Docker-Content-Digest": _digest(body)}
        for key, value in {**headers, "Docker-Distribution-Api-Version": "registry/2.0"}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
