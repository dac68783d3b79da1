"""A YC-Bench run of 60 commands, by the kept process and by a process per command, alternately.

    python bench/yc_bench.py [--rounds 3] [--cap 60] [--policy greedy]

A scripted player plays fast_test with seed 1 through the whole product. Wall is the agent phase, CPU that of the pytest
process and everything below it, set-up and verification included. Medians over the rounds; quote the ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pytest_hermes.artifacts.records import read_rows

ROOT = Path(__file__).parents[1]
MODES = ("auto", "off")


def children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def play(mode: str, policy: str, cap: int) -> tuple[float, float, float, int]:
    """One run: wall of the agent phase, wall and CPU of all of it, and commands by the kept process."""
    options = json.dumps({"policy": policy, "cap": cap})
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pytest",
            str(ROOT / "benchmarks/yc_bench"),
            "-q",
            f"--hermes-run-dir={folder}",
        ]
        command += ["--yc-presets=fast_test", "--yc-seeds=1", f"--yc-fast-path={mode}", "-p", "no:cacheprovider"]
        command += ["--hermes-agent=doubles.yc_players:Player", "--hermes-set", f"env.agent_options={options}"]
        command += ["--hermes-set", "env.terminal_output_chars=400000"]
        command += ["--hermes-set", "env.default_result_size_chars=400000"]
        cpu, began = children_cpu_s(), time.perf_counter()
        env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        wall, cpu = time.perf_counter() - began, children_cpu_s() - cpu
        (run,) = (path for path in Path(folder).iterdir() if path.is_dir())
        (row,) = read_rows(run)
        if row["details"].get("yc.commands") != cap:
            sys.exit(done.stdout)
        return row["clocks"]["agent_s"], wall, cpu, row["details"]["yc.fast_commands"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cap", type=int, default=60)
    parser.add_argument("--policy", default="greedy")
    chosen = parser.parse_args()
    play("auto", chosen.policy, 1)  # what is asked once per installation is asked here
    found: dict[str, list[tuple[float, float, float, int]]] = {mode: [] for mode in MODES}
    for _ in range(chosen.rounds):
        for mode in MODES:
            found[mode].append(play(mode, chosen.policy, chosen.cap))
    agent, whole, cpu = (
        {mode: statistics.median(values[place] for values in found[mode]) for mode in MODES} for place in range(3)
    )
    for mode in MODES:
        print(
            f"--yc-fast-path={mode:<5} {found[mode][0][3]:3d} of {chosen.cap} fast"
            f"   agent {agent[mode]:6.2f} s   run {whole[mode]:6.2f} s   CPU {cpu[mode]:6.2f} s"
        )
    print(f"ratio  agent {agent['off'] / agent['auto']:.1f}   run {whole['off'] / whole['auto']:.1f}", end="")
    print(f"   CPU {cpu['off'] / cpu['auto']:.1f}")


if __name__ == "__main__":
    main()
