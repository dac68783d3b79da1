"""Which tools a choice of names gives, what is left out, and what a distribution draws."""

from __future__ import annotations

import collections
import subprocess
import sys

import pytest

from pytest_hermes.cli import main
from pytest_hermes.errors import ConfigurationError
from pytest_hermes.tools.distributions import DISTRIBUTIONS, draw_tools
from pytest_hermes.tools.listing import list_tools
from pytest_hermes.tools.registry import BUILTIN, COMPOSED, DEFAULT_TOOLSETS, TOOLS, TOOLSETS
from pytest_hermes.tools.toolbox import ToolSettings
from pytest_hermes.tools.toolsets import Selection, find_tool, home_of, select_tools
from pytest_hermes.tools.web.providers import PROVIDERS

SETTINGS = ToolSettings()
FILE = ["read_file", "write_file", "patch", "search_files"]


@pytest.fixture(autouse=True)
def no_search_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """`web_search` cannot work, `web_extract` can."""
    for provider in PROVIDERS.values():
        for variable in (*provider.key_variables, provider.url_variable):
            monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def search_service(no_search_service: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAVILY_API_KEY", "k")


def names(selection: Selection) -> list[str]:
    return [tool.name for tool in selection.tools]


# -- the registry ----------------------------------------------------------------------------------------


def test_every_tool_is_where_the_table_says_and_has_a_home() -> None:
    for name in BUILTIN:
        assert TOOLS[name].name == name
        assert home_of(name) in TOOLSETS
    assert {tool for tools in TOOLSETS.values() for tool in tools} == set(BUILTIN)
    assert set(DEFAULT_TOOLSETS) <= set(TOOLSETS)
    assert not set(COMPOSED) & set(TOOLSETS)


def test_modules_of_tools_that_were_not_chosen_are_not_imported() -> None:
    script = (
        "import sys\n"
        "from pytest_hermes.tools.toolbox import ToolSettings\n"
        "from pytest_hermes.tools.toolsets import select_tools\n"
        "select_tools(None, settings=ToolSettings())\n"
        "print([m for m in sys.modules if m.startswith(('pytest_hermes.tools.web', 'pytest_hermes.tools.browser'))])\n"
        "select_tools(['search'], settings=ToolSettings(), optional=True)\n"
        "assert 'pytest_hermes.tools.web' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- choosing --------------------------------------------------------------------------------------------


def test_nothing_chosen_means_what_needs_no_network() -> None:
    assert names(select_tools(None, settings=SETTINGS)) == ["terminal", "process", *FILE, "todo"]
    assert names(select_tools([], settings=SETTINGS)) == []


@pytest.mark.parametrize(
    ("enabled", "disabled", "tools"),
    [
        (["todo", "terminal"], [], ["terminal", "process", "todo"]),
        (["read_file", "terminal"], ["process"], ["terminal", "read_file"]),
        (["development"], [], ["terminal", "process", *FILE, "todo"]),
        (["debugging"], ["web"], ["terminal", "process", *FILE]),
        (None, ["file", "todo"], ["terminal", "process"]),
    ],
)
def test_sets_composed_sets_and_single_tools_may_be_mixed(
    enabled: list[str] | None, disabled: list[str], tools: list[str]
) -> None:
    assert names(select_tools(enabled, disabled, settings=SETTINGS)) == tools


def test_equal_choices_in_another_order_give_the_same_schemas(search_service: None) -> None:
    one, other = (select_tools(sets, settings=SETTINGS) for sets in (["web", "file", "todo"], ["todo", "file", "web"]))
    assert [tool.schema for tool in one.tools] == [tool.schema for tool in other.tools]


@pytest.mark.parametrize(
    ("wrong", "right"), [("terminl", "terminal"), ("debuging", "debugging"), ("read_fil", "read_file")]
)
def test_an_unknown_name_gets_the_closest(wrong: str, right: str) -> None:
    for choice in ((["todo", wrong], []), (None, [wrong])):
        with pytest.raises(ConfigurationError, match=f"'{wrong}'.* Did you mean '{right}'"):
            select_tools(choice[0], choice[1], settings=SETTINGS)


# -- what cannot work here -------------------------------------------------------------------------------


def test_a_set_named_itself_must_work_and_the_error_says_why_not() -> None:
    with pytest.raises(ConfigurationError, match=r"'web': web_search cannot work here: .*TAVILY_API_KEY"):
        select_tools(["terminal", "web"], settings=SETTINGS)
    with pytest.raises(ConfigurationError, match="'web_search': web_search cannot work here"):
        select_tools(["web_search"], settings=SETTINGS)
    with pytest.raises(ConfigurationError, match="'web': web_search cannot work here"):
        select_tools(["debugging", "web"], settings=SETTINGS)


def test_what_works_of_it_can_be_named_or_the_rest_disabled() -> None:
    assert names(select_tools(["web_extract"], settings=SETTINGS)) == ["web_extract"]
    assert names(select_tools(["web"], ["web_search"], settings=SETTINGS)) == ["web_extract"]


def test_a_composed_set_leaves_out_what_cannot_work_and_says_why() -> None:
    selection = select_tools(["debugging"], settings=SETTINGS)
    assert names(selection) == ["terminal", "process", *FILE, "web_extract"]
    assert list(selection.left_out) == ["web_search"] and "TAVILY_API_KEY" in selection.left_out["web_search"]
    assert selection.record() == {"sets": ["debugging"], "distribution": None, "left_out": selection.left_out}


def test_a_composed_set_of_which_nothing_works_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"search: no tool of them can work here \(web_search: .*TAVILY"):
        select_tools(["search"], settings=SETTINGS)


def test_a_tool_that_a_set_only_borrows_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TOOLSETS, "notes", ("todo", "web_search"))  # type: ignore[misc]
    monkeypatch.setitem(TOOLSETS, "todo", ())  # type: ignore[misc]
    selection = select_tools(["notes"], settings=SETTINGS)
    assert names(selection) == ["todo"] and list(selection.left_out) == ["web_search"]


