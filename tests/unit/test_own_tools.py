"""Users' own tools: from a signature to a schema, calls and their results, entry points, and what is refused."""

from __future__ import annotations

import asyncio
import json
import math
import re
import sys
import textwrap
import threading
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from pytest_hermes import Benchmark, Task, ToolFailure, Workspace, tool
from pytest_hermes.errors import ConfigurationError, SandboxStartError
from pytest_hermes.sandbox.labels import Owner
from pytest_hermes.sandbox.local import LocalProvider
from pytest_hermes.sandbox.protocol import SandboxRequest
from pytest_hermes.task import SandboxSpec
from pytest_hermes.tools.installed import installed_tools
from pytest_hermes.tools.own import own_tool, own_tools
from pytest_hermes.tools.registry import COMPOSED, TOOLSETS
from pytest_hermes.tools.tool import Tool, object_schema
from pytest_hermes.tools.toolbox import Toolbox, ToolSettings
from pytest_hermes.tools.toolsets import select_tools

REQUEST = SandboxRequest(SandboxSpec(), Owner.here(run="own-tools-test").labels(), "own", 600, 600)
DOCS = Path(__file__).parents[2] / "docs"


@tool(toolset="words")
def describe(
    text: Annotated[str, "What to describe"],
    times: int = 1,
    weight: float | None = None,
    loud: bool = False,
    tags: list[str] | None = None,
    extra: dict[str, Any] | None = None,
    mode: Literal["short", "long"] = "short",
    *,
    sizes: Annotated[list[int], "Sizes in mm"] = [],  # noqa: B006 - as users write it
) -> dict[str, Any]:
    """Describe a text.

    In several ways.
    """
    return {"text": text, "times": times, "weight": weight, "loud": loud, "tags": tags, "extra": extra, "sizes": sizes}


def call(function: Any, arguments: Any = None) -> dict[str, Any]:
    """What a model gets when it calls the tool of `function`, in a real sandbox."""
    return asyncio.run(_call(function, arguments))


async def _call(function: Any, arguments: Any) -> dict[str, Any]:
    made = own_tool(function)
    provider = LocalProvider(confine="off")
    sandbox = await provider.create(REQUEST)
    try:
        selection = select_tools(["terminal"], settings=ToolSettings(), own=[made])
        toolbox = Toolbox(sandbox, selection)
        result: dict[str, Any] = json.loads(await toolbox.call(made.name, arguments))
        await toolbox.aclose()
        return result
    finally:
        await sandbox.close()
        await provider.aclose()


def raw(value: Any, **given: Any) -> Tool:
    """A `Tool` whose `run` returns the value, or raises it."""

    async def run(workspace: Workspace, arguments: Any) -> Any:
        if isinstance(value, BaseException):
            raise value
        return value

    return Tool(**{"name": "raw", "description": "D.", "parameters": object_schema([]), "run": run, **given})


# -- schemas ---------------------------------------------------------------------------------------------


def test_a_signature_becomes_a_schema() -> None:
    assert own_tool(describe).schema["function"] == {
        "name": "describe",
        "description": "Describe a text.\n\nIn several ways.",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string", "description": "What to describe"},
                "times": {"type": "integer", "default": 1},
                "weight": {"type": "number"},
                "loud": {"type": "boolean", "default": False},
                "tags": {"type": "array", "items": {"type": "string"}},
                "extra": {"type": "object"},
                "mode": {"type": "string", "enum": ["short", "long"], "default": "short"},
                "sizes": {"type": "array", "items": {"type": "integer"}, "description": "Sizes in mm", "default": []},
            },
            "required": ["text"],
        },
    }


def test_a_decorated_function_stays_a_function() -> None:
    assert describe("a", 2)["times"] == 2


def test_name_and_description_can_be_given() -> None:
    @tool(name="say", description="Says it.")
    def function(word: str) -> str:
        return word

    assert (own_tool(function).name, own_tool(function).description) == ("say", "Says it.")


def test_the_workspace_is_not_in_the_schema() -> None:
    async def look(workspace: Workspace, path: str) -> str:
        """Look."""
        return path

    assert list(own_tool(look).parameters["properties"]) == ["path"]


class Other:
    pass


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


