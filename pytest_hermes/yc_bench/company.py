"""The episode of a run: a company with a folder and a database of its own, which the agent plays by `yc-bench`.

The simulation's variables are those of this rollout's commands alone. A kept process beside the agent (`simulation.py`)
made the world, tells how it stands after every turn, and runs plain `yc-bench ...` commands of the agent as long as its
answers are those of a process of its own: the agent's shell must mean by them what it did in the beginning.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from pytest_hermes.episode import Episode, EpisodeContext, SandboxWithVariables, TurnEnd
from pytest_hermes.errors import SandboxStartError
from pytest_hermes.yc_bench.answers import Beginning, State
from pytest_hermes.yc_bench.game import Game, prepared
from pytest_hermes.yc_bench.likeness import answers_alike
from pytest_hermes.yc_bench.plain import plain_command
from pytest_hermes.yc_bench.prompts import advanced
from pytest_hermes.yc_bench.score import step_reward
from pytest_hermes.yc_bench.simulation import Simulation, SimulationEnded
from pytest_hermes.yc_bench.tasks import installed

if TYPE_CHECKING:
    from pytest_hermes.config import Settings
    from pytest_hermes.sandbox.protocol import Sandbox
    from pytest_hermes.sandbox.shell import ShellResult
    from pytest_hermes.tools.workspace import Workspace

RESUME_TIMEOUT_S = 120.0
_A_COMMAND = re.compile(r"(?:^|[\s;&|(])yc-bench(?=\s)")
_MEANING = (
    r"\builtin declare -f yc-bench; \builtin alias yc-bench 2>/dev/null; "
    r'\command readlink -f -- "$(\builtin type -p yc-bench)"'
)
"""What, besides variables and options of the shell, decides what a plain command means there."""


class Company(Episode):
    """See the module docstring."""

    def __init__(
        self,
        sandbox: Sandbox,
        settings: Settings,
        game: Game,
        simulation: Simulation,
        beginning: Beginning,
        founded: bytes,
        *,
        fast: bool,
    ) -> None:
        super().__init__(sandbox)
        self.game = game
        self.simulation = simulation
        self.beginning = beginning
        self.founded = founded
        """The database as it was before the agent began."""
        self.commands = 0
        """`yc-bench` commands in what the agent typed; one in a loop counts once."""
        self.fast_commands = 0
        """Of these, the ones that the kept process ran."""
        self.signs: list[str] = []
        """Of tampering: what the agent did besides playing, a sentence each."""
        self.breaks_loops = settings.env.yc_auto_advance is not None
        self._settings = settings
        self._fast = fast
        self._shell_meant: bytes | None = None
        self._may_mean_otherwise = False
        self._state = State(sim_time=beginning.sim_time, funds_cents=beginning.initial_funds_cents)
        self._turn_of_time = 0

    async def answer(
        self, command: str, workspace: Workspace, *, timeout_s: float, workdir: str | None = None
    ) -> ShellResult | None:
        """See `Episode.answer`: plain commands only, and only while the shell means the same by them."""
        self.commands += len(_A_COMMAND.findall(command))
        if not self._fast or not self.simulation.is_alive:
            return None
        arguments = plain_command(command) if workdir is None else None
        if arguments is None:
            if self._shell_meant is None:
                self._shell_meant = await workspace.shell_state(_MEANING)
            self._may_mean_otherwise = True
            return None
        if self._may_mean_otherwise:
            if await workspace.shell_state(_MEANING) != self._shell_meant:
                return None
            self._may_mean_otherwise = False
        try:
            result = await self.simulation.run(
                arguments[1:], cwd=workspace.cwd, timeout_s=timeout_s, max_output=4 * workspace.output_window
            )
        except (OSError, SimulationEnded):  # nothing was executed: the shell says what is wrong with its directory
            return None
        self.fast_commands += 1
        return result

    async def after_turn(self, turn: int) -> TurnEnd:
        """The turn's reward; the end at bankruptcy or at the horizon; the clock advanced where the player does not."""
        before = self._state
        reward = await self._look()
        if self._state.sim_time != before.sim_time:
            self._turn_of_time = turn
        limit = self._settings.env.yc_auto_advance
        if limit is None or turn - self._turn_of_time < limit or _is_over(self._state) or not self.simulation.is_alive:
            return TurnEnd(reward=reward, is_over=_is_over(self._state))
        try:
            resumed = await self.simulation.run(["sim", "resume"], cwd="/", timeout_s=RESUME_TIMEOUT_S)
        except (OSError, SimulationEnded):
            return TurnEnd(reward=reward)
        waited, self._turn_of_time = turn - self._turn_of_time, turn
        reward += await self._look()
        message = advanced(waited, resumed.output.decode(errors="replace"))
        return TurnEnd(message=message, reward=reward, is_over=_is_over(self._state))

    async def _look(self) -> float:
        """See how the company stands now; what was earned since it was looked at last."""
        before, now = self._state, await self._read_state()
        if now.error:
            return 0.0
        if _went_back(before, now):
            self.signs.append(f"the simulation went back from {before.sim_time:%Y-%m-%d %H:%M} to an earlier state")
        self._state = now
        return step_reward(
            before.funds_cents,
            now.funds_cents,
            self.beginning.initial_funds_cents,
            _is_bankrupt(now) and not _is_bankrupt(before),
        )

    async def _read_state(self) -> State:
        if not self.simulation.is_alive:
            await self.simulation.aclose()
            # The agent has acted since: what it wrote may decide what a new process does that is not isolated.
            self._fast = False
            try:
                self.simulation = await self.game.simulation(self.sandbox, self.game.database, isolated=True)
            except SandboxStartError as error:
                return State(error=str(error))
        try:
            return await self.simulation.state()
        except SimulationEnded as error:
            return State(error=str(error))


def _is_bankrupt(state: State) -> bool:
    return state.bankrupt_at is not None or state.funds_cents < 0


def _is_over(state: State) -> bool:
    return _is_bankrupt(state) or state.is_horizon_consumed


def _went_back(before: State, now: State) -> bool:
    """Whether `now` is no later than `before`, as after an old copy of the database was put back."""
    if before.sim_time is None or now.sim_time is None:
        return False
    return now.sim_time < before.sim_time or now.ledger_entries < before.ledger_entries


@contextlib.asynccontextmanager
async def company(context: EpisodeContext) -> AsyncIterator[Company]:
    """A company that has just been founded, for one rollout. Raises SandboxStartError or SimulationError."""
    env, data, sandbox = context.settings.env, context.task.data, context.sandbox
    game, path = await prepared(sandbox, installed(context.settings), data)
    variables = {
        "DATABASE_URL": f"sqlite:///{game.database}",
        "YC_BENCH_EXPERIMENT": game.experiment,
        # A crash of the program is 9 kB then; framed by rich it is 43 kB.
        "TYPER_USE_RICH": "0",
        "PATH": path,
    }
    played = SandboxWithVariables(sandbox, variables)
    simulation = await game.simulation(played, game.database)
    try:
        beginning = await simulation.init(
            mode=env.yc_init,  # type: ignore[arg-type] # checked at collection
            seed=data["seed"],
            start_date=env.start_date,
            company_name=env.company_name,
            horizon_years=data["horizon_years"],
        )
        fast = env.yc_fast_path != "off" and await answers_alike(simulation, game.installation)
        founded = await sandbox.read_file(game.database)
        episode = Company(played, context.settings, game, simulation, beginning, founded, fast=fast)
        try:
            yield episode
        finally:
            simulation = episode.simulation
    finally:
        await simulation.aclose()
