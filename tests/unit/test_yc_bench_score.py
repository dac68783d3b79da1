"""Scores of YC-Bench, and what is read from databases that an agent may have written."""

from __future__ import annotations

import contextlib
import datetime
import json
import shlex
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hermes.yc_bench import books as books_module
from pytest_hermes.yc_bench import simulator
from pytest_hermes.yc_bench.answers import state_of
from pytest_hermes.yc_bench.business_time import CLOSING_HOUR, MIDNIGHT, business_hours
from pytest_hermes.yc_bench.score import Books, composite, read_ledger, signs_of_tampering, step_reward

INITIAL = 25_000_000

# -- the composite score ---------------------------------------------------------------------------------------------

CURVE = [  # measured with hermes-agent's formula: cents, survived, score
    (-1, False, 0.0),
    (0, True, 0.5),
    (1, True, 0.5000000043335813),
    (12_500_000, True, 0.5439279003255237),
    (25_000_000, True, 0.575095241611844),
    (25_000_000, False, 0.07509524161184397),
    (250_000_000, True, 0.7597868532412204),
    (2_500_000_000, True, 1.0),
    (5_000_000_000, True, 1.0),
]
HEAVIER_SURVIVAL = [
    (-1, False, 0.0),
    (0, True, 0.7),
    (1, True, 0.7000000026001487),
    (12_500_000, True, 0.7263567401953142),
    (25_000_000, True, 0.7450571449671063),
    (25_000_000, False, 0.04505714496710638),
    (250_000_000, True, 0.8558721119447321),
    (2_500_000_000, True, 1.0),
]


@pytest.mark.parametrize(("cents", "survived", "score"), CURVE)
def test_the_curve(cents, survived, score):
    assert composite(cents, survived, initial_funds_cents=INITIAL) == pytest.approx(score, abs=1e-12)


@pytest.mark.parametrize(("cents", "survived", "score"), HEAVIER_SURVIVAL)
def test_the_curve_with_other_weights(cents, survived, score):
    weights = {"survival_weight": 0.7, "funds_weight": 0.3}
    assert composite(cents, survived, initial_funds_cents=INITIAL, **weights) == pytest.approx(score, abs=1e-12)


CENTS = st.integers(-(10**18), 10**18)
FUNDS = st.integers(1, 10**15)


@given(CENTS, st.booleans(), FUNDS, st.floats(0, 1))
def test_it_is_a_reward(cents, survived, initial, weight):
    score = composite(cents, survived, initial_funds_cents=initial, survival_weight=weight, funds_weight=1 - weight)
    assert 0.0 <= score <= 1.0


@given(CENTS, CENTS, st.booleans(), FUNDS)
def test_more_funds_never_score_less(some, more, survived, initial):
    low, high = sorted((some, more))
    assert composite(low, survived, initial_funds_cents=initial) <= composite(
        high, survived, initial_funds_cents=initial
    )


@given(CENTS, FUNDS)
def test_survival_adds_its_weight(cents, initial):
    gain = composite(cents, True, initial_funds_cents=initial) - composite(cents, False, initial_funds_cents=initial)
    assert gain == pytest.approx(0.5)


def test_initial_funds_are_positive():
    with pytest.raises(ValueError, match="initial funds of 0 cents"):
        composite(1, True, initial_funds_cents=0)


@given(st.lists(CENTS, min_size=1), FUNDS, st.booleans())
def test_step_rewards_add_up(balances, initial, bankrupt):
    steps = list(zip([initial, *balances], balances, strict=False))
    rewards = [step_reward(a, b, initial, bankrupt and i == len(steps) - 1) for i, (a, b) in enumerate(steps)]
    whole = (balances[-1] - initial) / initial - (1.0 if bankrupt else 0.0)
    assert sum(rewards) == pytest.approx(whole, rel=1e-6, abs=1e-6 * (1 + max(map(abs, balances)) / initial))


# -- a database as yc-bench 0.1.0 makes it, in small -------------------------------------------------------------------

