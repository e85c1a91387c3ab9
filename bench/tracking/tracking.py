"""What tracking costs a loop of 5 ms steps, on this machine: a line of 15 metrics after each step, written
as JSON lines, for TensorBoard and for W&B, and samples of the machine every second.

The peer is the same loop without tracking. The two take turns; the median of the rounds counts. The time of
a step is that in which its thread has a processor; what the thread that writes needs is shown beside it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from report import Report  # noqa: E402

GOAL = 0.01  # of a step


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", required=True, help="folder of tracking_bench")
    parser.add_argument("--steps", type=int, default=100, help="of a round, each way")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--save", metavar="FOLDER", help="also write a report there")
    parser.add_argument("--check", action="store_true", help="fail if the goal is missed")
    return parser.parse_args()


def main():
    args = parse()
    report = Report("tracking", "Tracking")
    with tempfile.TemporaryDirectory() as folder:
        command = [os.path.join(args.programs, "tracking_bench"), os.path.join(folder, "run"),
                   str(args.steps), str(args.rounds)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        *rounds, end = [json.loads(line) for line in output.splitlines()]
        with open(os.path.join(folder, "run/metrics/rank_0.jsonl")) as lines:
            written = sum(1 for _ in lines)
        size = sum(os.path.getsize(os.path.join(place, name))
                   for place, _, names in os.walk(folder) for name in names)
    without = statistics.median(r["without_ms"] for r in rounds)
    cost = statistics.median(r["with_ms"] / r["without_ms"] - 1 for r in rounds)
    call = statistics.median(r["call_ms"] for r in rounds)
    wall = statistics.median(r["wall"] for r in rounds)
    cpu = statistics.median(r["cpu_ms"] for r in rounds)
    report.expect(cost < GOAL, f"tracking costs {100 * cost:.2f} % of a step; wanted: under 1 %")
    report.expect(written == end["lines"] and end["dropped"] == 0,
                  f"{written} of {end['lines']} lines were written, {end['dropped']} dropped")
    lines = [
        "| | a step | |", "|---|---|---|",
        f"| without | {without:.3f} ms | |",
        f"| with | {without * (1 + cost):.3f} ms | {100 * cost:+.2f} % (goal: under 1 %) |",
        f"| of that, the call | {1000 * call:.1f} us | {100 * call / without:.2f} % |",
        f"| all threads, where no core is free | {1000 * cpu:+.0f} us | {100 * cpu / without:+.2f} % |",
        f"| by the clock on the wall | | {100 * (wall - 1):+.2f} % |",
        f"| written | {size / end['lines']:.0f} bytes | {written} of {end['lines']} lines |"]
    notes = (f"{args.rounds} rounds of {args.steps} steps each way, taking turns; the medians. All three kinds of "
             "files, 15 metrics a step, samples of the machine every second. "
             "Times are those in which a thread had a processor, so that other programs do not count.")
    return report.end(args, "bench/tracking/run", lines, notes)


if __name__ == "__main__":
    sys.exit(main())
