"""From a name to an agent: the built-in ones, a user's own, and what is said when there is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_hermes.agents.loop import HermesAgentLoop
from pytest_hermes.agents.nop import NopAgent
from pytest_hermes.agents.oracle import OracleAgent
from pytest_hermes.agents.protocol import AgentContext
from pytest_hermes.agents.registry import agent_needs_model, make_agent
from pytest_hermes.errors import ConfigurationError
from pytest_hermes.models.protocol import Sampling
from pytest_hermes.models.registry import make_model
from pytest_hermes.sandbox.protocol import Sandbox
from pytest_hermes.task import Task

SOURCE = """
class Plain:
    async def run(self, prompt, toolbox):
        return None

class Knowing:
    def __init__(self, context, *, more=1):
        self.context = context
    async def run(self, prompt, toolbox):
        return None

class Alone(Plain):
    needs_model = False

def by_function(*, only_keywords=1):
    return Plain()

def wrong():
    return object()

NUMBER = 3
"""


@pytest.fixture
def own_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """A module of agents under a name of its own; the name."""
    name = f"own_agents_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    (tmp_path / f"{name}_bad.py").write_text("import there_is_no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    for module in (name, f"{name}_bad"):
        sys.modules.pop(module, None)


def context(**changes: Any) -> AgentContext:
    model = make_model("scripted")
    fields: dict[str, Any] = {
        "task": Task("t", "p"), "sandbox": cast(Sandbox, None), "model": model, "sampling": Sampling(0.5, 10),
        "system_prompt": "s", "max_turns": 9, "deadline_s": 60.0, **changes,
    }  # fmt: skip
    return AgentContext(**fields)


def test_the_built_in_agents() -> None:
    loop = make_agent(
        "hermes",
        context(options={"loop_limit": 0}, history_keep_rounds=4),
    )
    assert isinstance(loop, HermesAgentLoop)
    assert (loop.max_turns, loop.deadline_s, loop.task_id) == (9, 60.0, "t")
    assert isinstance(make_agent("oracle", context(model=None)), OracleAgent)
    assert isinstance(make_agent("nop", context(model=None)), NopAgent)
    assert [agent_needs_model(name) for name in ("hermes", "oracle", "nop")] == [True, False, False]


def test_hermes_without_a_model_or_with_an_unknown_option() -> None:
    with pytest.raises(ConfigurationError, match="needs a model: give --model NAME"):
        make_agent("hermes", context(model=None))
    with pytest.raises(ConfigurationError, match=r"unknown option 'loop_limt'.*did you mean 'loop_limit'\?"):
        make_agent("hermes", context(options={"loop_limt": 3}))


def test_an_agent_of_ones_own_gets_the_context_if_it_takes_it(own_agents: str) -> None:
    here = context()
    assert type(make_agent(f"{own_agents}:Plain", here)).__name__ == "Plain"
    assert cast(Any, make_agent(f"{own_agents}:Knowing", here)).context is here
    assert type(make_agent(f"{own_agents}:by_function", here)).__name__ == "Plain"
    assert agent_needs_model(f"{own_agents}:Plain")
    assert not agent_needs_model(f"{own_agents}:Alone")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("oracel", r"--hermes-agent=oracel: no such agent; did you mean 'oracle'\?"),
        ("zzz", "known: hermes, oracle, nop, or package.module:Factory"),
        ("no_such_module_here:Agent", "there is no module 'no_such_module_here' on sys.path"),
        ("json.nothing:Agent", "there is no module 'json.nothing' on sys.path"),
        ("{own}:Plian", r"has no 'Plian'; did you mean 'Plain'\?"),
        ("{own}:NUMBER", "'NUMBER' is a int, not a class or function"),
        ("{own}_bad:Agent", "imports 'there_is_no_such_package', which is not installed"),
        ("{own}:wrong", "gave a object, which has no `async def run"),
        ("{own}:", "has no ''"),
    ],
)
def test_a_name_that_leads_nowhere_says_where_it_ends(own_agents: str, name: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        make_agent(name.replace("{own}", own_agents), context())
