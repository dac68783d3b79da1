"""A chat endpoint without a model, as fast as asyncio allows, in a process of its own.

    python bench/mock_openai.py [--turns 10] [--port 0]     prints its base URL

Stateless: a conversation with fewer than `turns` tool results is answered with one more `terminal` call, then with a
plain message. Serves only what the benchmarks need: keep-alive, Content-Length, POST.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re

LENGTH = re.compile(rb"(?i)content-length:\s*(\d+)")


def answer(body: bytes, turns: int) -> bytes:
    """The completion that follows on a request's body."""
    done = body.count(b'"role":"tool"') + body.count(b'"role": "tool"')
    if done < turns:
        function = {"name": "terminal", "arguments": json.dumps({"command": f"echo {done}"})}
        call = {"id": f"call_{done}", "type": "function", "function": function}
        message, finish = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
    else:
        message, finish = {"role": "assistant", "content": "done"}, "stop"
    usage = {"prompt_tokens": len(body) // 4, "completion_tokens": 12, "total_tokens": len(body) // 4 + 12}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return json.dumps({"object": "chat.completion", "model": "mock", "choices": [choice], "usage": usage}).encode()


class Connection(asyncio.Protocol):
    """One kept connection."""

    def __init__(self, turns: int) -> None:
        self.turns, self.buffer = turns, bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            found = LENGTH.search(self.buffer, 0, end)
            stop = end + 4 + (int(found[1]) if found else 0)
            if len(self.buffer) < stop:
                return
            payload = answer(bytes(self.buffer[end + 4 : stop]), self.turns)
            del self.buffer[:stop]
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
            self.transport.write(head.encode() + payload)


async def main(turns: int, port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(turns), "127.0.0.1", port, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    asyncio.run(main(options.turns, options.port))
