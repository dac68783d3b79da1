"""Every tool set in 32 docker sandboxes at once: nothing fails and nothing reaches another rollout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_hermes.artifacts.records import read_rows

pytestmark = [pytest.mark.requires("docker", "chromium"), pytest.mark.slow, pytest.mark.alone]
ROLLOUTS = 32

AGENT = '''
import json

from pytest_hermes import AgentResult

RUNNING = "grep -lzx '%s' /proc/[0-9]*/cmdline 2>/dev/null | wc -l"


class Everything:
    """Uses all tools with words that only its own rollout has, and records what was not as it should be."""

    def __init__(self, context):
        self.context = context

    async def run(self, prompt, toolbox):
        self.toolbox, self.wrong, self.uses = toolbox, [], 0
        site, own = self.context.task.data["site"], self.context.task.id
        await self.shell(own)
        await self.processes(own)
        await self.files(own)
        await self.web(site, own)
        await self.browser(site, own)
        assert not self.wrong, self.wrong
        return AgentResult(messages=[{"role": "user", "content": prompt}], finished_naturally=True)

    async def call(self, name, wanted="", /, **arguments):
        self.uses += 1
        text = await self.toolbox.call(name, arguments)
        if wanted not in text:
            self.wrong.append([name, arguments, wanted, text[:500]])
        return json.loads(text)

    async def shell(self, own):
        await self.call("terminal", '"exit_code": 0', command=f"mkdir -p /w/{own} && cd /w/{own} && export OWN={own}")
        await self.call("terminal", f"/w/{own} {own}", command='echo "$PWD $OWN"')
        await self.call("terminal", '"exit_code": 3', command="exit 3")
        await self.call("terminal", f"/w/{own} {own}", command='echo "$PWD $OWN"')
        late = await self.call("terminal", "begun", command="echo begun; setsid sleep 7001 & sleep 7001", timeout=1)
        assert late["exit_code"] == 124, late
        await self.call("terminal", '"output": "0\\\\n"', command=RUNNING % "7[0]01")
        await self.call("terminal", "OUTPUT TRUNCATED", command="seq 200000")
        await self.call("terminal", "on a terminal", command="test -t 1 && echo on a terminal", pty=True)

    async def processes(self, own):
        echo = await self.call("terminal", command='while read -r line; do echo "got $line"; done', background=True)
        session = echo["session_id"]
        await self.call("process", session, action="list")
        await self.call("process", action="submit", session_id=session, data=own)
        await self.call("process", action="close", session_id=session)
        await self.call("process", f"got {own}", action="wait", session_id=session, timeout=60)
        await self.call("process", f"got {own}", action="log", session_id=session)
        sleeper = await self.call("terminal", command="sleep 7002", background=True)
        await self.call("process", "running", action="poll", session_id=sleeper["session_id"])
        await self.call("process", action="kill", session_id=sleeper["session_id"])
        await self.call("terminal", '"output": "0\\\\n"', command=RUNNING % "7[0]02")

    async def files(self, own):
        await self.call("write_file", '"dirs_created": true', path="deep/er/f.py", content=f"name = '{own}'\\nx = 1\\n")
        await self.call("read_file", f"1|name = '{own}'", path="deep/er/f.py")
        await self.call("patch", '"success": true', path="deep/er/f.py", old_string="x = 1", new_string="x = 2")
        await self.call("read_file", "2|x = 2", path="deep/er/f.py")
        await self.call("search_files", "f.py", pattern=own)
        await self.call("search_files", "f.py", pattern="*.py", target="files")
        patch = f"*** Begin Patch\\n*** Add File: made\\n+{own}\\n*** Delete File: deep/er/f.py\\n*** End Patch"
        await self.call("patch", '"success": true', mode="patch", patch=patch)
        await self.call("read_file", "File not found", path="deep/er/f.py")
        await self.call("read_file", own, path="made")
        await self.call("todo", own, todos=[{"id": "1", "content": own, "status": "pending"}])
        await self.call("todo", own)

    async def web(self, site, own):
        await self.call("web_search", f"hit for {own}", query=own)
        await self.call("web_extract", f"The page of {own}", urls=[f"{site}/page/{own}"])

    async def browser(self, site, own):
        page = await self.call("browser_navigate", f"The page of {own}", url=f"{site}/page/{own}")
        field = next(line for line in page["snapshot"].splitlines() if "textbox" in line)
        reference = "@" + field.partition("[@")[2].partition("]")[0]
        await self.call("browser_type", '"success": true', ref=reference, text=own)
        await self.call("browser_press", '"success": true', key="Enter")
        await self.call("browser_snapshot", f"Sent {own}")
        await self.call("browser_console", f"cookie of {own}", expression="document.cookie")
        await self.call("browser_vision", '"success": true', question="What is there?")
'''

SUITE = """
from pytest_hermes import Benchmark, SandboxSpec, Task

