"""`read_file`, `write_file` and `patch`: files of the sandbox as the agent's user sees them.

Text is UTF-8; bytes that are not survive a patch unchanged (they travel as surrogate escapes) and are shown as U+FFFD.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from pytest_hermes.tools import editing, v4a
from pytest_hermes.tools.tool import Result, Tool, ToolFailure, boolean, integer, object_schema, string
from pytest_hermes.tools.workspace import MAX_EDIT_BYTES, FileMissing, Workspace, quote, text_of

MAX_LINES = 2000
MAX_LINE_CHARS = 2000
SMALL_FILE_BYTES = 262_144
IMAGE_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".ico", ".tif", ".tiff", ".avif", ".heic"}
)


async def _read_file(workspace: Workspace, arguments: Mapping[str, Any]) -> Result:
    path = workspace.resolve(arguments["path"])
    offset, limit = arguments["offset"], arguments["limit"]
    raw = await workspace.read(path, max_bytes=SMALL_FILE_BYTES + 1)
    is_image = posixpath.splitext(path)[1].lower() in IMAGE_SUFFIXES
    if len(raw) <= SMALL_FILE_BYTES:
        size = len(raw)
        lines = raw.split(b"\n")
        if not lines[-1]:
            lines.pop()
        total, page = len(lines), lines[offset - 1 : offset - 1 + limit]
    else:
        size, total, page = await _page_of_large(workspace, path, offset, limit)
    if b"\0" in raw[:8192] or (is_image and not _is_text(raw)):
        kind = "image" if is_image else "binary file"
        hint = f"This is {'an' if is_image else 'a'} {kind} of {size} bytes; it has no lines to show. Use terminal."
        return _shape("", total_lines=0, file_size=size, is_binary=True, is_image=is_image, hint=hint)
    return _numbered(page, offset, total, size, workspace.page_chars)


async def _page_of_large(workspace: Workspace, path: str, offset: int, limit: int) -> tuple[int, int, list[bytes]]:
    place = quote(path)
    most = 4 * workspace.page_chars + MAX_LINE_CHARS
    output = await workspace.script(
        f'echo $(wc -c <{place}) $(wc -l <{place}) "$(tail -c 1 {place} | wc -l)"; '
        f"tail -n +{offset} {place} | head -n {limit} | head -c {most}",
        max_output=most + 200,
    )
    head, _, rest = output.partition(b"\n")
    size, ends, closed = (int(word) for word in head.split())
    lines = rest.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return size, ends + 1 - closed, lines


def _numbered(page: list[bytes], offset: int, total: int, size: int, page_chars: int) -> Result:
    """The result for lines `page`, of which the first is number `offset`: as many as fit into `page_chars`."""
    out: list[str] = []
    used, invalid, crlf = 0, False, False
    for number, raw in enumerate(page, offset):
        crlf = crlf or raw.endswith(b"\r")
        line = raw.removesuffix(b"\r")
        if len(line) > MAX_LINE_CHARS and len(text := text_of(line)) > MAX_LINE_CHARS:
            shown = f"{number}|{text[:MAX_LINE_CHARS]}... [line cut, {len(text)} characters]"
        else:
            shown = f"{number}|{text_of(line)}"
        invalid = invalid or ("\ufffd" in shown and not _is_text(line))
        used += len(shown) + 1
        if used > page_chars and out:
            break
        out.append(shown)
    following = offset + len(out)
    result = _shape("\n".join(out), total_lines=total, file_size=size, truncated=following <= total)
    if following <= total and out:
        result["next_offset"] = following
        result["hint"] = f"Lines {offset}-{following - 1} of {total}. Use offset={following} to read on."
    elif not out:
        result["truncated"] = False
        result["hint"] = "The file is empty." if not size else f"offset {offset} is past the end: {total} lines."
    if invalid:
        result["encoding_note"] = "Not valid UTF-8: bytes that cannot be decoded are shown as U+FFFD."
    if crlf:
        result["line_endings"] = "CRLF"
    return result


def _shape(
    content: str, *, total_lines: int, file_size: int, truncated: bool = False, is_binary: bool = False,
    is_image: bool = False, **more: Any,
) -> Result:  # fmt: skip
    return {
        "content": content,
        "total_lines": total_lines,
        "file_size": file_size,
        "truncated": truncated,
        "is_binary": is_binary,
        "is_image": is_image,
        **more,
    }


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        # A character cut off at the end of the bytes that were read is no sign of another encoding.
        return error.start >= len(data) - 3 and len(data) > SMALL_FILE_BYTES
    return True


async def _write_file(workspace: Workspace, arguments: Mapping[str, Any]) -> Result:
    data = arguments["content"].encode()
    written = await workspace.write(workspace.resolve(arguments["path"]), data)
    place = written.path.encode(errors="surrogateescape").decode(errors="replace")
    return {
        "bytes_written": len(data),
        "dirs_created": written.dirs_created,
        "resolved_path": place,
        "files_modified": [place],
    }


async def _patch(workspace: Workspace, arguments: Mapping[str, Any]) -> Result:
    try:
        if arguments["mode"] == "patch":
            return await _patch_v4a(workspace, arguments.get("patch"))
        return await _patch_replace(workspace, arguments)
    except ToolFailure as failure:
        failure.details = {"success": False, **failure.details}
        raise


async def _patch_replace(workspace: Workspace, arguments: Mapping[str, Any]) -> Result:
    missing = [name for name in ("path", "old_string", "new_string") if name not in arguments]
    if missing:
        raise ToolFailure(
            f"patch: mode 'replace' needs path, old_string and new_string; missing: {', '.join(missing)}."
        )
    path = workspace.resolve(arguments["path"])
    text = await _text(workspace, path)
    old, new = arguments["old_string"], arguments["new_string"]
    changed, count = editing.replace(text, old, new, every=arguments["replace_all"], path=path)
    await workspace.write(path, _bytes(changed))
    result = {"success": True, "diff": _shown(editing.unified_diff(text, changed, path)), "files_modified": [path]}
    return result if count == 1 else {**result, "replacements": count}


async def _patch_v4a(workspace: Workspace, patch: str | None) -> Result:
    if not patch:
        raise ToolFailure("patch: mode 'patch' needs the argument 'patch' with a V4A patch.")

    async def read(path: str) -> str | None:
        try:
            return await _text(workspace, workspace.resolve(path))
        except FileMissing:
            return None

    changes = await v4a.plan(v4a.parse(patch), read)
    if not changes:
        raise ToolFailure("patch: it changes nothing; the files are as it asks already.")
    await _apply(workspace, changes)
    moved = {change.moved_from for change in changes if change.moved_from}
    diff = "".join(
        editing.unified_diff(change.before or "", change.after or "", change.path)
        for change in changes
        if change.path not in moved and not change.moved_from
    )
    diff += "".join(
        f"rename from {change.moved_from}\nrename to {change.path}\n" for change in changes if change.moved_from
    )
    result: Result = {"success": True, "diff": _shown(diff)}
    groups = {
        "files_modified": [c.path for c in changes if c.before is not None and c.after is not None],
        "files_created": [c.path for c in changes if c.before is None],
        "files_deleted": [c.path for c in changes if c.after is None],
    }
    result["files_modified"] = groups.pop("files_modified")
    return result | {name: paths for name, paths in groups.items() if paths}


async def _apply(workspace: Workspace, changes: list[v4a.Change]) -> None:
    """Make all changes, or none: what was done before a failure is undone. Deletions come last."""
    done: list[v4a.Change] = []
    try:
        for change in sorted(changes, key=lambda change: change.after is None):
            path = workspace.resolve(change.path)
            if change.after is None:
                await workspace.remove(path)
            else:
                await workspace.write(path, _bytes(change.after))
                if change.moved_from:
                    source = quote(workspace.resolve(change.moved_from))
                    await workspace.script(f"chmod $(stat -c %a {source}) {quote(path)} 2>/dev/null")
            done.append(change)
    except ToolFailure as failure:
        for change in reversed(done):
            if change.before is None:
                await workspace.remove(workspace.resolve(change.path))
            else:
                await workspace.write(workspace.resolve(change.path), _bytes(change.before))
        raise ToolFailure(f"patch: nothing was changed. {failure}") from failure


async def _text(workspace: Workspace, path: str) -> str:
    raw = await workspace.read(path, max_bytes=MAX_EDIT_BYTES + 1)
    if len(raw) > MAX_EDIT_BYTES:
        raise ToolFailure(f"{path} is larger than {MAX_EDIT_BYTES // 1_000_000} MB. Edit it with terminal (sed).")
    return raw.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _shown(diff: str) -> str:
    """A diff that any JSON encoder takes."""
    return diff if diff.isascii() else _bytes(diff).decode("utf-8", "replace")


READ_FILE = Tool(
    "read_file",
    "Read a text file with line numbers, in the form LINE|CONTENT. Use offset and limit for large files; the result "
    "says where to read on. Similar names are suggested when the file does not exist. Images and other binary files "
    "have no lines.",
    object_schema(
        ["path"],
        path=string("File to read (absolute, relative to the shell's directory, or ~/...)"),
        offset=integer("First line, from 1", default=1, minimum=1),
        limit=integer("Lines to read at most (default 500, maximum 2000)", default=500, minimum=1, maximum=MAX_LINES),
    ),
    _read_file,
    reads_only=True,
    pages_itself=True,
)

WRITE_FILE = Tool(
    "write_file",
    "Write a whole file, replacing what was there; missing parent directories are made. For changes inside a file use "
    "patch.",
    object_schema(
        ["path", "content"],
        path=string("File to write (absolute, relative to the shell's directory, or ~/...)"),
        content=string("The complete content"),
    ),
    _write_file,
)

PATCH = Tool(
    "patch",
    "Edit files. mode='replace' (default): replace old_string by new_string in path; old_string must be there exactly "
    "once, or set replace_all=true. Differences in white space are tolerated where the match stays unique.\n"
    "mode='patch': apply a V4A patch over several files (add, update, delete, move), as a whole or not at all.\n"
    "Returns a unified diff.",
    object_schema(
        ["mode"],
        mode=string("'replace' or 'patch'", enum=["replace", "patch"], default="replace"),
        path=string("mode 'replace': file to edit"),
        old_string=string("mode 'replace': text to find, with enough lines around it to be unique"),
        new_string=string("mode 'replace': text to put there; empty deletes"),
        replace_all=boolean("mode 'replace': change every occurrence"),
        patch=string(
            "mode 'patch': the patch, e.g.\n*** Begin Patch\n*** Update File: path/to/file\n@@ line above @@\n"
            " context\n-removed\n+added\n*** Add File: path/new\n+text\n*** Delete File: path/old\n"
            "*** Move File: path/a -> path/b\n*** End Patch"
        ),
    ),
    _patch,
    accepts=object_schema(
        [],
        mode=string("", enum=["replace", "patch"], default="replace"),
        path=string(""),
        old_string=string(""),
        new_string=string(""),
        replace_all=boolean(""),
        patch=string(""),
    ),
)
