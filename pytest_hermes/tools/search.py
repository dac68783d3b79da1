"""`search_files`: find text (regular expression) or files (glob) in the sandbox.

Uses ripgrep where the image has it, else grep over what find lists. Version control directories are left out; hidden
and ignored files are not, so that a search finds the same whatever program does it.
"""

from __future__ import annotations

import dataclasses
import posixpath
import re
import shlex
from collections.abc import Mapping
from typing import Any

from pytest_hermes.tools.tool import Result, Tool, ToolFailure, integer, object_schema, string
from pytest_hermes.tools.workspace import Workspace, quote, text_of

MAX_OUTPUT = 2_000_000
MAX_LINE = 500
MAX_ARGUMENT_CHARS = 30_000
"""A program's argument has 128 KiB at most, a character up to 4 bytes."""
SEARCH_TIMEOUT_S = 60.0
_KERNEL = ("/proc", "/sys", "/dev")
"""Left out when the whole file system is searched."""

_PROBE = r"""if command -v rg >/dev/null 2>&1; then echo rg
elif printf 'a1' | grep -qPZ '\d' 2>/dev/null; then echo 'grep -PIZ'
elif printf 'a1' | grep -qEIZ 1 2>/dev/null; then echo 'grep -EIZ'
elif command -v grep >/dev/null 2>&1; then echo 'grep -E'
else echo none; fi
find / -maxdepth 0 -printf x 2>/dev/null"""


async def _run(workspace: Workspace, arguments: Mapping[str, Any]) -> Result:
    if workspace.search_programs is None:
        workspace.search_programs = text_of(await workspace.script(_PROBE)).strip()
    if not arguments["pattern"]:
        raise ToolFailure("search_files: pattern is empty. Give a regular expression, or a glob with target='files'.")
    for name in ("pattern", "path", "file_glob"):
        if len(arguments.get(name) or "") > MAX_ARGUMENT_CHARS:
            raise ToolFailure(f"search_files: {name} has more than {MAX_ARGUMENT_CHARS} characters. Search for less.")
    if arguments["target"] == "files":
        return await _find_files(workspace, arguments)
    return await _search_content(workspace, arguments)


async def _find_files(workspace: Workspace, arguments: Mapping[str, Any]) -> Result:
    place = _Place.of(workspace, arguments["path"])
    glob = arguments["pattern"].removeprefix("./")
    test = f"-name {quote(glob)}"
    if "/" in glob:
        # find's own `*` crosses directories; `a/**/b` also means `a/b`
        forms = sorted({re.sub(r"\*\*/?", "*", glob), glob.replace("**/", "")})
        tests = (f"-path {quote(form if form.startswith(('/', '*')) else '*/' + form)}" for form in forms)
        test = r"\( " + " -o ".join(tests) + r" \)"
    timed = (workspace.search_programs or "").endswith("x")
    output = await _script(
        workspace,
        place,
        f"{place.find} \\( -type f -o -type l \\) {test} "
        + (r"-printf '%T@ %p\0' 2>/dev/null | sort -zrn" if timed else r"-print 2>/dev/null | tr '\n' '\0'")
        + f" | head -c {MAX_OUTPUT}",
    )
    names = [text_of(entry) for entry in output.split(b"\0") if entry]
    paths = [_plain(name.partition(" ")[2] if timed else name) for name in names]
    return _paged("files", paths, arguments, cut=len(output) >= MAX_OUTPUT)


async def _search_content(workspace: Workspace, arguments: Mapping[str, Any]) -> Result:
    place = _Place.of(workspace, arguments["path"])
    pattern, glob, mode = arguments["pattern"], arguments.get("file_glob"), arguments["output_mode"]
    program = (workspace.search_programs or "").splitlines()[0]
    if program == "none":
        raise ToolFailure("search_files: this sandbox has neither ripgrep nor grep. Use terminal with what it has.")
    context = f"-C {arguments['context']}" if arguments["context"] > 0 and mode == "content" else ""
    flags = {"content": f"-n {context}", "files_only": "-l", "count": "-c"}[mode]
    # `--` would not do: busybox grep takes -e only.
    if program == "rg":
        kernel = "".join(f"-g '!{name}' " for name in _KERNEL) if place.without_kernel else ""
        grep = (
            f"rg --no-config --no-ignore --hidden --color never --no-heading --null -H -g '!.git' {kernel}{flags} "
            f"{'-g ' + quote(glob) if glob else ''}"
        )
        search = f"{grep} -e {quote(pattern)} {shlex.quote(place.given)} 2>/dev/null"
    else:
        grep = f"{program} -H {flags}"
        test = f"-name {quote(glob)}" if glob else ""
        search = f"{place.find} -type f {test} -exec {grep} -e {quote(pattern)} {{}} + 2>/dev/null"
    output = await _script(workspace, place, f"{search} | LC_ALL=C cut -b 1-{4 * MAX_LINE} | head -c {MAX_OUTPUT}")
    if not output:
        await _explain_nothing(workspace, program, pattern)
    cut = len(output) >= MAX_OUTPUT
    lines = text_of(output).split("\n")
    if lines[-1] == "" or cut:
        lines.pop()
    if mode == "files_only":
        names = [name for line in lines for name in line.split("\0") if name]
        return _paged("files", sorted(map(_plain, names)), arguments, cut=cut)
    parsed = [found for line in lines if (found := _parse(line, counted=mode == "count"))]
    if mode == "count":
        counts = {path: int(number) for path, number, _, _ in parsed if number != "0"}
        chosen = dict(list(counts.items())[arguments["offset"] : arguments["offset"] + max(1, arguments["limit"])])
        result: Result = {"total_count": sum(counts.values()), "counts": chosen}
        return {**result, "truncated": True} if cut or len(chosen) < len(counts) else result
    return _matches(parsed, arguments, cut)