def _signatures() -> Iterator[tuple[Any, str]]:
    def untyped(a) -> None:  # type: ignore[no-untyped-def]
        """D."""

    def foreign(a: Other) -> None:
        """D."""

    def several(*names: str) -> None:
        """D."""

    def keywords(**names: str) -> None:
        """D."""

    def positional(a: str, /) -> None:
        """D."""

    def late(a: str, workspace: Workspace) -> None:
        """D."""

    def plain(workspace: Workspace) -> None:
        """D."""

    def silent(a: str) -> None:
        pass

    def mixed(a: Literal["x", 1]) -> None:
        """D."""

    def either(a: str | int) -> None:
        """D."""

    def wrong_default(a: int = "x") -> None:  # type: ignore[assignment]
        """D."""

    def numbered(a: dict[int, str]) -> None:
        """D."""

    def unknown(a: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821, UP037
        """D."""

    def terminal(a: str) -> None:
        """D."""

    def items_of_another_type(a: list[int] = ["x"]) -> None:  # type: ignore[list-item]  # noqa: B006
        """D."""

    def infinite(a: float = math.inf) -> None:
        """D."""

    def infinite_within(a: dict[str, Any] = {"b": [math.nan]}) -> None:  # noqa: B006
        """D."""

    def an_object(a: dict[str, Any] = {"b": object()}) -> None:  # noqa: B006
        """D."""

    def tuple_keys(a: dict = {(1, 2): 3}) -> None:  # type: ignore[type-arg]  # noqa: B006
        """D."""

    def circle(a: list = CIRCLE) -> None:  # type: ignore[type-arg]
        """D."""

    def surrogate(a: str = "\ud800") -> None:
        """D."""

    def surrogate_choice(a: Literal["\ud800"]) -> None:
        """D."""

    def surrogate_description(a: Annotated[str, "\ud800"]) -> None:
        """D."""

    def truth(a: Literal[0, 1] = True) -> None:  # type: ignore[assignment]
        """D."""

    def a_list(a: [int]) -> None:  # type: ignore[misc, valid-type]
        """D."""

    def a_dict(a: {"b": 1}) -> None:  # type: ignore[misc, valid-type]  # noqa: F821, UP037
        """D."""

    def words(fine: str, a: "list of ints") -> None:  # type: ignore[valid-type]  # noqa: F722
        """D."""

    def divided(fine: str, a: 1 / 0) -> None:  # type: ignore[valid-type]
        """D."""

    yield items_of_another_type, r"parameter 'a': its default \['x'\] is not of its own type"
    yield infinite, "infinite.*parameter 'a': its default is not JSON: .*inf"
    yield infinite_within, "parameter 'a': its default is not JSON: .*nan"
    yield an_object, "parameter 'a': its default is not JSON: .*object"
    yield tuple_keys, "parameter 'a': its default is not JSON: .*tuple"
    yield circle, "parameter 'a': its default is not JSON: .*Circular"
    yield surrogate, "parameter 'a': its default is not JSON: .*surrogate"
    yield surrogate_choice, "parameter 'a': its schema is not JSON: .*surrogate"
    yield surrogate_description, "parameter 'a': its schema is not JSON: .*surrogate"
    yield truth, "parameter 'a': its default True is not of its own type"
    yield a_list, "a_list.*parameter 'a': .*int.* cannot be told"
    yield a_dict, "a_dict.*parameter 'a': .*'b': 1.* cannot be told"
    yield words, "words.*annotations cannot be read .parameter 'a': SyntaxError"
    yield divided, "divided.*annotations cannot be read .parameter 'a': ZeroDivisionError"
    yield untyped, "untyped.*parameter 'a' has no type. Annotate it"
    yield foreign, "parameter 'a': .*Other.* cannot be told to a model. Use str, int"
    yield several, "parameter 'names' is .args"
    yield keywords, "parameter 'names' is .args, ..kwargs"
    yield positional, "parameter 'a' is .*positional only"
    yield late, "the Workspace must be the first parameter"
    yield plain, "make the function `async def`"
    yield silent, "has no docstring"
    yield mixed, "parameter 'a': .* cannot be told"
    yield either, "parameter 'a': .* cannot be told"
    yield wrong_default, "its default 'x' is not of its own type"
    yield numbered, "parameter 'a': .* cannot be told"
    yield unknown, "annotations cannot be read .*Nowhere"
    yield terminal, "a built-in tool has this name"


@pytest.mark.parametrize(("function", "message"), [pytest.param(*case, id=case[0].__name__) for case in _signatures()])
def test_a_signature_that_no_model_can_be_told_of_is_refused_at_once(function: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        tool(function)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "two words"}, "1 to 64 letters"),
        ({"name": "x" * 65}, "1 to 64 letters"),
        ({"toolset": "file"}, "toolset='file' is a built-in tool set"),
        ({"toolset": "debugging"}, "toolset='debugging' is a built-in tool set"),
        ({"toolset": "a,b"}, "toolset='a,b' cannot be the name of a tool set"),
        ({"toolset": ["a"]}, r"fine\): toolset=\['a'\] cannot be the name of a tool set"),
        ({"name": 5}, r"fine\): .*1 to 64 letters"),
        ({"name": ""}, "1 to 64 letters"),
        ({"description": 5}, r"fine\): description=5 is not text"),
        ({"description": " \n"}, r"fine\): description=' .n' is blank"),
        ({"description": "\ud800"}, r"fine\): its description is not JSON: .*surrogate"),
        *(({"name": name}, f"tool {name!r} .*built-in tool (set )?has this name") for name in (*TOOLSETS, *COMPOSED)),
    ],
    ids=repr,
)
def test_names_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    def fine(a: str) -> str:
        """D."""
        return a

    with pytest.raises(ConfigurationError, match=message):
        tool(**options)(fine)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": 5}, "1 to 64 letters"),
        ({"name": "web"}, "a built-in tool set has this name"),
        ({"description": None}, "description=None is not text"),
        ({"parameters": {}}, "parameters are no schema of an object"),
        ({"parameters": object_schema([], a={"type": "number", "default": math.inf})}, "its parameters are not JSON"),
    ],
)
def test_a_tool_that_no_endpoint_takes_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        own_tool(raw(None, **given))


