"""What a docker rollout costs besides its own commands: this package, plain docker, and Harbor, in one run.

    python bench/docker_rollouts.py [--trials 8] [--in-flight 4] [--rounds 2] [--harbor PATH --docker-config DIR]

The task is tests/data/harbor/orders-report with its own solution as the agent, from an image that is there. Each round
runs all of them, one after the other, so that a noisy moment meets them all. Plain docker is run, cp, exec, exec, cp,
exec, exec and rm -f by the docker command, one trial at a time. CPU seconds are those of the command and its children,
not of the daemon. Harbor needs `docker compose`, as a plugin in DIR/cli-plugins.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from pytest_hermes.config import Settings
from pytest_hermes.datasets.harbor import load_tasks
from pytest_hermes.sandbox.images import build_tag

ROOT = Path(__file__).parents[1]
TASK = ROOT / "tests" / "data" / "harbor" / "orders-report"


@dataclasses.dataclass
class Cost:
    """Of one run: seconds of wall clock and CPU."""

    wall_s: float
    cpu_s: float


def measured(work: Callable[[], None]) -> Cost:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(time.monotonic() - began, cpu_s)


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def ours(trials: int, in_flight: int, folder: Path) -> None:
    target = str(ROOT / "benchmarks" / "harbor")
    options = [f"--hermes-tasks={TASK}", "--hermes-agent=oracle", f"--hermes-attempts={trials}"]
    options += [f"--hermes-concurrency={in_flight}", f"--hermes-run-dir={folder}", "-q", "-p", "no:cacheprovider"]
    output = run(sys.executable, "-m", "pytest", target, *options)
    if f"{trials} passed" not in output:
        sys.exit(output)


def plain(trials: int, image: str) -> None:
    for _ in range(trials):
        name = f"bench-{uuid.uuid4().hex[:8]}"
        run("docker", "run", "-d", "--init", "--cpus=1", "--memory=1g", "--name", name, image, "sleep", "600")
        try:
            run("docker", "cp", f"{TASK / 'solution'}", f"{name}:/solution")
            run("docker", "exec", name, "bash", "/solution/solve.sh")
            run("docker", "exec", name, "mkdir", "-p", "/logs/verifier")
            run("docker", "cp", f"{TASK / 'tests'}", f"{name}:/tests")
            run("docker", "exec", name, "bash", "/tests/test.sh")
            reward = run("docker", "exec", name, "cat", "/logs/verifier/reward.json")
            assert json.loads(reward)["reward"] == 1.0, reward
        finally:
            run("docker", "rm", "-f", name)


def harbor(program: str, docker_config: str | None, trials: int, in_flight: int, image: str, folder: Path) -> None:
    task = folder / f"task-{uuid.uuid4().hex[:6]}" / TASK.name
    shutil.copytree(TASK, task)
    text = (task / "task.toml").read_text()
    (task / "task.toml").write_text(text.replace("[environment]\n", f'[environment]\ndocker_image = "{image}"\n'))
    options = ["-p", str(task), "-a", "oracle", "-n", str(in_flight), "-k", str(trials), "-y", "-q", "-o", str(folder)]
    run(program, "run", *options, **({"DOCKER_CONFIG": docker_config} if docker_config else {}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--in-flight", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--harbor", metavar="PATH", help="the command `harbor`")
    parser.add_argument("--docker-config", metavar="DIR")
    options = parser.parse_args()
    trials, in_flight = options.trials, options.in_flight
    (task,) = load_tasks(TASK, Settings())
    assert task.sandbox.build is not None
    image = build_tag(task.id, task.sandbox.build)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours(1, 1, folder / "warm")  # makes the image
        ways: dict[str, tuple[int, Callable[[], None]]] = {
            "pytest-hermes": (trials, lambda: ours(trials, in_flight, folder / "runs")),
            "plain docker, one by one": (2, lambda: plain(2, image)),
        }
        if options.harbor:
            program, config = options.harbor, options.docker_config
            ways["harbor"] = (trials, lambda: harbor(program, config, trials, in_flight, image, folder))
        costs: dict[str, list[Cost]] = {label: [] for label in ways}
        for number in range(options.rounds):
            for label, (count, work) in ways.items():
                cost = measured(work)
                costs[label].append(Cost(cost.wall_s / count, cost.cpu_s / count))
                print(f"round {number + 1}  {label:<26} {cost.wall_s:7.2f} s for {count}", flush=True)
    print(f"\n{trials} trials, {in_flight} in flight; medians per trial    (load {os.getloadavg()[0]:.1f})")
    base = {
        field: statistics.median(getattr(cost, field) for cost in costs["plain docker, one by one"])
        for field in ("wall_s", "cpu_s")
    }
    for label, found in costs.items():
        wall, cpu = (statistics.median(getattr(cost, field) for cost in found) for field in ("wall_s", "cpu_s"))
        print(
            f"{label:<26} wall {wall:6.2f} s ({wall / base['wall_s']:5.2f} x plain)"
            f"   CPU {cpu:6.2f} s ({cpu / base['cpu_s']:5.2f} x plain)"
        )


if __name__ == "__main__":
    main()
