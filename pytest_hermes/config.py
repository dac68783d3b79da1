"""One typed settings tree: defaults < benchmark's default.yaml < --hermes-config YAML < options.

The YAML keeps the shape of hermes environments: `env:` and `openai:` with their field names, each with one meaning
here (the `help` of its field; `docs/configuration.md` is made from it). Unknown keys and values of the wrong type are
errors with a close-match hint. This module imports nothing heavy; PyYAML is imported when a YAML text is read.
"""

from __future__ import annotations

import dataclasses
import operator
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pytest_hermes.errors import ConfigurationError
from pytest_hermes.setting import setting
from pytest_hermes.yc_bench.settings import YcBenchSettings


@dataclasses.dataclass(frozen=True)
class EnvSettings(YcBenchSettings):
    """The `env:` section."""

    enabled_toolsets: list[str] | None = setting(
        None, "tool sets (or single tools) the agent gets; unset: the benchmark's own, else terminal, file and todo"
    )
    disabled_toolsets: list[str] | None = setting(None, "tool sets (or single tools) taken away from that")
    distribution: str | None = setting(
        None, "draw each task's tool sets by these probabilities instead; unsets `enabled_toolsets` of earlier layers"
    )
    seed: int = setting(0, "seed of what is drawn at random: the tool sets of a distribution")
    max_agent_turns: int = setting(30, "model calls per rollout at most; a task's own limit wins")
    system_prompt: str | None = setting(None, "system message before the task's prompt")
    agent_temperature: float | None = setting(None, "sampling temperature; unset: the endpoint's default")
    max_token_length: int | None = setting(None, "`max_tokens` of every model call; unset: not sent")
    extra_body: dict[str, Any] | None = setting(None, "further fields of every request (provider preferences, ...)")
    terminal_backend: str = setting("local", "sandbox backend: local, docker (ssh, modal, daytona, singularity later)")
    terminal_timeout: float = setting(120.0, "seconds a terminal command may take unless the call says otherwise")
    terminal_output_chars: int = setting(
        50_000, "characters of a command's output that `terminal` returns: its beginning and its end"
    )
    terminal_lifetime: float = setting(
        3600.0,
        "greatest age of a sandbox in seconds; never below the task's own clocks",
        changes_results=False,
    )
    tool_pool_size: int = setting(
        128, "accepted for hermes configurations; tools here need no threads", changes_results=False
    )
    tool_call_parser: str = setting(
        "auto", "parser for calls that the endpoint leaves in the text: auto, none, or a format as hermes, qwen3_coder"
    )
    default_result_size_chars: int = setting(100_000, "characters of one tool result before it goes to a file")
    turn_budget_chars: int = setting(200_000, "characters of all tool results of one turn")
    preview_size_chars: int = setting(1_500, "characters shown of a result that went to a file")
    tool_result_overrides: dict[str, int] | None = setting(None, "result size by tool name (read_file is never cut)")
    context_window: int | None = setting(None, "the model's context window in tokens; scales the result budgets")
    web_backend: str | None = setting(
        None, "service of web_search: tavily, exa, firecrawl, searxng, brave; unset: the first whose key is set"
    )
    allow_private_urls: bool = setting(False, "let web and browser tools contact private addresses, loopback included")
    browser_executable: str | None = setting(None, "Chromium to drive; unset: the one on PATH, else Playwright's own")
    browser_timeout: float = setting(30.0, "seconds a page may take to load, and a script to run")
    browser_dialog_timeout: float = setting(30.0, "seconds a JavaScript dialog waits for the agent; then dismissed")
    vision_model: str | None = setting(
        None, "model at the same endpoint that answers `browser_vision`; unset: nobody looks at the screenshot"
    )
    history_keep_rounds: int | None = setting(None, "rounds of the conversation that are sent; unset: all")
    dataset_name: str | None = setting(
        None,
        "where tasks come from: a hub data set (`org/name`), a parquet or JSONL file, a directory of Harbor tasks, or a"
        " Harbor registry file (`registry.json#name@version`)",
        changes_results=False,
    )
    dataset_revision: str | None = setting(
        None, "commit, tag or branch of the hub data set; unset: main", changes_results=False
    )
    dataset_split: str = setting("train", "split of the hub data set", changes_results=False)
    prompt_field: str = setting("prompt", "column that holds the prompt", later=True, changes_results=False)
    task_filter: str | None = setting(None, "comma list of task ids to run, as --hermes-task", changes_results=False)
    skip_tasks: str | None = setting(
        None, "comma list of task ids to leave out, as --hermes-skip-task", changes_results=False
    )
    tasks_dir: str | None = setting(None, "directory of Harbor-format tasks, as --hermes-tasks", changes_results=False)
    task_timeout: float | None = setting(None, "agent clock in seconds for tasks that declare none")
    test_timeout: float | None = setting(None, "verifier clock in seconds for tasks that declare none")
    provision_timeout: float | None = setting(
        None, "sandbox start, agent set-up and healthcheck, in seconds", changes_results=False
    )
    build_timeout: float | None = setting(
        None, "image pull or build, in seconds, for tasks that declare none", changes_results=False
    )
    teardown_timeout: float | None = setting(None, "removal of the sandbox, in seconds", changes_results=False)
    timeout_multiplier: float = setting(1.0, "factor on all four clocks")
    limits_from: str = setting(
        "task", "whose limits win: task (the settings' are for tasks that declare none) or settings"
    )
    agent: str = setting("hermes", "hermes, oracle, nop, or package.module:Factory")
    agent_options: dict[str, Any] | None = setting(None, "free options for an agent of your own")
    attempts: int = setting(1, "rollouts per task", changes_results=False)
    retries: int = setting(1, "whole rollouts run again after an infrastructure error", changes_results=False)
    retry_backoff: float = setting(
        1.0, "seconds before the first retry; doubled each time, 60 at most", changes_results=False
    )
    concurrency: int | None = setting(
        None, "rollouts in flight per process; unset: 4, or 1 per xdist worker", changes_results=False
    )
    verify_concurrency: int | None = setting(
        None, "verifiers at a time per machine share; unset: the number of cores", changes_results=False
    )
    max_invalid: int = setting(0, "invalid rollouts that a run may have and still exit 0", changes_results=False)
    pass_threshold: float | None = setting(None, "reward from which a rollout passes; unset: the benchmark's (1.0)")
    sandbox_starts: int = setting(8, "sandboxes that may start at the same time on this machine", changes_results=False)
    local_confine: str = setting("auto", "bubblewrap for local sandboxes: auto, on, off")
    env_passthrough: list[str] | None = setting(None, "host variables that local sandboxes may see, by name")
    verifier_env: list[str] | None = setting(None, "host variables that a task's verifier env may use as ${VAR}")
    force_build: bool = setting(False, "build task images although an image name is given")
    error_policy: dict[str, dict[str, Any]] | None = setting(None, "changes to the table of outcomes, by error name")
    artifacts_max_mb: int = setting(64, "largest artifact fetched from a sandbox, in MB", changes_results=False)
    data_dir_to_save_evals: str | None = setting(
        None,
        "directory that gets a copy of the run's `metrics.json` and `samples.jsonl`, relative to the current one",
        changes_results=False,
    )
    use_wandb: bool = setting(False, "log to Weights & Biases", later=True, changes_results=False)
    wandb_name: str | None = setting(None, "name of the wandb run", later=True, changes_results=False)
    tokenizer_name: str | None = setting(None, "tokenizer of the trained model", later=True, changes_results=False)