SCHEMA = """
    CREATE TABLE companies (id CHAR(32) NOT NULL PRIMARY KEY, name VARCHAR(255), funds_cents BIGINT NOT NULL);
    CREATE TABLE sim_state (company_id CHAR(32) NOT NULL PRIMARY KEY, sim_time DATETIME, run_seed INTEGER,
        horizon_end DATETIME, replenish_counter INTEGER);
    CREATE TABLE sim_events (id CHAR(32) NOT NULL PRIMARY KEY, company_id CHAR(32), event_type VARCHAR(18),
        scheduled_at DATETIME, payload JSON, dedupe_key VARCHAR(255), consumed BOOLEAN);
    CREATE TABLE ledger_entries (id CHAR(32) NOT NULL PRIMARY KEY, company_id CHAR(32), occurred_at DATETIME,
        category VARCHAR(19), amount_cents BIGINT NOT NULL, ref_type VARCHAR(64), ref_id CHAR(32));
    CREATE TABLE tasks (id CHAR(32) NOT NULL PRIMARY KEY, status VARCHAR(17), reward_funds_cents BIGINT);
    INSERT INTO companies VALUES ('c', 'BenchCo', 25000100);
    INSERT INTO sim_state VALUES ('c', '2025-02-03 09:00:00.000000', 1, '2026-01-01 09:00:00.000000', 0);
    INSERT INTO sim_events VALUES ('e', 'c', 'horizon_end', '2026-01-01 09:00:00.000000', '{}', 'horizon_end', 0);
    INSERT INTO ledger_entries VALUES ('l', 'c', '2025-02-03 09:00:00.000000', 'task_reward', 100, 'task', 't');
    INSERT INTO tasks VALUES ('t', 'completed_success', 100), ('u', 'market', 5), ('v', 'market', 6);
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.db"
    edit(path, SCHEMA)
    return path


def edit(path: Path, script: str) -> Path:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def test_what_the_books_say(small):
    found = read_ledger(small.read_bytes())
    assert found.error is None and found.company_id == "c" and found.companies == 1
    assert found.funds_cents == 25_000_100 and found.run_seed == 1
    assert (str(found.sim_time), str(found.horizon_end)) == ("2025-02-03 09:00:00", "2026-01-01 09:00:00")
    assert found.bankrupt_at is None and found.horizon_consumed is False
    assert (found.ledger_total_cents, found.ledger_count) == (100, 1)
    assert found.tasks == {"completed_success": 1, "market": 2}
    assert found.employees is None
    assert found.status == "INCOMPLETE" and found.survived


@pytest.mark.parametrize(
    ("script", "status", "survived"),
    [
        ("", "INCOMPLETE", True),
        ("UPDATE sim_state SET sim_time = horizon_end", "SURVIVED", True),
        ("UPDATE companies SET funds_cents = 0; UPDATE sim_state SET sim_time = horizon_end", "SURVIVED", True),
        ("UPDATE companies SET funds_cents = -1; UPDATE sim_state SET sim_time = horizon_end", "BANKRUPT", False),
        (
            "INSERT INTO sim_events VALUES ('b', 'c', 'bankruptcy', '2025-02-03 09:00:00', '{}', NULL, 1)",
            "BANKRUPT",
            False,
        ),
        (
            """INSERT INTO ledger_entries VALUES
                ('m', 'c', '2025-01-06 12:00:00', 'task_reward', -25000001, 'task', 'w'),
                ('n', 'c', '2025-01-07 12:00:00', 'task_reward', 25000001, 'task', 'x')""",
            "BANKRUPT",
            False,
        ),
    ],
    ids=[
        *("stopped early", "at the end", "at the end with nothing", "below zero", "played on after a bankruptcy"),
        "played on after a fine that could not be paid",
    ],
)
def test_status(small, script, status, survived):
    found = read_ledger(edit(small, script).read_bytes())
    assert (found.status, found.survived) == (status, survived)
    now = state_of(simulator.state_of(str(small)))
    assert not now.error and (now.bankrupt_at is None and now.funds_cents >= 0) == survived


def test_unreadable_books_have_no_status():
    found = read_ledger(b"")
    assert found.error == "the file is empty" and not found.survived and found.funds_cents == 0
    with pytest.raises(ValueError, match="no books: the file is empty"):
        _ = found.status
    assert signs_of_tampering(found, INITIAL) == []


def test_times_with_a_zone_are_those_without(small):
    edit(small, "UPDATE sim_state SET sim_time = '2025-02-03 10:00:00+01:00'")
    assert str(read_ledger(small.read_bytes()).sim_time) == "2025-02-03 09:00:00"


def test_a_command_that_was_killed_is_taken_back(small, tmp_path):
    connection = sqlite3.connect(small, isolation_level=None)
    connection.executescript(
        "PRAGMA cache_size=1; CREATE TABLE filler (x); BEGIN; UPDATE companies SET funds_cents = 1;"
    )
    for _ in range(50):
        connection.execute("INSERT INTO filler VALUES (randomblob(4000))")
    database, journal = small.read_bytes(), (tmp_path / "small.db-journal").read_bytes()
    connection.close()
    assert read_ledger(database, journal).funds_cents == 25_000_100
    assert read_ledger(database, journal).error is None
    found = read_ledger(database)
    assert found.error is not None or found.funds_cents == 1


# -- hostile files -----------------------------------------------------------------------------------------------------

BOMB = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"
HOSTILE = {
    "a view in place of a table": (
        f"DROP TABLE companies; CREATE VIEW companies AS SELECT 'c' AS id, ({BOMB}) AS funds_cents",
        "it holds a view 'companies', which yc-bench does not make",
    ),
    "a trigger": (
        "CREATE TRIGGER gift AFTER UPDATE ON sim_state BEGIN UPDATE companies SET funds_cents = 9; END",
        "it holds a trigger 'gift', which yc-bench does not make",
    ),
    "a virtual table": (
        "CREATE VIRTUAL TABLE extra USING fts5(x)",
        "it holds a table 'extra', which yc-bench does not make",
    ),
    "a computed column": (
        "ALTER TABLE companies ADD COLUMN more AS (hex(zeroblob(100000000)))",
        "table 'companies' has computed columns, which yc-bench does not make",
    ),
    "no table": ("DROP TABLE ledger_entries", "it has no table ledger_entries"),
    "no column": ("ALTER TABLE companies DROP COLUMN funds_cents", "table companies has no column funds_cents"),
    "no company": ("DELETE FROM companies", "it holds no simulation"),
    "no simulation": ("DELETE FROM sim_state", "it holds no simulation"),
    "another company": ("UPDATE companies SET id = 'd'", "the company of its simulation is not there"),
    "two simulations": (
        "INSERT INTO sim_state VALUES ('d', '2025-02-03 09:00:00', 1, '2026-01-01 09:00:00', 0)",
        "it holds 2 simulations",
    ),
    "funds that are text": ("UPDATE companies SET funds_cents = 'lots'", "companies.funds_cents holds 'lots'"),
    "funds that are no whole number": ("UPDATE companies SET funds_cents = 0.5", "companies.funds_cents holds '0.5'"),
    "funds that are infinite": ("UPDATE companies SET funds_cents = 9e999", "companies.funds_cents holds 'inf'"),
    "funds that are bytes": ("UPDATE companies SET funds_cents = x'00ff'", "companies.funds_cents holds"),
    "a time that is none": ("UPDATE sim_state SET sim_time = 'later'", "sim_state.sim_time holds 'later'"),
    "a time that is a number": ("UPDATE sim_state SET sim_time = 5", "sim_state.sim_time holds '5'"),
    "a time at the edge": (
        "UPDATE sim_state SET sim_time = '0001-01-01 00:00:00+14:00'",
        "sim_state.sim_time holds '0001-01-01 00:00:00+14:00'",
    ),
    "a payload that is nested": (
        f"UPDATE sim_events SET payload = '{'[' * 100_000}'",
        "sim_events.payload holds '[[[",
    ),
    "a value that is huge": (
        "UPDATE tasks SET status = printf('%.*c', 5000000, 'x')",
        "SQLite: string or blob too big",
    ),
    "more rows than a run has": (
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 250000)"
        " INSERT INTO tasks SELECT x, 'market', 1 FROM n",
        "it holds more than 200,000 rows in one table",
    ),
    "write-ahead mode": ("PRAGMA journal_mode=WAL", "it is in write-ahead mode, which yc-bench does not use"),
    "a schema that is no SQL": (
        "PRAGMA writable_schema=ON; UPDATE sqlite_master SET sql = 'CREATE TABLE nonsense(' WHERE name = 'tasks'",
        "SQLite: malformed database schema",
    ),
    "tables in each other's place": (
        "PRAGMA writable_schema=ON; UPDATE sqlite_master SET rootpage = 2 WHERE name = 'tasks'",
        "it is damaged: ",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_database_is_an_error(small, case):
    script, error = HOSTILE[case]
    edit(small, script)
    found = read_ledger(small.read_bytes())
    assert found == Books(error=found.error)
    assert found.error.startswith(error) and "\n" not in found.error


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "the file is empty"),
        (b"SQLite format 3\0", "the file is not an SQLite database"),
        (b"x" * 5000, "the file is not an SQLite database"),
        (b"SQLite format 3\0\x10\x00\x01\x01" + b"\xff" * 8000, "SQLite: "),
    ],
)
def test_what_is_no_database(content, error):
    assert read_ledger(content).error.startswith(error)


def test_a_file_that_is_too_large(small, monkeypatch):
    monkeypatch.setattr(books_module, "MAX_BYTES", 1024 * 1024)
    edit(small, "CREATE TABLE filler (x); INSERT INTO filler VALUES (zeroblob(2000000))")
    assert read_ledger(small.read_bytes()).error == "the file has more than 1 MB"


def test_reading_has_a_deadline(small):
    rows = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 190000) "
    edit(small, rows + "INSERT INTO tasks SELECT x, 'market', 1 FROM n")
    began = time.monotonic()
    assert read_ledger(small.read_bytes(), deadline_s=0.01).error == "it could not be read within 0.01 s"
    assert time.monotonic() - began < 5


def test_a_message_of_sqlite_that_is_no_text(small):
    edit(
        small,
        "PRAGMA writable_schema = 1;"
        "INSERT INTO sqlite_master VALUES ('table', CAST(X'80' AS TEXT), CAST(X'80' AS TEXT), 2, 'CREATE nonsense')",
    )
    assert read_ledger(small.read_bytes()).error == "it holds what cannot be read (UnicodeDecodeError)"


@given(st.data())
def test_a_damaged_file_never_raises(data):
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        content = bytearray(connection.serialize())
    for _ in range(data.draw(st.integers(1, 30))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    for found in (read_ledger(bytes(content)), read_ledger(bytes(content[:cut]))):
        assert found.error is None or (found.error and "\n" not in found.error)


def test_a_journal_that_names_another_file_is_refused(small, tmp_path):
    """SQLite deletes the file that such a journal names, once nothing else names it."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    name = str(victim).encode()
    record = name + len(name).to_bytes(4, "big") + sum(name).to_bytes(4, "big") + books_module.JOURNAL_MAGIC
    header = books_module.JOURNAL_MAGIC + (0).to_bytes(4, "big") * 2 + (5).to_bytes(4, "big")
    journal = header + (512).to_bytes(4, "big") + (4096).to_bytes(4, "big")
    journal = journal.ljust(512, b"\0") + record
    assert read_ledger(small.read_bytes(), journal).error == "its journal is one of several databases at once"
    assert victim.read_text() == "precious"


