cat >~/flatten.py <<'P'
import json
import re
import sys


def lines(path, value):
    if isinstance(value, dict) and value:
        for key, item in value.items():
            if re.fullmatch("[A-Za-z0-9_]+", key):
                yield from lines(f"{path}.{key}" if path else key, item)
            else:
                yield from lines(f"{path}[{json.dumps(key, ensure_ascii=False)}]", item)
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from lines(f"{path}[{index}]", item)
    else:
        yield f"{path} = {json.dumps(value, ensure_ascii=False)}"


try:
    loaded = json.load(sys.stdin)
except ValueError as error:
    sys.exit(f"not JSON: {error}")
print("\n".join(sorted(lines("", loaded))))
P
