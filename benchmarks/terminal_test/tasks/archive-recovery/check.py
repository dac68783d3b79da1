import hashlib

from prelude import HOME, part, same

LINES = 1387
DIGEST = "45dcacc719a17690856c002429fd85b9584e208c0509fa115cb7d900f5885787"


@part
def whole_lines():
    lines = (HOME / "ledger.txt").read_text().splitlines()
    same(len(lines), LINES)
    assert all(len(line.split(";")) == 4 for line in lines)


@part
def exact():
    same(hashlib.sha256((HOME / "ledger.txt").read_bytes()).hexdigest(), DIGEST)
