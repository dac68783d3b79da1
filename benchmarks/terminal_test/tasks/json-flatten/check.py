import json

from prelude import HOME, part, run, same

CASES = [
    ({"b": 1, "a": {"x": True, "y": None}}, ["a.x = true", "a.y = null", "b = 1"]),
    (
        {"list": [1, [2.5, "three"], {}], "none": []},
        ["list[0] = 1", "list[1][0] = 2.5", 'list[1][1] = "three"', "list[2] = {}", "none = []"],
    ),
    ({"a b": {"c-d": "é"}, "": 0}, ['[""] = 0', '["a b"]["c-d"] = "é"']),
    ({"x": {"y z": [{"w": 1}]}, "x2": 'say "hi"\n'}, ['x["y z"][0].w = 1', 'x2 = "say \\"hi\\"\\n"']),
]


def flatten(value):
    return run("python3", str(HOME / "flatten.py"), stdin=json.dumps(value)).splitlines()


@part
def plain_objects():
    same(flatten(CASES[0][0]), CASES[0][1])


@part
def arrays_and_empty_values():
    same(flatten(CASES[1][0]), CASES[1][1])
    same(flatten({}), [" = {}"])


@part
def unusual_keys():
    same(flatten(CASES[2][0]), sorted(CASES[2][1]))
    same(flatten(CASES[3][0]), sorted(CASES[3][1]))


@part
def bad_input():
    run("python3", str(HOME / "flatten.py"), stdin="{not json", status=1)
