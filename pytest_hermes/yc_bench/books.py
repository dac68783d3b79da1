"""What a yc-bench database says, read on the host from bytes that a hostile agent may have written.

Only the standard library's SQLite sees them, in a private copy, with a deadline and limits on everything: nothing of
the file's schema is executed (views, triggers, virtual tables and generated columns are refused before any row is
read), and every value is checked for its type. What is wrong with a file is `Books.error`; reading raises OSError only,
where the host has no place for the copy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import math
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

MAX_BYTES = 128 * 1024 * 1024
"""A year of a busy company is some 2 MB."""
MAX_ROWS = 200_000
MAX_VALUE_BYTES = 1_000_000
STEPS = 2_000
"""Instructions of SQLite's machine between looks at the clock."""
JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
SQLITE_MAGIC = b"SQLite format 3\0"

Moment = datetime.datetime
Status = Literal["SURVIVED", "BANKRUPT", "INCOMPLETE"]
Converter = Callable[[Any], Any]
"""Raises TypeError or ValueError for what a column may not hold."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A line of the ledger."""

    amount_cents: int
    category: str | None
    occurred_at: Moment | None
    ref_id: str | None


@dataclasses.dataclass(frozen=True)
class Contract:
    """A row of `tasks`: an offer of the market, or what the company took on."""

    id: str
    status: str
    reward_cents: int | None
    skill_boost: float | None
    accepted_at: Moment | None
    deadline: Moment | None
    completed_at: Moment | None
    required_quantity: float | None
    """Over its domains; None where the table is not there."""
    done_quantity: float | None
    needs: dict[str, float] = dataclasses.field(default_factory=dict)
    """Domain -> work; empty where the table does not say it."""
    required_prestige: int | None = None
    prestige_delta: float | None = None


@dataclasses.dataclass(frozen=True)
class Event:
    """A row of `sim_events`."""

    kind: str
    scheduled_at: Moment
    consumed: bool | None
    task_id: str | None


@dataclasses.dataclass(frozen=True)
class Employee:
    """An employee with the pay and the rate per hour in each domain that they have now."""

    id: str
    salary_cents: int
    rates: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Books:
    """What was read; times are those of the simulation, without a zone. With an `error` nothing else is there."""

    error: str | None = None
    """Why the file cannot be read as a simulation, one line."""
    company_id: str | None = None
    companies: int = 0
    funds_cents: int = 0
    sim_time: Moment | None = None
    horizon_end: Moment | None = None
    run_seed: int | None = None
    bankrupt_at: Moment | None = None
    """Of the first event of a bankruptcy, whether or not it was processed."""
    horizon_consumed: bool | None = None
    """Whether the end of the horizon was processed; None where events do not say so."""
    entries: tuple[Entry, ...] = ()
    contracts: tuple[Contract, ...] | None = None
    """None where the installation has no such table or it lacks a column, as below."""
    events: tuple[Event, ...] = ()
    employees: tuple[Employee, ...] | None = None
    prestige: dict[str, float] = dataclasses.field(default_factory=dict)
    """The company's, by domain; empty where the installation has no such table or it lacks a column."""
    columns: frozenset[str] = frozenset()
    """`table.column` of all tables."""

    @property
    def survived(self) -> bool:
        """Whether the composite score counts it as surviving: not bankrupt so far, also if it stopped early."""
        sound = self.error is None and self.funds_cents >= 0 and self.bankrupt_at is None
        return sound and not self._was_below_zero()

    def _was_below_zero(self) -> bool:
        """By the ledger: in later revisions a fine for a late task bankrupts too, and leaves no event."""
        by_moment: dict[Moment, int] = {}
        for entry in self.entries:
            if entry.occurred_at is None:
                return False
            by_moment[entry.occurred_at] = by_moment.get(entry.occurred_at, 0) + entry.amount_cents
        balance = self.funds_cents - self.ledger_total_cents
        return any((balance := balance + by_moment[moment]) < 0 for moment in sorted(by_moment))

    @property
    def status(self) -> Status:
        """`SURVIVED` at the end of the horizon, `BANKRUPT` at any time before, else `INCOMPLETE`.

        A bankruptcy is final, whatever was earned after it. Raises ValueError for books that could not be read.
        """
        if self.error is not None or self.sim_time is None or self.horizon_end is None:
            raise ValueError(f"no books: {self.error}")
        if not self.survived:
            return "BANKRUPT"
        return "SURVIVED" if self.sim_time >= self.horizon_end else "INCOMPLETE"

    @property
    def ledger_total_cents(self) -> int:
        return sum(entry.amount_cents for entry in self.entries)

    @property
    def ledger_count(self) -> int:
        return len(self.entries)

    @property
    def tables(self) -> frozenset[str]:
        return frozenset(name.partition(".")[0] for name in self.columns)

    @property
    def tasks(self) -> dict[str, int]:
        """Status -> tasks; those of the market are in it too."""
        found: dict[str, int] = {}
        for contract in self.contracts or ():
            found[contract.status] = found.get(contract.status, 0) + 1
        return found


