"""A threaded HTTP server on a free loopback port, which every double and `serving` of the tests stand on."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LoopbackServer:
    """Serves from construction until `close`. `host` is `127.0.0.1:PORT`, `url` the same with its scheme."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.host = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.host}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