def test_any_dict_may_be_written_as_typing_has_it() -> None:
    def bare(a: typing.Dict, b: typing.List) -> None:  # type: ignore[type-arg]  # noqa: UP006
        """D."""

    assert own_tool(bare).parameters["properties"] == {"a": {"type": "object"}, "b": {"type": "array"}}


class Shelf:
    def __init__(self, book: str) -> None:
        self.book = book

    def title(self, loud: bool) -> str:
        """The title."""
        return self.book.upper() if loud else self.book

    async def later(self, loud: bool) -> str:
        """The title, later."""
        return self.title(loud)


def test_bound_methods_are_tools_of_their_own_object() -> None:
    first, second = Shelf("first"), Shelf("second")
    tools = [tool(first.title), tool(name="other")(second.title), tool(second.later)]
    assert [made(False) for made in tools[:2]] == ["first", "second"]
    assert [own_tool(made).name for made in tools] == ["title", "other", "later"]
    assert [call(made, {"loud": True}) for made in [*tools, first.title]] == [
        {"output": "FIRST"}, {"output": "SECOND"}, {"output": "SECOND"}, {"output": "FIRST"}
    ]  # fmt: skip


@pytest.mark.parametrize("thing", [3, "describe", Other, Other(), None])
def test_what_is_no_function_is_no_tool(thing: object) -> None:
    with pytest.raises(ConfigurationError, match="is not a tool"):
        own_tool(thing)


# -- calls -----------------------------------------------------------------------------------------------


def test_arguments_are_fitted_as_for_built_in_tools() -> None:
    result = call(describe, '{"text": "a", "times": "3", "tags": "[\\"x\\"]", "weight": 2, "sizes": null}')
    assert result == {
        "text": "a", "times": 3, "weight": 2, "loud": False, "tags": ["x"], "extra": None, "sizes": []
    }  # fmt: skip
    assert "missing required argument 'text'" in call(describe, "{}")["error"]
    assert "mode must be one of 'short', 'long'" in call(describe, {"text": "a", "mode": "wide"})["error"]


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ({"a": 1}, {"a": 1}),
        ("text", {"output": "text"}),
        (None, {"result": None}),
        (3, {"result": 3}),
        ([1, "x"], {"result": [1, "x"]}),
        (True, {"result": True}),
    ],
)
def test_any_json_value_may_be_returned(value: object, result: object) -> None:
    def give() -> Any:
        """Give."""
        return value

    assert call(give) == result


NOT_JSON = ["set", "object", "bytes", "NaN", "tuple as key", "circle"]


