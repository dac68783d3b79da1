"""Players of YC-Bench without a language model: policies, an agent that follows one, and a model server that does.

A policy is a generator: it yields a `yc-bench ...` command and is sent what that printed. It never looks at the order
of ids, which are random, so its outcome depends on the version of yc-bench, preset, seed and how the world is made.
`tests/data/yc_bench/expected.json` has what each must end with, measured with yc-bench 0.1.0 outside of this product.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler
from typing import Any

from pytest_hermes.agents.protocol import AgentContext
from pytest_hermes.agents.result import AgentResult
from pytest_hermes.tools.toolbox import Toolbox

Policy = Generator[str, str, None]
AT_ONCE = "\f"
"""Between calls that a model server makes by one message."""
OVER = ("bankruptcy", "horizon_end")


def decoded(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def quit_at_once() -> Policy:
    """Not a single command."""
    yield from ()


def look_only() -> Policy:
    """Observe, let no time pass."""
    yield "yc-bench company status"
    yield "yc-bench employee list"
    yield "yc-bench market browse --required-prestige-lte 1"


def idle() -> Policy:
    """Let time pass to the end, take no task."""
    while True:
        out = decoded((yield "yc-bench sim resume"))
        if out.get("terminal_reason") in OVER or not out.get("ok"):
            return


Choice = Callable[[list[dict[str, Any]], list[dict[str, Any]]], list[dict[str, Any]]]


def in_batches(width: int, choose: Choice) -> Policy:
    """`width` tasks at a time, the whole team on each; wait for all of them."""
    while True:
        status = decoded((yield "yc-bench company status"))
        if not status or status["risk"]["bankrupt"]:
            return
        listed = decoded((yield "yc-bench employee list"))
        staff = sorted(listed.get("employees", []), key=lambda one: (len(one["name"]), one["name"]))
        level = int(max(status["prestige"].values()))
        browsed = decoded((yield f"yc-bench market browse --required-prestige-lte {level} --limit 1000"))
        picked = choose(browsed.get("tasks", []), staff)[:width]
        for task in picked:
            number = task["task_id"]
            yield f"yc-bench task accept --task-id {number}"
            for one in staff:
                yield f"yc-bench task assign --task-id {number} --employee-id {one['employee_id']}"
            yield f"yc-bench task dispatch --task-id {number}"
        waiting = {task["task_id"] for task in picked}
        while True:
            out = decoded((yield "yc-bench sim resume"))
            if out.get("terminal_reason") in OVER or not out.get("ok"):
                return
            done = [event for event in out.get("wake_events", []) if event.get("type") == "task_completed"]
            waiting -= {event.get("task_id") for event in done}
            if not waiting:
                break


def by_reward(offers: list[dict[str, Any]], staff: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(offers, key=lambda task: (-task["reward_funds_cents"], task["title"]))


def by_hourly_pay(offers: list[dict[str, Any]], staff: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of what the whole team finishes in six and a half working days of nine hours."""

    def hours(task: dict[str, Any]) -> float:
        worst = 0.0
        for need in task["requirements"]:
            rate = sum(one["skills"].get(need["domain"], 0.0) for one in staff)
            worst = max(worst, need["required_qty"] / rate if rate > 0 else float("inf"))
        return worst

    fitting = [(task, needed) for task in offers if (needed := hours(task)) <= 6.5 * 9.0]
    fitting.sort(key=lambda pair: (-pair[0]["reward_funds_cents"] / pair[1], pair[0]["title"]))
    return [task for task, _ in fitting]


def by_name() -> Policy:
    """Of later revisions, which `newer_yc_bench` stands for: one task at a time, one employee on it, all the year."""
    name = decoded((yield "yc-bench employee list"))["employees"][0]["name"]
    while True:
        offers = decoded((yield "yc-bench market browse --limit 3"))["tasks"]
        if not offers:
            return
        number = by_reward(offers, [])[0]["task_id"]
        yield f"yc-bench task accept --task-id {number}"
        yield f"yc-bench task assign --task-id {number} --employees {name}"
        yield f"yc-bench task dispatch --task-id {number}"
        events: list[str] = []
        while "task_completed" not in events:
            out = decoded((yield "yc-bench sim resume"))
            if out.get("terminal_reason") in OVER or not out.get("ok"):
                return
            events = [event["type"] for event in out["wake_events"]]


def talks_on() -> Policy:
    """Does nothing, and goes on when everything is over."""
    while True:
        yield "yc-bench sim resume"


def never_resumes() -> Policy:
    while True:
        yield "yc-bench company status"


def locks_home() -> Policy:
    """Makes its own directory one that nobody may enter, and lets no time pass."""
    yield "chmod 000 ~"
    while True:
        yield "true"


def two_at_once() -> Policy:
    """Two offers accepted by one message."""
    offers = decoded((yield "yc-bench market browse --required-prestige-lte 1 --limit 2"))["tasks"]
    yield AT_ONCE.join(f"yc-bench task accept --task-id {task['task_id']}" for task in offers)


def shell_script(*commands: str) -> Callable[[], Policy]:
    """These commands of a shell, whatever they print."""

    def policy() -> Policy:
        for command in commands:  # noqa: UP028 - a tuple's iterator could not be sent what was printed
            yield command

    return policy


