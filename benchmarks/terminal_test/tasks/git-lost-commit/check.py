from prelude import HOME, part, run, same


def git(*words):
    return run("git", "-c", f"safe.directory={HOME}/notes", "-C", str(HOME / "notes"), *words).strip()


@part
def on_main_and_clean():
    same(git("rev-parse", "--abbrev-ref", "HEAD"), "main")
    same(git("status", "--porcelain"), "")


@part
def lost_work_is_back():
    assert "Three boats came in at seven." in git("show", "main:harbour.md")
    assert "- harbour" in git("show", "main:index.md").splitlines()


@part
def main_is_kept():
    same(git("show", "main:hill.md"), "The hill")
    assert git("show", "main:index.md").startswith("Title, second edition")
    assert "<<<<" not in git("show", "main:index.md")
    git("merge-base", "--is-ancestor", "TIP", "main")
