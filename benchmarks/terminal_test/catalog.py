"""The tasks of terminal_test, read from `tasks/<id>/`: task.toml, solve.sh, and check.py or an expected file.

task.toml: `prompt`, `difficulty`, `category`, `tags`; `expect = {path, content}` for tasks judged by one file; `keep`,
names of given files that must stay as they are; `[files]`, given files as text (others are in the folder `files/`);
`repository`, a git repository made by `repository.py`; `[[turn]]`, what the scripted model does.
"""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import Any

from pytest_hermes.task import FileTree, InlineFiles, Script, Task

from .repository import lost_commit

HERE = Path(__file__).parent

# One text, because it is fed to Python's standard input: nothing of it is ever on the sandbox's disk.
PROGRAM = """\
import sys
import types
prelude = sys.modules["prelude"] = types.ModuleType("prelude")
exec({prelude!r}, prelude.__dict__)
prelude.unchanged({kept!r})
{body}
prelude.report()
"""


def load() -> list[Task]:
    """All tasks, easy ones first, then by name."""
    found = [_read(path.parent) for path in (HERE / "tasks").glob("*/task.toml")]
    order = ["easy", "medium", "hard"]
    return sorted(found, key=lambda task: (order.index(task.difficulty or "hard"), task.id))


def _read(folder: Path) -> Task:
    fields = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
    files, names = _given_files(folder, fields)
    data: dict[str, Any] = {"script": fields["turn"]}
    tests = None
    if "expect" in fields:
        data["expect"] = fields["expect"]
    else:
        tests = Script(InlineFiles({"check.py": _check(folder, fields, names)}), "check.py")
    return Task(
        id=folder.name,
        prompt=fields["prompt"].strip(),
        difficulty=fields["difficulty"],
        category=fields["category"],
        tags=tuple(fields.get("tags", ())),
        files=files,
        solution=Script(InlineFiles({"solve.sh": (folder / "solve.sh").read_text(encoding="utf-8")}), "solve.sh"),
        tests=tests,
        data=data,
        source=str(folder),
    )


def _given_files(folder: Path, fields: dict[str, Any]) -> tuple[FileTree | None, dict[str, str]]:
    """The files that the task starts with, and what to put in place of names in its check."""
    if "repository" in fields:
        tree, tip = lost_commit()
        return tree, {"TIP": tip}
    given: dict[str, str | bytes] = dict(fields.get("files", {}))
    for path in sorted((folder / "files").rglob("*")):
        if path.is_file():
            given[path.relative_to(folder / "files").as_posix()] = path.read_bytes()
    return (InlineFiles(given) if given else None), {}


def _check(folder: Path, fields: dict[str, Any], names: dict[str, str]) -> str:
    body = (folder / "check.py").read_text(encoding="utf-8")
    for name, value in names.items():
        body = body.replace(f'"{name}"', repr(value))
    kept = {name: hashlib.sha256((folder / "files" / name).read_bytes()).hexdigest() for name in fields.get("keep", ())}
    prelude = (HERE / "check_prelude.py").read_text(encoding="utf-8")
    return PROGRAM.format(prelude=prelude, kept=kept, body=body)
