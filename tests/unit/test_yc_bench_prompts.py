"""What the player of YC-Bench is told: what the installation has, and nothing that it has not."""

from __future__ import annotations

import re

from pytest_hermes.yc_bench.prompts import Offer, advanced, first_message, system_prompt

PINNED = {
    "sim init": ("--seed",),
    "sim resume": (),
    "company status": (),
    "employee list": (),
    "market browse": ("--domain", "--required-prestige-lte", "--reward-min-cents", "--limit", "--offset"),
    "task accept": ("--task-id",),
    "task assign": ("--task-id", "--employee-id"),
    "task dispatch": ("--task-id",),
    "task list": ("--status",),
    "task inspect": ("--task-id",),
    "task cancel": ("--task-id", "--reason"),
    "finance ledger": ("--from", "--to", "--category"),
    "report monthly": ("--from-month", "--to-month"),
    "scratchpad read": (),
    "scratchpad write": ("--content",),
    "scratchpad append": ("--content",),
    "scratchpad clear": (),
    "run": ("--model",),
    "start": (),
}
SEVEN = ("system", "research", "data", "frontend", "backend", "training", "hardware")
NEWER = {
    **{name: options for name, options in PINNED.items() if name not in ("market browse", "task assign")},
    "market browse": ("--domain", "--reward-min-cents", "--limit", "--offset"),
    "task assign": ("--task-id", "--employees"),
    "client list": (),
    "client history": (),
}


def told(offer: Offer, keep: int | None = 20) -> str:
    return system_prompt(offer, history_keep_rounds=keep)


def named(text: str) -> dict[str, set[str]]:
    """Commands that are shown, with their options."""
    lines = re.findall(r"^- `yc-bench (\w+ \w+)([^`]*)`", text, re.MULTILINE)
    return {name: set(re.findall(r"--[\w-]+", rest)) for name, rest in lines}


def test_the_pinned_version():
    text = told(Offer(PINNED, SEVEN, 25_000_000, 1))
    for word in ("$250,000", "one year", "7 domains: system, research, data, frontend, backend, training, hardware"):
        assert word in text
    shown = named(text)
    assert shown.keys() == PINNED.keys() - {"sim init", "task cancel", "report monthly", "run", "start"}
    for name, options in shown.items():
        assert options == set(PINNED[name])
    assert "`yc-bench task assign --task-id ID --employee-id ID`" in text
    assert "a task half done, a task done, or the end. With nobody at work the next event is the end" in text
    assert "costs prestige." in text and "If the money is below zero then, the company is bankrupt" in text
    assert "last 20 to 39 turns" in text  # as `History` sends them


def test_a_newer_layout():
    text = told(Offer(NEWER, ("research", "inference", "data_environment", "training"), 20_000_000, 3))
    assert "$200,000" in text and "3 years" in text and "4 domains: research, inference" in text
    assert "`yc-bench task assign --task-id ID --employees NAME,NAME`" in text
    assert "--required-prestige-lte" not in text and "client history" in named(text)
    assert "costs prestige and trust, and may cost money." in text
    assert "a payday, or the end. It may refuse while no task is running." in text
    assert "task half done" not in text and "With nobody at work" not in text


def test_the_scratchpad_is_recommended_where_the_conversation_is_cut():
    offer = Offer(PINNED, SEVEN, 25_000_000, 1)
    assert "scratchpad what has to last" not in told(offer, None)
    without = {name: options for name, options in PINNED.items() if not name.startswith("scratchpad")}
    text = told(Offer(without, SEVEN, 25_000_000, 1))
    assert "scratchpad" not in text and "Remember:" not in text


def test_the_first_message_says_what_is_there_and_how_to_begin():
    offer = Offer(PINNED, SEVEN, 25_000_000, 1)
    text = first_message(offer, preset="hard", seed=3, company_name="Acme")
    assert "preset hard, seed 3" in text and "'Acme'" in text
    assert "`yc-bench market browse --required-prestige-lte 1`" in text
    newer = first_message(Offer(NEWER, ("research",), 1, 1), preset="default", seed=1, company_name="Acme")
    assert "`yc-bench market browse`" in newer


def test_a_clock_that_was_advanced_is_told_with_what_it_printed():
    assert advanced(5, '{"ok": true}\n') == (
        '5 turns passed without `yc-bench sim resume`, so it was run for you. It printed:\n{"ok": true}\n'
        "Look at the state of the company and go on."
    )
