import random

from prelude import HOME, part, run, same


def order(text, status=0):
    return run("python3", str(HOME / "order.py"), stdin=text, status=status).split()


@part
def example():
    same(order("app: lib core\nlib: core\ncore:\n"), ["core", "lib", "app"])
    same(order("z:\na: z\nm:\n\n"), ["m", "z", "a"])


@part
def undeclared_dependencies():
    same(order("b: a\nc: a b\n"), ["a", "b", "c"])


@part
def cycles():
    same(order("a: b\nb: c\nc: a\nfree:\n", status=3), ["cycle"])
    same(order("a: a\n", status=3), ["cycle"])


@part
def large():
    rng = random.Random(11)
    needs = {f"t{n}": {f"t{rng.randrange(n)}" for _ in range(min(n, 3))} for n in range(5000)}
    lines = [f"{name}: {' '.join(sorted(deps))}" for name, deps in needs.items()]
    rng.shuffle(lines)
    found = order("\n".join(lines) + "\n")
    place = {name: index for index, name in enumerate(found)}
    assert len(found) == len(place) == 5000
    assert all(place[dep] < place[name] for name, deps in needs.items() for dep in deps)
