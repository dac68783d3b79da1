"""YC-Bench's helper in a sandbox: the bytes of real processes, one world per rollout, and what becomes of it when it is
killed, cancelled or tampered with."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import json
import shutil
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_hermes.errors import SandboxStartError
from pytest_hermes.sandbox.contract_case import request
from pytest_hermes.sandbox.local import LocalProvider
from pytest_hermes.sandbox.local_sandbox import LocalSandbox
from pytest_hermes.task import SandboxSpec
from pytest_hermes.yc_bench.install import Installation, find_installation
from pytest_hermes.yc_bench.likeness import answers_alike
from pytest_hermes.yc_bench.simulation import KILLED_EXIT_CODE, Simulation, SimulationEnded, SimulationError

pytestmark = pytest.mark.skipif(importlib.util.find_spec("yc_bench") is None, reason="yc-bench is not installed")

IDLE_FUNDS = {"fast_test": -491_336, "medium": -491_336, "hard": -1_627_230}
"""Of seed 1, when nobody does anything; measured with processes of yc-bench 0.1.0."""
HIGHEST = {"fast_test": 9, "medium": 6, "hard": 7}
"""Prestige that a task of the preset's own world can want, at most."""
UNKNOWN = "00000000-0000-0000-0000-000000000000"
PLAIN = {"TYPER_USE_RICH": "0"}


@pytest.fixture(scope="module")
def installation() -> Installation:
    return find_installation()


@dataclasses.dataclass
class Place:
    """A sandbox, and the helpers that a test starts in it."""

    sandbox: LocalSandbox
    installation: Installation
    env: dict[str, str]

    @property
    def database(self) -> str:
        return f"{self.sandbox.home}/world/yc.db"

    @contextlib.asynccontextmanager
    async def simulation(self, **options: Any) -> AsyncIterator[Simulation]:
        options = {"database": self.database, "experiment": "fast_test", "env": self.env, **options}
        simulation = await Simulation.start(self.sandbox, self.installation, **options)
        try:
            yield simulation
        finally:
            await simulation.aclose()

    @contextlib.asynccontextmanager
    async def begun(self, **options: Any) -> AsyncIterator[Simulation]:
        async with self.simulation(**options) as simulation:
            await begin(simulation)
            yield simulation

    async def process(self, *argv: str, script: str | None = None, **env: str) -> tuple[int | None, str]:
        """A process of its own, with both its outputs on one pipe as in the kept shell."""
        variables = {
            **self.env,
            "DATABASE_URL": f"sqlite:///{self.database}",
            "YC_BENCH_EXPERIMENT": "fast_test",
            **env,
        }
        command = ["sh", "-c", 'exec "$0" "$@" 2>&1', script or str(self.installation.script), *argv]
        done = await self.sandbox.exec(command, env=variables)
        return done.exit_code, done.stdout.decode(errors="surrogateescape")

    async def same(self, simulation: Simulation, *argv: str, script: str | None = None) -> None:
        found = await simulation.run(argv, max_output=1_000_000)
        shown = found.output.decode(errors="surrogateescape")
        assert (found.exit_code, shown) == await self.process(*argv, script=script), argv


async def begin(simulation: Simulation, mode: Any = "sim_init", seed: int = 1) -> Any:
    return await simulation.init(mode=mode, seed=seed, start_date="01/01/2025", company_name="BenchCo", horizon_years=1)


Play = Callable[..., None]


@pytest.fixture(params=["off", pytest.param("on", marks=pytest.mark.requires("bwrap"))], ids=["open", "confined"])
def play(request_: None, request: pytest.FixtureRequest, tmp_path: Path, installation: Installation) -> Play:
    return player(request.param, tmp_path, installation)


@pytest.fixture
def request_() -> None:
    """Takes the place of nothing: `request` is the name of a function here and of a fixture there."""


@pytest.fixture
def play_open(tmp_path: Path, installation: Installation) -> Play:
    return player("off", tmp_path, installation)


