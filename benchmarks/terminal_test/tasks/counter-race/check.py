import pathlib
import subprocess
import tempfile

from prelude import HOME, part, run, same


@part
def counts_from_nothing():
    with tempfile.TemporaryDirectory() as place:
        same([run(str(HOME / "bump"), f"{place}/my count") for _ in range(3)], ["1\n", "2\n", "3\n"])
        same(pathlib.Path(place, "my count").read_text().strip(), "3")


@part
def loses_nothing_in_parallel():
    with tempfile.TemporaryDirectory() as place:
        started = [
            subprocess.Popen([str(HOME / "bump"), f"{place}/count"], stdout=subprocess.PIPE, text=True)
            for _ in range(60)
        ]
        found = sorted(int(process.communicate(timeout=60)[0]) for process in started)
        same(found, list(range(1, 61)))
        same(pathlib.Path(place, "count").read_text().strip(), "60")


@part
def leaves_a_bad_file_alone():
    with tempfile.TemporaryDirectory() as place:
        pathlib.Path(place, "count").write_text("many\n")
        run(str(HOME / "bump"), f"{place}/count", status=1)
        same(pathlib.Path(place, "count").read_text(), "many\n")