def test_verifiers_find_any_tool() -> None:
    found = find_tool("web_extract")
    assert found is not None and found.name == "web_extract"
    assert find_tool("no_such_tool") is None


# -- distributions ---------------------------------------------------------------------------------------


def drawn(distribution: str, *key: object) -> tuple[str, ...]:
    return draw_tools(distribution, *key, settings=SETTINGS).sets


def test_hermes_distributions_are_there() -> None:
    assert len(DISTRIBUTIONS) == 17
    for name in DISTRIBUTIONS:
        assert name == "browser_only" or draw_tools(name, 0, "b", "t", settings=SETTINGS).tools


def test_a_draw_depends_on_seed_benchmark_and_task_alone() -> None:
    samples = {(seed, b, t): drawn("balanced", seed, b, t) for seed in range(3) for b in "ab" for t in "xyz"}
    assert samples == {key: drawn("balanced", *key) for key in samples}
    assert len(set(samples.values())) > 3
    assert [drawn("balanced", 7, "bench", task) for task in ("one", "two", "three")] == [
        drawn("balanced", 7, "bench", task) for task in ("one", "two", "three")
    ]


def test_the_draw_does_not_differ_between_processes() -> None:
    script = (
        "from pytest_hermes.tools.distributions import draw_tools\n"
        "from pytest_hermes.tools.toolbox import ToolSettings\n"
        "print([draw_tools('mixed_tasks', 1, 'b', t, settings=ToolSettings()).sets for t in 'abcdefgh'])\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_sets_come_as_often_as_their_percentage_says(search_service: None) -> None:
    counts: collections.Counter[str] = collections.Counter()
    for task in range(2000):
        counts.update(drawn("development", 0, "bench", task))
    for name, percent in (("terminal", 80), ("file", 80), ("web", 30)):
        assert abs(counts[name] / 20 - percent) < 4, counts  # four standard errors


def test_sets_are_drawn_independently(search_service: None) -> None:
    both = sum({"terminal", "file"} <= set(drawn("balanced", 0, "bench", task)) for task in range(2000))
    assert abs(both / 20 - 25) < 5


def test_if_nothing_was_drawn_the_most_probable_set_is_taken(search_service: None) -> None:
    samples = [drawn("creative", 0, "bench", task) for task in range(50)]  # web 30, the others do not exist here
    assert set(samples) == {("web",)}
    alone = [sample for task in range(3000) if (sample := drawn("development", 0, "b", task)) == ("terminal",)]
    assert alone, "terminal alone is drawn, or taken where nothing was"


def test_members_that_do_not_exist_here_or_cannot_work_are_left_out_with_the_reason() -> None:
    selection = draw_tools("image_gen", 0, "bench", "task", settings=SETTINGS)
    assert set(selection.sets) <= {"web", "terminal"} and selection.distribution == "image_gen"
    assert selection.left_out["vision"] == selection.left_out["image_gen"] == "there is no such tool set here"
    assert "TAVILY_API_KEY" in selection.left_out["web_search"]
    assert "web_search" not in names(selection)


def test_a_set_that_becomes_available_changes_no_other_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = range(200)
    before = [set(drawn("reasoning", 0, "b", task)) for task in tasks]
    monkeypatch.setenv("TAVILY_API_KEY", "k")
    after = [set(drawn("reasoning", 0, "b", task)) for task in tasks]
    assert before == after  # web_extract alone makes the set `web` drawable


def test_disabled_tools_are_never_given() -> None:
    for task in range(20):
        selection = draw_tools("terminal_only", 0, "b", task, settings=SETTINGS, disabled=["process", "file"])
        assert names(selection) == ["terminal"]


def test_a_distribution_of_which_nothing_can_work_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="--hermes-distribution=minimal: none of its tools"):
        draw_tools("minimal", 0, settings=SETTINGS, disabled=["web"])


def test_an_unknown_distribution_gets_the_closest() -> None:
    with pytest.raises(ConfigurationError, match=r"'reserch'.* Did you mean 'research'"):
        draw_tools("reserch", 0, settings=SETTINGS)


# -- the listing -----------------------------------------------------------------------------------------


def test_the_command_lists_sets_with_their_cost_and_what_cannot_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tools"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines() == list_tools()
    assert "terminal*: terminal, process" in text and "not here: web_search (" in text
    assert "debugging: terminal, file, web" in text and "research: web 90, browser 70, vision 50, terminal 10" in text
    assert "tokens" in text
