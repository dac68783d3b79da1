"""The verifier of YC-Bench: the composite score of what the agent left, played out to its end where it stopped early.

The books are read on this side, from a copy of the database; the clock runs out in a second copy, in a sandbox that no
agent was in. A simulation that was not only played scores 0, cause `tampering`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_hermes.benchmark import Verdict
from pytest_hermes.errors import VerifierError
from pytest_hermes.sandbox.protocol import OutputTooLarge
from pytest_hermes.yc_bench.company import Company
from pytest_hermes.yc_bench.game import prepared
from pytest_hermes.yc_bench.score import Books, composite, read_ledger, signs_of_tampering, step_reward
from pytest_hermes.yc_bench.tasks import installed

if TYPE_CHECKING:
    from pytest_hermes.benchmark import Verification
    from pytest_hermes.config import EnvSettings
    from pytest_hermes.sandbox.protocol import Sandbox

MAX_DATABASE_BYTES = 128 * 1024 * 1024
KEPT_AS = "yc_bench.db"
MAX_RESUMES = 5_000
DRAIN_MARGIN_S = 10.0
"""Of the verifier's clock, for what is not draining."""


@dataclasses.dataclass(frozen=True)
class Copy:
    """A database as it was at some moment; `missing` says why there is none."""

    database: bytes = b""
    journal: bytes = b""
    missing: str = ""

    def books(self) -> Books:
        return Books(error=self.missing) if self.missing else read_ledger(self.database, self.journal or None)


@dataclasses.dataclass(frozen=True)
class Standing:
    """A company at some moment, and what that is worth."""

    status: str
    survived: bool
    funds_cents: int
    date: str
    horizon_end: str
    reason: str | None
    """`bankruptcy`, `horizon_end`, or `db_error: ...`; None for a company that goes on."""
    score: float
    contracts: dict[str, int]

    @classmethod
    def of(cls, books: Books, env: EnvSettings, initial_funds_cents: int) -> Standing:
        if books.error is not None:
            return cls("INCOMPLETE", False, 0, "", "", f"db_error: {books.error}", 0.0, {})
        score = composite(
            books.funds_cents,
            books.survived,
            initial_funds_cents=initial_funds_cents,
            survival_weight=env.survival_weight,
            funds_weight=env.funds_weight,
        )
        found = books.status
        reason = {"SURVIVED": "horizon_end", "BANKRUPT": "bankruptcy"}.get(found)
        date, end = (f"{moment:%Y-%m-%d}" if moment else "" for moment in (books.sim_time, books.horizon_end))
        taken = [contract.status for contract in books.contracts or () if contract.status != "market"]
        return cls(
            found,
            books.survived,
            books.funds_cents,
            date,
            end,
            reason,
            score,
            {name: taken.count(name) for name in sorted(set(taken))},
        )


async def judge(v: Verification) -> Verdict:
    """See the module docstring. VerifierError where the clock could not run out."""
    company = v.episode
    if not isinstance(company, Company):
        raise VerifierError("no company was founded in this rollout")
    env, initial = v.settings.env, company.beginning.initial_funds_cents
    copy = await _copy(v.sandbox, company.game.database)
    books, edited = await asyncio.to_thread(_audited, copy, company)
    left = end = Standing.of(books, env, initial)
    signs = [*company.signs, *await _rules_changed(v.sandbox, company), *edited]
    if books.error is not None:
        signs.append(f"the database is not one that yc-bench leaves: {books.error}")
    resumes = 0
    if left.status == "INCOMPLETE" and env.yc_on_incomplete == "drain" and not signs:
        copy, resumes = await _played_out(v, copy)
        end = Standing.of(await asyncio.to_thread(copy.books), env, initial)
        if end.status == "INCOMPLETE":
            raise VerifierError(f"the clock did not run out: the company stands at {end.date or end.reason}")
    score = end.score
    if signs or (end.status == "INCOMPLETE" and env.yc_on_incomplete == "fail"):
        score = 0.0
    kept = await asyncio.to_thread(_keep, v, copy) if copy.database else None
    cause, passed = _judged(end, score, env, signs)
    return Verdict(
        score,
        output=_told(left, end, resumes, score),
        evidence=signs,
        cause=cause,
        passed=passed,
        details={
            "yc.preset": str(v.task.data["preset"]),
            "yc.seed": int(v.task.data["seed"]),
            "yc.composite": score,
            "yc.survived": end.survived and not signs,
            "yc.status": end.status,
            "yc.final_funds_cents": end.funds_cents,
            "yc.initial_funds_cents": initial,
            "yc.sim_date": end.date,
            "yc.horizon_end": end.horizon_end,
            "yc.terminal_reason": end.reason,
            "yc.status_as_left": left.status,
            "yc.funds_as_left_cents": left.funds_cents,
            "yc.composite_as_left": left.score,
            "yc.sim_date_as_left": left.date,
            "yc.drain_resumes": resumes,
            "yc.on_incomplete": env.yc_on_incomplete,
            "yc.turns": v.trajectory.turns_used,
            "yc.commands": company.commands,
            "yc.fast_commands": company.fast_commands,
            "yc.tasks_succeeded": end.contracts.get("completed_success", 0),
            "yc.tasks_failed": end.contracts.get("completed_fail", 0),
            "yc.dense_return": step_reward(initial, end.funds_cents, initial, end.status == "BANKRUPT"),
            "yc.init_mode": env.yc_init,
            "yc.package_version": company.game.installation.version,
            "yc.package_sha256": company.game.installation.package_sha256,
            "yc.db": kept,
        },
    )


