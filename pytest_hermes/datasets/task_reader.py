"""One task of the Harbor format, whatever its files are kept in: what task.toml says becomes a `Task`.

`TaskParts` is where the files are (a directory, a row of a data set); `read_task` puts a task together from them. What
is wrong with a task, or asked for and not supported, is collected in its `error`, all at once, with the field's full
name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from pytest_hermes.config import Settings
from pytest_hermes.datasets.host_variables import REFERENCE, expand
from pytest_hermes.datasets.table import Table, shown
from pytest_hermes.errors import TaskError
from pytest_hermes.limits import Limits
from pytest_hermes.task import Artifact, FileTree, Healthcheck, ImageBuild, ListedFiles, SandboxSpec, Script, Task

COMPOSE_FILES = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
NETWORK_MODES = {"public": True, "no-network": False}


class TaskParts(Protocol):
    """A task's files. Paths are relative: `task.toml`, `tests/test.sh`, `environment`."""

    id: str
    source: str
    """Where the task comes from, for messages and records."""

    def toml(self) -> dict[str, Any]:
        """task.toml, parsed. Raises TaskError."""
        ...

    def instruction(self) -> str:
        """The prompt. Raises TaskError where it cannot be read; may be blank."""
        ...

    def named(self, path: str) -> str:
        """How messages call a part."""
        ...

    def has(self, path: str) -> bool:
        """Whether there is such a file (or, without a slash, directory)."""
        ...

    def tree(self, name: str) -> FileTree:
        """The files of `tests` or `solution`."""
        ...

    def build_context(self) -> Path | ListedFiles:
        """The files of `environment`."""
        ...

    def problems(self, name: str, *, directory_links: bool) -> Iterable[str]:
        """What cannot be used in a directory: links out of it or to nothing, and to directories unless allowed."""
        ...


def read_task(parts: TaskParts, settings: Settings) -> Task:
    """The task; what is wrong with it is in its `error`."""
    reader = _Reader(parts, settings)
    try:
        task = reader.read()
        problems = reader.problems
    except TaskError as error:
        problems = [*reader.problems, str(error)]
    if problems:
        return Task(
            id=parts.id,
            prompt="",
            difficulty=reader.difficulty,
            category=reader.category,
            source=parts.source,
            error=f"task {parts.id}: " + "; ".join(problems),
        )
    return task


class _Reader:
    """Reads one task; `problems` collects what is wrong, TaskError ends it where nothing more can be said."""

    def __init__(self, parts: TaskParts, settings: Settings) -> None:
        self.parts = parts
        self.settings = settings
        self.allowed: Collection[str] = settings.env.verifier_env or ()
        self.problems: list[str] = []
        self.difficulty: str | None = None
        self.category: str | None = None

    def read(self) -> Task:
        top = Table(self.parts.toml(), problems=self.problems)
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
            id=self.parts.id,
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
            source=self.parts.source,
        )

    def _instruction(self) -> str:
        try:
            text = self.parts.instruction()
        except TaskError as error:
            self.problems.append(str(error))
            return ""
        if not text.strip():
            self.problems.append(f"{self.parts.named('instruction.md')} is empty")
        return text

    # -- sections ----------------------------------------------------------------------------------

    def _refuse_steps(self, top: Table) -> None:
        if top.take("steps") is not None:
            top.unsupported("steps", "tasks of several steps")
        elif self.parts.has("steps"):
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
        if not isinstance(mode, str) or mode not in NETWORK_MODES:
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
        self._refuse_unsupported(environment)
        image = environment.text("docker_image")
        has_dockerfile = self.parts.has("environment/Dockerfile")
        if compose := next((name for name in COMPOSE_FILES if self.parts.has(f"environment/{name}")), None):
            self.problems.append(f"file environment/{compose} is not supported (tasks of several containers)")
        elif image is None and not has_dockerfile:
            dockerfile = self.parts.named("environment/Dockerfile")
            self.problems.append(f"{dockerfile} is missing and environment.docker_image names no image")
        build = has_dockerfile and (image is None or self.settings.env.force_build)
        if build:
            self.problems += self.parts.problems("environment", directory_links=True)
        workdir = environment.text("workdir")
        if workdir is not None and not workdir.startswith("/"):
            environment.wrong("workdir", "an absolute path")
        variables = environment.environment("env")
        for name, text in variables.items():
            if reference := REFERENCE.search(text):
                environment.unsupported(f"env.{name}", f"{reference[0]}: the agent gets no variables of the host")
        return SandboxSpec(
            image=None if build else image,
            build=ImageBuild(self.parts.build_context()) if build else None,
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
            self.problems.append(f"{self.parts.named('tests/test.sh')} is missing")
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

    def _script(self, name: str, entry: str) -> FileTree | None:
        if not self.parts.has(f"{name}/{entry}"):
            windows = f"{name}/{Path(entry).stem}.bat"
            if self.parts.has(windows):
                self.problems.append(f"file {windows} is not supported (a Windows script)")
            return None
        self.problems += self.parts.problems(name, directory_links=False)
        return self.parts.tree(name)

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