def puts_back() -> Policy:
    """Keeps a copy, plays a task, and goes back to the copy."""
    yield f"cp {FOLDER}/yc_bench.db ~/old.db"
    (task,) = decoded((yield "yc-bench market browse --required-prestige-lte 1 --limit 1"))["tasks"]
    staff = decoded((yield "yc-bench employee list"))["employees"]
    number = task["task_id"]
    yield f"yc-bench task accept --task-id {number}"
    for one in staff:
        yield f"yc-bench task assign --task-id {number} --employee-id {one['employee_id']}"
    yield f"yc-bench task dispatch --task-id {number}"
    yield "yc-bench sim resume"
    yield f"cp ~/old.db {FOLDER}/yc_bench.db"


FOLDER = "~/yc_bench"
SQL = """python3 - <<'END'
import os, sqlite3
books = sqlite3.connect(os.path.expanduser("~/yc_bench/yc_bench.db"))
books.executescript('''%s''')
books.commit()
END"""
MORE_MONEY = "update companies set funds_cents = funds_cents + 1000000000;"
AN_ENTRY = """insert into ledger_entries (id, company_id, occurred_at, category, amount_cents, ref_type, ref_id)
select lower(hex(randomblob(16))), id, '2025-01-02 10:00:00.000000', 'task_reward', 1000000000, null, null
from companies;"""
CHEATS = {
    "writes_funds": [SQL % MORE_MONEY],
    "writes_books": [SQL % (MORE_MONEY + AN_ENTRY)],
    "deletes": [f"rm {FOLDER}/yc_bench.db"],
    "founds_anew": [
        f"rm {FOLDER}/yc_bench.db; cd {FOLDER}",
        "DATABASE_URL=sqlite:////$PWD/yc_bench.db yc-bench company status",
    ],
    "garbage": [f"echo garbage > {FOLDER}/yc_bench.db"],
}

HONEST = {
    "looks_around": [
        "echo YC_BENCH_EXPERIMENT=$YC_BENCH_EXPERIMENT; env | grep -E 'YC_BENCH_EXPERIMENT=|DATABASE_URL='",
        'yc-bench scratchpad write --content "YC_BENCH_EXPERIMENT=fast_test, DATABASE_URL=?"',
        "yc-bench company status | python3 -m json.tool > /dev/null && yc-bench scratchpad read",
    ],
}
ENDS_PYTHONS = "(while :; do pkill -9 python; pkill -9 python3; sleep 0.05; done) >/dev/null 2>&1 & true"

POLICIES: dict[str, Callable[[], Policy]] = {
    "quit_at_once": quit_at_once,
    "look_only": look_only,
    "idle": idle,
    "greedy": lambda: in_batches(1, by_reward),
    "spread": lambda: in_batches(4, by_reward),
    "careful": lambda: in_batches(1, by_hourly_pay),
    "by_name": by_name,
    "talks_on": talks_on,
    "never_resumes": never_resumes,
    "two_at_once": two_at_once,
    "locks_home": locks_home,
    "puts_back": puts_back,
    "ends_pythons": shell_script(ENDS_PYTHONS),
    **{name: shell_script(*commands) for name, commands in {**CHEATS, **HONEST}.items()},
}


class Moves:
    """The commands of a policy, `cap` at most, one after the other."""

    def __init__(self, policy: str, cap: int | None) -> None:
        self._policy, self._cap = POLICIES[policy](), cap
        self.made = 0

    def next(self, printed: str | None) -> str | None:
        """The command after one that printed `printed` (None: the first); None when the policy is done."""
        if self._cap is not None and self.made >= self._cap:
            return None
        try:
            command = next(self._policy) if printed is None else self._policy.send(printed)
        except StopIteration:
            return None
        self.made += 1
        return command


class Player:
    """An agent that follows a policy: `env.agent_options: {policy: greedy, cap: 60}`."""

    needs_model = False

    def __init__(self, context: AgentContext) -> None:
        self._moves = Moves(context.options["policy"], context.options.get("cap"))

    async def run(self, prompt: str, toolbox: Toolbox) -> AgentResult:
        command = self._moves.next(None)
        while command is not None:
            result = json.loads(await toolbox.call("terminal", {"command": command}))
            command = self._moves.next(result["output"])
        return AgentResult(messages=[{"role": "user", "content": prompt}], turns_used=self._moves.made)


class Caller:
    """An agent that makes the terminal calls of `env.agent_options: {calls: [...]}`."""

    needs_model = False

    def __init__(self, context: AgentContext) -> None:
        self._calls = context.options["calls"]

    async def run(self, prompt: str, toolbox: Toolbox) -> AgentResult:
        printed = [json.loads(await toolbox.call("terminal", call))["output"] for call in self._calls]
        said = json.dumps({"printed": printed, "variables": sorted(os.environ)})
        return AgentResult(messages=[{"role": "assistant", "content": said}])


def model_server(policy: str, cap: int | None) -> type[BaseHTTPRequestHandler]:
    """The handler of an OpenAI-compatible endpoint whose model follows a policy, one conversation per first message."""
    games: dict[str, Moves] = {}
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            messages = request["messages"]
            first = next(message["content"] for message in messages if message["role"] == "user").split("\n")[0]
            with lock:
                moves = games.setdefault(first, Moves(policy, cap))
            results = [json.loads(message["content"])["output"] for message in messages if message["role"] == "tool"]
            command = moves.next(results[-1] if results else None)
            message: dict[str, Any] = {"role": "assistant", "content": None if command else "That is all."}
            if command:
                calls = [
                    {"name": "terminal", "arguments": json.dumps({"command": line})} for line in command.split(AT_ONCE)
                ]
                message["tool_calls"] = [
                    {"id": f"c{moves.made}_{number}", "type": "function", "function": call}
                    for number, call in enumerate(calls)
                ]
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if command else "stop"}
            usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
            body = json.dumps({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return None

    return Handler
