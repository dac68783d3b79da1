import json
import re

from prelude import HOME, part, same

STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) (\w+) ")


@part
def errors():
    wanted, stamp, last = {}, None, None
    for line in [*(HOME / "service.log").read_text().splitlines(), "9999-01-01T00:00:00Z END "]:
        if head := STAMP.match(line):
            if last:
                entry = wanted.setdefault(last, {"count": 0, "first": stamp})
                entry["count"] += 1
            stamp, last = head[1], None
        elif found := re.match(r"([A-Za-z_.]+(?:Error|Exception|Timeout))(?::|$)", line):
            last = found[1].rpartition(".")[2]
    same(json.loads((HOME / "errors.json").read_text()), wanted)