class _Unreadable(Exception):
    """What is wrong with the file, one line."""


def read_ledger(database: bytes, journal: bytes | None = None, *, deadline_s: float = 10.0) -> Books:
    """The books in a database file; `journal` is its rollback journal (`<file>-journal`), if there is one: what a
    command that was killed left half-written is taken back, as the next command would. Raises OSError only.
    """
    try:
        _check_bytes(database, journal)
        with tempfile.TemporaryDirectory(prefix="hermes-books-") as folder:
            copy = Path(folder, "books.db")
            copy.write_bytes(database)
            ends = time.monotonic() + deadline_s
            if journal:
                Path(folder, "books.db-journal").write_bytes(journal)
                with _opened(copy, "mode=rw", ends) as connection:
                    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
                if copy.stat().st_size > MAX_BYTES:
                    raise _Unreadable("its journal makes it too large")
            with _opened(copy, "mode=ro&immutable=1", ends) as connection:
                return _Reader(connection).books()
    except _Unreadable as error:
        return Books(error=str(error))
    except sqlite3.Error as error:
        late = isinstance(error, sqlite3.OperationalError) and str(error) == "interrupted"
        return Books(error=f"it could not be read within {deadline_s:g} s" if late else _line(f"SQLite: {error}"))
    except (MemoryError, OverflowError, RecursionError, UnicodeError) as error:
        return Books(error=f"it holds what cannot be read ({type(error).__name__})")


def _check_bytes(database: bytes, journal: bytes | None) -> None:
    if not database:
        raise _Unreadable("the file is empty")
    if len(database) + len(journal or b"") > MAX_BYTES:
        raise _Unreadable(f"the file has more than {MAX_BYTES // 1024**2} MB")
    if len(database) < 100 or not database.startswith(SQLITE_MAGIC):
        raise _Unreadable("the file is not an SQLite database")
    if database[18] != 1 or database[19] != 1:
        # Half of its content would be in a second file, so that what this one says is not how things are.
        raise _Unreadable("it is in write-ahead mode, which yc-bench does not use")
    if journal is not None and len(journal) > len(JOURNAL_MAGIC) and journal.endswith(JOURNAL_MAGIC):
        # Such a journal names a file that SQLite deletes after the rollback, wherever it is.
        raise _Unreadable("its journal is one of several databases at once")


@contextlib.contextmanager
def _opened(path: Path, mode: str, ends: float) -> Iterator[sqlite3.Connection]:
    """A connection that trusts nothing in the file and is interrupted at `ends` (monotonic)."""
    connection = sqlite3.connect(f"{path.as_uri()}?{mode}", uri=True, isolation_level=None, timeout=0.0)
    try:
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        connection.set_progress_handler(lambda: time.monotonic() > ends, STEPS)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        if sys.version_info >= (3, 12):
            connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0", "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {pragma}")
        if "mode=ro" in mode:
            connection.execute("PRAGMA query_only=ON")
        yield connection
    finally:
        connection.close()


