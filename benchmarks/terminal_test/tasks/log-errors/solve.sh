cd ~ && python3 - <<'P'
import json, re

found, stamp, last = {}, None, None


def close():
    if last:
        entry = found.setdefault(last, {"count": 0, "first": stamp})
        entry["count"] += 1


for line in open("service.log"):
    head = re.match(r"\d{4}-\d\d-\d\dT\S+Z ", line)
    if head:
        close()
        stamp, last = head[0].strip(), None
    elif name := re.match(r"((?:\w+\.)*)([A-Z]\w+)(:|$)", line):
        last = name[2]
close()
json.dump(found, open("errors.json", "w"), indent=1)
P