def player(confine: Any, tmp_path: Path, installation: Installation) -> Play:
    """Runs a test's coroutine with a fresh sandbox."""

    def play(body: Callable[[Place], Awaitable[None]], env: dict[str, str] = PLAIN) -> None:
        async def whole() -> None:
            provider = LocalProvider(confine=confine, root=tmp_path / "s")
            readable = tuple(str(path) for path in installation.readable)
            sandbox = await provider.create(_request(SandboxSpec(readable=readable)))
            try:
                await body(Place(sandbox, installation, env))
            finally:
                await provider.aclose()

        asyncio.run(asyncio.wait_for(whole(), 300))

    return play


_request = request


@contextlib.contextmanager
def locked(database: str) -> Iterator[None]:
    """Nobody else can write into the database: a command that wants to waits for five seconds."""
    connection = sqlite3.connect(database)
    try:
        connection.execute("BEGIN EXCLUSIVE")
        yield
    finally:
        connection.close()


async def until_child(place: Place, simulation: Simulation) -> None:
    """A command's child of the helper is there."""
    while (await place.sandbox.exec(["pgrep", "-P", str(simulation.pid)])).exit_code != 0:
        assert simulation.is_alive


# -- the same bytes ----------------------------------------------------------------------------------------


FEW = (("company", "status"), ("task", "inspect", "--task-id", "x"), ("market", "browse", "--limit", "many"))
MANY = (
    *FEW,
    (),
    ("--help",),
    *((group, "--help") for group in ("sim", "company", "employee", "market", "task", "finance", "report")),
    ("task", "accept", "--help"),
    ("scratchpad", "--help"),
    ("no-such",),
    ("sim", "no-such"),
    ("sim", "init"),
    ("sim", "init", "--seed=1", "--start-date=01/01/2025", "--company-name=Again"),
    ("sim", "init", "--seed=1", "--start-date=2025-01-01", "--company-name=Again"),
    ("employee", "list"),
    ("market", "browse"),
    ("market", "browse", "--domain", "inference"),
    ("market", "browse", "--domain", "data", "--required-prestige-lte", "1", "--reward-min-cents", "1"),
    ("market", "browse", "--limit", "3", "--offset", "2"),
    ("task", "list"),
    ("task", "list", "--status", "market"),
    ("task", "list", "--status", "no-such"),
    ("task", "accept", "--task-id", UNKNOWN),
    ("task", "assign", "--task-id", UNKNOWN, "--employee-id", "x"),
    ("task", "dispatch", "--task-id", UNKNOWN),
    ("task", "cancel", "--task-id", UNKNOWN, "--reason", "none"),
    ("task", "cancel", "--task-id", UNKNOWN),
    ("finance", "ledger"),
    ("finance", "ledger", "--from", "01/01/2025", "--category", "no-such"),
    ("report", "monthly"),
    ("report", "monthly", "--from-month", "x"),
    ("scratchpad", "read"),
    ("scratchpad", "write", "--content", "Plan: größer — 計画 🚀\n\ttwo"),
    ("scratchpad", "read"),
    ("scratchpad", "write", "--content", ""),
    ("scratchpad", "append", "--no-such", "ü"),
    ("scratchpad", "clear"),
)
FRAMED = tuple(argv for argv in MANY if not argv or argv in FEW or {"--help", "no-such"} & set(argv))
"""What rich has frames for: help and wrong usage."""


def test_commands_have_the_bytes_of_processes(play: Play) -> None:
    async def body(place: Place) -> None:
        async with place.begun() as simulation:
            assert await answers_alike(simulation, place.installation)
            for argv in FEW:
                await place.same(simulation, *argv)

    play(body)


@pytest.mark.slow
@pytest.mark.parametrize("env", [PLAIN, {}, {"COLUMNS": "50"}], ids=["plain", "rich", "rich-narrow"])
def test_every_command_has_the_bytes_of_processes(play_open: Play, env: dict[str, str]) -> None:
    async def body(place: Place) -> None:
        async with place.begun() as simulation:
            for argv in MANY if env is PLAIN else FRAMED:
                await place.same(simulation, *argv)
            offered = json.loads((await simulation.run(["market", "browse", "--required-prestige-lte", "1"])).output)
            task = offered["tasks"][0]["task_id"]
            assert (await simulation.run(["task", "accept", "--task-id", task])).exit_code == 0
            await place.same(simulation, "task", "inspect", "--task-id", task)
            await place.same(simulation, "task", "list")
            await place.same(simulation, "task", "accept", "--task-id", task)
            await place.same(simulation, "task", "cancel", "--task-id", task, "--reason", "it crashes")

    play_open(body, env)


