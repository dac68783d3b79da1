"""`patch` as pure text: replacing a passage, applying V4A patches, diffs."""

from __future__ import annotations

import asyncio
import subprocess

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pytest_hermes.tools import editing, v4a
from pytest_hermes.tools.editing import replace, split_lines, unified_diff
from pytest_hermes.tools.tool import ToolFailure


def edit(text: str, old: str, new: str, every: bool = False) -> str:
    return replace(text, old, new, every=every, path="f")[0]


def test_exact_text_is_replaced() -> None:
    assert edit("a\nb\nc\n", "b", "B") == "a\nB\nc\n"
    assert replace("x y x", "x", "z", every=True, path="f") == ("z y z", 2)


def test_several_places_are_named_with_line_and_text() -> None:
    with pytest.raises(ToolFailure) as failure:
        edit("x = 1\ny = 2\nx = 1\n", "x = 1", "x = 3")
    message = str(failure.value)
    assert "2 times" in message and "line 1: 'x = 1'" in message and "line 3: 'x = 1'" in message
    assert "replace_all=true" in message


def test_a_missing_passage_names_where_it_differs() -> None:
    text = "def f():\n    a = 1\n    b = 2\n    return a\n"
    with pytest.raises(
        ToolFailure, match=r"not found.*closest at line 1, and differs at line 3.*'    b = 2'.*'    b = 3'"
    ):
        edit(text, "def f():\n    a = 1\n    b = 3\n", "")


def test_a_missing_line_names_lines_that_come_close() -> None:
    with pytest.raises(ToolFailure, match=r"come close: line 2: 'total = price \* count'"):
        edit("import os\ntotal = price * count\n", "totl = price * count", "x")
    with pytest.raises(ToolFailure, match="No line of the file comes close"):
        edit("import os\n", "§§§", "x")
    with pytest.raises(ToolFailure, match="empty"):
        edit("", "a", "b")


def test_indentation_is_tolerated_and_carried_over_if_unique() -> None:
    text = "class A:\n    def f(self):\n        return 1\n"
    assert edit(text, "def f(self):\n    return 1", "def f(self):\n    if x:\n        return 2") == (
        "class A:\n    def f(self):\n        if x:\n            return 2\n"
    )
    assert edit("a\nb  \nc\n", "b\nc", "B\nc") == "a\nB\nc\n"


def test_a_relaxed_match_that_is_not_unique_is_refused() -> None:
    with pytest.raises(
        ToolFailure, match=r"2 times once indentation is ignored.*line 1: 'return 1'.*line 3: 'return 1'"
    ):
        edit("    return 1\nx\n  return 1\n", "\treturn 1", "return 2")


def test_crlf_files_keep_their_line_ends() -> None:
    assert edit("a\r\nb\r\nc\r\n", "a\nb", "A\nB\nB") == "A\r\nB\r\nB\r\nc\r\n"


def test_form_feeds_do_not_count_as_line_ends() -> None:
    assert split_lines("a\x0cb\u2028c\nd") == ["a\x0cb\u2028c\n", "d"]
    assert edit("a\x0cb\nc  \n", "c", "d") == "a\x0cb\nd  \n"


@pytest.mark.parametrize(("old", "new", "message"), [("", "x", "old_string is empty"), ("a", "a", "the same")])
def test_edits_that_mean_nothing_are_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(ToolFailure, match=message):
        edit("a", old, new)


TEXT = st.text(alphabet="ab \t\n", max_size=40)


@settings(deadline=None)
@given(TEXT, TEXT, TEXT, TEXT)
def test_a_unique_passage_is_replaced_exactly_there(before: str, middle: str, after: str, new: str) -> None:
    old = f"<{middle}>"
    assert edit(before + old + after, old, new) == before + new + after


@settings(deadline=None)
@given(TEXT, TEXT, TEXT, st.booleans())
def test_an_edit_succeeds_or_explains(text: str, old: str, new: str, every: bool) -> None:
    try:
        changed, count = replace(text, old, new, every=every, path="f")
    except ToolFailure as failure:
        assert str(failure).startswith("f: ")
    else:
        assert count >= 1 and isinstance(changed, str)


LINES = st.lists(st.sampled_from(["a", "b", "c", "", "  x"]), max_size=30)


@settings(max_examples=60, deadline=None)
@example(["a"] * 8, ["a", "a", "a", "b", *["a"] * 4], False, False)
@given(LINES, LINES, st.booleans(), st.booleans())
def test_diffs_are_what_patch_applies(
    tmp_path_factory: pytest.TempPathFactory, old: list[str], new: list[str], old_end: bool, new_end: bool
) -> None:
    before = "\n".join(old) + ("\n" if old_end and old else "")
    after = "\n".join(new) + ("\n" if new_end and new else "")
    assume(before and after and before != after)
    target = tmp_path_factory.mktemp("diff") / "f"
    target.write_text(before)
    subprocess.run(["patch", "-s", str(target)], input=unified_diff(before, after, "f"), text=True, check=True)
    assert target.read_text() == after


def test_a_diff_of_a_large_file_is_short_and_numbered_right() -> None:
    lines = [f"line {n}\n" for n in range(200_000)]
    changed = [*lines[:150_000], "new\n", *lines[150_001:]]
    diff = unified_diff("".join(lines), "".join(changed), "/x/f")
    assert "@@ -149998,7 +149998,7 @@" in diff and "-line 150000\n+new\n" in diff and len(diff) < 300


