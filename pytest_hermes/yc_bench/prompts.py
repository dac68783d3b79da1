"""What the player is told, written for what the installed yc-bench really offers: its domains, commands and options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

DEAD_COMMANDS = {"task cancel", "report monthly"}
"""Never offered: on SQLite `task cancel` ends in a traceback, and nothing ever fills the monthly report (0.1.0 and the
repository's head alike)."""


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A command as the prompt shows it. `options` are shown in their order, where the installation has them."""

    command: str
    says: str
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Option -> how its value is written; a leading `*`: it is required."""


_OBSERVE = (
    _Entry("company status", "funds, prestige by domain, tasks, next payroll, runway"),
    _Entry("employee list", "salaries, skills by domain, what everybody works on"),
    _Entry(
        "market browse",
        "offers, the best paid first (50 unless --limit says more)",
        {
            "--domain": "DOMAIN",
            "--required-prestige-lte": "N",
            "--reward-min-cents": "N",
            "--limit": "N",
            "--offset": "N",
        },
    ),
    _Entry("client list", "clients and how far they trust the company"),
    _Entry("client history", "how work for the clients went"),
    _Entry("task list", "your own tasks, with progress and deadline", {"--status": "STATUS"}),
    _Entry("task inspect", "one task: requirements, progress, who is on it", {"--task-id": "*ID"}),
    _Entry(
        "finance ledger",
        "what was earned and paid",
        {"--from": "MM/DD/YYYY", "--to": "MM/DD/YYYY", "--category": "CATEGORY"},
    ),
)
_ACT = (
    _Entry("task accept", "take an offer; its deadline starts to run", {"--task-id": "*ID"}),
    _Entry(
        "task assign",
        "put people on an accepted task",
        {"--task-id": "*ID", "--employee-id": "*ID", "--employees": "*NAME,NAME"},
    ),
    _Entry("task dispatch", "start the work; needs at least one assignment", {"--task-id": "*ID"}),
    _Entry("sim resume", "let time pass until the next event"),
)
_REMEMBER = (
    _Entry("scratchpad read", "your notes"),
    _Entry("scratchpad write", "replace them", {"--content": '*"TEXT"'}),
    _Entry("scratchpad append", "add to them", {"--content": '*"TEXT"'}),
    _Entry("scratchpad clear", "empty them"),
)
_GROUPS = (("Look", _OBSERVE), ("Act", _ACT), ("Remember", _REMEMBER))


@dataclasses.dataclass(frozen=True)
class Offer:
    """What an installation offers with one preset, as far as prompts depend on it."""

    commands: Mapping[str, Sequence[str]]
    """`task assign` -> its options."""
    domains: Sequence[str]
    initial_funds_cents: int
    horizon_years: int


def system_prompt(offer: Offer, *, history_keep_rounds: int | None) -> str:
    """The rules of the game and its commands."""
    has_clients = "client list" in offer.commands
    rules = [
        f"You run a young AI company, alone and without anybody to ask. It starts with ${_dollars(offer)} and plays"
        f" {_years(offer.horizon_years)} of simulated time. Stay solvent to the end; then as much money as possible.",
        "",
        "How the company works:",
        f"- Work is offered on a market. A task needs work in one or more of {len(offer.domains)} domains:"
        f" {', '.join(offer.domains)}.",
        "- A task that ends by its deadline pays its reward, raises prestige in its domains and the skills of those who"
        " worked on it. One that ends late pays nothing and costs"
        f" prestige{' and trust, and may cost money' if has_clients else ''}.",
        "- Prestige opens better paid offers: a task asks for a level that the company must have.",
        *(
            ["- Offers come from clients, who trust the company more or less by how their tasks went."]
            if has_clients
            else []
        ),
        "- An employee who is on N running tasks gives each of them an N-th of the working rate. Few tasks at a time"
        " finish sooner than many.",
        "- Work is done on working days between 9:00 and 18:00. Salaries are paid on the first working day of each"
        f" month. If the money is below zero then{' or after a late task' if has_clients else ''}, the company is"
        " bankrupt and everything is over.",
        "- Time stands still until you run `yc-bench sim resume`, which goes to the next event: "
        + (
            "progress on a task, a task done, a payday, or the end. It may refuse while no task is running."
            if has_clients
            else "a task half done, a task done, or the end. With nobody at work the next event is the end, and"
            " salaries are paid until then."
        ),
    ]
    commands = [
        "",
        "You play by shell commands in the `terminal` tool. Each prints JSON. Several may be given at once, as"
        " `yc-bench A && yc-bench B`; they are done in order.",
    ]
    for title, entries in _GROUPS:
        lines = [line for entry in entries if (line := _line(entry, offer.commands)) is not None]
        commands += ["", f"{title}:", *lines] if lines else []
    advice = ["", "A round of play: look at offers, accept what the team can finish in time, assign, dispatch, resume."]
    if history_keep_rounds is not None and any(name.startswith("scratchpad") for name in offer.commands):
        advice.append(
            f"Of this conversation only the last {history_keep_rounds} to {2 * history_keep_rounds - 1} turns stay in"
            " view: write to the scratchpad what has to last."
        )
    advice.append("Go on until `sim resume` says that it is over. An answer without a command ends the run.")
    return "\n".join([*rules, *commands, *advice])


def first_message(offer: Offer, *, preset: str, seed: int, company_name: str) -> str:
    """The user message that a run starts with."""
    browse = "yc-bench market browse"
    if "--required-prestige-lte" in offer.commands.get("market browse", ()):
        browse += " --required-prestige-lte 1"
    return (
        f"A new YC-Bench simulation has been set up (preset {preset}, seed {seed}). Your company '{company_name}' is"
        f" ready.\n\nBegin with `yc-bench company status`, `yc-bench employee list` and `{browse}`. Then accept two or"
        " three tasks that fit, assign employees, dispatch, and run `yc-bench sim resume`. Repeat until the simulation"
        " ends, at its last day or by bankruptcy."
    )


def advanced(turns: int, output: str) -> str:
    """Said when the clock was advanced because the player did not."""
    return (
        f"{turns} turns passed without `yc-bench sim resume`, so it was run for you. It printed:\n{output.strip()}\n"
        "Look at the state of the company and go on."
    )


def _line(entry: _Entry, commands: Mapping[str, Sequence[str]]) -> str | None:
    """A command with the options that the installation has; None for one that it has not, or that is dead."""
    if entry.command not in commands or entry.command in DEAD_COMMANDS:
        return None
    words = [f"yc-bench {entry.command}"]
    for option, value in entry.options.items():
        if option in commands[entry.command]:
            words.append(f"{option} {value[1:]}" if value.startswith("*") else f"[{option} {value}]")
    return f"- `{' '.join(words)}`: {entry.says}"


def _dollars(offer: Offer) -> str:
    return f"{offer.initial_funds_cents / 100:,.0f}"


def _years(count: int) -> str:
    return "one year" if count == 1 else f"{count} years"
