"""How long a job takes to start and end, under lockstep run and under torchrun.

Both take turns, so that both meet what else the machine is doing; the median of the rounds counts.
Memory is the most that the launcher itself had resident while its workers ran.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from report import Report  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
GOALS = {"4 x true": 80.0, "2 ranks to a first barrier": 6.0}
MEMORY_GOAL_MB = 10.0


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lockstep", required=True)
    parser.add_argument("--barrier", required=True, help="the program first_barrier")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", metavar="FOLDER", help="also write a report there")
    parser.add_argument("--check", action="store_true", help="fail if a goal is missed")
    return parser.parse_args()


def seconds(command):
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def resident_mb(command):
    """The launcher's own peak, while two workers sleep."""
    process = subprocess.Popen([*command, "sleep", "1"], stderr=subprocess.DEVNULL)
    peak = 0.0
    while process.poll() is None:
        try:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            break
        lines = [line for line in status.splitlines() if line.startswith("VmHWM")]
        if lines:
            peak = max(peak, int(lines[0].split()[1]) / 1024)
        time.sleep(0.02)
    return peak


def main():
    options = parse()
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    ours = [options.lockstep, "run", "--quiet"]
    jobs = {
        "4 x true": (
            [*ours, "--nproc-per-node", "4", "--no-python", "true"],
            [*torchrun, "--nproc-per-node", "4", "--no-python", "true"],
        ),
        "2 ranks to a first barrier": (
            [*ours, "--nproc-per-node", "2", options.barrier],
            [*torchrun, "--nproc-per-node", "2", str(HERE / "first_barrier.py")],
        ),
    }
    report = Report("launch", "Starting a job")
    rows = []
    for name, (mine, theirs) in jobs.items():
        times = {"mine": [], "theirs": []}
        for _ in range(options.rounds):
            times["mine"].append(seconds(mine))
            times["theirs"].append(seconds(theirs))
        mine_s, theirs_s = statistics.median(times["mine"]), statistics.median(times["theirs"])
        ratio = theirs_s / mine_s
        rows.append(f"| {name} | {1000 * mine_s:.1f} ms | {1000 * theirs_s:.0f} ms "
                    f"| {ratio:.1f} | >= {GOALS[name]:.0f} |")
        report.expect(ratio >= GOALS[name], f"{name}: {ratio:.1f}, the goal is {GOALS[name]:.0f}")
    memory = resident_mb([*ours, "--nproc-per-node", "2", "--no-python"])
    other = resident_mb([*torchrun, "--nproc-per-node", "2", "--no-python"])
    rows.append(f"| launcher's memory | {memory:.1f} MB | {other:.0f} MB | {other / memory:.0f} "
                f"| <= {MEMORY_GOAL_MB:.0f} MB |")
    report.expect(memory <= MEMORY_GOAL_MB,
                  f"memory: {memory:.1f} MB, the goal is {MEMORY_GOAL_MB:.0f}")

    table = ["| job | lockstep | torchrun | torchrun / lockstep | goal |", "|---|---|---|---|---|"]
    return report.end(options, "bench/launch/run", table + rows, (
        f"Medians of {options.rounds} rounds, taking turns. The first barrier is a C++ program under "
        "lockstep and a Python one under torchrun."))


if __name__ == "__main__":
    sys.exit(main())
