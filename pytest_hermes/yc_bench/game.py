"""Where and with what a company is played: the folder in the sandbox, the database, the yc-bench, the preset."""

from __future__ import annotations

import asyncio
import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_hermes.errors import SandboxStartError
from pytest_hermes.yc_bench.simulation import Simulation

if TYPE_CHECKING:
    from pytest_hermes.sandbox.protocol import Sandbox
    from pytest_hermes.yc_bench.install import Installation

SET_UP_TIMEOUT_S = 60.0


@dataclasses.dataclass(frozen=True)
class Game:
    """Where and with what a company is played."""

    installation: Installation
    experiment: str
    """Value of YC_BENCH_EXPERIMENT: a preset's name, or the path of its file in the sandbox."""
    folder: str
    own_rules: Path | None
    """Our own file of the preset, where yc-bench has none; in the sandbox it is `experiment`."""

    @property
    def command(self) -> str:
        """The program, as the agent's shell finds it."""
        return f"{self.folder}/bin/yc-bench"

    @property
    def database(self) -> str:
        return f"{self.folder}/yc_bench.db"

    async def simulation(self, sandbox: Sandbox, database: str, *, isolated: bool = False) -> Simulation:
        """A helper process for a database in the sandbox; `isolated`, it takes nothing from where the agent could
        write. Raises SandboxStartError."""
        return await Simulation.start(
            sandbox,
            self.installation,
            database=database,
            experiment=self.experiment,
            # What it prints may name the program as it was called.
            script=None if isolated else self.command,
            isolated=isolated,
        )


async def prepared(sandbox: Sandbox, installation: Installation, data: Mapping[str, Any]) -> tuple[Game, str]:
    """The company's folder, where `yc-bench`, and nothing else of its environment, is a program; the PATH that has it.
    Raises SandboxStartError."""
    folder = f"{sandbox.home}/yc_bench"
    command = f"{folder}/bin/yc-bench"
    script = (
        f"mkdir -p {shlex.quote(folder)}/bin && ln -s {shlex.quote(str(installation.script))} {shlex.quote(command)}"
        ' && printf %s "$PATH"'
    )
    done = await sandbox.exec(script, timeout_s=SET_UP_TIMEOUT_S)
    if done.exit_code != 0:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise SandboxStartError(f"yc-bench could not be put into the sandbox: {said[-300:]}")
    experiment = installation.preset_argument(data["preset"])
    rules = Path(experiment)
    if rules.is_absolute():  # a file of ours, which the sandbox need not show
        experiment = f"{folder}/{rules.name}"
        await sandbox.write_file(experiment, await asyncio.to_thread(rules.read_bytes), mode=0o444)
    game = Game(installation, experiment, folder, rules if rules.is_absolute() else None)
    return game, f"{folder}/bin:{done.stdout.decode(errors='surrogateescape')}"
