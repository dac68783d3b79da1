cat >~/order.py <<'P'
import heapq
import sys

needs, users = {}, {}
for line in sys.stdin:
    if line.strip():
        target, _, rest = line.partition(":")
        needs.setdefault(target.strip(), set()).update(rest.split())
for name in {dep for deps in needs.values() for dep in deps}:
    needs.setdefault(name, set())
for target, deps in needs.items():
    for dep in deps:
        users.setdefault(dep, []).append(target)
left = {target: len(deps) for target, deps in needs.items()}
ready = [target for target, count in left.items() if count == 0]
heapq.heapify(ready)
done = []
while ready:
    done.append(heapq.heappop(ready))
    for user in users.get(done[-1], ()):
        left[user] -= 1
        if left[user] == 0:
            heapq.heappush(ready, user)
if len(done) < len(needs):
    print("cycle")
    sys.exit(3)
print("\n".join(done))
P