ENDINGS = {
    "returns": "print('out'); print('err', file=sys.stderr); print('more')",
    "exits": "print('out'); sys.exit(7)",
    "exits-negative": "sys.exit(-1)",
    "exits-with-text": "print('out'); sys.exit('no: ü')",
    "exits-with-tuple": "raise SystemExit(1, 2)",
    "raises": "print('out')\ndef f(): raise ValueError('größer')\nf()",
    "chains": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise RuntimeError('outer') from e",
    "groups": "raise ExceptionGroup('all', [ValueError(1), KeyError(2)])",
    "interrupted": "raise KeyboardInterrupt",
    "killed": "print('lost'); os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "print('out', flush=True); os.kill(os.getpid(), signal.SIGTERM)",
    "at-exit": "import atexit; atexit.register(print, 'bye'); print('out')",
    "thread": "import threading; threading.Timer(0.05, print, ['late']).start(); print('out')",
    "looks-around": "print(sys.argv, __name__, __file__, __doc__, sys.path[0], os.getcwd(), sys.stdin.read(),"
    " sys.stdout.encoding, sys.stdout.errors, sys.stderr.errors, sys.stdout.isatty(), sys.stdout.name,"
    " sys.stderr.line_buffering, sys.modules['__main__'].f, signal.getsignal(signal.SIGINT),"
    " signal.getsignal(signal.SIGCHLD), sorted(os.listdir('/proc/self/fd')), os.environ['PWD'])\n",
    "surrogate": "print('\\udcff')",
    "closed": "sys.stdout.close()",
    "no-output": "os.close(1); print('x')",
}


def test_a_script_ends_as_under_an_interpreter_of_its_own(play_open: Play) -> None:
    async def body(place: Place) -> None:
        lines = [f"#!{place.installation.python}", "import os, signal, sys", "f = 'mine'", "name = sys.argv[1]"]
        for name, ending in ENDINGS.items():
            lines += [f"if name == {name!r}:", *(f"    {line}" for line in ending.splitlines())]
        script = f"{place.sandbox.home}/yc-bench"
        await place.sandbox.write_file(script, "\n".join(lines).encode(), mode=0o755)
        async with place.simulation(script=script) as simulation:
            for name in ENDINGS:
                if name != "no-output":
                    await place.same(simulation, name, "two words", "", script=script)
            # What CPython says about it differs from version to version, and nothing takes its output away here.
            assert (await simulation.run(["no-output"])).exit_code == 120
            assert simulation.is_alive

    play_open(body)


def test_a_flood_is_counted_and_cut(play_open: Play) -> None:
    async def body(place: Place) -> None:
        script = f"{place.sandbox.home}/yc-bench"
        await place.sandbox.write_file(script, b"import sys\nfor _ in range(500): print('x' * 99_999)\nsys.exit(3)")
        async with place.simulation(script=script) as simulation:
            found = await simulation.run([], max_output=1_000)
            assert (found.exit_code, found.output_bytes) == (3, 50_000_000)
            assert len(found.output) <= 1_000
            assert b"bytes cut" in found.output
            assert (await simulation.run([])).exit_code == 3

    play_open(body)


def players_move(outputs: dict[str, Any]) -> Iterator[list[str]]:
    """Two tasks with all the staff, with looks at everything in between; the commands depend on what was said."""
    for turn in range(2):
        yield ["company", "status"]
        yield ["employee", "list"]
        staff = sorted(outputs["employee list"]["employees"], key=lambda employee: employee["name"])
        yield ["market", "browse", "--required-prestige-lte", "1"]
        offers = outputs["market browse"]["tasks"]
        task = max(offers, key=lambda offer: (offer["reward_funds_cents"], offer["title"]))["task_id"]
        yield ["task", "accept", "--task-id", task]
        for employee in staff:
            yield ["task", "assign", "--task-id", task, "--employee-id", employee["employee_id"]]
        yield ["task", "dispatch", "--task-id", task]
        yield ["task", "inspect", "--task-id", task]
        yield ["scratchpad", "append", "--content", f"turn {turn}"]
        yield ["sim", "resume"]
        yield ["task", "list"]
        yield ["sim", "resume"]
        yield ["finance", "ledger"]
        yield ["task", "cancel", "--task-id", task, "--reason", "too late"]
        yield ["sim", "resume"]
        yield ["company", "status"]