@dataclasses.dataclass(frozen=True)
class OpenAISettings:
    """The `openai:` section: where the model is."""

    model_name: str | None = setting(None, "model, as the endpoint calls it; `scripted` is the built-in one")
    base_url: str | None = setting(
        None,
        "endpoint; unset: OPENAI_BASE_URL, else OpenRouter or OpenAI by the key present",
        changes_results=False,
    )
    api_key: str | None = setting(
        None, "key; unset: OPENROUTER_API_KEY or OPENAI_API_KEY; never written to records", changes_results=False
    )
    server_type: str = setting(
        "openai", "openai; vllm and sglang are spoken to in the same way here", changes_results=False
    )
    health_check: bool = setting(
        False, "ask the endpoint for its models before the first rollout", changes_results=False
    )
    client: str = setting("aiohttp", "aiohttp (the thin client) or openai (the SDK)", changes_results=False)
    timeout: float = setting(600.0, "seconds one model call may take", changes_results=False)
    num_retries: int = setting(4, "retries of one model call (429, 5xx, connection errors)", changes_results=False)
    prices: dict[str, Any] | None = setting(
        None, "USD per million tokens by model name, over the built-in table", changes_results=False
    )


ATROPOS_FIELDS = frozenset(
    (
        *("group_size", "max_num_workers", "max_eval_workers", "max_num_workers_per_node", "steps_per_eval"),
        *("eval_handling", "eval_limit_ratio", "inference_weight", "batch_size", "max_batches_offpolicy"),
        *("rollout_server_url", "total_steps", "num_rollouts_to_keep", "num_rollouts_per_group_for_logging"),
        *("ensure_scores_are_not_same", "data_path_to_save_groups"),
        *("min_items_sent_before_logging", "include_messages", "min_batch_allocation", "worker_timeout"),
        *("thinking_mode", "reasoning_effort", "max_reasoning_tokens", "custom_thinking_prompt"),
        *("eval_concurrency", "max_concurrent_tasks"),
    )
)
"""Fields of RL configurations that may stand in the same YAML; evaluation under pytest does not read them."""

