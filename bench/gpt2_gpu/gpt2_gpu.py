"""GPT-2 on one GPU: our step (forward, backward, AdamW; bfloat16) beside PyTorch's eager one and
torch.compile's, each in a process of its own, in alternation.

Metric: the median of a step's time on the device over all rounds. Tokens per second and TFLOP/s
follow from it: 6 FLOP for each weight that is multiplied and token, 12 * layers * width * tokens for
attention (causal: half of it). The roof is 790 TFLOP/s, what dense bfloat16 products reach on an H200.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from report import Report  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ROOF = 790e12
SHAPES = {"gpt2": (12, 768), "gpt2-medium": (24, 1024)}
# Model, batch, tokens, goal in ms.
CASES = [("gpt2", 64, 1024, 98.0), ("gpt2", 4, 1024, 8.2), ("gpt2-medium", 16, 1024, None)]


def flops(model, batch, tokens):
    layers, width = SHAPES[model]
    weights = 12 * layers * width * width + 50304 * width
    return batch * tokens * (6 * weights + 6 * layers * width * tokens)


# What a kernel's name says about its part in the step; the first that fits.
PARTS = [("products", ("nvjet", "gemm", "splitK", "cutlass")), ("attention", ("sdpa", "cudnn")),
         ("loss", ("CrossEntropy",)), ("norms", ("LayerNorm",)),
         ("bias sums, GELU's gradient, joining", ("sum_kernel", "finish_kernel")),
         ("AdamW", ("multi_tensor_apply",)), ("casting of weights", ("cast_kernel",))]


def part_of(kernel):
    return next((part for part, words in PARTS if any(word in kernel for word in words)), "the rest")


def profile(program, shape):
    """One step's kernels, part by part, as a table."""
    kernels = measure([program, *shape, "fused", "launch", "profile"])["kernels"]
    parts = {}
    for name, calls, ms in kernels:
        before = parts.get(part_of(name), (0, 0.0))
        parts[part_of(name)] = (before[0] + calls, before[1] + ms)
    total = sum(ms for _, ms in parts.values())
    rows = [f"| {part} | {calls} | {ms:.2f} | {ms / total:.1%} |"
            for part, (calls, ms) in sorted(parts.items(), key=lambda item: -item[1][1])]
    return ["", f"Kernels of one step of {shape[0]}, batch {shape[1]}, which add up to {total:.2f} ms:", "",
            "| part | kernels | ms | share |", "|---|---|---|---|", *rows]


def measure(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=pathlib.Path, required=True, help="gpt2_step")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save", help="folder for the result")
    parser.add_argument("--check", action="store_true", help="exit 1 where a goal is missed")
    args = parser.parse_args()

    import torch
    if not torch.cuda.is_available() or not args.program.exists():
        print("bench/gpt2_gpu needs a GPU and a build with -DLOCKSTEP_CUDA=ON: left out here")
        return 0
    report = Report("gpt2-gpu", "GPT-2 on one GPU")
    lines = ["| model, batch | who | ms (p10 to p90) | against compile | tokens/s | TFLOP/s | of the roof | GiB |",
             "|---|---|---|---|---|---|---|---|"]
    profiles = []
    for model, batch, tokens, goal in CASES:
        shape = [model, batch, tokens, args.steps]
        ways = {"lockstep": [args.program, *shape, "fused", "graph"],
                "lockstep, no graph": [args.program, *shape, "fused", "launch"],
                "torch.compile": [sys.executable, HERE / "peer.py", *shape, "compile"],
                "PyTorch eager": [sys.executable, HERE / "peer.py", *shape, "eager"]}
        times, most = {name: [] for name in ways}, {}
        for _ in range(args.rounds):
            for name, command in ways.items():
                found = measure(command)
                times[name] += found["ms"]
                most[name] = found["bytes"]
        compiled = statistics.median(times["torch.compile"])
        for name in ways:
            ordered = sorted(times[name])
            middle = statistics.median(ordered)
            rate = flops(model, batch, tokens) / middle * 1e3
            lines.append(
                f"| {model}, {batch} | {name} | {middle:.2f} ({ordered[len(ordered) // 10]:.2f} to "
                f"{ordered[len(ordered) * 9 // 10]:.2f}) | {middle / compiled:.3f} | "
                f"{batch * tokens / middle * 1e3:,.0f} | {rate / 1e12:.0f} | {rate / ROOF:.1%} | "
                f"{most[name] / 2**30:.1f} |")
        profiles += profile(args.program, shape)
        ours = min(statistics.median(times[way]) for way in ("lockstep", "lockstep, no graph"))
        if goal:
            report.expect(ours <= goal, f"{model}, batch {batch}: {ours:.2f} ms, wanted {goal}")
    device = torch.cuda.get_device_properties(0)
    return report.end(args, "bench/gpt2_gpu/run", lines + profiles,
                      f"{device.name}, torch {torch.__version__}, CUDA {torch.version.cuda}; T = 1024, "
                      f"{args.rounds} alternating rounds of {args.steps} steps each.")


sys.exit(main())
