"""Writes docs/configuration.md from the code: `python docs/generate.py`, `--check` to compare only."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from pytest_hermes.config import ATROPOS_FIELDS, SECTIONS
from pytest_hermes.options import GROUPS

PAGE = Path(__file__).with_name("configuration.md")
HEAD = """# Configuration

Made from the code by `python docs/generate.py`.

Layers, later ones win: the package's defaults, the benchmark's `default.yaml`, `--hermes-config FILE`, the ini keys
`hermes_model` and `hermes_base_url` (only where nothing else says it), `--hermes-set section.field=value`, options.
Unknown names and values of the wrong type stop the run at collection.

```yaml
env:
  enabled_toolsets: ["terminal", "file"]
  max_agent_turns: 60
  terminal_backend: local
openai:
  base_url: "https://openrouter.ai/api/v1"
  model_name: "anthropic/claude-sonnet-4.6"
```
"""


TABLE = ["| field | type | default | option | meaning |", "| --- | --- | --- | --- | --- |"]


def page() -> str:
    """The whole page."""
    flags = {option.setting: option.flag for group in GROUPS for option in group}
    lines = [HEAD]
    for section, settings in SECTIONS.items():
        lines += [f"## `{section}:`", "", *TABLE]
        own = [field for field in dataclasses.fields(settings) if field.name in settings.__annotations__]
        further = [field for field in dataclasses.fields(settings) if field not in own]
        for field in (*own, *further):
            if further and field is further[0]:
                lines += ["", f"### `{section}:` of [YC-Bench](yc-bench.md)", "", *TABLE]
            default = field.default if field.default is not dataclasses.MISSING else field.default_factory()
            kind = str(field.type).replace(" | ", " or ").replace("None", "none")
            shown = "unset" if default is None else str(default)
            flag = flags.get(f"{section}.{field.name}")
            meaning = field.metadata["help"] + (" (not built yet)" if field.metadata.get("later") else "")
            lines.append(f"| `{field.name}` | {kind} | {shown} | {f'`{flag}`' if flag else ''} | {meaning} |")
        lines.append("")
    lines += [
        "Fields of RL configurations may stand in `env:` too and are not read here: "
        + ", ".join(f"`{name}`" for name in sorted(ATROPOS_FIELDS))
        + ".",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit("docs/configuration.md is not what the code says: run python docs/generate.py")
