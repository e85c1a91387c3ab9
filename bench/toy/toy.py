"""The tutorial's job from the command to its end: Python under torchrun against toy_trainer under
`lockstep run`.

Both train Linear(20, 1) on 2,048 samples with two ranks, save a snapshot every 10 epochs and print a
line per epoch and rank. They take turns, so that both meet the same load; medians count. One thread a
rank, as torchrun sets it. The loop is what the programs measure themselves: training without starting
and meeting.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from report import Report  # noqa: E402

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
LIMIT = 300  # seconds for one run
GOAL = 8.0  # least ratio of Python's time to ours, end to end
SECONDS_GOAL = {"end to end": 1.5, "loop": 0.4}


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True, help="the folder of lockstep and toy_trainer")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", metavar="FOLDER", help="also write a report there")
    parser.add_argument("--check", action="store_true", help="fail if the goal is missed")
    return parser.parse_args()


def run(command, folder, args):
    """Returns the seconds of the whole and of the loop."""
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=LIMIT)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        sys.exit(f"toy: {' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    lines = len(re.findall(r"Epoch \d+ \| Batchsize", done.stdout))
    if lines != args.epochs * args.ranks or not os.path.exists(os.path.join(folder, "snapshot.pt")):
        sys.exit(f"toy: {' '.join(command)} did not do the whole job:\n{done.stdout}")
    loop = re.search(r"Trained \d+ epochs on \d+ rank\(s\) in (\S+) s", done.stdout)
    return seconds, float(loop[1])


def table(rounds, report):
    lines = ["| | lockstep, s (range) | Python, s (range) | Python / lockstep | goal |",
             "|---|---|---|---|---|"]
    for column, what in enumerate(("end to end", "loop")):
        ours, theirs = ([each[column] for each in rounds[side]] for side in ("lockstep", "Python"))
        cells = [f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"
                 for times in (ours, theirs)]
        ratio = statistics.median(theirs) / statistics.median(ours)
        goal = f"<= {SECONDS_GOAL[what]:g} s"
        if column == 0:
            goal = f">= {GOAL:g}, {goal}"
            report.expect(ratio >= GOAL, f"{what}: {ratio:.1f}, the goal is {GOAL:g}")
        report.expect(statistics.median(ours) <= SECONDS_GOAL[what],
                      f"{what}: {statistics.median(ours):.2f} s, "
                      f"the goal is {SECONDS_GOAL[what]:g} s")
        lines.append(f"| {what} | {cells[0]} | {cells[1]} | {ratio:.1f} | {goal} |")
    return lines


def main():
    args = parse()
    report = Report("toy", "The tutorial's job, lockstep against Python under torchrun")
    ranks, job = str(args.ranks), [str(args.epochs), "10"]
    programs = os.path.abspath(args.bin)
    tutorial = os.path.join(ROOT, "bench", "toy", "tutorial.py")
    commands = {
        "Python": [sys.executable, "-m", "torch.distributed.run", "--standalone",
                   "--nproc-per-node", ranks, tutorial, *job],
        "lockstep": [os.path.join(programs, "lockstep"), "run", "--nproc-per-node", ranks,
                     os.path.join(programs, "toy_trainer"), *job],
    }
    rounds = {side: [] for side in commands}
    for number in range(args.rounds):
        for side, command in commands.items():
            with tempfile.TemporaryDirectory(prefix="lockstep_toy_") as folder:
                rounds[side].append(run(command, folder, args))
            print(f"round {number + 1}, {side}: {rounds[side][-1][0]:.2f} s, "
                  f"loop {rounds[side][-1][1]:.3f} s", flush=True)
    command = f"bench/toy/run --epochs {args.epochs} --ranks {args.ranks} --rounds {args.rounds}"
    return report.end(args, command, table(rounds, report), (
        f"{args.epochs} epochs, {args.ranks} ranks, batches of 32, a snapshot every 10 epochs; "
        f"medians of {args.rounds} rounds in which the two take turns; one thread a rank."))


if __name__ == "__main__":
    sys.exit(main())
