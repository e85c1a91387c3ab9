"""What tracking costs a loop of 5 ms steps, on this machine: a line of 15 metrics after each step, written
as JSON lines, for TensorBoard and for W&B, and samples of the machine every second.

The peer is the same loop without tracking; the two take turns. The time of a step is that in which its
thread has a processor; what the thread that writes needs is shown beside it.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from suite import Bench, Metric, Pair  # noqa: E402


def measure(run):
    with tempfile.TemporaryDirectory() as folder:
        command = [run.program("bench/tracking_bench"), os.path.join(folder, "run"), str(run.steps), str(run.turns)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        *turns, end = [json.loads(line) for line in output.splitlines()]
        with open(os.path.join(folder, "run/metrics/rank_0.jsonl")) as lines:
            written = sum(1 for _ in lines)
        size = sum(os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(folder) for name in names)
    if written != end["lines"] or end["dropped"]:
        raise RuntimeError(f"{written} of {end['lines']} lines were written, {end['dropped']} dropped")

    def middle(value):
        return statistics.median(value(turn) for turn in turns)
    without = middle(lambda turn: turn["without_ms"])
    return {"step": Pair(middle(lambda turn: turn["with_ms"]), without),
            "cost": 100 * middle(lambda turn: turn["with_ms"] / turn["without_ms"] - 1),
            "call": 1000 * middle(lambda turn: turn["call_ms"]),
            "cpu": 100 * middle(lambda turn: turn["cpu_ms"]) / without,
            "wall": 100 * (middle(lambda turn: turn["wall"]) - 1), "bytes": size / end["lines"]}


BENCH = Bench(
    name="tracking", title="Tracking", peer="without", measure=measure, rounds=3,
    metrics=(Metric("cost", "more of the step's thread", "%", goal=1), Metric("step", "a step", "ms"),
             Metric("call", "of that, the call", "us"), Metric("wall", "more by the clock on the wall", "%"),
             Metric("cpu", "more of all threads", "%"), Metric("bytes", "written for a step", "bytes")),
    options={"steps": 100, "turns": 15}, quick={"steps": 20, "turns": 3},
    programs=("bench/tracking_bench",),
    notes="All three kinds of files, 15 metrics a step, samples of the machine every second; the median of the turns. Times of "
          "threads are those in which they had a processor, so that other programs do not count.")
