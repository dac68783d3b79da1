"""The documentation is true: generated pages, names in tables, and the code that it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_hermes.collection import MARK_FIELDS
from pytest_hermes.outcome import TABLE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_configuration_page_is_what_the_code_says():
    done = subprocess.run([sys.executable, DOCS / "generate.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_argument_of_the_mark_is_documented():
    page = (DOCS / "writing-benchmarks.md").read_text()
    assert not [name for name in MARK_FIELDS if f"`{name}`" not in page]


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", *DOCS.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readme_names_every_page():
    page = (ROOT / "README.md").read_text()
    assert not [found.name for found in DOCS.glob("*.md") if f"](docs/{found.name})" not in page]


def test_no_cause_in_the_outcomes_page_is_invented():
    page = (DOCS / "outcomes.md").read_text()
    known = {policy.cause for policy in TABLE.values()} | {
        "reward_below_threshold",
        "not_passed",
        "bankrupt",
        "incomplete",
        "test_body",
        "max_turns",
        "loop",
        "length",
        "unused",
        "tampering",
    }
    rows = [line.split("|")[3] for line in page.splitlines() if line.startswith("|")][2:]
    causes = {cause for row in rows for cause in re.findall(r"`(\w+)`", row)}
    assert causes <= known


@pytest.mark.parametrize("number", [0, 1])
def test_the_benchmarks_of_the_guide_run(pytester, number):
    page = (DOCS / "writing-benchmarks.md").read_text()
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[number]
    pytester.makepyfile(code)
    (pytester.path / "solve.py").write_text(
        "from pytest_hermes import AgentResult\n"
        "class Agent:\n"
        "    needs_model = False\n"
        "    async def run(self, prompt, toolbox):\n"
        "        await toolbox.call('terminal', {'command': 'printf \"1\\n2\\n3\\n4\\n5\\n\" > ~/n.txt'})\n"
        "        return AgentResult(messages=[])\n"
    )
    agent = "oracle" if "solution" in code else "solve:Agent"
    pytester.makeini("[pytest]\npythonpath = .\n")
    result = pytester.runpytest_subprocess(f"--hermes-agent={agent}", "--hermes-local-confine=off")
    result.assert_outcomes(passed=3 if "solution" in code else 1)


def test_the_agents_and_the_hook_of_the_guides_run(pytester):
    agents = re.findall(r"```python\n(.*?)```", (DOCS / "agents.md").read_text(), re.DOTALL)
    pytester.makepyfile(my_agents="\n".join(code for code in agents if "class " in code))
    page = (DOCS / "writing-benchmarks.md").read_text()
    (hook,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "make_sandbox" in code)
    pytester.makeconftest(hook)
    pytester.makepyfile(
        "import pytest\nSCRIPT = [{'tool': 'terminal', 'arguments': {'command': 'echo 1 > n'}}]\n"
        "@pytest.mark.hermes(prompt='x', script=SCRIPT)\n"
        "def test_it(ctx, trajectory):\n"
        "    assert trajectory.messages and ctx.terminal('git config user.name')['output']\n"
    )
    pytester.makeini("[pytest]\npythonpath = .\n")
    for agent in re.findall(r"^class (\w+)", "\n".join(agents), re.MULTILINE):
        result = pytester.runpytest_subprocess(f"--hermes-agent=my_agents:{agent}", "--model=scripted")
        result.assert_outcomes(passed=1)


def test_the_parsers_page_names_every_parser_and_its_example_works(monkeypatch):
    from pytest_hermes.tool_call_parsers import get_parser, list_parsers, registry

    monkeypatch.setattr(registry, "_own", {})
    page = (DOCS / "tool-call-parsers.md").read_text()
    assert not [name for name in list_parsers() if f"`{name}`" not in page]
    for row in re.findall(r"^\| (`.*?) \| (.*?) \|", page, re.MULTILINE):
        names, aliases = (re.findall(r"`(\w+)`", cell) for cell in row)
        kinds = {type(get_parser(name)) for name in names}
        assert all(type(get_parser(alias)) in kinds for alias in aliases)
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[1], {})
    content, calls = get_parser("shouted").parse("Now CALL help!")
    assert content == "Now" and [call.function.name for call in calls] == ["help"]
