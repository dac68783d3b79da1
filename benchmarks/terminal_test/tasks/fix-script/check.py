import pathlib
import tempfile

from prelude import HOME, part, run, same


def rotated(files, keep):
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place, "my logs")
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
        run("bash", str(HOME / "rotate.sh"), str(folder), str(keep))
        return {path.name: path.read_text() for path in folder.iterdir()}


@part
def shifts_in_order():
    found = rotated({"a.log": "new", "a.log.1": "one", "a.log.2": "two", "note.txt": "n"}, 3)
    same(found, {"a.log": "", "a.log.1": "new", "a.log.2": "one", "a.log.3": "two", "note.txt": "n"})


@part
def drops_the_oldest():
    found = rotated({"a.log": "new", "a.log.1": "one", "a.log.2": "two"}, 2)
    same(found, {"a.log": "", "a.log.1": "new", "a.log.2": "one"})
    same(rotated({"a.log": "new", "a.log.1": "one"}, 1), {"a.log": "", "a.log.1": "new"})


@part
def names_with_spaces():
    found = rotated({"web app.log": "x", "web app.log.1": "y", "b.log": ""}, 5)
    same(found, {"web app.log": "", "web app.log.1": "x", "web app.log.2": "y", "b.log": "", "b.log.1": ""})


@part
def nothing_to_do():
    same(rotated({"note.txt": "n"}, 3), {"note.txt": "n"})
