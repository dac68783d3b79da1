"""How fast rollouts go, in one run beside the bare loop: rollouts/s, own CPU per model call, memory.

    python bench/rollouts.py [--rollouts 1000] [--in-flight 128] [--turns 10] [--repeat 3]

Both do the same work on the same mock endpoint at zero latency: `turns` commands in a kept shell and `turns + 1` model
calls per rollout, every message written, verified by the last message. pytest-hermes does it as pytest items in
unconfined local sandboxes. The work is timed inside the process, which also collects and reports 1000 items;
CPU is the process's own, without its shells'. Machines are noisy: quote the ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SUITE = """
from pytest_hermes import Benchmark, Task

async def verify(v):
    return v.trajectory.messages[-1]["content"] == "done"

tasks = [Task(id=f"t{n}", prompt=f"task {n}: echo some numbers") for n in range(ROLLOUTS)]
benchmark = Benchmark("bench", tasks=tasks, verify=verify)

@benchmark.parametrize
def test_task(rollout):
    rollout.check()
"""
PROBE = """
import json, os, resource, time, pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session):
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    result = yield
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    with open(os.environ["PROBE_OUT"], "w") as out:
        json.dump({"wall_s": time.perf_counter() - began, "cpu_s": cpu, "rss_mb": after.ru_maxrss / 1024}, out)
    return result
"""


def hermes(url: str, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """One pytest process."""
    suite = SUITE.replace("ROLLOUTS", str(options.rollouts))
    (folder / "test_bench.py").write_text(suite)
    (folder / "probe.py").write_text(PROBE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "probe", "-p", "no:cacheprovider", "--model=mock"]
    command += [f"--hermes-base-url={url}", f"--hermes-concurrency={options.in_flight}", "--hermes-run-dir=runs"]
    command += ["--hermes-local-confine=off", f"--hermes-max-turns={options.turns + 2}", "--hermes-toolsets=terminal"]
    command += ["--hermes-verify-concurrency=64"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env |= {"PROBE_OUT": str(folder / "probe.json"), "PYTHONPATH": str(folder), "OPENAI_API_KEY": "none"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout[-3000:] + done.stderr[-1000:])
    return json.loads((folder / "probe.json").read_text())


def bare(url: str, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """One bare process."""
    command = [
        sys.executable,
        HERE / "bare.py",
        url,
        str(options.rollouts),
        str(options.in_flight),
        folder / "out.jsonl",
    ]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--in-flight", type=int, default=128)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    calls = options.rollouts * (options.turns + 1)
    command = [sys.executable, HERE / "mock_openai.py", f"--turns={options.turns}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            print(f"{options.rollouts} rollouts x {options.turns + 1} calls, {options.in_flight} in flight")
            print(f"{'':14} {'rollouts/s':>10} {'CPU ms/call':>12} {'peak MB':>8}")
            ratios = []
            for _ in range(options.repeat):
                row = {}
                for name, measure in (("bare loop", bare), ("pytest-hermes", hermes)):
                    with tempfile.TemporaryDirectory(prefix="hermes-bench-") as folder:
                        row[name] = found = measure(url, options, Path(folder))
                    speed, cpu = options.rollouts / found["wall_s"], 1000 * found["cpu_s"] / calls
                    print(f"{name:14} {speed:10.1f} {cpu:12.3f} {found['rss_mb']:8.0f}", flush=True)
                ratios.append(row["bare loop"]["wall_s"] / row["pytest-hermes"]["wall_s"])
            print(f"speed against the bare loop: {statistics.median(ratios):.2f} (median of {options.repeat})")
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