@given(st.binary(max_size=2000))
def test_a_journal_of_anything_never_raises(journal):
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        content = connection.serialize()
    for start in (b"", books_module.JOURNAL_MAGIC):
        found = read_ledger(content, start + journal)
        assert found.error is None or "\n" not in found.error


def test_later_versions_have_other_columns_and_tables(small):
    edit(small, "CREATE TABLE clients (id); ALTER TABLE sim_events DROP COLUMN consumed; DROP TABLE tasks")
    found = read_ledger(small.read_bytes())
    assert found.error is None and found.contracts is None and found.horizon_consumed is None
    assert signs_of_tampering(found, INITIAL) == []
    edit(small, "UPDATE companies SET funds_cents = 90000000")
    assert signs_of_tampering(read_ledger(small.read_bytes()), INITIAL) == [
        "the company has $900,000.00, but its ledger adds up to $250,001.00"
    ]


# -- tampering, on runs of the real simulation -------------------------------------------------------------------------


class Simulation:
    """yc-bench 0.1.0 in this process, on one database."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, preset: str, seed: int) -> None:
        from typer.testing import CliRunner
        from yc_bench.cli import app
        from yc_bench.db.session import build_engine, init_db

        self.path, self._runner, self._app = path, CliRunner(), app
        monkeypatch.setenv("DATABASE_URL", f"sqlite:///{path}")
        monkeypatch.setenv("YC_BENCH_EXPERIMENT", preset)
        engine = build_engine()
        init_db(engine)
        engine.dispose()
        self.run(f"sim init --seed {seed} --start-date 01/01/2025 --company-name BenchCo --horizon-years 1")
        self.start = self.books()

    def run(self, command: str) -> dict:
        return json.loads(self._runner.invoke(self._app, shlex.split(command)).stdout or "{}")

    def books(self) -> Books:
        found = read_ledger(self.path.read_bytes())
        assert found.error is None
        return found

    def play(self, resumes: int, width: int = 1) -> None:
        """The best-paid offers, `width` at a time, the whole team on each."""
        level = max(self.run("company status")["prestige"].values())
        staff = self.run("employee list")["employees"]
        while resumes > 0:
            offers = self.run(f"market browse --required-prestige-lte {int(level)} --limit 50")["tasks"]
            for offer in offers[:width]:
                self.run(f"task accept --task-id {offer['task_id']}")
                for employee in staff:
                    self.run(f"task assign --task-id {offer['task_id']} --employee-id {employee['employee_id']}")
                self.run(f"task dispatch --task-id {offer['task_id']}")
            for _ in range(2 * width):
                resumes -= 1
                self.run("sim resume")

    def drain(self) -> None:
        while self.run("sim resume")["terminal_reason"] is None:
            pass


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Books]]:
    """A run of some months with rewards and payrolls, and its books at the start."""
    pytest.importorskip("yc_bench", reason="yc-bench needs Python 3.12")
    with pytest.MonkeyPatch.context() as monkeypatch:
        simulation = Simulation(tmp_path_factory.mktemp("yc") / "played.db", monkeypatch, "fast_test", 1)
        simulation.play(12)
        yield simulation.path, simulation.start


@pytest.mark.parametrize(("preset", "seed"), [("fast_test", 1), ("hard", 2)])
def test_honest_runs_show_no_sign(tmp_path, monkeypatch, preset, seed):
    pytest.importorskip("yc_bench", reason="yc-bench needs Python 3.12")
    simulation = Simulation(tmp_path / "yc.db", monkeypatch, preset, seed)
    moments = [simulation.books()]
    simulation.play(2, width=3 if seed == 2 else 1)
    moments.append(simulation.books())
    simulation.drain()
    moments.append(simulation.books())
    simulation.play(2)  # on, also after the end
    moments.append(simulation.books())
    for found in moments:
        assert signs_of_tampering(found, INITIAL) == []
        assert signs_of_tampering(found, INITIAL, simulation.start) == []
        assert found.funds_cents == INITIAL + found.ledger_total_cents


def test_doing_nothing_ends_bankrupt(tmp_path, monkeypatch):
    pytest.importorskip("yc_bench", reason="yc-bench needs Python 3.12")
    simulation = Simulation(tmp_path / "yc.db", monkeypatch, "fast_test", 1)
    found = simulation.books()
    assert found.status == "INCOMPLETE"
    as_is = composite(found.funds_cents, found.survived, initial_funds_cents=INITIAL)
    assert as_is == pytest.approx(0.575095241611844, abs=1e-12)  # hermes-agent's score of quitting at once
    simulation.drain()
    found = simulation.books()
    assert (found.status, found.funds_cents, str(found.bankrupt_at)) == ("BANKRUPT", -491_336, "2025-09-01 09:00:00")
    assert composite(found.funds_cents, found.survived, initial_funds_cents=INITIAL) == 0.0


REWARD = "SELECT id FROM ledger_entries WHERE category = 'task_reward' LIMIT 1"
FORGED = {
    "funds": ("UPDATE companies SET funds_cents = 99900000000", "but its ledger adds up to"),
    "a reward of its own": (
        "UPDATE companies SET funds_cents = funds_cents + 5; INSERT INTO ledger_entries"
        " SELECT 'x', company_id, occurred_at, 'task_reward', 5, 'task', 'y' FROM ledger_entries LIMIT 1",
        "a reward of $0.05 is for no task that was completed in time",
    ),
    "a reward that is larger": (
        "UPDATE companies SET funds_cents = funds_cents + 500;"
        f"UPDATE ledger_entries SET amount_cents = amount_cents + 500 WHERE id = ({REWARD})",
        "is not that of its task",
    ),
    "a reward twice": (
        "UPDATE companies SET funds_cents = funds_cents + (SELECT amount_cents FROM ledger_entries WHERE id ="
        f" ({REWARD})); INSERT INTO ledger_entries SELECT 'x', company_id, occurred_at, category, amount_cents,"
        f" ref_type, ref_id FROM ledger_entries WHERE id = ({REWARD})",
        "a task was rewarded 2 times",
    ),
    "a reward larger with its task": (
        "UPDATE companies SET funds_cents = funds_cents + 500;"
        "UPDATE tasks SET reward_funds_cents = reward_funds_cents + 500 WHERE id = (SELECT ref_id FROM ledger_entries"
        f" WHERE id = ({REWARD})); UPDATE ledger_entries SET amount_cents = amount_cents + 500 WHERE id = ({REWARD})",
        "a task's reward is",
    ),
    "a grant": (
        "UPDATE companies SET funds_cents = funds_cents + 500; INSERT INTO ledger_entries"
        " SELECT 'x', company_id, occurred_at, 'task_fail_penalty', 500, NULL, NULL FROM ledger_entries LIMIT 1",
        "the ledger has an entry of the kind 'task_fail_penalty', which is never written",
    ),
    "no payroll": (
        "UPDATE companies SET funds_cents = funds_cents - (SELECT sum(amount_cents) FROM ledger_entries WHERE"
        " category = 'monthly_payroll'); DELETE FROM ledger_entries WHERE category = 'monthly_payroll'",
        "the payroll of 2025-02-03 is missing",
    ),
    "a payroll without somebody": (
        "CREATE TEMP TABLE one AS SELECT id, amount_cents FROM ledger_entries WHERE category = 'monthly_payroll'"
        " LIMIT 1;"
        "UPDATE companies SET funds_cents = funds_cents - (SELECT amount_cents FROM one);"
        "DELETE FROM ledger_entries WHERE id = (SELECT id FROM one)",
        "is not one payment to each employee",
    ),
    "salaries of nothing": ("UPDATE employees SET salary_cents = 0", "somebody's salary is"),
    "a stronger team": ("UPDATE employee_skill_rates SET rate_domain_per_hour = 1000", "somebody's rate in "),
    "lighter work": ("UPDATE task_requirements SET required_qty = 200, completed_qty = 0", "of work, it needed"),
    "dearer offers": (
        "UPDATE tasks SET reward_funds_cents = reward_funds_cents * 10 WHERE status = 'market'",
        "a task's reward is",
    ),
    "a deadline that passed": (
        "UPDATE tasks SET deadline = accepted_at WHERE status = 'completed_success'",
        "a task that is completed was not between its acceptance and its deadline",
    ),
    "the clock put forward": (
        "UPDATE sim_state SET sim_time = horizon_end",
        "the clock stands at the end of the horizon, but that end was never processed",
    ),
    "the clock put beyond": ("UPDATE sim_state SET sim_time = '2027-01-01 09:00:00'", "after the end of the horizon"),
    "the horizon drawn near": ("UPDATE sim_state SET horizon_end = sim_time", "the end of the horizon is"),
    "another seed": ("UPDATE sim_state SET run_seed = 9", "the seed is 9, it was 1 at the start"),
    "a second company": ("INSERT INTO companies VALUES ('x', 'X', 1)", "there are 2 companies, not one"),
    "a column less": ("ALTER TABLE ledger_entries DROP COLUMN ref_id", "the column ledger_entries.ref_id is gone"),
    "a table more": ("CREATE TABLE clients (id)", "there is a table clients that was not there at the start"),
    "prestige of its own": (
        "UPDATE company_prestige SET prestige_level = 10 WHERE domain = 'hardware'",
        "the prestige in hardware is 10, completed tasks give ",
    ),
    "prestige in a domain of its own": (
        "PRAGMA ignore_check_constraints = ON; INSERT INTO company_prestige SELECT company_id, 'sales', 11 FROM"
        " company_prestige LIMIT 1",
        "the company's prestige is not in the domains of yc-bench",
    ),
    "work without end": (
        "PRAGMA ignore_check_constraints = ON; UPDATE task_requirements SET required_qty = 1.7e308",
        "of work, it needed",
    ),
    "a task that was out of reach": (
        "UPDATE tasks SET required_prestige = 9 WHERE id = (SELECT id FROM tasks WHERE accepted_at IS NOT NULL"
        " ORDER BY accepted_at LIMIT 1)",
        "a task that needs prestige 9 was accepted with 1.00 at most",
    ),
    "more prestige for a task": (
        "UPDATE tasks SET reward_prestige_delta = 5 WHERE status = 'market'",
        "a task gives prestige 5.0, it gave ",
    ),
    "work that did not take the time": (
        "UPDATE tasks SET accepted_at = completed_at, deadline = '2030-01-01 09:00:00.000000'"
        " WHERE status = 'completed_success'",
        "a task was done in 0.0 hours that needs ",
    ),
    "a later deadline": (
        "UPDATE tasks SET deadline = '2026-01-01 09:00:00.000000' WHERE status = 'completed_success'",
        "a task's deadline, 2026-01-01 09:00:00, is not by the rules of easy or fast_test",
    ),
    "fewer offers": ("DELETE FROM tasks WHERE status = 'market'", "a task of the first market is gone"),
}


@pytest.mark.parametrize("case", FORGED)
def test_forged_books_show(played, tmp_path, case):
    path, start = played
    script, sign = FORGED[case]
    forged = edit(Path(shutil.copy(path, tmp_path / "forged.db")), script)
    signs = signs_of_tampering(read_ledger(forged.read_bytes()), INITIAL, start)
    assert any(sign in found for found in signs), signs
    assert signs_of_tampering(read_ledger(path.read_bytes()), INITIAL, start) == []


OWN_RULES = """
extends = "fast_test"
[world]
deadline_min_biz_days = {days}
[world.dist.reward_funds_cents]
type = "constant"
value = {cents}
[world.dist.required_prestige]
type = "constant"
value = 1
"""


def accept(simulation: Simulation) -> str:
    (offer,) = simulation.run("market browse --required-prestige-lte 1 --limit 1")["tasks"]
    return str(simulation.run(f"task accept --task-id {offer['task_id']}")["task_id"])


@pytest.mark.parametrize(
    ("days", "cents", "sign"),
    [
        (7, 9_000_000_000, "a task pays $90,000,000.00, more than the rules of easy or fast_test can give it"),
        (7, 10_000_001, None),
        (7, 10_000_002, "a task pays $100,000.02, more than the rules of easy or fast_test can give it"),
        (200, 500_000, "a task's deadline, 2025-10-07 18:00:00, is not by the rules of easy or fast_test"),
    ],
)
def test_rules_of_its_own_show(tmp_path, monkeypatch, days, cents, sign):
    pytest.importorskip("yc_bench", reason="yc-bench needs Python 3.12")
    simulation = Simulation(tmp_path / "yc.db", monkeypatch, "fast_test", 1)
    own = tmp_path / "own.toml"
    own.write_text(OWN_RULES.format(days=days, cents=cents))
    monkeypatch.setenv("YC_BENCH_EXPERIMENT", str(own))
    accept(simulation)
    signs = signs_of_tampering(simulation.books(), INITIAL, simulation.start)
    assert signs == ([sign] if sign else [])


def test_rules_of_its_own_show_without_the_start_where_no_preset_has_them(tmp_path, monkeypatch):
    pytest.importorskip("yc_bench", reason="yc-bench needs Python 3.12")
    simulation = Simulation(tmp_path / "yc.db", monkeypatch, "fast_test", 1)
    own = tmp_path / "own.toml"
    own.write_text(OWN_RULES.format(days=7, cents=9_000_000_000))
    monkeypatch.setenv("YC_BENCH_EXPERIMENT", str(own))
    accept(simulation)
    assert signs_of_tampering(simulation.books(), INITIAL) == [
        "a task pays $90,000,000.00, more than the rules of any preset can give it"
    ]


@pytest.mark.parametrize("other", ["tutorial", "nightmare", "high_reward", "default"])
def test_rules_of_another_preset_show(tmp_path, monkeypatch, other):
    pytest.importorskip("yc_bench", reason="yc-bench needs Python 3.12")
    simulation = Simulation(tmp_path / "yc.db", monkeypatch, "medium", 1)
    accept(simulation)
    assert signs_of_tampering(simulation.books(), INITIAL, simulation.start) == []
    monkeypatch.setenv("YC_BENCH_EXPERIMENT", other)
    for _ in range(8):
        accept(simulation)
    signs = signs_of_tampering(simulation.books(), INITIAL, simulation.start)
    assert signs and all("the rules of medium" in sign for sign in signs)


def test_work_that_was_written_in_shows(tmp_path, monkeypatch):
    """A task that is nearly done when it is dispatched is over at once."""
    pytest.importorskip("yc_bench", reason="yc-bench needs Python 3.12")
    simulation = Simulation(tmp_path / "yc.db", monkeypatch, "fast_test", 1)
    task = accept(simulation)
    edit(simulation.path, "UPDATE task_requirements SET completed_qty = required_qty - 1")
    for employee in simulation.run("employee list")["employees"]:
        simulation.run(f"task assign --task-id {task} --employee-id {employee['employee_id']}")
    simulation.run(f"task dispatch --task-id {task}")
    while simulation.books().tasks.get("completed_success", 0) == 0:
        simulation.run("sim resume")
    (sign,) = signs_of_tampering(simulation.books(), INITIAL, simulation.start)
    assert sign.startswith("a task was done in 0.0 hours that needs ")


def test_prestige_that_was_used_and_put_back_shows(tmp_path, monkeypatch):
    pytest.importorskip("yc_bench", reason="yc-bench needs Python 3.12")
    simulation = Simulation(tmp_path / "yc.db", monkeypatch, "fast_test", 1)
    edit(simulation.path, "UPDATE company_prestige SET prestige_level = 10")
    offers = simulation.run("market browse --limit 100")["tasks"]
    offer = next(offer for offer in offers if offer["required_prestige"] == 4)
    simulation.run(f"task accept --task-id {offer['task_id']}")
    edit(simulation.path, "UPDATE company_prestige SET prestige_level = 1")
    for start in (simulation.start, None):
        assert signs_of_tampering(simulation.books(), INITIAL, start) == [
            "a task that needs prestige 4 was accepted with 1.00 at most"
        ]


@pytest.mark.parametrize(
    ("start", "end", "to_six", "to_midnight"),
    [
        ("2025-01-01 09:00", "2025-01-01 09:00", 0, 0),
        ("2025-01-01 10:30", "2025-01-01 12:00", 1.5, 1.5),
        ("2025-01-01 08:00", "2025-01-01 23:00", 9, 14),
        ("2025-01-03 17:00", "2025-01-06 10:00", 2, 8),
        ("2025-01-04 12:00", "2025-01-05 12:00", 0, 0),
        ("2025-01-01 09:00", "2025-01-08 09:00", 45, 75),
        ("0001-01-01 00:00", "9999-12-31 23:59", 9 * 2_608_615, pytest.approx(15 * 2_608_615, abs=0.1)),
    ],
)
def test_hours_of_work(start, end, to_six, to_midnight):
    moments = [datetime.datetime.fromisoformat(moment) for moment in (start, end)]
    assert business_hours(*moments, CLOSING_HOUR) == to_six
    assert business_hours(*moments, MIDNIGHT) == to_midnight


@pytest.mark.parametrize("column", ["company_prestige.prestige_level", "task_requirements.domain"])
def test_without_what_they_need_there_are_no_checks_of_rules(played, tmp_path, column):
    table, _, name = column.partition(".")
    script = f"ALTER TABLE {table} RENAME COLUMN {name} TO other; UPDATE tasks SET deadline = '2030-01-01 09:00:00'"
    books = read_ledger(edit(Path(shutil.copy(played[0], tmp_path / "other.db")), script).read_bytes())
    assert books.error is None and signs_of_tampering(books, INITIAL) == []


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("UPDATE tasks SET required_prestige = 'x'", "tasks.required_prestige holds 'x'"),
        ("UPDATE tasks SET reward_prestige_delta = 9e999", "tasks.reward_prestige_delta holds 'inf'"),
        ("UPDATE company_prestige SET prestige_level = x'00'", "company_prestige.prestige_level holds "),
        ("UPDATE task_requirements SET domain = x'00'", "task_requirements.domain holds "),
    ],
)
def test_prestige_and_work_of_another_type_are_errors(played, tmp_path, script, error):
    script = f"PRAGMA ignore_check_constraints = ON; {script}"
    if "domain" in script:
        script += " WHERE rowid = 1"
    books = read_ledger(edit(Path(shutil.copy(played[0], tmp_path / "other.db")), script).read_bytes())
    assert books.error is not None and books.error.startswith(error)


def test_a_bankruptcy_that_was_struck_out_shows(tmp_path, monkeypatch):
    pytest.importorskip("yc_bench", reason="yc-bench needs Python 3.12")
    simulation = Simulation(tmp_path / "yc.db", monkeypatch, "fast_test", 1)
    simulation.drain()
    edit(simulation.path, "DELETE FROM sim_events WHERE event_type = 'bankruptcy'")
    assert signs_of_tampering(simulation.books(), INITIAL) == [
        "on 2025-09-01 the company was down to -$4,913.36, but no bankruptcy is on record"
    ]


def test_another_simulation_shows(tmp_path, monkeypatch):
    pytest.importorskip("yc_bench", reason="yc-bench needs Python 3.12")
    first = Simulation(tmp_path / "first.db", monkeypatch, "fast_test", 1)
    second = Simulation(tmp_path / "second.db", monkeypatch, "fast_test", 1)
    assert signs_of_tampering(second.books(), INITIAL, first.start) == [
        "it is another simulation than the one that was started"
    ]
