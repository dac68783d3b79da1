"""The program beside the agent: it has yc-bench imported already, and forks a child for each of its commands.

It runs in the sandbox, under the interpreter that owns yc-bench, with nothing but that package and the standard
library, and is sent as text (`simulation.py`). Its stdin brings one JSON request a line; its stdout gives frames, each
a JSON header line with the length of the body that follows. Whatever else the process or its children write goes
elsewhere, so nothing can get between the frames.

It never opens the database through the package: no child inherits a connection, or sees what another did in memory.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import importlib
import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pytest_hermes.yc_bench.zygote import Ended, Sink, Wire, Zygote  # sent as well

_KEPT_MAX = 1_000_000
_DATABASE_WAIT_S = 0.5


class Kept:
    """A sink that keeps the beginning of what comes."""

    def __init__(self) -> None:
        self.data = b""

    def __call__(self, data: bytes) -> None:
        self.data += data[: _KEPT_MAX - len(self.data)]

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")


# -- the database, read without the package ------------------------------------------------------------


@contextlib.contextmanager
def reading(database: str) -> Iterator[sqlite3.Connection]:
    """The database, to read it. Where a killed command left its journal, that is rolled back, as a command would."""
    for mode in ("ro", "rw"):
        connection = sqlite3.connect(Path(database).as_uri() + f"?mode={mode}", uri=True, timeout=_DATABASE_WAIT_S)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            yield connection
            return
        except sqlite3.OperationalError as error:
            if mode == "rw" or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
                raise
        finally:
            connection.close()


def first(connection: sqlite3.Connection, query: str) -> list[Any]:
    """The first row; an empty one if there is none."""
    return list(connection.execute(query).fetchone() or ())


def state_of(database: str) -> dict[str, Any]:
    """Where the simulation stands; `error` where that cannot be read."""
    try:
        with reading(database) as connection:
            state = first(connection, "SELECT sim_time, horizon_end FROM sim_state")
            funds = first(connection, "SELECT funds_cents FROM companies")
            if not state or not funds:
                return {"error": "no simulation in it"}
            bankrupt = first(connection, "SELECT min(scheduled_at) FROM sim_events WHERE event_type = 'bankruptcy'")
            horizon = "SELECT count(*) FROM sim_events WHERE event_type = 'horizon_end' AND consumed"
            entries = first(connection, "SELECT count(*), coalesce(sum(amount_cents), 0) FROM ledger_entries")
            below_zero = below_zero_at(connection, funds[0] - entries[1])
            tasks = connection.execute("SELECT status, count(*) FROM tasks GROUP BY status").fetchall()
            return {
                "sim_time": state[0],
                "horizon_end": state[1],
                "funds_cents": funds[0],
                "bankrupt_at": bankrupt[0] or below_zero,
                "is_horizon_consumed": first(connection, horizon)[0] > 0,
                "ledger_entries": entries[0],
                "ledger_sum_cents": entries[1],
                "tasks": {str(status): count for status, count in tasks},
            }
    except TypeError as error:
        return {"error": f"not as yc-bench writes it: {error}"}
    except (sqlite3.Error, OSError, OverflowError, UnicodeError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def below_zero_at(connection: sqlite3.Connection, balance: int) -> str | None:
    """When the ledger first went below zero, from a balance on: a fine for a late task, which later revisions know,
    bankrupts and leaves no event."""
    by_moment = "SELECT occurred_at, sum(amount_cents) FROM ledger_entries GROUP BY occurred_at ORDER BY occurred_at"
    for moment, change in connection.execute(by_moment):
        balance += change
        if balance < 0:
            return str(moment)
    return None


def facts_of(database: str) -> dict[str, Any]:
    """What a simulation was begun with."""
    with reading(database) as connection:
        domains = connection.execute("SELECT DISTINCT domain FROM company_prestige ORDER BY rowid").fetchall()
        staff = first(connection, "SELECT count(*), coalesce(sum(salary_cents), 0) FROM employees")
        return {
            "initial_funds_cents": first(connection, "SELECT funds_cents FROM companies")[0],
            "domains": [domain for (domain,) in domains],
            "employees": staff[0],
            "monthly_payroll_cents": staff[1],
            "market_tasks": first(connection, "SELECT count(*) FROM tasks WHERE status = 'market'")[0],
        }


def holds_simulation(database: str) -> bool:
    if not Path(database).exists():
        return False
    with reading(database) as connection:
        if not first(connection, "SELECT 1 FROM sqlite_master WHERE name = 'sim_state'"):
            return False
        return bool(first(connection, "SELECT 1 FROM sim_state"))


# -- what children do with the package -----------------------------------------------------------------


def package(name: str) -> Any:
    return importlib.import_module(f"yc_bench.{name}")


def make_tables() -> None:
    """`sim init` of yc-bench 0.1.0 needs them and does not make them."""
    session = package("db.session")
    session.init_db(session.build_engine())


def seed_preset(request: dict[str, Any]) -> None:
    """Begin a simulation in the preset's own world, as `yc-bench run` does and `sim init` of 0.1.0 does not."""
    seeding, events = package("services.seed_world"), package("core.events")
    config = package("config").load_config(os.environ["YC_BENCH_EXPERIMENT"])
    world = config.world
    start = datetime.datetime.strptime(request["start_date"], "%m/%d/%Y")
    start = start.replace(hour=9, tzinfo=datetime.UTC)
    horizon_years = request["horizon_years"] or config.sim.horizon_years
    horizon_end = start.replace(year=start.year + horizon_years)
    with package("cli").get_db() as db:
        world_request = seeding.SeedWorldRequest(
            run_seed=request["seed"],
            company_name=request["company_name"],
            horizon_years=horizon_years,
            employee_count=world.num_employees,
            market_task_count=world.num_market_tasks,
            start_date=start,
            cfg=world,
        )
        company_id = seeding.seed_world_transactional(db, world_request).company_id
        events.insert_event(
            db=db,
            company_id=company_id,
            event_type=package("db.models.event").EventType.HORIZON_END,
            scheduled_at=horizon_end,
            payload={"reason": "horizon_end"},
            dedupe_key="horizon_end",
        )
        state = package("db.models.sim_state").SimState(
            company_id=company_id,
            sim_time=start,
            run_seed=request["seed"],
            horizon_end=horizon_end,
            replenish_counter=0,
        )
        db.add(state)


