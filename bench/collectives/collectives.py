"""Collectives through shared memory against Gloo, in the same processes, on 2 and on 4 ranks.

A call's time is the best of 5 blocks of calls, from the first rank's view. Rounds alternate between
the two backends, case by case, so that both meet the same load; the median of the rounds' ratios
counts, with the lowest and the highest beside it. "shared" are tensors in memory that all ranks can
reach (ProcessGroup::shared_empty_like), as DistributedDataParallel has its buckets.
"""

import argparse
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ranks import run_ranks  # noqa: E402
from report import Report  # noqa: E402

ROUND_SECONDS = 60
# (ranks, collective, bytes): least ratio of Gloo's time to that through shared memory
GOALS = {(2, "all_reduce_shared", 25 << 20): 5.0, (2, "all_reduce", 1 << 10): 20.0,
         (4, "all_reduce", 25 << 20): 2.0, (4, "all_reduce_shared", 25 << 20): 2.0,
         (4, "all_reduce", 1 << 10): 2.0}


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpp", required=True, help="the C++ program")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="of measuring a case in a round")
    parser.add_argument("--save", metavar="FOLDER", help="also write a report there")
    parser.add_argument("--check", action="store_true", help="fail if a goal is missed")
    return parser.parse_args()


def size_text(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB" if size else "-"


def table(ranks, output, report):
    times = {}
    for line in output.splitlines():
        name, size, gloo, shm, *_ = line.split()
        times.setdefault((name, int(size)), []).append((float(gloo), float(shm)))
    lines = []
    for (name, size), rounds in times.items():
        ratios = sorted(gloo / shm for gloo, shm in rounds)
        gloo, shm = (statistics.median(column) for column in zip(*rounds))
        ratio, goal = statistics.median(ratios), GOALS.get((ranks, name, size))
        lines.append(f"| {ranks} | {name} | {size_text(size)} | {gloo:,.1f} | {shm:,.1f} "
                     f"| {size / shm / 1000:.2f} | {ratio:.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f}) "
                     f"| {f'>= {goal:g}' if goal else ''} |")
        if goal:
            report.expect(ratio >= goal, f"{ranks} ranks, {name} of {size_text(size)}: "
                                         f"{ratio:.1f}, the goal is {goal:g}")
    return lines


def main():
    args = parse()
    report = Report("collectives", "Collectives through shared memory against Gloo")
    lines = ["| ranks | collective | size | Gloo us | shm us | shm GB/s | Gloo / shm | goal |",
             "|---|---|---|---|---|---|---|---|"]
    for ranks in (2, 4):
        limit = ROUND_SECONDS * (args.rounds + 1)
        output = run_ranks([args.cpp, str(args.rounds), str(args.seconds)], ranks, limit)
        lines += table(ranks, output, report)
    command = f"bench/collectives/run --rounds {args.rounds} --seconds {args.seconds:g}"
    return report.end(args, command, lines, (
        f"Backends in one process, one thread a rank, float32; medians of {args.rounds} rounds, in "
        "brackets the lowest and highest ratio; GB/s is a tensor's size by the time of a call."))


if __name__ == "__main__":
    sys.exit(main())
