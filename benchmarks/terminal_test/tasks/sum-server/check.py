import concurrent.futures
import os
import urllib.error
import urllib.request

from prelude import HOME, part, same


def call(path, body=None):
    port = int((HOME / "server.port").read_text())
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        return error.code, ""


@part
def runs():
    os.kill(int((HOME / "server.pid").read_text()), 0)
    status, total = call("/total")
    same(status, 200)
    int(total)


@part
def adds():
    before = int(call("/total")[1])
    same(call("/add", b"7"), (200, str(before + 7)))
    same(call("/add", b"-3"), (200, str(before + 4)))
    same(call("/total"), (200, str(before + 4)))


@part
def refuses():
    before = call("/total")
    same(call("/add", b"seven")[0], 400)
    same(call("/nothing")[0], 404)
    same(call("/total"), before)


@part
def is_exact_under_load():
    before = int(call("/total")[1])
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: int(call("/add", b"1")[1]), range(200)))
    same(sorted(found), list(range(before + 1, before + 201)))
