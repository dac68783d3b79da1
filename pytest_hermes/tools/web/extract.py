"""From a fetched page to the text that a model reads. CPU-bound, so it runs in a worker process, killed when late.

HTML goes through trafilatura (main content as Markdown, links kept), PDF through pypdf, text and JSON stay as they are,
anything else is refused. Both packages are the extra `web`.
"""

from __future__ import annotations

import codecs
import dataclasses
import importlib.util
import io
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pytest_hermes.tools.tool import ToolFailure
from pytest_hermes.tools.web import workers
from pytest_hermes.tools.web.fetch import Page

if TYPE_CHECKING:
    from lxml.html import HtmlElement

EXTRACT_TIMEOUT_S = 30.0
"""Of one page, without its wait for a worker."""
MAX_ELEMENTS = 20_000
"""Above, a page is converted plainly: trafilatura takes 0.1 to 0.25 ms for an element."""
MIN_CONTENT_CHARS = 200
"""Below, the main content may have been taken for clutter: the whole text is used if it is longer."""
PDF_SECONDS = 10.0
PDF_PAGES = 200

HTML_TYPES = ("text/html", "application/xhtml+xml")
TEXT_TYPES = re.compile(r"text/.+|application/(.+\+)?(json|xml|yaml|x-yaml|toml|javascript|ecmascript|x-ndjson|sql)")
_UNSAFE_CODECS = frozenset({"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined"})
"""Python calls these text encodings; no page uses them, and some take quadratic time."""
_META_CHARSET = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([A-Za-z0-9_:.-]{1,40})""", re.IGNORECASE)
_BLOCKS = (
    *("address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "figcaption", "figure", "footer"),
    *("form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "option", "p", "pre"),
    *("section", "table", "td", "th", "tr", "ul"),
)


@dataclasses.dataclass(frozen=True)
class Readable:
    """A page as text; `title` is empty where it has none."""

    title: str
    text: str


def missing_packages() -> list[str]:
    """Those of the packages needed that are not installed; imports nothing."""
    needed = ("trafilatura", "lxml_html_clean", "pypdf")
    return [name for name in needed if importlib.util.find_spec(name) is None]


async def extract(page: Page) -> Readable:
    """The readable text of a page. Raises ToolFailure when it has none, is damaged, or takes too long."""
    fields = {"url": page.url, "content_type": page.content_type, "charset": page.charset, "truncated": page.truncated}
    try:
        header, body = await workers.ask(fields, page.body, EXTRACT_TIMEOUT_S)
    except TimeoutError:
        raise ToolFailure(f"The page could not be turned into text within {EXTRACT_TIMEOUT_S:g} s.") from None
    except workers.WorkerNotStarted as error:
        raise ToolFailure(f"Pages cannot be read here: the process that reads them did not start ({error}).") from error
    except workers.WorkerDied as error:
        raise ToolFailure("The page could not be read: its parser crashed.") from error
    if "error" in header:
        raise ToolFailure(header["error"])
    text = body.decode()
    if not text.strip():
        raise ToolFailure("The page has no text; it may be made by scripts.")
    if page.truncated:
        text = f"{text}\n\n[the page goes on after {len(page.body) // 1_000_000} MB; not fetched]"
    return Readable(header["title"], text)


def readable(page: Page) -> Readable:
    """`extract` without a limit, in this process; blocks. Raises ToolFailure."""
    kind = page.content_type if page.content_type not in ("", "application/octet-stream") else _sniffed(page.body)
    if kind in HTML_TYPES:
        return _html(decoded(page.body, page.charset), page.url)
    if kind in ("application/pdf", "application/x-pdf"):
        if page.truncated:
            raise ToolFailure(f"The PDF is larger than {len(page.body) // 1_000_000} MB. Download it with terminal.")
        return _pdf(page.body)
    if TEXT_TYPES.fullmatch(kind):
        return Readable("", decoded(page.body, page.charset))
    raise ToolFailure(f"{kind or 'Unknown content'} ({len(page.body):,} bytes) has no text to extract.")


def _sniffed(body: bytes) -> str:
    start = body[:1024].lstrip().lower()
    if start.startswith(b"%pdf-"):
        return "application/pdf"
    if start.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "text/html"
    return "" if b"\0" in body[:1024] else "text/plain"


def decoded(body: bytes, charset: str | None) -> str:
    """`body` as text: by its byte order mark, the header's charset, the page's own, UTF-8, else Windows-1252."""
    for mark, codec in ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")):
        if body.startswith(mark):
            return body.decode(codec, "replace").removeprefix("\ufeff")
    meta = _META_CHARSET.search(body[:2048])
    own = meta[1].decode("ascii") if meta else ""
    for name in (charset or "", "utf-8" if own.lower().startswith("utf-16") else own):  # it was readable as ASCII
        if text_codec := _codec(name):
            return body.decode(text_codec, "replace")
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(body)  # a body may end within a character
    except UnicodeDecodeError:
        return body.decode("cp1252", "replace")


def _codec(name: str) -> str | None:
    """Python's name of a page's charset, None if it has none. Browsers read ASCII and Latin 1 as Windows-1252."""
    try:
        found = codecs.lookup(name).name
        b" ".decode(found, "replace")
    except (LookupError, ValueError):  # unknown, or from bytes to bytes
        return None
    if found in _UNSAFE_CODECS:
        return None
    return "cp1252" if found in ("ascii", "iso8859-1") else found


def _html(text: str, url: str) -> Readable:
    import lxml.etree
    import lxml.html

    parser = lxml.html.HTMLParser(remove_comments=True, remove_pis=True, encoding="utf-8")
    try:
        tree = lxml.html.document_fromstring(text.encode("utf-8", "replace"), parser=parser)
    except lxml.etree.ParserError:  # nothing but white space and comments
        return Readable("", "")
    title = " ".join((tree.findtext(".//title") or "").split())[:500]
    content = None
    if sum(1 for _ in tree.iter()) <= MAX_ELEMENTS:
        import trafilatura

        content = trafilatura.extract(
            tree, url=url, output_format="markdown", include_links=True, include_comments=True, favor_recall=True
        )
    if content is None or len(content) < MIN_CONTENT_CHARS:
        content = max(_plain(tree), content or "", key=len)
    return Readable(title, content)


def _plain(tree: HtmlElement) -> str:
    """All text of a page, one block a line; linear in its size."""
    from lxml import etree

    etree.strip_elements(tree, "head", "script", "style", "noscript", "template", "svg", with_tail=False)
    for element in tree.iter(*_BLOCKS):
        element.text = f"\n{element.text or ''}"
        element.tail = f"\n{element.tail or ''}"
    lines = (" ".join(line.split()) for line in tree.text_content().splitlines())
    return "\n".join(line for line in lines if line)


def _pdf(body: bytes) -> Readable:
    import pypdf

    reader = pypdf.PdfReader(io.BytesIO(body))
    if reader.is_encrypted and not reader.decrypt(""):
        raise ToolFailure("The PDF is encrypted.")
    title = reader.metadata.title if reader.metadata else None
    return Readable(str(title or "")[:500], "\n\n".join(_pdf_pages(reader)))


def _pdf_pages(reader: Any) -> Iterator[str]:
    started, total = time.monotonic(), len(reader.pages)
    for number in range(total):
        if number == PDF_PAGES or time.monotonic() - started > PDF_SECONDS:
            yield f"[pages {number + 1} to {total} left out]"
            return
        yield reader.pages[number].extract_text().strip()