class _Reader:
    """Reads the tables; a table or column that is needed and not there, or a value of another type, is _Unreadable."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._columns: dict[str, frozenset[str]] = {}

    def books(self) -> Books:
        self._look_at_schema()
        (sound,) = self._connection.execute("PRAGMA integrity_check(1)").fetchone()
        if sound != "ok":
            raise _Unreadable(_line(f"it is damaged: {sound}"))
        companies = self._rows("companies", {"id": _text, "funds_cents": _integer})
        states = self._rows("sim_state", {"company_id": _text, "sim_time": _moment, "horizon_end": _moment})
        if not companies or not states:
            raise _Unreadable("it holds no simulation")
        if len(states) > 1:
            raise _Unreadable(f"it holds {len(states)} simulations")
        (company_id, sim_time, horizon_end), funds = states[0], dict(companies)
        if company_id not in funds:
            raise _Unreadable("the company of its simulation is not there")
        events = self._events()
        ends = [event for event in events if event.kind == "horizon_end"]
        return Books(
            company_id=company_id,
            companies=len(companies),
            funds_cents=funds[company_id],
            sim_time=sim_time,
            horizon_end=horizon_end,
            run_seed=self._rows("sim_state", {}, {"run_seed": _integer})[0][0],
            bankrupt_at=min((event.scheduled_at for event in events if event.kind == "bankruptcy"), default=None),
            horizon_consumed=None if not self._has("sim_events", "consumed") else any(e.consumed for e in ends),
            entries=self._entries(),
            contracts=self._contracts(),
            events=events,
            employees=self._employees(),
            prestige=self._prestige(company_id),
            columns=frozenset(f"{table}.{column}" for table, found in self._columns.items() for column in found),
        )

    def _look_at_schema(self) -> None:
        for kind, name, place, sql in self._fetched("SELECT type, name, rootpage, sql FROM sqlite_master"):
            if kind == "index":
                continue
            if kind != "table" or not place or not isinstance(sql, str):
                raise _Unreadable(_line(f"it holds a {kind} {name!r}, which yc-bench does not make"))
            found = self._fetched("SELECT name, hidden FROM pragma_table_xinfo(?)", str(name))
            if any(hidden for _, hidden in found):
                raise _Unreadable(_line(f"table {name!r} has computed columns, which yc-bench does not make"))
            self._columns[str(name)] = frozenset(str(column) for column, _ in found)

    def _fetched(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        found = self._connection.execute(query, values).fetchmany(MAX_ROWS + 1)
        if len(found) > MAX_ROWS:
            raise _Unreadable(f"it holds more than {MAX_ROWS:,} rows in one table")
        return found

    def _has(self, table: str, *columns: str) -> bool:
        return set(columns) <= self._columns.get(table, frozenset())

    def _rows(
        self, table: str, needed: Mapping[str, Converter], optional: Mapping[str, Converter] | None = None
    ) -> list[tuple[Any, ...]]:
        """All rows, the columns in the order given; of an optional one that the table lacks, None."""
        if table not in self._columns:
            raise _Unreadable(f"it has no table {table}")
        if missing := [column for column in needed if not self._has(table, column)]:
            raise _Unreadable(f"table {table} has no column {missing[0]}")
        wanted = {**needed, **(optional or {})}
        there = ", ".join(f'"{column}"' if self._has(table, column) else "NULL" for column in wanted)
        rows = []
        for row in self._fetched(f'SELECT {there} FROM "{table}"'):
            values = []
            for (column, convert), value in zip(wanted.items(), row, strict=True):
                try:
                    values.append(None if value is None and column not in needed else convert(value))
                except (TypeError, ValueError, OverflowError):
                    raise _Unreadable(_line(f"{table}.{column} holds {str(value)[:40]!r}")) from None
            rows.append(tuple(values))
        return rows

    def _entries(self) -> tuple[Entry, ...]:
        optional = {"category": _text, "occurred_at": _moment, "ref_id": _text}
        return tuple(Entry(*row) for row in self._rows("ledger_entries", {"amount_cents": _integer}, optional))

    def _events(self) -> tuple[Event, ...]:
        needed = {"event_type": _text, "scheduled_at": _moment}
        found = self._rows("sim_events", needed, {"consumed": _truth, "payload": _task_of})
        return tuple(Event(*row) for row in found)

    def _contracts(self) -> tuple[Contract, ...] | None:
        if not self._has("tasks", "id", "status"):
            return None
        required: dict[str, float] = {}
        done: dict[str, float] = {}
        needs: dict[str, dict[str, float]] = {}
        counted = self._has("task_requirements", "task_id", "required_qty", "completed_qty")
        if counted:
            columns = {"task_id": _text, "required_qty": _number, "completed_qty": _number}
            for task, wanted, reached, domain in self._rows("task_requirements", columns, {"domain": _text}):
                required[task] = required.get(task, 0.0) + wanted
                done[task] = done.get(task, 0.0) + reached
                if domain is not None:
                    needs.setdefault(task, {})[domain] = wanted
        optional = {
            "reward_funds_cents": _integer,
            "skill_boost_pct": _number,
            "accepted_at": _moment,
            "deadline": _moment,
            "completed_at": _moment,
            "required_prestige": _integer,
            "reward_prestige_delta": _number,
        }
        found = []
        for *row, prestige, delta in self._rows("tasks", {"id": _text, "status": _text}, optional):
            work = (required.get(row[0], 0.0), done.get(row[0], 0.0)) if counted else (None, None)
            found.append(Contract(*(*row, *work, needs.get(row[0], {}), prestige, delta)))
        return tuple(found)

    def _prestige(self, company_id: str) -> dict[str, float]:
        columns = {"company_id": _text, "domain": _text, "prestige_level": _number}
        if not self._has("company_prestige", *columns):
            return {}
        return {
            domain: level for owner, domain, level in self._rows("company_prestige", columns) if owner == company_id
        }

    def _employees(self) -> tuple[Employee, ...] | None:
        if not self._has("employees", "id", "salary_cents"):
            return None
        rates: dict[str, dict[str, float]] = {}
        if self._has("employee_skill_rates", "employee_id", "domain", "rate_domain_per_hour"):
            columns = {"employee_id": _text, "domain": _text, "rate_domain_per_hour": _number}
            for employee, domain, rate in self._rows("employee_skill_rates", columns):
                rates.setdefault(employee, {})[domain] = rate
        found = self._rows("employees", {"id": _text, "salary_cents": _integer})
        return tuple(Employee(identity, salary, rates.get(identity, {})) for identity, salary in found)


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError
    return value


def _number(value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError
    return float(value)


def _truth(value: object) -> bool:
    if value not in (0, 1):
        raise TypeError
    return bool(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _moment(value: object) -> Moment:
    """`2025-01-01 09:00:00.000000`, as SQLAlchemy writes times."""
    found = Moment.fromisoformat(_text(value))
    return found.astimezone(datetime.UTC).replace(tzinfo=None) if found.tzinfo is not None else found


def _task_of(payload: object) -> str | None:
    """The id of the task that an event's payload names, as the other tables write ids."""
    try:
        found = json.loads(_text(payload))
    except RecursionError:
        raise ValueError from None
    task = found.get("task_id") if isinstance(found, dict) else None
    return task.replace("-", "") if isinstance(task, str) else None


def _line(text: str) -> str:
    return " ".join(text.split())[:200]
