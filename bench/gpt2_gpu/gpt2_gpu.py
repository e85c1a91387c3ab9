"""GPT-2 on one GPU: our step (forward, backward, AdamW; bfloat16) beside PyTorch's eager one and
torch.compile's, each in a process of its own, in alternation.

A step's time is on the device. Tokens per second and TFLOP/s follow from it: 6 FLOP for each weight that
is multiplied and token, 12 * layers * width * tokens for attention (causal: half of it). The roof is 790
TFLOP/s, what dense bfloat16 products reach on an H200.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from suite import Bench, Metric, Pair  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ROOF = 790e12
SHAPES = {"gpt2": (12, 768), "gpt2-medium": (24, 1024), "gpt2-xl": (48, 1600)}
# Up to so many tokens weights are updated while backward goes on: a large step leaves nothing free beside it.
FEW_ROWS = 8192
# Model, batch, tokens.
LARGE = ("gpt2-xl", 16, 1024)
# And the goal in ms.
CASES = (("gpt2", 64, 1024, 98), ("gpt2", 4, 1024, 8.2), ("gpt2-medium", 16, 1024, None))


def flops(model, batch, tokens):
    layers, width = SHAPES[model]
    weights = 12 * layers * width * width + 50304 * width
    return batch * tokens * (6 * weights + 6 * layers * width * tokens)


# What a kernel's name says about its part in the step; the first that fits.
PARTS = [("products", ("nvjet", "gemm", "splitK", "cutlass", "product_kernel")), ("attention", ("sdpa", "cudnn", "attention::")),
         ("loss", ("CrossEntropy", "HeadLoss", "HeadRows")), ("norms", ("LayerNorm",)),
         ("bias sums, GELU's gradient, joining", ("sum_kernel", "finish_kernel")),
         ("AdamW", ("multi_tensor_apply", "adamw_kernel")), ("casting of weights", ("cast_kernel",))]


def part_of(kernel):
    return next((part for part, words in PARTS if any(word in kernel for word in words)), "the rest")


def profile(program, shape):
    """One step's kernels, part by part, as a table."""
    found = steps_of([program, *shape, "fused", "launch", "profile"])
    kernels = found["kernels"]
    parts = {}
    for name, calls, ms in kernels:
        before = parts.get(part_of(name), (0, 0.0))
        parts[part_of(name)] = (before[0] + calls, before[1] + ms)
    total = sum(ms for _, ms in parts.values())
    rows = [f"| {part} | {calls} | {ms:.2f} | {ms / total:.1%} |"
            for part, (calls, ms) in sorted(parts.items(), key=lambda item: -item[1][1])]
    return ["", f"Kernels of one step of {shape[0]}, batch {shape[1]}, which add up to {total:.2f} ms; for {found['idle']:.2f} ms none runs:", "",
            "| part | kernels | ms | share |", "|---|---|---|---|", *rows]


def steps_of(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def key_of(model, batch):
    return f"{model.replace('-', '_')}_{batch}"


def run_all(run, model, batch, tokens, ways):
    """The median of each way's steps, and the most memory it took, in GiB; a row of the table for each."""
    middle, memory = {}, {}
    for name, command in ways.items():
        got = steps_of(command)
        ordered = sorted(got["ms"])
        middle[name], memory[name] = statistics.median(ordered), got["bytes"] / 2**30
        rate = flops(model, batch, tokens) / middle[name] * 1e3
        run.details.append(
            f"| {model}, {batch} | {name} | {middle[name]:.2f} ({ordered[len(ordered) // 10]:.2f} to "
            f"{ordered[len(ordered) * 9 // 10]:.2f}) | {batch * tokens / middle[name] * 1e3:,.0f} | {rate / 1e12:.0f} | "
            f"{rate / ROOF:.1%} | {memory[name]:.1f} |")
    return middle, memory


def measure(run):
    found, profiles = {}, []
    program, peer = run.program("bench/gpt2_step"), [run.python, HERE / "peer.py"]
    trainer = run.program("bench/gpt2_trainer")
    run.details = ["| model, batch | who | ms (p10 to p90) | tokens/s | TFLOP/s | of the roof | GiB |", "|---|---|---|---|---|---|---|"]
    wanted = run.models.split(",")
    if unknown := set(wanted) - set(SHAPES):
        raise SystemExit(f"models={run.models}: there is no {', '.join(sorted(unknown))}, only {', '.join(SHAPES)}")
    for model, batch, tokens, _ in CASES:
        if model not in wanted:
            continue
        shape = [model, batch, tokens, run.steps]
        middle, _ = run_all(run, model, batch, tokens, {
            "lockstep": [program, *shape, "fused", "graph", *(["in_backward"] if batch * tokens <= FEW_ROWS else [])],
            "torch.compile": [*peer, *shape, "compile"],
            "lockstep, no graph": [program, *shape, "fused", "launch"],
            "PyTorch eager": [*peer, *shape, "eager"],
            "lockstep's Trainer, recorded": [trainer, *shape, "graph"],
            "lockstep's Trainer": [trainer, *shape, "launch"]})
        found[f"{key_of(model, batch)}_trainer"] = Pair(
            min(middle["lockstep's Trainer, recorded"], middle["lockstep's Trainer"]), middle["torch.compile"])
        profiles += profile(program, shape)
        # A graph is not always the faster way.
        found[key_of(model, batch)] = Pair(min(middle["lockstep"], middle["lockstep, no graph"]), middle["torch.compile"])
        found[f"{key_of(model, batch)}_eager"] = Pair(middle["lockstep, no graph"], middle["PyTorch eager"])
    model, batch, tokens = LARGE
    if model in wanted:
        shape = [model, batch, tokens, max(3, run.steps // 4)]
        middle, memory = run_all(run, model, batch, tokens, {
            "lockstep, stage 1, checkpoints": [program, *shape, "fused", "launch", "checkpoint", "shard"],
            "PyTorch eager, checkpoints": [*peer, *shape, "checkpoint"]})
        found["large"], found["large_memory"] = Pair(*middle.values()), Pair(*memory.values())
    run.details += profiles
    return found


def needs(run):
    import torch
    return None if torch.cuda.is_available() else "there is no GPU"


BENCH = Bench(
    name="gpt2_gpu", title="GPT-2 on one GPU", peer="torch.compile (or eager)", measure=measure, rounds=2, needs=needs,
    metrics=tuple(metric for model, batch, _, goal in CASES for metric in (
        Metric(key_of(model, batch), f"a step of {model}, batch {batch}", "ms", goal=goal, ratio_goal=1),
        Metric(f"{key_of(model, batch)}_eager", f"the same without a graph, against eager, batch {batch}", "ms"),
        Metric(f"{key_of(model, batch)}_trainer", f"the same by the Trainer, with its loader, clipping, batch {batch}", "ms",
               ratio_goal=1))) + (
        Metric("large", "{}, batch {}, one rank in stage 1, activations computed again, against eager".format(*LARGE), "ms",
               ratio_goal=1),
        Metric("large_memory", "the most memory of that", "GiB")),
    options={"steps": 40, "models": ",".join(SHAPES)}, quick={"steps": 10},
    programs=("bench/gpt2_step", "bench/gpt2_trainer"), modules=("torch",),
    notes="T = 1024, bfloat16. At batch 4, weights are updated while backward goes on. The Trainer's steps are timed on the host, "
          "which waits for each step's norm.")
