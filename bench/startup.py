"""What the plugin costs a pytest that collects nothing of ours: CPU of start-up with it against `-p no:hermes`.

    python bench/startup.py [--runs 15]      pairs of runs, in turn; prints the median difference

Also the CPU from start to the first model call of a one-task run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ONE_TASK = """
import os, resource
from pytest_hermes import Benchmark, Task

def cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime

class Agent:
    needs_model = False

    async def run(self, prompt, toolbox):
        from pytest_hermes import AgentResult
        from pytest_hermes.agents.loop import HermesAgentLoop
        from pytest_hermes.models.chat import ChatClient

        HermesAgentLoop(ChatClient("http://127.0.0.1:9/v1", "m", "none"))
        await toolbox.call("terminal", {"command": "true"})
        with open("first-call", "w") as out:
            out.write(str(cpu()))
        return AgentResult(messages=[])

benchmark = Benchmark("bench", tasks=[Task(id="t", prompt="x")], verify=lambda v: 1.0)

@benchmark.parametrize
def test_task(rollout): rollout.check()
"""


def cpu_of(folder: Path, *arguments: str) -> float:
    """CPU seconds of one pytest process, its children included."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env |= {"PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, usage = os.wait4(process.pid, 0)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory(prefix="hermes-bench-") as name:
        folder = Path(name)
        (folder / "plain").mkdir()
        (folder / "plain" / "test_plain.py").write_text("def test_plain(): pass\n")
        (folder / "ours").mkdir()
        (folder / "ours" / "test_one.py").write_text(ONE_TASK)
        pairs = []
        for turn in range(runs + 1):
            pair = cpu_of(folder / "plain"), cpu_of(folder / "plain", "-p", "no:hermes")
            if turn:  # the first pair warms the caches
                pairs.append(pair)
        differences = [1000 * (with_it - without) for with_it, without in pairs]
        print(f"pytest start-up: {statistics.median(1000 * without for _, without in pairs):.0f} ms CPU without")
        print(f"plugin: {statistics.median(differences):+.1f} ms (median of {runs} pairs)")
        calls = []
        for _ in range(5):
            cpu_of(folder / "ours", "--hermes-agent=test_one:Agent", "--hermes-local-confine=off")
            calls.append(float((folder / "ours" / "first-call").read_text()))
        print(f"start to first model call: {statistics.median(calls):.2f} CPU-s in all")


if __name__ == "__main__":
    main()
