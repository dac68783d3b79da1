"""Whatever a model sends as arguments, every tool answers: with an error or with a correct result, never by raising."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_hermes.sandbox.labels import Owner
from pytest_hermes.sandbox.local import LocalProvider
from pytest_hermes.sandbox.protocol import SandboxRequest
from pytest_hermes.task import SandboxSpec
from pytest_hermes.tools.registry import TOOLS
from pytest_hermes.tools.toolbox import Toolbox, ToolSettings
from pytest_hermes.tools.toolsets import select_tools

SETTINGS = ToolSettings(terminal_timeout_s=5, max_foreground_timeout_s=5, default_result_size_chars=1 << 40)
PARAMETERS = [(name, key) for name, tool in TOOLS.items() for key in tool.parameters["properties"]]
DEEP = 10_000
BIG = 10_000_000

VALUES = {
    "null": "null",
    "true": "true",
    "zero": "0",
    "negative": "-1",
    "float": "1.5",
    "huge integer": "9" * 5000,
    "integer of 400 digits": "1" + "0" * 400,
    "huge float": "1e400",
    "negative huge float": "-1e400",
    "NaN": "NaN",
    "Infinity": "Infinity",
    "empty string": '""',
    "blank string": '" \\n\\t "',
    "numeric string": '"1e999"',
    "string of NaN": '"nan"',
    "string of infinity": '"inf"',
    "NUL byte": '"a\\u0000b"',
    "lone surrogate": '"a\\ud800b"',
    "surrogate in a key": '{"\\udfff": 1}',
    "escape sequences": '"\\u001b[2J\\u0007\\u202e"',
    "empty array": "[]",
    "array of nulls": "[null, null]",
    "array of arrays": "[[[]]]",
    "array with a surrogate": '["\\ud800"]',
    "array in a string": '"[1, [2, \\"\\\\ud800\\"]]"',
    "deep array": "[" * DEEP + "]" * DEEP,
    "deep object": '{"a":' * DEEP + "1" + "}" * DEEP,
    "object of 500 levels": '{"a":' * 500 + "1" + "}" * 500,
    "object of 3,000 levels": '{"a":' * 3_000 + "1" + "}" * 3_000,
    "deep array in a string": json.dumps("[" * DEEP + "]" * DEEP),
    "object": '{"a": {"b": [1, 2]}}',
    "object with an empty key": '{"": ""}',
    "path upwards": '"../../../../../../../../etc/passwd"',
    "option": '"--help"',
    "shell": "\"'; echo pwned; '$(echo pwned)`echo pwned`\"",
    "string of 200,000 characters": json.dumps("x " * 100_000),
    "long string": json.dumps("x" * BIG),
    "long unicode string": json.dumps("é\n" * (BIG // 4), ensure_ascii=False),
}
WHOLE = {
    "nothing": None,
    "empty": "",
    "blank": " \n",
    "null": "null",
    "string": '"text"',
    "number": "3",
    "array": "[]",
    "half an object": '{"a": ',
    "two objects": "{} {}",
    "trailing comma": '{"a": 1,}',
    "single quotes": "{'a': 1}",
    "NUL": "\0",
    "byte order mark": "\ufeff{}",
    "lone surrogate": "\ud800",
    "deep": "[" * DEEP,
    "deep object": '{"a":' * DEEP,
    "huge number": "9" * 100_000,
    "long": "x" * BIG,
    "mapping": {"a": object()},
    "mapping with odd keys": {1: 2, None: 3, ("a",): 4},
    "bytes": b"{}",
    "list": [1],
    "unknown names": json.dumps({f"name{n}": n for n in range(20_000)}),
    "long unknown name": json.dumps({"n" * BIG: 1}),
    "surrogate name": '{"\\ud800": 1}',
    "empty name": '{"": 1}',
}


class Caller:
    """Calls tools from test code; whatever they raise arrives here."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.wait(self._start(folder))

    def wait(self, work: Any, seconds: float = 90) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(seconds):
                return await work

        return asyncio.run_coroutine_threadsafe(bounded(), self.loop).result()

    async def _start(self, folder: Path) -> None:
        self.provider = LocalProvider(confine="off", root=folder)
        labels = Owner.here(run="hostile-test").labels()
        self.sandbox = await self.provider.create(SandboxRequest(SandboxSpec(), labels, "hostile", 600, 600))
        self.toolbox = Toolbox(self.sandbox, select_tools(["all"], settings=SETTINGS), settings=SETTINGS)

    async def _stop(self) -> None:
        await self.toolbox.aclose()
        await self.toolbox.state.aclose()
        await self.sandbox.close()
        await self.provider.aclose()

    def close(self) -> None:
        self.wait(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def __call__(self, name: str, arguments: Any) -> dict[str, Any]:
        """The result, checked to be what can go into the next request."""
        text = self.wait(self.toolbox.call(name, arguments))
        text.encode()
        result = json.loads(text, parse_constant=lambda constant: pytest.fail(f"{name}: {constant} in its result"))
        assert isinstance(result, dict)
        error = str(result.get("error") or "")
        assert not error.startswith("Tool execution failed"), f"{name}: {error[:500]}"
        assert len(error) < 3_000, f"{name}: an error of {len(error)} characters"
        return result


@pytest.fixture(scope="module")
def search_service(serving: Any) -> Iterator[None]:
    """Every search goes to a server of ours, which finds nothing."""
    found = (200, "application/json", json.dumps({"results": []}))
    with serving(lambda method, path, headers: found) as url, pytest.MonkeyPatch.context() as patch:
        for name in ("TAVILY_API_KEY", "EXA_API_KEY", "FIRECRAWL_API_KEY", "BRAVE_API_KEY"):
            patch.delenv(name, raising=False)
        patch.setenv("SEARXNG_URL", url)
        yield


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory, search_service: None) -> Iterator[Caller]:
    caller = Caller(tmp_path_factory.mktemp("sandboxes"))
    yield caller
    caller.close()


