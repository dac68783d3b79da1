"""`web_search` and `web_extract`: the web without a browser, from this machine and not from the sandbox."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytest_hermes.tools.tool import Result, Tool, ToolFailure, integer, object_schema, string
from pytest_hermes.tools.web.extract import Readable, extract, missing_packages
from pytest_hermes.tools.web.fetch import WebClient
from pytest_hermes.tools.web.providers import choose
from pytest_hermes.tools.web.search import search
from pytest_hermes.tools.workspace import Workspace

if TYPE_CHECKING:
    from pytest_hermes.tools.toolbox import ToolSettings

MAX_URLS = 5
CHAR_LIMIT = 15_000
HEAD_SHARE = 0.7


async def _search(workspace: Workspace, arguments: Mapping[str, Any]) -> Result:
    query = arguments["query"].strip()
    if not query:
        raise ToolFailure("web_search: the query is empty. Say what to look for.", success=False)
    service = choose(workspace.settings.web_backend, os.environ)
    if isinstance(service, str):
        raise ToolFailure(f"web_search: {service}.", success=False)
    hits = await search(workspace.state.part(WebClient), service, query, arguments["limit"])
    found = [
        {"title": hit.title, "url": hit.url, "description": hit.description, "position": position}
        for position, hit in enumerate(hits, 1)
    ]
    return {"success": True, "data": {"web": found}}


def _search_unavailable(settings: ToolSettings) -> str | None:
    service = choose(settings.web_backend, os.environ)
    return service if isinstance(service, str) else None


async def _extract(workspace: Workspace, arguments: Mapping[str, Any]) -> Result:
    urls: list[str] = arguments["urls"]
    if not urls:
        raise ToolFailure("web_extract: urls is empty. Give one to five URLs.")
    if len(urls) > MAX_URLS:
        raise ToolFailure(f"web_extract: {len(urls)} URLs given, {MAX_URLS} at most. Make several calls.")
    if reason := _extract_unavailable(workspace.settings):
        raise ToolFailure(f"web_extract: {reason}.")
    async with asyncio.TaskGroup() as group:
        pages = [group.create_task(_read(workspace, url)) for url in urls]
    results: list[Result] = []
    for url, page in zip(urls, pages, strict=True):
        found = page.result()
        if isinstance(found, str):
            results.append({"url": url, "title": "", "content": "", "error": found})
            continue
        content = await _window(workspace, url, found.text, arguments["char_limit"])
        results.append({"url": url, "title": found.title, "content": content, "error": None})
    return {"results": results}


async def _read(workspace: Workspace, url: str) -> Readable | str:
    """A page's text, or why there is none."""
    client = workspace.state.part(WebClient)
    try:
        return await extract(await client.fetch(url, allow_private=workspace.settings.allow_private_urls))
    except ToolFailure as failure:
        return str(failure)


async def _window(workspace: Workspace, url: str, text: str, char_limit: int) -> str:
    """`text`, or its head and tail with a note where the whole of it is: a file of the sandbox."""
    if len(text) <= char_limit:
        return text
    head = text[: int(char_limit * HEAD_SHARE)]
    tail = text[len(head) - char_limit :]
    name = hashlib.sha256(url.encode()).hexdigest()[:12]
    try:
        path = await workspace.keep(f"hermes-results/web-{name}.txt", text.encode(errors="replace"))
        advice = f"the whole text is in {path}: use read_file with offset and limit"
    except ToolFailure:  # a full disk, say; what was found counts more
        advice = "raise char_limit to see more"
    left_out = len(text) - char_limit
    return f"{head}\n\n[{left_out:,} of {len(text):,} characters left out; {advice}]\n\n{tail}"


def _extract_unavailable(settings: ToolSettings) -> str | None:
    missing = missing_packages()
    return f"{', '.join(missing)} not installed: pip install 'pytest-hermes[web]'" if missing else None


WEB_SEARCH = Tool(
    "web_search",
    "Search the web. Returns titles, URLs and descriptions. The query goes to the search service as it is, so "
    'operators such as site:example.com, -word or "exact words" work where the service has them.',
    object_schema(
        ["query"],
        query=string("What to search for"),
        limit=integer("Results at most", minimum=1, maximum=100, default=5),
    ),
    _search,
    unavailable=_search_unavailable,
    reads_only=True,
)

WEB_EXTRACT = Tool(
    "web_extract",
    "Fetch web pages and return their text: HTML as Markdown without menus and adverts, PDF, plain text, JSON. Scripts "
    "are not run. A page over char_limit loses its middle; the whole text is then in a file that the result names.",
    object_schema(
        ["urls"],
        urls={"type": "array", "items": {"type": "string"}, "maxItems": MAX_URLS, "description": "Up to five URLs"},
        char_limit=integer("Characters of each page that are returned", minimum=2000, default=CHAR_LIMIT),
    ),
    _extract,
    unavailable=_extract_unavailable,
    reads_only=True,
)
