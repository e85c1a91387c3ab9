"""Causal attention on one GPU, forward and backward, in GPT-2's shapes: our kernels for Hopper beside cuDNN's."""

import json
import os
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from suite import Bench, Metric, Pair  # noqa: E402

TOKENS, HEADS = 1024, 12
BATCHES = (64, 16, 4)


def measure(run):
    found = {}
    for batch in BATCHES:
        command = [run.program("bench/attention_calls"), batch, TOKENS, HEADS, run.calls]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, command))}:\n{done.stderr[-3000:]}")
        times = json.loads(done.stdout.splitlines()[-1])
        for direction in ("forward", "backward"):
            found[f"{direction}_{batch}"] = Pair(*(
                statistics.median(times[f"{direction}, {who}"]) * 1e3 for who in ("tiles", "cudnn")))
    return found


def needs(run):
    import torch
    return None if torch.cuda.is_available() else "there is no GPU"


BENCH = Bench(
    name="attention_gpu", title="Attention on one GPU", peer="cuDNN", measure=measure, rounds=3, needs=needs,
    metrics=tuple(Metric(f"{direction}_{batch}", f"{direction}, batch {batch}", "us", ratio_goal=1)
                  for batch in BATCHES for direction in ("forward", "backward")),
    options={"calls": 40}, quick={"calls": 5},
    programs=("bench/attention_calls",), modules=("torch",),
    notes=f"bfloat16, {HEADS} heads of 64 columns, {TOKENS} tokens.")