@pytest.mark.parametrize("value", [{1, 2}, object(), b"x", float("nan"), {(1, 2): 3}, CIRCLE], ids=NOT_JSON)
def test_what_is_no_json_is_an_error_result(value: object) -> None:
    def give() -> Any:
        """Give."""
        return value

    assert call(give)["error"].startswith("The tool returned what is not JSON")


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), StopIteration("s"), asyncio.CancelledError("c")])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_a_tool_raises_is_an_error_result(error: BaseException, kind: str) -> None:
    def fail() -> None:
        """Fail."""
        raise error

    async def fail_later() -> None:
        """Fail."""
        raise error

    result = call(fail if kind == "sync" else fail_later)
    assert result["error"].startswith("Tool execution failed: ")
    assert str(error) in result["error"]


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class UnspeakableFailure(ToolFailure):
    __str__ = Unspeakable.__str__


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("text", "The tool returned str, not a dict"),
        (None, "The tool returned NoneType, not a dict"),
        ({"a": {1}}, "The tool returned what is not JSON: .*set"),
        ({"a": math.nan}, "The tool returned what is not JSON: .*nan"),
        ({"a": CIRCLE}, "The tool returned what is not JSON: .*Circular"),
        (Unspeakable(), "Tool execution failed: Unspeakable"),
        (UnspeakableFailure("x"), "Tool execution failed: "),
        (ToolFailure("x", details=object()), "The tool returned what is not JSON: .*object"),
        (SystemExit(3), "Tool execution failed: SystemExit: 3"),
        (pytest.skip.Exception("not now"), "Tool execution failed: Skipped: not now"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_a_tool_object_does_the_model_gets_an_error_result(value: object, message: str) -> None:
    assert re.match(message, call(raw(value))["error"])


def test_a_function_with_an_error_without_words_is_answered() -> None:
    class Exit(SystemExit):
        __str__ = Unspeakable.__str__

    def fail() -> None:
        """Fail."""
        raise Exit

    assert call(fail)["error"].startswith("Tool execution failed: Exit")


@pytest.mark.parametrize(
    ("error", "traced"), [(SandboxStartError("w1: bash ended at once (exit 130)"), False), (ValueError("no"), True)]
)
def test_a_traceback_is_logged_only_of_an_error_that_nobody_expected(
    error: Exception, traced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        """Fail."""
        raise error

    assert call(fail)["error"] == f"Tool execution failed: {type(error).__name__}: {error}"
    (record,) = caplog.records
    assert ("Traceback" in record.getMessage()) is traced
    assert f"{type(error).__name__}: {error}" in record.getMessage()


def test_cancellation_ends_a_call() -> None:
    async def cancelled() -> None:
        started = asyncio.Event()

        async def run(workspace: Workspace, arguments: Any) -> Any:
            started.set()
            await asyncio.Event().wait()

        running = asyncio.create_task(_call(raw(None, run=run), None))
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())


def test_a_mutable_default_is_new_in_every_call() -> None:
    shared: list[Any] = [{"deep": [0]}]

    def grow(items: list = shared) -> int:  # type: ignore[type-arg]
        """Grow."""
        items[0]["deep"].append(1)
        items.append(1)
        return len(items)

    made = own_tool(grow)
    before = json.dumps(made.schema)
    assert [call(made), call(made)] == [{"result": 2}, {"result": 2}]
    grow()
    assert json.dumps(made.schema) == before
    assert call(made) == {"result": 2}


def test_mistakes_of_the_model_are_told_in_the_tools_own_words() -> None:
    def fail(a: str) -> None:
        """Fail."""
        raise ToolFailure(f"{a!r} was asked; ask for 'y'", known=["y"])

    assert call(fail, {"a": "x"}) == {"error": "'x' was asked; ask for 'y'", "known": ["y"]}


def test_plain_functions_run_in_a_thread_and_coroutines_on_the_loop() -> None:
    def where() -> bool:
        """Where."""
        return threading.current_thread() is threading.main_thread()

    async def where_async() -> bool:
        """Where."""
        return threading.current_thread() is threading.main_thread()

    assert call(where) == {"result": False}
    assert call(where_async) == {"result": True}


def test_a_workspace_gives_the_agents_shell_and_files() -> None:
    async def save(workspace: Workspace, path: str, text: str) -> str:
        """Save."""
        await workspace.write(workspace.resolve(path), text.encode())
        return (await workspace.run(f"cat {path}", timeout_s=10)).output.decode()

    assert call(save, {"path": "n.txt", "text": "é"}) == {"output": "é"}


def test_the_model_is_answered_while_a_blocking_tool_runs() -> None:
    """A tool that blocks its thread does not block the loop."""
    started, release = threading.Event(), threading.Event()

    def wait() -> bool:
        """Wait."""
        started.set()
        return release.wait(60)

    async def both() -> Any:
        running = asyncio.create_task(_call(wait, None))
        assert await asyncio.to_thread(started.wait, 60)
        release.set()
        return await running

    assert asyncio.run(both()) == {"result": True}


# -- giving them to an agent -----------------------------------------------------------------------------


def test_a_benchmarks_tools_come_besides_whatever_is_chosen() -> None:
    def submit(answer: str) -> str:
        """Submit."""
        return answer

    benchmark = Benchmark("b", tasks=[Task(id="t", prompt="p")], verify=lambda v: 1.0, tools=[submit, describe])
    for enabled in (None, ["todo"], []):
        tools = [tool.name for tool in select_tools(enabled, settings=ToolSettings(), own=benchmark.tools).tools]
        assert tools[-2:] == ["describe", "submit"]
    without = select_tools(["todo"], ["submit", "words"], settings=ToolSettings(), own=benchmark.tools)
    assert [tool.name for tool in without.tools] == ["todo"]


def test_two_tools_of_one_name_are_refused() -> None:
    other = tool(name="describe", description="D.")(lambda: 1)
    with pytest.raises(ConfigurationError, match="benchmark b: two tools are called 'describe'"):
        Benchmark("b", tasks=[], verify=lambda v: 1.0, tools=[describe, other])
    with pytest.raises(ConfigurationError, match=r"here: tools=.* is not a list"):
        own_tools(describe, "here")


# -- entry points ----------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes an installed package: a module and its entry points."""
    modules: list[str] = []

    def make(name: str, code: str, entries: str) -> None:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[pytest_hermes.tools]\n{entries}\n")
        modules.append(name)

    monkeypatch.syspath_prepend(tmp_path)
    installed_tools.cache_clear()
    yield make
    installed_tools.cache_clear()
    for name in modules:
        sys.modules.pop(name, None)


TOOLS_MODULE = '''
    from pytest_hermes import tool

    @tool
    def reverse(text: str) -> str:
        """Reverse a text."""
        return text[::-1]

    @tool(toolset="numbers")
    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    def helper():
        pass
'''


def chosen(*names: str) -> list[str]:
    return [tool.name for tool in select_tools(names, settings=ToolSettings()).tools]


ENTRIES = "texts = hermes_alpha\nmany = hermes_alpha:both"


def test_entry_points_name_modules_functions_or_lists(package: Any) -> None:
    package(
        "hermes_alpha",
        TOOLS_MODULE + "    both = [reverse, double]\n",
        ENTRIES,
    )
    assert chosen("texts") == ["reverse"]
    assert chosen("terminal", "numbers") == ["terminal", "process", "double"]
    assert chosen("double") == ["double"]
    assert chosen(*["todo", "texts"]) == ["todo", "reverse"]
    with pytest.raises(ConfigurationError, match=r"'nubmers'.* Did you mean 'numbers'\? Known: .*texts, numbers"):
        chosen("nubmers")


def test_entry_points_are_read_only_when_a_name_needs_them(package: Any) -> None:
    package("hermes_beta", "raise ValueError('read')", "texts = hermes_beta")
    assert chosen("terminal", "development")
    with pytest.raises(ConfigurationError, match=r"entry point texts = hermes_beta .*cannot be loaded: ValueError"):
        chosen("texts")


DECORATED = "from pytest_hermes import tool\n@tool\n"


@pytest.mark.parametrize(
    ("code", "entry", "message"),
    [
        ("x = 1", "e = hermes_gamma", "has no function with @tool"),
        ("x = 1", "e = hermes_gamma:x", "1 is not a tool"),
        ("x = 1", "e = hermes_gamma:y", "cannot be loaded: AttributeError"),
        ("x = 1", "e = hermes_nowhere", "cannot be loaded: ModuleNotFoundError"),
        (DECORATED + "def f(a):\n    'D.'", "e = hermes_gamma", "parameter 'a' has no type"),
        (
            "from pytest_hermes import tool\n@tool\ndef patch(a: str):\n    'D.'",
            "e = hermes_gamma",
            "'patch'.*built-in",
        ),
        (DECORATED + "def f(a: str):\n    'D.'", "file = hermes_gamma", "'file'.*built-in"),
        ("import sys; sys.exit(3)", "e = hermes_gamma", "cannot be loaded: SystemExit: 3"),
        ("import sys; sys.exit('a\\nb')", "e = hermes_gamma", "cannot be loaded: SystemExit: a b"),
        (
            "import pytest; pytest.skip('not here', allow_module_level=True)",
            "e = hermes_gamma",
            "cannot be loaded: Skipped: not here",
        ),
        ("import pytest; pytest.exit('enough')", "e = hermes_gamma", "cannot be loaded: Exit: enough"),
        (
            "class Mute(Exception):\n    def __str__(self): raise self\nraise Mute",
            "e = hermes_gamma",
            "cannot be loaded: Mute",
        ),
    ],
)
def test_a_broken_entry_point_is_one_clear_error(package: Any, code: str, entry: str, message: str) -> None:
    package("hermes_gamma", code, entry)
    with pytest.raises(ConfigurationError, match=f"entry point {re.escape(entry)} .*{message}") as caught:
        chosen("anything")
    assert "\n" not in str(caught.value)


def test_ctrl_c_while_an_entry_point_is_loaded_is_ctrl_c(package: Any) -> None:
    package("hermes_eta", "raise KeyboardInterrupt", "texts = hermes_eta")
    with pytest.raises(KeyboardInterrupt):
        chosen("texts")


def test_two_packages_with_one_name_are_refused(package: Any) -> None:
    package("hermes_delta", TOOLS_MODULE, "texts = hermes_delta")
    package("hermes_epsilon", TOOLS_MODULE, "other = hermes_epsilon")
    with pytest.raises(ConfigurationError, match=r"tool '(reverse|double)' is also that of entry point"):
        chosen("texts")


# -- in a run --------------------------------------------------------------------------------------------

PLAY = """
    import pytest

    @pytest.mark.hermes(prompt="p", toolsets=["terminal"], script=[
        {"tool": "reverse", "arguments": {"text": "olleh"}},
        {"tool": "double", "arguments": {"number": "4"}},
        {"content": "done"},
    ])
    def test_it(ctx, trajectory):
        answers = [m["content"] for m in trajectory.messages if m["role"] == "tool"]
        assert answers == ['{"output": "hello"}', '{"result": 8}']
        assert ctx.call_tool("reverse", {"text": "ab"}) == '{"output": "ba"}'
"""


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_an_installed_packages_tools_are_chosen_by_name(pytester: pytest.Pytester, processes: tuple[str, ...]) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\npythonpath = site\n")
    site = pytester.mkdir("site")
    (site / "hermes_zeta.py").write_text(textwrap.dedent(TOOLS_MODULE))
    info = site / "hermes_zeta-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hermes-zeta\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pytest_hermes.tools]\ntexts = hermes_zeta\n")
    pytester.makepyfile(PLAY)
    common = ["--model=scripted", "--hermes-run-dir=runs", "--hermes-local-confine=off", *processes]
    done = pytester.runpytest_subprocess(*common, "--hermes-toolsets=terminal,texts,numbers")
    done.assert_outcomes(passed=1)
    wrong = pytester.runpytest_subprocess(*common, "--hermes-toolsets=terminal,txets")
    wrong.stdout.fnmatch_lines(["*nknown tool set 'txets'. Did you mean 'texts'?*"])


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_the_example_of_the_guide_runs(pytester: pytest.Pytester, processes: tuple[str, ...]) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    code = re.search(r"```python\n(.*?)```", (DOCS / "own-tools.md").read_text(), re.DOTALL)
    assert code is not None
    pytester.makepyfile(code[1])
    (pytester.path / "counting.py").write_text(
        "import json\n"
        "from pytest_hermes import AgentResult\n"
        "class Agent:\n"
        "    needs_model = False\n"
        "    async def run(self, prompt, toolbox):\n"
        "        assert {'count_words', 'longest_line', 'terminal'} <= toolbox.names\n"
        "        count = json.loads(await toolbox.call('count_words', {'text': 'a b c a'}))['result']\n"
        "        await toolbox.call('terminal', {'command': f'echo {count} > ~/n.txt'})\n"
        "        assert json.loads(await toolbox.call('longest_line', {'path': '~/n.txt'})) == {'line': '3'}\n"
        "        return AgentResult(messages=[])\n"
    )
    done = pytester.runpytest_subprocess(
        "--hermes-agent=counting:Agent", "--hermes-run-dir=runs", "--hermes-local-confine=off", *processes,
        "-p", "no:cacheprovider", "--import-mode=prepend",
    )  # fmt: skip
    done.assert_outcomes(passed=1)


def test_tools_of_a_mark_are_checked_at_collection(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.hermes(prompt="p", tools=[lambda a: a])
        def test_it(ctx):
            pass
        """
    )
    done = pytester.runpytest_subprocess("--model=scripted", "--hermes-run-dir=runs")
    done.stdout.fnmatch_lines(["*mark hermes: tool '<lambda>'*has no docstring*"])
