"""The module `prelude` of every check program: named parts that succeed or raise, and one line of JSON at the end."""

import hashlib
import json
import pathlib
import subprocess
import sys

HOME = pathlib.Path.home()
PARTS = {}


def part(function):
    """Run a check now; its name counts as done if it does not raise."""
    try:
        function()
        PARTS[function.__name__] = 1.0
    except Exception as error:  # noqa: BLE001 - whatever the agent's work raises, the part is not done
        PARTS[function.__name__] = 0.0
        print(f"{function.__name__}: {type(error).__name__}: {error}")
    return function


def run(*argv, stdin="", status=0, timeout=30, cwd=HOME):
    """The standard output of a program; AssertionError if it ends with another status."""
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=timeout, cwd=cwd)
    assert done.returncode == status, f"{argv} ended with {done.returncode}: {done.stderr[-300:]}"
    return done.stdout


def same(found, wanted):
    """AssertionError that shows both if they differ."""
    assert found == wanted, f"found {found!r:.200}, wanted {wanted!r:.200}"


def unchanged(files):
    """End with reward 0 if a given file is not what it was."""
    for name, digest in files.items():
        path = HOME / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            print(f"~/{name} was changed or removed")
            print(json.dumps({"reward": 0.0}))
            sys.exit()


def report():
    print(json.dumps({"reward": sum(PARTS.values()) / len(PARTS), **PARTS}))
