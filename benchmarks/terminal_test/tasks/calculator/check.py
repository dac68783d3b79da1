from prelude import HOME, part, run, same


def calculate(text, status=0):
    return run("python3", str(HOME / "calc.py"), text, status=status, timeout=10).strip()


def each(cases):
    for text, wanted in cases.items():
        same((text, calculate(text)), (text, wanted))


@part
def precedence():
    each({"1 + 2 * 3": "7", "(1+2)*3": "9", "10 - 4 - 3": "3", "2*(3+(4-1))": "12", " 42 ": "42"})


@part
def power_and_sign():
    each({"2 ^ 3 ^ 2": "512", "-2 ^ 2": "-4", "(-2) ^ 2": "4", "3 - -2": "5", "--5": "5", "2 ^ -0": "1"})


@part
def division():
    each(
        {
            "7 / 2": "3",
            "-7 / 2": "-3",
            "7 / -2": "-3",
            "-7 % 2": "-1",
            "7 % -2": "1",
            "9007199254740993 / 1": "9007199254740993",
        }
    )


@part
def refusals():
    for text in ("", "1 +", "(1", "1)", "2 3", "1 / 0", "5 % 0", "1.5", "a", "__import__('os')", "1 ** 2", "2 ^ -1"):
        run("python3", str(HOME / "calc.py"), text, status=1, timeout=10)


@part
def deep():
    same(calculate("(" * 200 + "1" + ")" * 200), "1")
    same(calculate("+".join(["1"] * 5000)), "5000")
