import pathlib
import stat

from prelude import HOME, part, same


def wrong(kind, wanted):
    paths = [path for path in [HOME / "site", *sorted((HOME / "site").rglob("*"))] if kind(path)]
    modes = {str(path.relative_to(HOME)): stat.S_IMODE(path.stat().st_mode) for path in paths}
    return [f"{path} has {mode:o}, not {wanted:o}" for path, mode in modes.items() if mode != wanted]


@part
def folders():
    same(wrong(pathlib.Path.is_dir, 0o750), [])
    same(len(list((HOME / "site").rglob("*"))), 11)


@part
def scripts():
    same(wrong(lambda path: path.suffix == ".sh", 0o750), [])


@part
def keys():
    same(wrong(lambda path: path.suffix == ".key", 0o600), [])


@part
def other_files():
    same(wrong(lambda path: path.is_file() and path.suffix not in (".sh", ".key"), 0o640), [])