SECTIONS: dict[str, type] = {"env": EnvSettings, "openai": OpenAISettings}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that decides how rollouts of one benchmark run."""

    env: EnvSettings = dataclasses.field(default_factory=EnvSettings)
    openai: OpenAISettings = dataclasses.field(default_factory=OpenAISettings)

    def updated(self, layer: Mapping[str, Any], origin: str) -> Settings:
        """These settings with a `{env: {...}, openai: {...}}` layer on top; `origin` names it in errors."""
        result = self
        for section, values in layer.items():
            if section not in SECTIONS:
                raise ConfigurationError(f"{origin}: unknown section {section!r}{hint(section, SECTIONS)}")
            if values is None:
                continue
            if not isinstance(values, Mapping):
                raise ConfigurationError(f"{origin}: section {section!r} holds {values!r}, not a mapping")
            known = {field.name: field for field in dataclasses.fields(SECTIONS[section])}
            types_by_name = typing.get_type_hints(SECTIONS[section])
            changes = {}
            for name, value in values.items():
                if section == "env" and name in ATROPOS_FIELDS:
                    continue
                if name not in known:
                    raise ConfigurationError(
                        f"{origin}: unknown setting {section}.{name}{hint(str(name), [*known, *ATROPOS_FIELDS])}"
                    )
                changes[name] = _typed(value, types_by_name[name], f"{origin}: {section}.{name}")
            if section == "env":
                changes |= _one_choice(changes, origin)
            result = dataclasses.replace(result, **{section: dataclasses.replace(getattr(result, section), **changes)})
        return result


CHOICES = (("enabled_toolsets", "distribution"), ("dataset_name", "tasks_dir"))
"""Settings of `env` of which one is chosen: a layer with the one unsets the other of earlier layers."""


def _one_choice(changes: Mapping[str, Any], origin: str) -> dict[str, None]:
    """What a layer unsets of earlier layers by its choices. A layer with both of a pair is refused."""
    unset: dict[str, None] = {}
    for pair in CHOICES:
        given = [name for name in pair if changes.get(name) is not None]
        if len(given) == 2:
            raise ConfigurationError(f"{origin}: env.{pair[0]} and env.{pair[1]} exclude each other")
        unset |= {name: None for name in pair if given and name not in given}
    return unset


def hint(name: str, known: Iterable[str]) -> str:
    """`. Did you mean 'x'?` for a near miss, else the known names."""
    import difflib

    candidates = [str(candidate) for candidate in known]
    close = difflib.get_close_matches(name, candidates, n=3, cutoff=0.6)
    if close:
        return ". Did you mean " + " or ".join(repr(candidate) for candidate in close) + "?"
    shown = sorted(candidates)
    more = f" and {len(shown) - 12} more" if len(shown) > 12 else ""
    return f". Known: {', '.join(shown[:12])}{more}"


def _typed(value: Any, wanted: Any, where: str) -> Any:
    options = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    for option in options:
        base = typing.get_origin(option) or option
        if option is types.NoneType:
            if value is None:
                return None
        elif base is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        elif base is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        elif base is list and isinstance(value, list | tuple | str):
            parts = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
            return [_element(part, typing.get_args(option), value, where) for part in parts]
        elif option == list[int] and isinstance(value, int) and not isinstance(value, bool):
            return [value]  # `--yc-seeds 1`, read as YAML
        elif base is dict and isinstance(value, Mapping):
            return dict(value)
        elif base in (bool, str) and isinstance(value, base):
            return value
        elif base is str and isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
    names = " or ".join("none" if o is types.NoneType else (typing.get_origin(o) or o).__name__ for o in options)
    raise ConfigurationError(f"{where}: {value!r} is not of type {names}")


def _element(value: Any, types_of_elements: tuple[Any, ...], whole: Any, where: str) -> Any:
    """An element of a list, as the number that it should be."""
    if types_of_elements != (int,):
        return value
    try:
        return int(value if isinstance(value, str) else operator.index(value))
    except (TypeError, ValueError):
        raise ConfigurationError(f"{where}: {whole!r} is not a list of whole numbers ({value!r})") from None


def load_yaml(path: Path) -> dict[str, Any]:
    """A settings YAML as a mapping. Raises ConfigurationError naming file, line and what was found."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        loaded = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        raise ConfigurationError(f"{path}: not YAML{line}: {getattr(error, 'problem', error)}") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigurationError(f"{path}: holds {type(loaded).__name__}, not the sections env: and openai:")
    return loaded


def parse_assignment(text: str) -> dict[str, dict[str, Any]]:
    """`env.field=value` (the value read as YAML) as a settings layer."""
    import yaml

    name, equals, raw = text.partition("=")
    section, dot, field = name.strip().partition(".")
    if not (equals and dot and field):
        raise ConfigurationError(f"--hermes-set {text!r}: not of the form env.field=value or openai.field=value")
    try:
        return {section: {field: yaml.safe_load(raw)}}
    except yaml.YAMLError as error:
        raise ConfigurationError(f"--hermes-set {text!r}: the value is not YAML") from error


def names(text: str | None) -> list[str]:
    """The parts of a comma list."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]