# -- V4A ---------------------------------------------------------------------------------------------


def apply(patch: str, files: dict[str, str]) -> dict[str, str]:
    async def read(path: str) -> str | None:
        return files.get(path)

    after = dict(files)
    for change in asyncio.run(v4a.plan(v4a.parse(patch), read)):
        if change.after is None:
            del after[change.path]
        else:
            after[change.path] = change.after
    return after


def test_add_update_delete_and_move_in_one_patch() -> None:
    files = {"a.py": "import os\n\ndef f():\n    return 1\n", "old.txt": "x\n", "gone": "y\n"}
    patch = """*** Begin Patch
*** Update File: a.py
@@ def f(): @@
-    return 1
+    return 2
*** Add File: new/b.txt
+one
+
+two
*** Delete File: gone
*** Move File: old.txt -> moved.txt
*** End Patch"""
    assert apply(patch, files) == {
        "a.py": "import os\n\ndef f():\n    return 2\n",
        "new/b.txt": "one\n\ntwo\n",
        "moved.txt": "x\n",
    }


def test_hunks_in_order_insertions_and_the_end_of_the_file() -> None:
    text = "a\nb\nc\nd\n"
    patch = "*** Update File: f\n@@\n a\n+a2\n b\n@@\n-d\n+D\n*** End of File\n"
    assert apply(patch, {"f": text}) == {"f": "a\na2\nb\nc\nD\n"}
    assert apply("*** Update File: f\n@@ b @@\n+after b\n", {"f": text}) == {"f": "a\nb\nafter b\nc\nd\n"}
    assert apply("*** Update File: f\n@@\n+last\n", {"f": "a"}) == {"f": "a\nlast\n"}


def test_an_update_may_move_the_file() -> None:
    patch = "*** Begin Patch\n*** Update File: a\n*** Move to: b\n@@\n-x\n+y\n*** End Patch\n"
    assert apply(patch, {"a": "x\n"}) == {"b": "y\n"}


def test_crlf_and_trailing_white_space_in_the_file_survive() -> None:
    assert apply("*** Update File: f\n@@\n a\n-b\n+B\n c\n", {"f": "a  \r\nb\r\nc\r\n"}) == {"f": "a  \r\nB\r\nc\r\n"}


def test_sections_see_what_earlier_ones_did() -> None:
    patch = "*** Add File: n\n+1\n*** Update File: n\n@@\n-1\n+2\n"
    assert apply(patch, {}) == {"n": "2\n"}


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("hello", "before the first file section"),
        ("*** Begin Patch\n*** End Patch", "no file section"),
        ("*** Update File: f\n@@\n-nope\n+x\n", r"f, hunk 1 of 1: .*not found.*come close|No line"),
        ("*** Update File: f\n@@\n-a\n+x\n", r"there 2 times .*line 1: 'a'.*line 3: 'a'.*@@"),
        ("*** Update File: f\n@@ zzz @@\n-a\n+x\n", "no line matches its hint 'zzz'"),
        ("*** Update File: f\n@@\n-c\n+x\n@@\n-b\n+y\n", "line 2, above .*order of the file"),
        ("*** Update File: f\n", "has no hunks"),
        ("*** Update File: f\n@@\nxyz\n", "starts with ' ', '-' or '\\+'"),
        ("*** Update File: none\n@@\n-a\n+b\n", "no such file"),
        ("*** Add File: f\n+a\n", "exists already"),
        ("*** Add File: g\na\n", "every line starts with '\\+'"),
        ("*** Delete File: none\n", "no such file"),
        ("*** Move File: f g\n", "old -> new"),
        ("*** Move File: f -> f2\n*** Move File: f2 -> h\n", "cannot move f2 to h"),
        ("*** Delete File:\n", "names no file"),
    ],
)
def test_a_patch_that_cannot_be_applied_says_why(patch: str, message: str) -> None:
    with pytest.raises(ToolFailure, match=message):
        apply(patch, {"f": "a\nb\na\nc\n", "h": "h\n"})


@settings(deadline=None)
@given(st.text(alphabet="*+-@ \nabFile:UpdteADl", max_size=120))
def test_any_text_is_a_patch_or_a_failure(text: str) -> None:
    try:
        apply("*** Update File: f\n" + text, {"f": "a\nb\n"})
    except ToolFailure:
        pass


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=12), st.data())
def test_a_patch_made_of_a_change_makes_that_change(lines: list[str], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(lines) - 1))
    before = [f"{n}{line}" for n, line in enumerate(lines)]
    after = [*before[:at], "new", *before[at + 1 :]]
    body = "".join(f" {line}\n" for line in before[max(0, at - 2) : at]) + f"-{before[at]}\n+new\n"
    end = data.draw(st.sampled_from(["\n", "\r\n"]))
    files = {"f": "".join(line + end for line in before)}
    assert apply(f"*** Update File: f\n@@\n{body}", files) == {"f": "".join(line + end for line in after)}


def test_closest_is_cheap_on_large_files() -> None:
    lines = [f"value_{n} = compute({n})" for n in range(100_000)]
    assert "line" in editing.closest(lines, ["valeu_7 = compute(7)"])
