"""A small git repository as files, made without git and the same bytes everywhere: `main` with two commits, a commit
that only the reflog knows, and no index."""

from __future__ import annotations

import dataclasses
import hashlib
import zlib

from pytest_hermes.task import InlineFiles

PERSON = "Author <author@example.com> 1767261600 +0000"
CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n"


@dataclasses.dataclass
class Objects:
    """Loose objects by their path below `.git`."""

    files: dict[str, str | bytes] = dataclasses.field(default_factory=dict)

    def add(self, kind: str, content: bytes) -> str:
        """Store an object; its id."""
        whole = f"{kind} {len(content)}\0".encode() + content
        name = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
        # Level 0 stores the bytes as they are: compressed ones differ between builds of zlib.
        self.files[f"objects/{name[:2]}/{name[2:]}"] = zlib.compress(whole, 0)
        return name

    def commit(self, files: dict[str, str], message: str, parent: str | None = None) -> str:
        """A commit of these files at the top of the tree; its id."""
        tree = b"".join(
            f"100644 {name}\0".encode() + bytes.fromhex(self.add("blob", text.encode()))
            for name, text in sorted(files.items())
        )
        lines = [f"tree {self.add('tree', tree)}", *([f"parent {parent}"] if parent else [])]
        lines += [f"author {PERSON}", f"committer {PERSON}", "", message, ""]
        return self.add("commit", "\n".join(lines).encode())


def lost_commit() -> tuple[InlineFiles, str]:
    """The repository `notes`, and the id of the tip of its `main`."""
    objects = Objects()
    first = {"index.md": "Title\n\nindex\n"}
    second = {"index.md": "Title, second edition\n\nindex\n", "hill.md": "The hill\n"}
    lost = {
        "index.md": "Title\n\nindex\n- harbour\n",
        "harbour.md": "The harbour\n\nThree boats came in at seven.\n",
    }
    start = objects.commit(first, "Start")
    chapter = objects.commit(lost, "Write the harbour chapter", start)
    tip = objects.commit(second, "Second edition; the hill", start)
    none = "0" * 40
    history = [
        (none, start, "commit (initial): Start"),
        (start, start, "checkout: moving from main to HEAD"),
        (start, chapter, "commit: Write the harbour chapter"),
        (chapter, start, "checkout: moving from HEAD to main"),
        (start, tip, "commit: Second edition; the hill"),
    ]
    log = [f"{old} {new} {PERSON}\t{what}\n" for old, new, what in history]
    files: dict[str, str | bytes] = {f"notes/{name}": text for name, text in second.items()}
    git: dict[str, str | bytes] = {
        "HEAD": "ref: refs/heads/main\n",
        "config": CONFIG,
        "description": "notes\n",
        "refs/heads/main": f"{tip}\n",
        "logs/HEAD": "".join(log),
        "logs/refs/heads/main": log[0] + log[4],
        **objects.files,
    }
    return InlineFiles({**files, **{f"notes/.git/{name}": content for name, content in git.items()}}), tip
