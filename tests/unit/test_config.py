"""The settings tree: layers, types, and errors that say what to do."""

import dataclasses

import pytest

from pytest_hermes.config import EnvSettings, OpenAISettings, Settings, load_yaml, parse_assignment
from pytest_hermes.errors import ConfigurationError

SEED_YAML = """
env:
  enabled_toolsets: ["terminal", "file"]
  max_agent_turns: 60
  max_token_length: 32000
  agent_temperature: 0.8
  terminal_backend: "modal"
  terminal_timeout: 300
  dataset_name: "NousResearch/terminal-bench-2"
  tokenizer_name: "NousResearch/Hermes-3-Llama-3.1-8B"
  use_wandb: true
  wandb_name: "my-benchmark"
  group_size: 4

openai:
  base_url: "https://openrouter.ai/api/v1"
  model_name: "anthropic/claude-sonnet-4.6"
  server_type: "openai"
  health_check: false
"""


def test_the_yaml_of_hermes_environments_loads(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(SEED_YAML)
    settings = Settings().updated(load_yaml(file), str(file))
    assert settings.env.enabled_toolsets == ["terminal", "file"]
    assert settings.env.agent_temperature == 0.8
    assert settings.env.terminal_timeout == 300.0
    assert settings.openai.model_name == "anthropic/claude-sonnet-4.6"


def test_later_layers_win_and_earlier_values_stay():
    settings = Settings().updated({"env": {"attempts": 2, "retries": 5}}, "a").updated({"env": {"attempts": 3}}, "b")
    assert (settings.env.attempts, settings.env.retries) == (3, 5)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"env": {"max_agent_turn": 3}}, "unknown setting env.max_agent_turn. Did you mean 'max_agent_turns'?"),
        ({"envs": {}}, "unknown section 'envs'. Did you mean 'env'?"),
        ({"env": {"attempts": "many"}}, "env.attempts: 'many' is not of type int"),
        ({"env": {"attempts": True}}, "env.attempts: True is not of type int"),
        ({"env": {"terminal_timeout": None}}, "env.terminal_timeout: None is not of type float"),
        ({"env": {"use_wandb": "yes"}}, "env.use_wandb: 'yes' is not of type bool"),
        ({"openai": ["x"]}, "section 'openai' holds ['x'], not a mapping"),
    ],
)
def test_mistakes_name_the_place_and_the_way_out(layer, message):
    with pytest.raises(ConfigurationError) as caught:
        Settings().updated(layer, "my.yaml")
    assert str(caught.value) == f"my.yaml: {message}"


def test_a_comma_list_is_a_list():
    assert Settings().updated({"env": {"enabled_toolsets": "terminal, file"}}, "x").env.enabled_toolsets == [
        "terminal",
        "file",
    ]


@pytest.mark.parametrize(
    ("text", "layer"),
    [
        ("env.terminal_timeout=300", {"env": {"terminal_timeout": 300}}),
        ("openai.model_name=a/b=c", {"openai": {"model_name": "a/b=c"}}),
        ("env.enabled_toolsets=[terminal]", {"env": {"enabled_toolsets": ["terminal"]}}),
        ("env.system_prompt=", {"env": {"system_prompt": None}}),
    ],
)
def test_assignments(text, layer):
    assert parse_assignment(text) == layer


@pytest.mark.parametrize("text", ["terminal_timeout=3", "env.x", "env.a=[1", "=3"])
def test_assignments_that_are_none(text):
    with pytest.raises(ConfigurationError, match="--hermes-set"):
        parse_assignment(text)


@pytest.mark.parametrize(("content", "message"), [("env: [", "not YAML at line 1"), ("- 1", "holds list")])
def test_broken_yaml_names_file_and_line(tmp_path, content, message):
    file = tmp_path / "broken.yaml"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_yaml(file)
    assert str(file) in str(caught.value)


def test_a_missing_yaml_is_one_line(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_yaml(tmp_path / "none.yaml")


@pytest.mark.parametrize("section", [EnvSettings, OpenAISettings])
def test_every_setting_is_documented(section):
    assert all(field.metadata.get("help") for field in dataclasses.fields(section))