def _matches(parsed: list[tuple[str, str, bool, str]], arguments: Mapping[str, Any], cut: bool) -> Result:
    """Matches `offset` to `offset + limit`, each with its context lines."""
    first, last = arguments["offset"], arguments["offset"] + max(1, arguments["limit"])
    total = sum(is_match for _, _, is_match, _ in parsed)
    matches, seen = [], 0
    for index, (path, number, is_match, content) in enumerate(parsed):
        # a context line belongs to the match it precedes, else to the one it follows
        place = seen if is_match else seen - (1 if _follows(parsed, index, arguments["context"]) else 0)
        seen += is_match
        if first <= place < last:
            entry = {"path": path, "line": int(number), "content": content[:MAX_LINE]}
            matches.append(entry if is_match else {**entry, "context": True})
    result: Result = {"total_count": total, "matches": matches}
    if total > last or cut:
        result["truncated"] = True
        result["hint"] = (
            f"Matches {first + 1}-{min(last, total)} of {total}{' or more' if cut else ''}. Use offset={last} for more."
        )
    return result


def _follows(parsed: list[tuple[str, str, bool, str]], index: int, context: int) -> bool:
    path, number = parsed[index][0], int(parsed[index][1])
    for other_path, other_number, is_match, _ in reversed(parsed[max(0, index - context) : index]):
        if other_path != path:
            return False
        if is_match:
            return number - int(other_number) <= context
    return False


def _parse(line: str, *, counted: bool) -> tuple[str, str, bool, str] | None:
    """(path, number, is a match, content) of one line of grep output; None for separators."""
    path, zero, rest = line.partition("\0")
    if zero and counted:
        return (_plain(path), rest, True, "") if rest.isdigit() else None
    if zero:
        found = re.match(r"(\d+)([:-])", rest)
        return (_plain(path), found[1], found[2] == ":", rest[found.end() :].rstrip("\r")) if found else None
    if counted:
        path, _, number = line.rpartition(":")
        return (_plain(path), number, True, "") if number.isdigit() else None
    found = re.match(r"(.*?)([:-])(\d+)\2", line)  # a grep without -Z: a path with `:1:` in it is cut short
    return (_plain(found[1]), found[3], found[2] == ":", line[found.end() :].rstrip("\r")) if found else None


async def _explain_nothing(workspace: Workspace, program: str, pattern: str) -> None:
    """Nothing was found: raises ToolFailure if that is because the expression is broken."""
    check = f"{'rg --no-config' if program == 'rg' else program} -e {quote(pattern)} /dev/null 2>&1; echo $?"
    said, _, code = text_of(await workspace.script(check)).strip().rpartition("\n")
    if code.isdigit() and int(code) > 1:
        raise ToolFailure(f"search_files: the regular expression is not valid: {said.strip()[:500]}")


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where to search. `given` is what the program gets, so that results read as the agent wrote the path."""

    path: str
    given: str

    @classmethod
    def of(cls, workspace: Workspace, path: str) -> _Place:
        place = workspace.resolve(path)
        if path.startswith(("/", "~")):
            return cls(place, place)
        return cls(place, "." if path in (".", "./") else f"./{path}")

    @property
    def without_kernel(self) -> bool:
        return posixpath.normpath(self.path) in ("/", "//")

    @property
    def find(self) -> str:
        """The beginning of a find command: where, and what it leaves out."""
        inside = "" if self.given == "/" else "."
        kernel = "".join(f"-o -path {inside}{name} " for name in _KERNEL) if self.without_kernel else ""
        return rf"find {shlex.quote(self.given)} \( -name .git -o -name .hg -o -name .svn {kernel}\) -prune -o"


async def _script(workspace: Workspace, place: _Place, search: str) -> bytes:
    """The output of `search`, run in the agent's directory."""
    output = await workspace.script(
        f"( [ -e {quote(place.path)} ] || {{ echo missing; exit; }}\necho ok\n"
        f"cd {quote(workspace.cwd)} 2>/dev/null || cd /\n{search} )",
        max_output=2 * MAX_OUTPUT,
        timeout_s=SEARCH_TIMEOUT_S,
    )
    head, _, rest = output.partition(b"\n")
    if head != b"ok":
        raise ToolFailure(f"search_files: path not found: {place.path}.", total_count=0)
    return rest


def _paged(key: str, entries: list[str], arguments: Mapping[str, Any], *, cut: bool) -> Result:
    first = arguments["offset"]
    last = first + max(1, arguments["limit"])
    result: Result = {"total_count": len(entries), key: entries[first:last]}
    return {**result, "truncated": True} if last < len(entries) or cut else result


def _plain(path: str) -> str:
    return path.removeprefix("./")


SEARCH_FILES = Tool(
    "search_files",
    "Search file contents with a regular expression (target='content') or find files by name (target='files', a glob "
    "such as '*.py', newest first). Use it instead of grep, find and ls.",
    object_schema(
        ["pattern"],
        pattern=string("Regular expression, or a glob for target='files'"),
        target=string("'content' or 'files'", enum=["content", "files"], default="content"),
        path=string("Directory or file to search in", default="."),
        file_glob=string("Search only files whose name matches, e.g. '*.py'"),
        limit=integer("Results at most", default=50, minimum=1),
        offset=integer("Results to skip", default=0, minimum=0),
        output_mode=string(
            "'content': lines with numbers; 'files_only': paths; 'count': matches per file",
            enum=["content", "files_only", "count"],
            default="content",
        ),
        context=integer("Lines to show around each match", default=0, minimum=0, maximum=50),
    ),
    _run,
    reads_only=True,
)
