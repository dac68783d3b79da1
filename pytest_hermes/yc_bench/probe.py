"""What an installed yc-bench offers, as one JSON line; run by the interpreter that owns it (`install.py`).

`python -I -c SOURCE DIRECTORY`: DIRECTORY holds presets of ours, for which facts are wanted where the package has none
of that name. Asks the package, its command line application and its configuration loader; never goes by a version.
Sent as text: nothing but the standard library and yc-bench.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any


def commands_of(group: Any, path: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """The leaves of a tree of commands with their long options; by shape, as there are two click packages."""
    found: dict[str, list[str]] = {}
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found.update(commands_of(command, (*path, name)))
        else:
            options = [option for parameter in command.params for option in getattr(parameter, "opts", ())]
            found[" ".join((*path, name))] = [option for option in options if option.startswith("--")]
    return found


def facts_of(name_or_path: str) -> dict[str, Any]:
    """The figures of a preset, as the package resolves it."""
    config = importlib.import_module("yc_bench.config").load_config(name_or_path)
    return {
        "horizon_years": config.sim.horizon_years,
        "initial_funds_cents": config.world.initial_funds_cents,
        "num_employees": config.world.num_employees,
        "num_market_tasks": config.world.num_market_tasks,
        "auto_advance_after_turns": config.loop.auto_advance_after_turns,
        "max_turns": config.loop.max_turns,
        "history_keep_rounds": config.agent.history_keep_rounds,
    }


def version() -> str:
    try:
        return importlib.metadata.version("yc-bench")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def probe(own_presets: Path) -> dict[str, Any]:
    package = Path(importlib.import_module("yc_bench").__file__ or "").parent
    application = importlib.import_module("yc_bench.cli").app
    domain = importlib.import_module("yc_bench.db.models.company").Domain
    presets = sorted(path.stem for path in (package / "config" / "presets").glob("*.toml"))
    own = {path.stem: str(path) for path in sorted(own_presets.glob("*.toml"))}
    return {
        "package": str(package),
        "version": version(),
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "presets": presets,
        "preset_facts": {name: facts_of(where) for name, where in {**own, **dict(zip(presets, presets))}.items()},  # noqa: B905
        "domains": [member.value for member in domain],
        "commands": commands_of(importlib.import_module("typer").main.get_command(application)),
    }


if __name__ == "__main__":
    print(json.dumps(probe(Path(sys.argv[1]))))
