"""The tool set `web` in a whole run: a scripted agent searches and reads, and no key reaches the records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pytest

pytest.importorskip("trafilatura")

KEY = "tvly-secret-0123456789"
TASK = """
    benchmark = Benchmark(
        "bench",
        tasks=[
            Task(
                id="look-up",
                prompt="What is the answer?",
                data={"script": [
                    {"tool": "web_search", "arguments": {"query": "the answer"}},
                    {"tool": "web_extract", "arguments": {"urls": ["URL/page"]}},
                    {"content": "done"},
                ]},
            )
        ],
        verify=lambda v: v.ctx.web_extract(["URL/page"])["results"][0]["content"] == "The answer is 42.",
    )

    @benchmark.parametrize
    def test_task(rollout):
        rollout.check()
"""


class Service:
    """One page, and a search that refuses keys while `refusing`, repeating them."""

    def __init__(self) -> None:
        self.refusing = False
        self.url = ""

    def respond(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str, str]:
        if method == "GET":
            return 200, "text/html", "<title>Page</title><p>The answer is 42.</p>"
        if self.refusing:
            return 401, "application/json", json.dumps({"error": f"unknown key: {headers['Authorization']}"})
        hit = {"title": "Answer", "url": "https://a.example/", "content": "It is 42"}
        return 200, "application/json", json.dumps({"results": [hit]})


@pytest.fixture
def service(serving, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    made = Service()
    with serving(made.respond) as made.url:
        monkeypatch.setenv("TAVILY_API_KEY", KEY)
        monkeypatch.setenv("TAVILY_BASE_URL", made.url)
        yield made


def answers(run) -> list[dict]:
    messages = run.rows["test_task[look-up]"]["messages"]
    return [json.loads(message["content"]) for message in messages if message["role"] == "tool"]


def test_an_agent_searches_and_reads(bench, service, processes):
    bench.write(body=TASK.replace("URL", service.url))
    run = bench.run("--hermes-toolsets=web", "--hermes-set=env.allow_private_urls=true", *processes)
    run.result.assert_outcomes(passed=1)
    found, read = answers(run)
    hit = {"title": "Answer", "url": "https://a.example/", "description": "It is 42", "position": 1}
    assert found == {"success": True, "data": {"web": [hit]}}
    assert read["results"][0] | {"url": ""} == {
        "url": "",
        "title": "Page",
        "content": "The answer is 42.",
        "error": None,
    }
    assert "nclosed" not in run.result.stdout.str() + run.result.stderr.str()


def test_private_addresses_are_refused_and_keys_stay_out_of_the_records(bench, service):
    service.refusing = True
    bench.write(body=TASK.replace("URL", service.url))
    run = bench.run("--hermes-toolsets=web", "-s")
    run.result.assert_outcomes(failed=1)
    found, read = answers(run)
    assert found["success"] is False and "HTTP 401. Check TAVILY_API_KEY." in found["error"]
    assert read["results"][0]["error"].startswith("Refused: 127.0.0.1 is a loopback address")
    written = [path.read_bytes() for path in run.directory.rglob("*") if path.is_file()]
    assert written and not any(KEY.encode() in content for content in written)
    assert KEY not in run.result.stdout.str() + run.result.stderr.str()


def test_without_a_key_a_run_that_needs_search_stops_at_once(bench, monkeypatch):
    for name in ("TAVILY_API_KEY", "EXA_API_KEY", "FIRECRAWL_API_KEY", "FIRECRAWL_API_URL", "SEARXNG_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("BRAVE_API_KEY", "BRAVE_SEARCH_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    bench.write(body=TASK)
    run = bench.run("--hermes-toolsets=web_search")
    assert run.result.ret != 0 and not run.started
    run.result.stdout.fnmatch_lines("*web_search*TAVILY_API_KEY*SEARXNG_URL*")