def plausible(name: str, without: str = "") -> dict[str, Any]:
    """Arguments that are well-formed and harmless, but for one."""
    values: dict[str, Any] = {}
    for key, schema in TOOLS[name].parameters["properties"].items():
        if key in TOOLS[name].parameters["required"]:
            known = {
                "command": "true",
                "path": "a.txt",
                "url": "about:blank",
                "urls": [],
                "method": "Browser.getVersion",
            }
            kinds = {"string": "x", "integer": 1, "boolean": False, "array": [], "object": {}, "number": 1}
            values[key] = known.get(key) or (schema["enum"][0] if "enum" in schema else kinds[schema["type"]])
    return {key: value for key, value in values.items() if key != without}


@pytest.mark.parametrize("kind", WHOLE)
def test_whatever_stands_for_the_arguments(call: Caller, kind: str) -> None:
    for name in call.toolbox.names:
        result = call(name, WHOLE[kind])
        if kind in ("string", "number", "array", "half an object", "two objects", "deep", "long", "bytes", "list"):
            assert result["error"]


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if len(VALUES[kind]) >= BIG // 2 else []) for kind in VALUES]
)
def test_whatever_stands_for_one_argument(call: Caller, kind: str) -> None:
    for name, key in PARAMETERS:
        if name not in call.toolbox.names:
            continue  # the browser, on a machine that has none
        if (name, key, kind) == ("browser_navigate", "url", "float"):
            continue  # 1.5 is a way to write the public address 1.0.0.5
        others = json.dumps(plausible(name, without=key))[1:-1]
        call(name, f'{{"{key}": {VALUES[kind]}{", " if others else ""}{others}}}')
    assert call("terminal", {"command": "echo alive"})["output"] == "alive\n"


def test_missing_and_doubled_arguments(call: Caller) -> None:
    for name in call.toolbox.names:
        for key in TOOLS[name].parameters["required"]:
            error = call(name, plausible(name, without=key))["error"]
            assert f"missing required argument '{key}'" in error or (name, key) == ("patch", "mode")
    assert call("terminal", '{"command": "echo one", "command": "echo two"}')["output"] == "two\n"
    assert call("todo", '{"todos": [], "todos": 3}')["error"] == "todo: todos must be an array, got an integer: 3."


@pytest.mark.parametrize("name", ["", "no_such", "x" * BIG, "\0", "\ud800", "Terminal", "terminal ", "../terminal"])
def test_whatever_stands_for_the_tool(call: Caller, name: str) -> None:
    assert "Unknown tool" in call(name, "{}")["error"]


def test_big_but_correct_arguments_are_done(call: Caller) -> None:
    assert call("write_file", {"path": "big.txt", "content": "y" * BIG})["bytes_written"] == BIG
    assert call("terminal", {"command": "wc -c <big.txt"})["output"].strip() == str(BIG)
    items = [{"id": str(n), "content": "c", "status": "pending"} for n in range(5_000)]
    assert call("todo", {"todos": items})