def _audited(copy: Copy, company: Company) -> tuple[Books, list[str]]:
    """The books that the agent left, and signs that they were edited."""
    books = copy.books()
    at_start = read_ledger(company.founded)
    return books, signs_of_tampering(books, company.beginning.initial_funds_cents, at_start)


def _judged(end: Standing, score: float, env: EnvSettings, signs: list[str]) -> tuple[str | None, bool]:
    """Cause, and whether the item passes."""
    if signs:
        return "tampering", False
    if env.yc_outcome == "report":
        return None, True
    if end.status != "SURVIVED":
        return end.status.lower(), False
    return None, env.yc_min_score is None or score >= env.yc_min_score


def _told(left: Standing, end: Standing, resumes: int, score: float) -> str:
    text = f"{end.status} on {end.date} with {_dollars(end.funds_cents)}, composite {score:.6f}"
    if resumes:
        text += f"; the agent left it on {left.date} with {_dollars(left.funds_cents)}, the clock ran out without it"
    done = ", ".join(f"{count} {name}" for name, count in end.contracts.items())
    return f"{text}; tasks: {done or 'none'}\n"


def _dollars(cents: int) -> str:
    return f"{'-' if cents < 0 else ''}${abs(cents) / 100:,.2f}"


# -- databases -----------------------------------------------------------------------------------------


async def _copy(sandbox: Sandbox, database: str) -> Copy:
    """The database in the sandbox, with the journal of a command that was killed while it wrote."""
    try:
        content = await sandbox.read_file(database, max_bytes=MAX_DATABASE_BYTES)
    except OutputTooLarge:
        return Copy(missing=f"it is larger than {MAX_DATABASE_BYTES // 2**20} MB")
    except OSError as error:
        return Copy(missing="db_missing" if isinstance(error, FileNotFoundError) else f"not a file ({error.strerror})")
    try:
        journal = await sandbox.read_file(f"{database}-journal", max_bytes=MAX_DATABASE_BYTES)
    except (OSError, OutputTooLarge):
        journal = b""
    return Copy(content, journal)


async def _rules_changed(sandbox: Sandbox, company: Company) -> list[str]:
    """A sign, if the file of the preset that the agent could write is not ours any more."""
    rules, used = company.game.own_rules, company.game.experiment
    if rules is None:
        return []
    wanted = await asyncio.to_thread(rules.read_bytes)
    try:
        found = await sandbox.read_file(used, max_bytes=2 * len(wanted))
    except (OSError, OutputTooLarge):
        found = b""
    return [] if found == wanted else [f"the file of the preset, {used}, was changed"]


async def _played_out(v: Verification, left: Copy) -> tuple[Copy, int]:
    """What becomes of the company when nobody acts any more, and how often the clock was let run for that.

    In a sandbox of its own: what the agent left running could stop the clock, or go on acting.
    """
    assert v.another_sandbox is not None
    async with v.another_sandbox() as sandbox:
        game, _ = await prepared(sandbox, installed(v.settings), v.task.data)
        await sandbox.write_file(game.database, left.database, mode=0o600)
        if left.journal:
            await sandbox.write_file(f"{game.database}-journal", left.journal, mode=0o600)
        simulation = await game.simulation(sandbox, game.database, isolated=True)
        try:
            timeout_s = max(1.0, v.timeout_s - DRAIN_MARGIN_S)
            drained = await simulation.drain(max_resumes=MAX_RESUMES, timeout_s=timeout_s)
        finally:
            await simulation.aclose()
        if drained.terminal_reason is None:
            raise VerifierError(f"the clock did not run out after {drained.resumes} resumes: {drained.error}")
        return await _copy(sandbox, game.database), drained.resumes


def _keep(v: Verification, copy: Copy) -> str:
    """Keep the database that was scored with the run, and where `env.db_dir` says; its name in the artifacts."""
    assert v.keep is not None
    kept = v.keep(KEPT_AS, copy.database)
    if copy.journal:
        v.keep(f"{KEPT_AS}-journal", copy.journal)
    if v.settings.env.db_dir:
        folder = Path(v.settings.env.db_dir).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        name = f"yc_bench_{v.task.data['preset']}_seed{v.task.data['seed']}_{secrets.token_hex(4)}.db"
        (folder / name).write_bytes(copy.database)
    return kept.name