def advance_to_horizon() -> None:
    """For installations whose `sim resume` refuses while no task is active: the clock runs out by the engine itself,
    which may stop at every payroll."""
    with package("cli").get_db() as db:
        state = db.query(package("db.models.sim_state").SimState).first()
        reason, before = None, None
        while reason is None and state.sim_time != before:
            before = state.sim_time
            result = package("core.engine").advance_time(db, state.company_id, state.horizon_end)
            reason = "bankruptcy" if result.bankrupt else "horizon_end" if result.horizon_reached else None
        print(json.dumps({"terminal_reason": reason}))


# -- requests --------------------------------------------------------------------------------------------


class Server:
    """Answers the requests, one at a time; each answer ends with a frame `end`."""

    def __init__(self, wire: Wire, zygote: Zygote) -> None:
        self._wire = wire
        self._zygote = zygote
        self._answers = {"run": self.run, "state": self.state, "init": self.init, "drain": self.drain}

    def serve(self) -> None:
        while (request := self._wire.next()) is not None:
            if answer := self._answers.get(request["do"]):
                self._wire.send("end", id=request["id"], **answer(request))
            # Else a cancellation that came too late: its command has ended.

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        program = self._zygote.command(request["argv"])

        def sink(data: bytes) -> None:
            self._wire.send("output", data, id=request["id"])

        try:
            ended = self._zygote.run(
                program, sink, cwd=request["cwd"], env=request["env"], timeout_s=request["timeout_s"]
            )
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            return {"errno": error.errno, "error": f"{request['cwd']}: {error.strerror}"}
        return {"exit_code": ended.code, "timed_out": ended.timed_out, "cancelled": ended.cancelled}

    def state(self, request: dict[str, Any]) -> dict[str, Any]:
        return state_of(request["database"])

    def init(self, request: dict[str, Any]) -> dict[str, Any]:
        database = request["database"]
        try:
            Path(database).parent.mkdir(parents=True, exist_ok=True)
            if holds_simulation(database):
                return {"error": f"{database} holds a simulation already"}
        except (sqlite3.Error, OSError) as error:
            return {"error": f"{database}: {error}"}
        if request["mode"] == "preset":
            seed: Callable[[], None] = lambda: seed_preset(request)  # noqa: E731
        else:
            options = [f"--seed={request['seed']}", f"--start-date={request['start_date']}"]
            options += [f"--company-name={request['company_name']}", f"--horizon-years={request['horizon_years']}"]
            seed = self._zygote.command(["sim", "init", *options])
        for program in (make_tables, seed):
            said = Kept()
            ended = self._child(program, said, database, request["timeout_s"])
            if ended.code != 0:
                after = f"no end within {request['timeout_s']:g} s" if ended.timed_out else f"exit {ended.code}"
                return {"error": f"{after}: {said.text.strip()}", "output": said.text}
        try:
            return {**state_of(database), **facts_of(database), "output": said.text}
        except (sqlite3.Error, OSError) as error:
            return {"error": f"{database}: {error}", "output": said.text}

    def _child(self, program: Callable[[], None], sink: Sink, database: str, timeout_s: float) -> Ended:
        return self._zygote.run(program, sink, env={"DATABASE_URL": f"sqlite:///{database}"}, timeout_s=timeout_s)

    def drain(self, request: dict[str, Any]) -> dict[str, Any]:
        database, deadline = request["database"], time.monotonic() + request["timeout_s"]
        resume, resumes = self._zygote.command(["sim", "resume"]), 0
        program = resume
        while resumes < request["max_resumes"]:
            said = Kept()
            left = max(0.0, deadline - time.monotonic())
            ended = self._child(program, said, database, left)
            resumes += program is resume
            if ended.timed_out or ended.cancelled or self._wire.is_over:
                return {"resumes": resumes, "terminal_reason": None, "error": "not at its end within the time"}
            result = decoded(said.text) if ended.code == 0 else {}
            if result.get("terminal_reason") is not None:
                return {"resumes": resumes, "terminal_reason": str(result["terminal_reason"])}
            if program is not resume:
                return {"resumes": resumes, "terminal_reason": None, "error": said.text[-2_000:].strip()}
            if ended.code != 0 or result.get("message") == "no_pending_events":
                program = advance_to_horizon
        return {"resumes": resumes, "terminal_reason": None, "error": f"not at its end after {resumes} resumes"}


