"""The same work without a harness: an aiohttp loop with one kept bash per rollout, messages written as JSON lines.

    python bench/bare.py BASE_URL ROLLOUTS IN_FLIGHT OUT     prints {"wall_s", "cpu_s"} of the work itself

The physical limit that `bench/rollouts.py` compares with.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

TOOL = {
    "type": "function",
    "function": {
        "name": "terminal",
        "description": "Run a command and return its output.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


async def rollout(session: aiohttp.ClientSession, url: str, number: int) -> list[dict[str, Any]]:
    pipe = asyncio.subprocess.PIPE
    shell = await asyncio.create_subprocess_exec("bash", "--norc", stdin=pipe, stdout=pipe, stderr=pipe)
    assert shell.stdin and shell.stdout
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"task {number}: echo some numbers"}]
    while True:
        body = {"model": "mock", "messages": messages, "tools": [TOOL]}
        async with session.post(f"{url}/chat/completions", json=body) as response:
            message = (await response.json())["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            break
        for call in message["tool_calls"]:
            command = json.loads(call["function"]["arguments"])["command"]
            shell.stdin.write(f"{command}\necho __end__\n".encode())
            lines = []
            while (line := await shell.stdout.readline()) != b"__end__\n":
                lines.append(line)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": b"".join(lines).decode()})
    shell.stdin.close()
    await shell.wait()
    return messages


async def main(url: str, rollouts: int, in_flight: int, out: Path) -> None:
    slots = asyncio.Semaphore(in_flight)
    connector = aiohttp.TCPConnector(limit=in_flight)
    async with aiohttp.ClientSession(connector=connector) as session:
        with out.open("w") as lines:

            async def one(number: int) -> None:
                async with slots:
                    messages = await rollout(session, url, number)
                lines.write(json.dumps({"task": number, "messages": messages}) + "\n")

            await asyncio.gather(*(one(number) for number in range(rollouts)))


if __name__ == "__main__":
    url, rollouts, in_flight, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    asyncio.run(main(url, rollouts, in_flight, out))
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"wall_s": time.perf_counter() - began, "cpu_s": cpu, "rss_mb": after.ru_maxrss / 1024}))
