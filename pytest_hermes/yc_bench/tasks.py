"""The tasks of YC-Bench: one per preset and seed, with prompts for the yc-bench that is installed."""

from __future__ import annotations

import datetime
import functools
import os

from pytest_hermes.config import EnvSettings, Settings
from pytest_hermes.errors import ConfigurationError
from pytest_hermes.limits import Limits
from pytest_hermes.task import SandboxSpec, Task
from pytest_hermes.yc_bench.install import Installation, YcBenchMissing, find_installation
from pytest_hermes.yc_bench.prompts import Offer, first_message, system_prompt

PRESETS = ("fast_test", "medium", "hard")
SEEDS = (1, 2, 3)
CHOICES = {
    "yc_init": ("sim_init", "preset"),
    "yc_on_incomplete": ("drain", "as_is", "fail"),
    "yc_fast_path": ("auto", "off"),
    "yc_outcome": ("strict", "report"),
}


def installed(settings: Settings) -> Installation:
    """The yc-bench that these settings play with, looked for once per process. Raises YcBenchMissing."""
    return _found(settings.env.yc_bench_bin, os.environ.get("YC_BENCH_BIN"))


@functools.lru_cache(maxsize=8)
def _found(binary: str | None, _variable: str | None) -> Installation:
    return find_installation(binary)


def unavailable(settings: Settings) -> str | None:
    """Why nothing can be played here; None if it can."""
    try:
        installed(settings)
    except YcBenchMissing as missing:
        return str(missing)
    return None


def tasks(settings: Settings) -> list[Task]:
    """Presets times seeds, presets outer. Raises ConfigurationError for a setting that cannot be played."""
    env = settings.env
    check(env)
    presets, seeds = env.presets or list(PRESETS), env.seeds or list(SEEDS)
    _no_repeats("--yc-presets", presets)
    _no_repeats("--yc-seeds", seeds)
    try:
        installation = installed(settings)
    except YcBenchMissing:  # all of them are skipped
        return [Task(_task_id(preset, seed), "(yc-bench is not installed)") for preset in presets for seed in seeds]
    return [_task(env, installation, preset, seed) for preset in presets for seed in seeds]


def check(env: EnvSettings) -> None:
    """Raise ConfigurationError for a value that is none."""
    for name, choices in CHOICES.items():
        if (value := getattr(env, name)) not in choices:
            option = f"--{name.replace('_', '-')}={value}"
            raise ConfigurationError(f"{option}: none of {', '.join(choices)}")
    if env.terminal_backend != "local":
        raise ConfigurationError(
            f"--hermes-sandbox={env.terminal_backend}: yc_bench plays with a program of this machine, in local"
            " sandboxes: leave the option out, or give --hermes-sandbox=local"
        )
    try:
        day = datetime.datetime.strptime(env.start_date, "%m/%d/%Y")
    except ValueError:
        raise ConfigurationError(f"env.start_date: {env.start_date!r} is not a date MM/DD/YYYY") from None
    if (day.month, day.day) == (2, 29):
        raise ConfigurationError(f"env.start_date: {env.start_date!r}: most years lack that day, and one ends on it")
    for seed in env.seeds or ():
        if not -(2**63) <= seed < 2**63:
            raise ConfigurationError(f"--yc-seeds: {seed} is more than its database holds (63 bits)")
    for name in ("survival_weight", "funds_weight"):
        if not 0 <= getattr(env, name) <= 1:
            raise ConfigurationError(f"env.{name}: {getattr(env, name):g} is not between 0 and 1")
    if env.survival_weight + env.funds_weight > 1 + 1e-9:
        raise ConfigurationError(
            f"env.survival_weight + env.funds_weight: {env.survival_weight + env.funds_weight:g} is more than 1, which"
            " a reward is at most"
        )
    for name, most in (("horizon_years", 100), ("yc_auto_advance", 1_000_000)):
        if (number := getattr(env, name)) is not None and not 1 <= number <= most:
            raise ConfigurationError(f"env.{name}: {number} is not between 1 and {most}")
    for option, values in (("--yc-presets", env.presets), ("--yc-seeds", env.seeds)):
        if values is not None and not values:
            raise ConfigurationError(f"{option}: names none")
    if env.run_timeout is not None and not 0 < env.run_timeout < 1e9:
        raise ConfigurationError(f"env.run_timeout: {env.run_timeout:g} is not above 0 and below 1e9")


def _no_repeats(option: str, values: list[str] | list[int]) -> None:
    if repeated := [value for value in values if values.count(value) > 1]:  # type: ignore[arg-type]
        raise ConfigurationError(f"{option}: {repeated[0]} is given twice; --hermes-attempts N plays each N times")


def _task(env: EnvSettings, installation: Installation, preset: str, seed: int) -> Task:
    installation.preset_argument(preset)
    facts = installation.preset_facts[preset]
    offer = Offer(
        commands=installation.commands,
        domains=installation.domains,
        initial_funds_cents=facts.initial_funds_cents,
        horizon_years=env.horizon_years or facts.horizon_years,
    )
    return Task(
        id=_task_id(preset, seed),
        prompt=first_message(offer, preset=preset, seed=seed, company_name=env.company_name),
        system_prompt=system_prompt(offer, history_keep_rounds=env.history_keep_rounds),
        sandbox=SandboxSpec(readable=tuple(str(directory) for directory in installation.readable)),
        limits=Limits(agent_s=env.run_timeout),
        category=preset,
        data={
            "preset": preset,
            "seed": seed,
            "horizon_years": offer.horizon_years,
            "package_sha256": installation.package_sha256,
        },
        source=f"yc-bench {installation.version}",
    )


def _task_id(preset: str, seed: int) -> str:
    return f"{preset}-seed{seed}"
