"""A byte window over a stream of any length: its head and its tail stay, memory stays bounded, the rest is counted.

The agent's shell, plain execs and file reads all drain through one of these, so a command that prints gigabytes costs
time but never memory.
"""

from __future__ import annotations

_HEAD_SHARE = 0.4
_NOTICE_ROOM = 48


class OutputWindow:
    """Keeps the first and last bytes of what is added, at most `limit` in all, with a line that says what was cut.

    Up to `limit` bytes are kept exactly. Beyond, `value()` is head + `[... N bytes cut ...]` + tail, 40 to 60, because
    the end of a command's output says more often what went wrong. A limit too small for that line keeps the head.
    """

    def __init__(self, limit: int) -> None:
        if limit < 0:
            raise ValueError(f"an output window cannot hold {limit} bytes")
        self.limit = limit
        self.total = 0
        self._head_room = limit if limit < 2 * _NOTICE_ROOM else int(limit * _HEAD_SHARE)
        self._tail_room = limit - self._head_room
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total += len(data)
        room = self._head_room - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not self._tail_room or not data:
            return
        if len(data) >= self._tail_room:
            self._tail[:] = data[len(data) - self._tail_room :]
            return
        self._tail += data
        if len(self._tail) > 2 * self._tail_room:
            del self._tail[: -self._tail_room]

    @property
    def cut(self) -> bool:
        return self.total > self.limit

    def value(self) -> bytes:
        """What is kept; never longer than `limit`, and shorter than `total` exactly when something was cut."""
        if not self.cut:
            return bytes(self._head + self._tail)
        if not self._tail_room:
            return bytes(self._head)
        tail_size = self._tail_room - _NOTICE_ROOM
        notice = b"\n[... %d bytes cut ...]\n" % (self.total - len(self._head) - tail_size)
        return bytes(self._head) + notice + bytes(self._tail[len(self._tail) - tail_size :])