def canonical(database: str) -> dict[str, list[str]]:
    """All rows of a database, by names where it has random ids, in an order that does not depend on these."""
    connection = sqlite3.connect(database)
    names = {
        row[0]: row[1]
        for table in ("employees", "companies")
        for row in connection.execute(f"SELECT id, name FROM {table}")
    }
    names |= dict(connection.execute("SELECT id, title FROM tasks"))
    dashed = {f"{i[:8]}-{i[8:12]}-{i[12:16]}-{i[16:20]}-{i[20:]}": name for i, name in names.items()}
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = {}
    for table in tables:
        cursor = connection.execute(f"SELECT * FROM {table}")
        columns = [column[0] for column in cursor.description]
        rows = []
        for row in cursor:
            cells = dict(zip(columns, map(str, row), strict=True))
            if table in ("sim_events", "ledger_entries", "scratchpads"):
                cells.pop("id", None)
            text = repr(cells)
            for known in (names, dashed):
                for key, name in known.items():
                    text = text.replace(key, name)
            rows.append(text)
        found[table] = sorted(rows)
    connection.close()
    return found


@pytest.mark.slow
def test_a_game_is_the_same_as_by_processes(play_open: Play, tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        played = []
        for kind in ("helper", "process"):
            outputs: dict[str, Any] = {}
            commands = 0
            async with place.begun() as simulation:
                for argv in players_move(outputs):
                    if kind == "helper":
                        said = (await simulation.run(argv)).output.decode()
                    else:
                        said = (await place.process(*argv))[1]
                    with contextlib.suppress(ValueError):
                        outputs[" ".join(argv[:2])] = json.loads(said)
                    commands += 1
            assert commands >= 36
            copy = tmp_path / f"{kind}.db"
            shutil.move(place.database, copy)
            played.append(canonical(str(copy)))
        assert played[0] == played[1]

    play_open(body)


# -- worlds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["fast_test", "medium", "hard"])
def test_both_worlds_of_a_preset_and_their_end(play_open: Play, preset: str) -> None:
    async def body(place: Place) -> None:
        markets = []
        for mode in ("sim_init", "preset"):
            database = f"{place.sandbox.home}/{mode}/yc.db"
            async with place.simulation(database=database, experiment=preset) as simulation:
                assert (await simulation.state()).error
                began = await begin(simulation, mode)
                facts = place.installation.preset_facts[preset]
                assert began.initial_funds_cents == facts.initial_funds_cents == 25_000_000
                assert (began.employees, began.market_tasks) == (facts.num_employees, facts.num_market_tasks)
                assert began.domains == place.installation.domains
                assert (began.sim_time.year, began.horizon_end.year) == (2025, 2026)
                assert ("simulation_id" in began.output) == (mode == "sim_init")
                with pytest.raises(SimulationError, match="holds a simulation already"):
                    await begin(simulation, mode)
                browse = ["market", "browse", "--limit", "1000"]
                offers = json.loads((await simulation.run(browse, max_output=1_000_000)).output)
                markets.append(sorted(offer["required_prestige"] for offer in offers["tasks"]))
                drained = await simulation.drain()
                assert (drained.resumes, drained.terminal_reason, drained.error) == (1, "bankruptcy", "")
                state = await simulation.state()
                assert state.funds_cents == IDLE_FUNDS[preset] == 25_000_000 + state.ledger_sum_cents
                assert state.bankrupt_at is not None
                assert state.terminal_reason == "bankruptcy"
                assert state.tasks == {"market": facts.num_market_tasks}
        # 0.1.0's `sim init` takes no distributions from the preset: up to level 9 whatever that says.
        assert markets[0] != markets[1]
        assert (markets[0][-1], markets[1][-1] <= HIGHEST[preset]) == (9, True)

    play_open(body)


def test_what_sim_init_says_when_it_fails_is_told(play_open: Play) -> None:
    async def body(place: Place) -> None:
        async with place.simulation() as simulation:
            with pytest.raises(SimulationError, match=r"exit 2: .*Invalid date format"):
                await simulation.init(
                    mode="sim_init", seed=1, start_date="2025-01-01", company_name="B", horizon_years=1
                )
            assert (await begin(simulation)).employees == 5

    play_open(body)


def test_the_clock_runs_out_by_the_engine_where_resume_refuses(play_open: Play) -> None:
    async def body(place: Place) -> None:
        script = f"{place.sandbox.home}/yc-bench"
        await place.sandbox.write_file(script, b'import sys\nprint(\'{"error": "nothing active"}\'); sys.exit(1)')
        async with place.begun():
            pass
        async with place.simulation(script=script) as simulation:
            drained = await simulation.drain()
            assert (drained.resumes, drained.terminal_reason) == (1, "bankruptcy")
            assert (await simulation.state()).funds_cents == IDLE_FUNDS["fast_test"]

    play_open(body)


def test_draining_keeps_to_its_limits(play_open: Play) -> None:
    async def body(place: Place) -> None:
        async with place.begun() as simulation:
            with locked(place.database):
                drained = await simulation.drain(timeout_s=0.5)
            assert drained.terminal_reason is None
            assert "within the time" in drained.error
            drained = await simulation.drain(max_resumes=0)
            assert drained.error == "not at its end after 0 resumes"
            assert (await simulation.state()).ledger_entries == 0

    play_open(body)


def test_the_state_of_what_is_no_database(play_open: Play) -> None:
    async def body(place: Place) -> None:
        home = place.sandbox.home
        async with place.begun() as simulation:
            content = Path(place.database).read_bytes()
            broken = {
                "garbage": b"not a database" * 1_000,
                "half": content[: len(content) // 2],
                "empty": b"",
            }
            for name, data in broken.items():
                await place.sandbox.write_file(f"{home}/{name}.db", data)
                assert (await simulation.state(f"{home}/{name}.db")).error, name
            assert "unable to open" in (await simulation.state(f"{home}/none/x.db")).error
            assert not Path(home, "none").exists()
            with locked(place.database):
                assert "locked" in (await simulation.state()).error
            connection = sqlite3.connect(place.database)
            for written in ("'many'", "1.5", "x'00'", "NULL"):
                with contextlib.suppress(sqlite3.IntegrityError):
                    connection.execute(f"UPDATE companies SET funds_cents = {written}")
                    connection.commit()
                    assert "not as yc-bench writes it" in (await simulation.state()).error
            connection.execute("UPDATE companies SET funds_cents = 7")
            connection.commit()
            connection.close()
            state = await simulation.state()
            assert (state.error, state.funds_cents, state.ledger_sum_cents) == ("", 7, 0)

    play_open(body)


# -- accidents -----------------------------------------------------------------------------------------------


def test_a_command_is_killed_at_its_time_out(play: Play) -> None:
    async def body(place: Place) -> None:
        async with place.begun() as simulation:
            with locked(place.database):
                found = await simulation.run(["sim", "resume"], timeout_s=0.5)
            assert (found.exit_code, found.timed_out) == (124, True)
            assert (await place.sandbox.exec(["pgrep", "-P", str(simulation.pid)])).exit_code == 1
            assert simulation.is_alive
            assert (await simulation.run(["company", "status"])).exit_code == 0
            assert (await simulation.state()).ledger_entries == 0

    play(body)


def test_a_cancelled_command_is_killed(play: Play) -> None:
    async def body(place: Place) -> None:
        async with place.begun() as simulation:
            with locked(place.database):
                running = asyncio.ensure_future(simulation.run(["sim", "resume"]))
                await until_child(place, simulation)
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
            assert simulation.is_alive
            assert (await simulation.state()).ledger_entries == 0
            assert (await simulation.run(["company", "status"])).exit_code == 0

    play(body)


def test_a_helper_that_is_killed_under_a_command(play: Play) -> None:
    async def body(place: Place) -> None:
        async with place.begun() as simulation:
            with locked(place.database):
                running = asyncio.ensure_future(simulation.run(["sim", "resume"]))
                await until_child(place, simulation)
                await place.sandbox.exec(["kill", "-9", str(simulation.pid)])
                found = await running
            assert (found.exit_code, found.timed_out) == (KILLED_EXIT_CODE, False)
            assert not simulation.is_alive
            with pytest.raises(SimulationEnded):
                await simulation.run(["company", "status"])
            with pytest.raises(SimulationEnded):
                await simulation.state()
        async with place.simulation(isolated=True) as simulation:
            assert (await simulation.state()).ledger_entries == 0, "its child was killed with it"

    play(body)


def test_a_helper_that_is_stopped_is_given_up(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_hermes.yc_bench.simulation._GRACE_S", 0.5)

    async def body(place: Place) -> None:
        async with place.begun() as simulation:
            await place.sandbox.exec(["kill", "-STOP", str(simulation.pid)])
            found = await simulation.run(["sim", "resume"], timeout_s=0.5)
            assert (found.exit_code, found.timed_out) == (124, True)
            assert not simulation.is_alive

    play(body)


def test_after_the_agent_a_fresh_helper_plays_a_copy(play: Play) -> None:
    async def body(place: Place) -> None:
        home = place.sandbox.home
        for name in ("sitecustomize.py", "json.py", "sqlite3.py", "yc_bench.py"):
            await place.sandbox.write_file(f"{home}/{name}", b"raise SystemExit('mine now')")
        async with place.begun() as simulation:
            assert (await simulation.run(["company", "status"], cwd=home)).exit_code == 0
            await place.sandbox.exec(["kill", "-9", str(simulation.pid)])
            await place.sandbox.exec(["cp", place.database, f"{home}/copy.db"])
            env = {**place.env, "PYTHONPATH": home, "PYTHONHOME": "/nowhere"}
            async with place.simulation(isolated=True, database=f"{home}/copy.db", env=env) as fresh:
                assert (await fresh.drain()).terminal_reason == "bankruptcy"
                assert (await fresh.state()).funds_cents == IDLE_FUNDS["fast_test"]
                assert (await fresh.state(place.database)).funds_cents == 25_000_000

    play(body)


def test_a_directory_that_is_gone_runs_nothing(play_open: Play) -> None:
    async def body(place: Place) -> None:
        async with place.begun() as simulation:
            with pytest.raises(FileNotFoundError):
                await simulation.run(["sim", "resume"], cwd=f"{place.sandbox.home}/gone")
            assert (await simulation.state()).ledger_entries == 0

    play_open(body)


def test_children_know_nothing_of_each_other(play_open: Play) -> None:
    async def body(place: Place) -> None:
        script = f"{place.sandbox.home}/yc-bench"
        lines = (
            "import builtins, os, random, sys",
            "print(getattr(builtins, 'seen', 'nothing'), os.environ.get('SEEN'), len(sys.path))",
            "builtins.seen = os.environ['SEEN'] = 'before'; sys.path.append('x'); print(random.random())",
        )
        await place.sandbox.write_file(script, "\n".join(lines).encode())
        async with place.simulation(script=script) as simulation:
            first = (await simulation.run([])).output.decode().splitlines()
            second = (await simulation.run([])).output.decode().splitlines()
            assert first[0] == second[0]
            assert first[0].startswith("nothing None ")
            assert first[1] != second[1]

    play_open(body)


def test_an_end_at_once_is_told_with_its_reason(play_open: Play) -> None:
    async def body(place: Place) -> None:
        with pytest.raises(SandboxStartError, match=r"ended at once \(exit 1\): .*FileNotFoundError.*gone/yc-bench"):
            async with place.simulation(script="/gone/yc-bench"):
                pass
        crippled = dataclasses.replace(place.installation, python=Path("/bin/false"))
        with pytest.raises(SandboxStartError, match=r"ended at once \(exit 1\)"):
            await Simulation.start(place.sandbox, crippled, database=place.database)

    play_open(body)


def test_what_is_no_answer_ends_it(play_open: Play) -> None:
    """A program in its place can send what it likes."""

    async def body(place: Place) -> None:
        for answer in (
            b"nonsense\n",
            b'{"kind": "end", "bytes": -1}\n',
            b'{"kind": "end", "bytes": 0, "id": 99}\n',
            b"[]\n",
        ):
            async with place.begun() if answer == b"nonsense\n" else place.simulation() as simulation:
                request_under_way = asyncio.ensure_future(simulation.run(["--help"]))
                await asyncio.sleep(0)
                with pytest.raises(ValueError, match=r"Expecting|without a size|to no request"):
                    simulation._take(bytearray(answer))
                await request_under_way

    play_open(body)
