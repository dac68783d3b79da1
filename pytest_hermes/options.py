"""Every command line option and ini key, in groups, and how they become a settings layer."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_hermes.config import Settings


@dataclasses.dataclass(frozen=True)
class Option:
    """An option that sets one field of the settings tree."""

    flag: str
    setting: str
    help: str
    type: type = str
    metavar: str | None = None

    @property
    def dest(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")


MODEL = [
    Option("--hermes-base-url", "openai.base_url", "OpenAI-compatible endpoint of the model", metavar="URL"),
    Option("--hermes-client", "openai.client", "HTTP client: aiohttp (thin, default) or openai (the SDK)"),
    Option("--hermes-agent", "env.agent", "hermes (default), oracle, nop, or package.module:Factory", metavar="AGENT"),
    Option("--hermes-system-prompt", "env.system_prompt", "system message before the task's prompt", metavar="TEXT"),
    Option("--hermes-temperature", "env.agent_temperature", "sampling temperature", float),
    Option("--hermes-toolsets", "env.enabled_toolsets", "tool sets the agent gets, comma separated", metavar="A,B"),
    Option("--hermes-disable-toolsets", "env.disabled_toolsets", "tool sets taken away from that", metavar="A,B"),
    Option("--hermes-distribution", "env.distribution", "draw each task's tool sets at random instead", metavar="NAME"),
]
TASKS = [
    Option(
        "--hermes-dataset",
        "env.dataset_name",
        "hub data set, parquet, JSONL, Harbor directory or registry file",
        metavar="SOURCE",
    ),
    Option("--hermes-tasks", "env.tasks_dir", "directory of Harbor-format tasks", metavar="DIR"),
    Option("--hermes-task", "env.task_filter", "only these task ids (exact), comma separated", metavar="A,B"),
    Option("--hermes-skip-task", "env.skip_tasks", "not these task ids (exact), comma separated", metavar="A,B"),
    Option("--hermes-attempts", "env.attempts", "rollouts per task (default 1)", int, "N"),
]
RUNNING = [
    Option("--hermes-sandbox", "env.terminal_backend", "sandbox backend: local (default) or docker", metavar="NAME"),
    Option(
        "--hermes-concurrency", "env.concurrency", "rollouts in flight per process (4; 1 per xdist worker)", int, "K"
    ),
    Option("--hermes-verify-concurrency", "env.verify_concurrency", "verifiers at a time (default: cores)", int, "N"),
    Option(
        "--hermes-sandbox-starts", "env.sandbox_starts", "sandboxes starting at a time on this machine (8)", int, "N"
    ),
    Option("--hermes-retries", "env.retries", "whole rollouts run again after infrastructure errors (1)", int, "N"),
    Option("--hermes-max-turns", "env.max_agent_turns", "model calls per rollout at most (30)", int, "N"),
    Option("--hermes-timeout-multiplier", "env.timeout_multiplier", "factor on a rollout's clocks", float, "X"),
    Option("--hermes-max-invalid", "env.max_invalid", "invalid rollouts allowed for exit status 0 (0)", int, "N"),
    Option("--hermes-local-confine", "env.local_confine", "bubblewrap for local sandboxes: auto, on, off"),
]
YC_BENCH = [
    Option("--yc-presets", "env.presets", "presets to play (fast_test,medium,hard)", metavar="A,B"),
    Option("--yc-seeds", "env.seeds", "seeds to play each preset with (1,2,3)", metavar="N,M"),
    Option("--yc-on-incomplete", "env.yc_on_incomplete", "a run that stops early: drain (default), as_is, fail"),
    Option("--yc-init", "env.yc_init", "how the world is made: sim_init (default) or preset"),
    Option("--yc-auto-advance", "env.yc_auto_advance", "turns before the clock is advanced (never)", int, "N"),
    Option("--yc-fast-path", "env.yc_fast_path", "auto (default): a kept process answers plain commands; off"),
    Option("--yc-bench-bin", "env.yc_bench_bin", "the yc-bench to play with, of another environment", metavar="PATH"),
    Option("--yc-outcome", "env.yc_outcome", "which runs pass: strict (survivors, default) or report (all scored)"),
    Option("--yc-min-score", "env.yc_min_score", "composite score below which a run fails", float, "X"),
]
GROUPS = [MODEL, TASKS, RUNNING, YC_BENCH]
MODEL_OPTION: dict[str, Any] = {
    "dest": "hermes_model",
    "default": None,
    "metavar": "NAME",
    "help": "model to run, as its endpoint calls it; `scripted` is built in and needs no key",
}


def add_options(parser: pytest.Parser) -> None:
    """Register all options but `--model`, which `add_short_model_option` adds once the others are known."""
    group = parser.getgroup("hermes", "rollouts of tool-calling models (pytest-hermes)")
    group.addoption("--hermes-model", **MODEL_OPTION)
    of_yc_bench = parser.getgroup("yc-bench", "YC-Bench (pytest-hermes)")
    for options in GROUPS:
        for option in options:
            (of_yc_bench if options is YC_BENCH else group).addoption(
                option.flag, dest=option.dest, default=None, type=option.type, metavar=option.metavar, help=option.help
            )
    group.addoption(
        "--hermes-force-build", action="store_true", default=False, help="build task images although a name is given"
    )
    group.addoption("--hermes-config", default=None, metavar="FILE", help="settings YAML (sections env: and openai:)")
    group.addoption(
        "--hermes-set",
        action="append",
        default=[],
        metavar="SECTION.FIELD=VALUE",
        help="one setting, as env.terminal_timeout=300; repeatable",
    )
    group.addoption(
        "--hermes-run-dir", default=None, metavar="DIR", help="where run directories are made (default .hermes/runs)"
    )
    group.addoption(
        "--hermes-resume",
        default=None,
        metavar="RUN",
        help="take over the valid rollouts of that run directory, run the rest",
    )
    parser.addini("hermes_model", "default of --hermes-model")
    parser.addini("hermes_base_url", "default of --hermes-base-url")
    parser.addini("hermes_config", "default of --hermes-config, relative to the root directory")
    parser.addini("hermes_run_dir", "default of --hermes-run-dir, relative to the root directory")


def add_short_model_option(parser: pytest.Parser) -> None:
    """Add `--model` unless another plugin or an initial conftest owns that name: two owners would stop pytest."""
    groups = [*parser._groups, parser._anonymous]
    if not any("--model" in option.names() for group in groups for option in group.options):
        parser.getgroup("hermes").addoption("--model", **MODEL_OPTION)


def is_asked_for(config: pytest.Config) -> bool:
    """Whether the command line or the ini file names a model, an agent or other settings of ours."""
    values = [config.getoption(option.dest) for options in GROUPS for option in options]
    values += [config.getoption("hermes_model"), config.getoption("hermes_config"), config.getini("hermes_model")]
    return any(value is not None and value != "" for value in values) or bool(config.getoption("hermes_set"))


def run_root(config: pytest.Config) -> Path:
    """Directory that run directories are made in."""
    given = config.getoption("hermes_run_dir")
    if given:
        return Path(config.invocation_params.dir, given).absolute()
    # without a configuration file the root directory may be anything, site-packages with --pyargs
    base = config.rootpath if config.inipath is not None else config.invocation_params.dir
    return Path(base, config.getini("hermes_run_dir") or ".hermes/runs").absolute()


def resolve_settings(config: pytest.Config, defaults: dict[str, Any] | None, origin: str) -> Settings:
    """The settings of one benchmark, all layers merged. Raises ConfigurationError."""
    from pytest_hermes.config import Settings, load_yaml, parse_assignment
    from pytest_hermes.errors import ConfigurationError

    settings = Settings()
    if defaults:
        settings = settings.updated(defaults, origin)
    path = config.getoption("hermes_config")
    if path:
        path = Path(config.invocation_params.dir, path)
    elif config.getini("hermes_config"):
        path = Path(config.rootpath, config.getini("hermes_config"))
    if path:
        settings = settings.updated(load_yaml(path), str(path))
    for assignment in config.getoption("hermes_set"):
        settings = settings.updated(parse_assignment(assignment), f"--hermes-set {assignment}")
    for field in ("model", "base_url"):
        if value := config.getini(f"hermes_{field}"):
            name = {"model": "model_name"}.get(field, field)
            if getattr(settings.openai, name) is None:
                settings = settings.updated({"openai": {name: value}}, f"ini key hermes_{field}")
    if (model := config.getoption("hermes_model")) is not None:
        settings = settings.updated({"openai": {"model_name": model}}, "--model")
    for one, other in (("toolsets", "distribution"), ("dataset", "tasks")):
        if config.getoption(f"hermes_{one}") is not None and config.getoption(f"hermes_{other}") is not None:
            raise ConfigurationError(f"--hermes-{one} and --hermes-{other} exclude each other: give one of them")
    for options in GROUPS:
        for option in options:
            value = config.getoption(option.dest)
            if value is not None:
                section, field = option.setting.split(".")
                settings = settings.updated({section: {field: value}}, option.flag)
    if config.getoption("hermes_force_build"):
        settings = settings.updated({"env": {"force_build": True}}, "--hermes-force-build")
    _check_ranges(settings)
    return settings


def _check_ranges(settings: Settings) -> None:
    from pytest_hermes.errors import ConfigurationError

    env = settings.env
    for name, value, least in (
        ("concurrency", env.concurrency, 1),
        ("attempts", env.attempts, 1),
        ("retries", env.retries, 0),
        ("max_agent_turns", env.max_agent_turns, 1),
        ("verify_concurrency", env.verify_concurrency, 1),
        ("sandbox_starts", env.sandbox_starts, 1),
        ("max_invalid", env.max_invalid, 0),
        ("terminal_output_chars", env.terminal_output_chars, 100),
    ):
        if value is not None and value < least:
            raise ConfigurationError(f"env.{name}: {value} is below {least}")
    seconds = ("terminal_timeout", "terminal_lifetime", "task_timeout", "test_timeout", "provision_timeout")
    for name in (*seconds, "build_timeout", "teardown_timeout", "timeout_multiplier"):
        value = getattr(env, name)
        if value is not None and not 0 < value < 1e9:
            raise ConfigurationError(f"env.{name}: {value:g} is not above 0 and below 1e9")
    for name, chosen, choices in (
        ("env.local_confine", env.local_confine, ("auto", "on", "off")),
        ("env.limits_from", env.limits_from, ("task", "settings")),
        ("openai.client", settings.openai.client, ("aiohttp", "openai")),
    ):
        if chosen not in choices:
            raise ConfigurationError(f"{name}: {chosen!r} is none of {', '.join(choices)}")
