"""Tasks in the Harbor format: NAME/{task.toml, instruction.md, environment/, tests/test.sh, solution/solve.sh}.

`load_tasks` reads a directory of such tasks (or a single one). A task that is broken, or that asks for something this
package cannot do, becomes a `Task` with `error`; the others are not touched by it. Only task.toml and instruction.md
are read here; the other files when a rollout needs them.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from pytest_hermes.config import Settings, hint
from pytest_hermes.datasets.host_variables import REFERENCE, expand
from pytest_hermes.datasets.table import Table, shown
from pytest_hermes.errors import ConfigurationError, TaskError
from pytest_hermes.limits import Limits
from pytest_hermes.task import Artifact, DirectoryFiles, Healthcheck, ImageBuild, SandboxSpec, Script, Task

COMPOSE_FILES = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
NETWORK_MODES = {"public": True, "no-network": False}


def load_tasks(directory: Path, settings: Settings) -> list[Task]:
    """The tasks below `directory`, sorted by id (the directory's name), or the one task that it is.

    Limits are those that the tasks declare; the engine fills in the others. Raises ConfigurationError when there is no
    such directory or no task in it.
    """
    if not directory.is_dir():
        raise ConfigurationError(_missing(directory))
    if (directory / "task.toml").is_file():
        return [read_task(directory.resolve(), settings)]
    folders = [path for path in sorted(directory.iterdir()) if _looks_like_task(path)]
    if not folders:
        deeper = sorted({path.parent.parent.name for path in directory.glob("*/*/task.toml")})
        advice = f" Did you mean {directory / deeper[0]}?" if deeper else ""
        raise ConfigurationError(f"{directory}: no task in it (a task is a directory with a task.toml).{advice}")
    return [read_task(folder, settings) for folder in folders]


def _looks_like_task(path: Path) -> bool:
    names = ("task.toml", "instruction.md", "steps")
    return not path.name.startswith(".") and path.is_dir() and any((path / name).exists() for name in names)


def _missing(directory: Path) -> str:
    if directory.exists():
        return f"{directory}: a file, not a directory of tasks"
    parent = directory.parent
    siblings = [path.name for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
    return f"{directory}: there is no such directory of tasks{hint(directory.name, siblings) if siblings else ''}"


def read_task(folder: Path, settings: Settings) -> Task:
    """One task directory; what is wrong with it is in the task's `error`."""
    reader = _Reader(folder, settings)
    try:
        task = reader.read()
        problems = reader.problems
    except TaskError as error:
        problems = [*reader.problems, str(error)]
    if problems:
        return Task(
            id=folder.name,
            prompt="",
            difficulty=reader.difficulty,
            category=reader.category,
            source=str(folder),
            error=f"task {folder.name}: " + "; ".join(problems),
        )
    return task


class _Reader:
    """Reads one task; `problems` collects what is wrong, TaskError ends it where nothing more can be said."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self.settings = settings
        self.allowed: Collection[str] = settings.env.verifier_env or ()
        self.problems: list[str] = []
        self.difficulty: str | None = None
        self.category: str | None = None

    def read(self) -> Task:
        top = Table(self._toml(), problems=self.problems)
        metadata = top.table("metadata")
        self.difficulty, self.category = _word(metadata, "difficulty"), _word(metadata, "category")
        tags = metadata.take("tags")
        self._refuse_steps(top)
        self._version(top)
        top.table("task")
        agent, verifier, environment = top.table("agent"), top.table("verifier"), top.table("environment")
        network = self._network(environment)
        for phase in (agent, verifier):
            self._same_network(phase, network)
        build_s = environment.number("build_timeout_sec")
        spec = self._sandbox(environment, agent.text("user"), network)
        tests = self._tests(verifier)
        solution = self._solution(top.table("solution"))
        limits = Limits(build_s=build_s, agent_s=agent.number("timeout_sec"), verify_s=verifier.number("timeout_sec"))
        artifacts = tuple(self._artifacts(top))
        for table in (top, agent, verifier, environment):
            table.finish()
        return Task(
            id=self.folder.name,
            prompt=self._instruction(),
            sandbox=spec,
            limits=limits,
            difficulty=self.difficulty,
            category=self.category,
            tags=tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else (),
            solution=solution,
            tests=tests,
            artifacts=artifacts,
            data={"ignored_fields": sorted(top.unknown)} if top.unknown else {},
            source=str(self.folder),
        )

    def _toml(self) -> dict[str, Any]:
        path = self.folder / "task.toml"
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise TaskError(f"{path} is missing") from None
        except (OSError, UnicodeDecodeError) as error:
            raise TaskError(f"{path} cannot be read ({error})") from error
        except tomllib.TOMLDecodeError as error:
            raise TaskError(f"{path} is not TOML: {error}") from error

    def _instruction(self) -> str:
        path = self.folder / "instruction.md"
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            self.problems.append(f"{path} is missing")
            return ""
        except (OSError, UnicodeDecodeError) as error:
            self.problems.append(f"{path} cannot be read ({error})")
            return ""
        if not text.strip():
            self.problems.append(f"{path} is empty")
        return text

    # -- sections ----------------------------------------------------------------------------------

    def _refuse_steps(self, top: Table) -> None:
        if top.take("steps") is not None:
            top.unsupported("steps", "tasks of several steps")
        elif (self.folder / "steps").is_dir():
            self.problems.append("directory steps is not supported (tasks of several steps)")
        for key in ("multi_step_reward_strategy", "reward_strategy"):
            top.take(key)

    def _version(self, top: Table) -> None:
        for key in ("version", "schema_version"):
            value = top.take(key)
            if value is not None and str(value).split(".")[0] != "1":
                top.unsupported(key, f"format {shown(value)}; known is 1.x")

    def _network(self, environment: Table) -> bool:
        mode, allowed = environment.take("network_mode"), environment.flag("allow_internet")
        if environment.take("allowed_hosts"):
            environment.unsupported("allowed_hosts", "a network with an allow-list")
        if mode is None:
            return allowed is not False
        if mode not in NETWORK_MODES:
            environment.unsupported("network_mode", f"{shown(mode)}; known are public and no-network")
            return True
        return NETWORK_MODES[mode]

    def _same_network(self, phase: Table, network: bool) -> None:
        mode = phase.take("network_mode")
        if mode is not None and NETWORK_MODES.get(mode if isinstance(mode, str) else "") is not network:
            phase.unsupported("network_mode", f"{shown(mode)} for this phase alone; set it in [environment]")
        if phase.take("allowed_hosts"):
            phase.unsupported("allowed_hosts", "a network with an allow-list")

    def _sandbox(self, environment: Table, user: str | None, network: bool) -> SandboxSpec:
        folder = self.folder / "environment"
        self._refuse_unsupported(environment)
        image = environment.text("docker_image")
        has_dockerfile = (folder / "Dockerfile").is_file()
        if compose := next((name for name in COMPOSE_FILES if (folder / name).exists()), None):
            self.problems.append(f"file environment/{compose} is not supported (tasks of several containers)")
        elif image is None and not has_dockerfile:
            self.problems.append(f"{folder / 'Dockerfile'} is missing and environment.docker_image names no image")
        build = has_dockerfile and (image is None or self.settings.env.force_build)
        if build:
            self._check_links(folder, directories=True)
        workdir = environment.text("workdir")
        if workdir is not None and not workdir.startswith("/"):
            environment.wrong("workdir", "an absolute path")
        variables = environment.environment("env")
        for name, text in variables.items():
            if reference := REFERENCE.search(text):
                environment.unsupported(f"env.{name}", f"{reference[0]}: the agent gets no variables of the host")
        return SandboxSpec(
            image=None if build else image,
            build=ImageBuild(folder) if build else None,
            cpus=environment.number("cpus"),
            memory_mb=environment.size_mb("memory_mb", "memory"),
            disk_mb=environment.size_mb("storage_mb", "storage"),
            network=network,
            workdir=workdir,
            env=variables,
            user=user,
            healthcheck=self._healthcheck(environment),
        )

    def _refuse_unsupported(self, environment: Table) -> None:
        if environment.count("gpus", zero=True):
            environment.unsupported("gpus", "no backend here gives GPUs")
        environment.take("gpu_types")
        for key, reason in (
            ("tpu", "no backend here gives TPUs"),
            ("mcp_servers", "MCP servers"),
            ("skills_dir", "skills"),
        ):
            if environment.take(key):
                environment.unsupported(key, reason)
        system = environment.take("os")
        if system not in (None, "linux"):
            environment.unsupported("os", f"{shown(system)}; known is linux")

    def _healthcheck(self, environment: Table) -> Healthcheck | None:
        if environment.take("healthcheck") is None:
            return None
        table = environment.table("healthcheck")
        command = table.text("command")
        if command is None and "command" not in table.values:
            self.problems.append(f"field {table.name('command')} is missing")
        given = {
            "interval_s": table.number("interval_sec", zero=True),
            "timeout_s": table.number("timeout_sec"),
            "start_period_s": table.number("start_period_sec", zero=True),
            "start_interval_s": table.number("start_interval_sec", zero=True),
        }
        retries = table.count("retries")
        table.finish()
        times = {name: value for name, value in given.items() if value is not None}
        return Healthcheck(command or "", **times, retries=3 if retries is None else retries)

    def _tests(self, verifier: Table) -> Script | None:
        mode = verifier.take("environment_mode")
        if mode not in (None, "shared"):
            verifier.unsupported("environment_mode", f"{shown(mode)}; the verifier runs in the agent's sandbox")
        for key, reason in (
            ("environment", "a sandbox of the verifier's own"),
            ("collect", "collect hooks"),
        ):
            if verifier.take(key):
                verifier.unsupported(key, reason)
        variables, user = verifier.environment("env"), verifier.text("user")
        self._expand(variables, "[verifier] env")
        script = self._script("tests", "test.sh")
        if script is None:
            self.problems.append(f"{self.folder / 'tests' / 'test.sh'} is missing")
            return None
        # The references stay in the task: its digest and its records hold no values of this host.
        return Script(script, "test.sh", env=variables, user=user)

    def _solution(self, table: Table) -> Script | None:
        variables = self._expand(table.environment("env"), "[solution] env")
        table.finish()
        script = self._script("solution", "solve.sh")
        return None if script is None else Script(script, "solve.sh", env=variables)

    def _expand(self, variables: dict[str, str], where: str) -> dict[str, str]:
        try:
            return expand(variables, self.allowed, where)
        except TaskError as error:
            self.problems.append(str(error))
            return {}

    def _script(self, name: str, entry: str) -> DirectoryFiles | None:
        folder = self.folder / name
        if not (folder / entry).is_file():
            if (folder / entry).with_suffix(".bat").is_file():
                self.problems.append(f"file {name}/{Path(entry).stem}.bat is not supported (a Windows script)")
            return None
        self._check_links(folder, directories=False)
        return DirectoryFiles(folder)

    def _check_links(self, folder: Path, *, directories: bool) -> None:
        """Refuse links that leave `folder` or lead nowhere, and links to directories unless those may be there."""
        root = folder.resolve()
        for link in _links(folder):
            target = link.resolve()
            if not target.is_relative_to(root):
                self.problems.append(f"{link} is a link out of {folder}. Replace it by what it points to")
            elif not target.exists():
                self.problems.append(f"{link} is a link to nothing")
            elif target.is_dir() and not directories:
                self.problems.append(f"{link} is a link to a directory. Replace it by the directory itself")

    def _artifacts(self, top: Table) -> Iterator[Artifact]:
        value = top.take("artifacts")
        if value is None:
            return
        if not isinstance(value, list):
            top.wrong("artifacts", "a list of paths or tables")
            return
        for index, item in enumerate(value):
            if isinstance(item, str) and item.strip():
                yield Artifact(item)
            elif isinstance(item, dict):
                yield from self._artifact(Table(item, f"artifacts[{index}]", top.problems, top.unknown))
            else:
                self.problems.append(f"field artifacts[{index}] is {shown(item)}, not a path or a table")

    def _artifact(self, table: Table) -> Iterator[Artifact]:
        source, destination, exclude = table.text("source"), table.text("destination"), table.texts("exclude")
        if table.take("service"):
            table.unsupported("service", "tasks of several containers")
        if destination is not None and (destination.startswith("/") or ".." in PurePosixPath(destination).parts):
            table.wrong("destination", "a path below the artifacts' directory")
        table.finish()
        if source is None:
            if "source" not in table.values:
                self.problems.append(f"field {table.name('source')} is missing")
            return
        yield Artifact(source, destination, exclude)


def _word(metadata: Table, key: str) -> str | None:
    value = metadata.take(key)
    return value.strip() or None if isinstance(value, str) else None


def _links(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.is_symlink():
            yield Path(entry.path)
        elif entry.is_dir():
            yield from _links(Path(entry.path))
