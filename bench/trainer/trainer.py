"""What a step of the Trainer costs over one of a loop written by hand, on two ranks.

Both use the same model, loader, DistributedDataParallel and optimizer; they take turns in one pair of
processes, and the median of the rounds' ratios counts. The loop by hand reads its loss every 10 steps;
the Trainer adds the ranks' losses up as often, and does in every step what a loop by hand seldom does:
it looks whether the gradients are finite, seeds the random numbers, keeps the step revocable, asks
whether it should stop.
"""

import argparse
import os
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from report import Report  # noqa: E402

LIMIT = 600
GOAL = 1.05  # most that the Trainer's time may be of the other
MODELS = {
    "linear": "Linear(20, 1), batch 32",
    "gpt": "GPT, 4 layers of 128, 64 tokens, batch 4",
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True, help="trainer_bench")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--save", metavar="FOLDER", help="also write a report there")
    parser.add_argument("--check", action="store_true", help="fail if the goal is missed")
    return parser.parse_args()


def rounds_of(args):
    environment = dict(os.environ, OMP_NUM_THREADS="1", LOCKSTEP_QUIET="1")
    done = subprocess.run([args.program, str(args.rounds)], env=environment, timeout=LIMIT,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"trainer: {args.program} ended with {done.returncode}:\n{done.stderr}")
    rounds = {name: [] for name in MODELS}
    for line in done.stdout.splitlines():
        name, *numbers = line.split()
        rounds[name].append([float(number) for number in numbers])
    return rounds


def table(rounds, report):
    lines = ["| model | by hand, us | Trainer, us | Trainer / by hand (quartiles) | goal "
                     "| processor time, by hand | Trainer |",
                     "|---|---|---|---|---|---|---|"]
    for name, what in MODELS.items():
        hand, trainer, hand_cpu, trainer_cpu = (
            statistics.median(column) for column in zip(*rounds[name]))
        ratios = [each[1] / each[0] for each in rounds[name]]
        low, ratio, high = statistics.quantiles(ratios, n=4)
        lines.append(f"| {what} | {hand:,.1f} | {trainer:,.1f} | {ratio:.3f} ({low:.3f} to "
                     f"{high:.3f}) | <= {GOAL:g} | {hand_cpu:,.1f} | {trainer_cpu:,.1f} |")
        report.expect(ratio <= GOAL, f"{name}: {ratio:.3f}, the goal is {GOAL:g}")
    return lines


def main():
    args = parse()
    report = Report("trainer", "A step of the Trainer over one by hand")
    lines = table(rounds_of(args), report)
    return report.end(args, f"bench/trainer/run --rounds {args.rounds}", lines, (
        f"2 ranks, Gloo with shared memory, one thread a rank; SGD; {args.rounds} rounds in which the "
        "two take turns; times are medians."))


if __name__ == "__main__":
    sys.exit(main())