TASKS = [
    Task(id=f"own{number:02}", prompt="Use everything.", sandbox=SandboxSpec(image=IMAGE), data={"site": SITE})
    for number in range(ROLLOUTS)
]


def verify(v):
    \"\"\"The agent's file is there, its shell's variables are not, and the verifier's tools work.\"\"\"
    own = v.task.id
    place = v.ctx.terminal(f"cat /w/{own}/made; ls /w; echo own=$OWN")
    extracted = v.ctx.web_extract([f"{SITE}/page/{own}"])["results"][0]["content"]
    return place["output"] == f"{own}\\n{own}\\nown=\\n" and f"The page of {own}" in extracted


benchmark = Benchmark("everything", tasks=TASKS, verify=verify)


@benchmark.parametrize
def test_task(rollout):
    rollout.check()
"""


def respond(method: str, path: str, headers: object) -> tuple[int, str, str]:
    """A page per rollout with a form and a cookie, and a search engine (SearXNG's wire)."""
    kind, _, query = path.strip("/").partition("?")
    if kind == "search":
        words = query.partition("q=")[2].partition("&")[0]
        hit = {"title": f"hit for {words}", "url": "https://a.example/", "content": "found"}
        return 200, "application/json", json.dumps({"results": [hit]})
    own, sent = kind.rpartition("/")[2], query.partition("what=")[2]
    page = (
        f"<title>{own}</title><script>document.cookie = 'cookie of {own}'</script>"
        f"<p>{f'Sent {sent}' if sent else f'The page of {own}'}.</p>"
        "<form><input name=what aria-label=What><button>Send</button></form>"
    )
    return 200, "text/html", page


@pytest.fixture
def site(serving) -> Iterator[str]:
    with serving(respond) as url:
        yield url


def test_every_tool_in_32_sandboxes_at_once(tmp_path: Path, site: str, test_image: str) -> None:
    (tmp_path / "everything.py").write_text(AGENT)
    head = f"IMAGE, SITE, ROLLOUTS = {test_image!r}, {site!r}, {ROLLOUTS}\n"
    (tmp_path / "test_everything.py").write_text(head + textwrap.dedent(SUITE))
    command = [sys.executable, "-m", "pytest", "--hermes-agent=everything:Everything", "--hermes-sandbox=docker"]
    command += ["--hermes-toolsets=terminal,file,todo,web,browser", "--hermes-set=env.allow_private_urls=true"]
    command += [
        "--hermes-run-dir=runs",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
        f"--hermes-concurrency={ROLLOUTS}",
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "SEARXNG_URL": site},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout
    (run,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    rows = read_rows(run)
    assert {row["outcome"] for row in rows} == {"passed"} and len({row["task_id"] for row in rows}) == ROLLOUTS
    left = subprocess.run(
        ["docker", "ps", "-q", "--filter", f"label=pytest-hermes.run={run.name}"], capture_output=True
    )
    assert left.stdout == b""