def decoded(text: str) -> dict[str, Any]:
    """The JSON object in a command's output; empty if it is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def warm() -> None:
    """Import and compute now what each command would else do for itself."""
    session, config = package("db.session"), package("config")
    with contextlib.suppress(ValueError, OSError):  # an unknown preset is the commands' to deal with
        config.load_config(os.environ.get("YC_BENCH_EXPERIMENT", "default"))
    engine = session.build_engine("sqlite://")
    session.init_db(engine)
    with session.session_scope(session.build_session_factory(engine)) as db:
        for mapper in package("db.base").Base.registry.mappers:
            db.query(mapper.class_).first()
    engine.dispose()
    main = importlib.import_module("typer.main")
    application = main.get_command(package("cli").app)
    for path in ([], ["company", "status"]):
        application.main([*path, "--help"], prog_name="yc-bench", standalone_mode=False)
    sys.stdout.flush()  # into nothing; what stayed in the buffer would be the first child's


def main() -> None:
    wire = Wire()
    settings = wire.next()
    if settings is None:
        return
    # Until here and through the imports, stderr is the wire's: who waits for us is told why they fail.
    zygote = Zygote(wire, settings["script"])
    package("cli")
    warm()
    os.dup2(1, 2)
    gc.collect()
    gc.freeze()
    wire.send("ready", mark=settings["mark"], pid=os.getpid())
    try:
        Server(wire, zygote).serve()
    except BrokenPipeError:
        pass
