"""What a step of the Trainer costs over one of a loop written by hand, on two ranks.

Both use the same model, loader, DistributedDataParallel and optimizer; they take turns in one pair of
processes. The loop by hand reads its loss every 10 steps; the Trainer adds the ranks' losses up as
often, and does in every step what a loop by hand seldom does: it looks whether the gradients are
finite, seeds the random numbers, keeps the step revocable, asks whether it should stop.
"""

import os
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from suite import Bench, Metric, Pair, one_thread  # noqa: E402

LIMIT = 600
MODELS = {"linear": "Linear(20, 1), batch 32", "gpt": "GPT, 4 layers of 128, 64 tokens, batch 4"}


def measure(run):
    done = subprocess.run([run.program("bench/trainer_bench"), str(run.turns)], env=dict(one_thread(), LOCKSTEP_QUIET="1"),
                          timeout=LIMIT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    turns = {name: [] for name in MODELS}
    for line in done.stdout.splitlines():
        name, *numbers = line.split()
        turns[name].append([float(number) for number in numbers])
    found = {}
    for name, rows in turns.items():
        hand, trainer, hand_cpu, trainer_cpu = (statistics.median(column) for column in zip(*rows))
        found[name] = Pair(trainer, hand)
        found[f"{name}_cpu"] = Pair(trainer_cpu, hand_cpu)
        found[f"{name}_cost"] = 100 * (statistics.median(row[1] / row[0] for row in rows) - 1)
    return found


BENCH = Bench(
    name="trainer", title="A step of the Trainer over one by hand", peer="by hand", measure=measure, rounds=3,
    metrics=tuple(metric for name, what in MODELS.items() for metric in (
        Metric(f"{name}_cost", f"more than by hand, {what}", "%", goal=5),
        Metric(name, f"a step, {what}", "us"), Metric(f"{name}_cpu", f"processor time, {what}", "us"))),
    options={"turns": 16}, quick={"turns": 3},
    programs=("bench/trainer_bench",), modules=("torch",),
    notes="2 ranks, Gloo with shared memory, one thread a rank; SGD; the median of the turns' ratios.")
