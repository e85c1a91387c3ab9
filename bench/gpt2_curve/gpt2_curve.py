"""Loss by loss, a GPT-2 that trains here beside the same one in Python.

Both start from the same directory of weights, see the same batches and use AdamW with a warm-up and a
cosine; one process each, on one device, one after the other. In float32 the losses agree to a few last
digits; in bfloat16 they follow each other. `dtype=autocast` keeps the weights in float32: on a GPU that is our
fused path against PyTorch's operators. With spread=1 Python also trains from another start, and from the same
one with another of its attention kernels: how far apart PyTorch's own runs are, to compare with.
"""

import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..")]
from suite import Bench, Metric, Pair  # noqa: E402


MOST_APART = {"fp32": 1e-3, "bf16": 5e-2, "autocast": 1e-2}  # of a loss, relative


def measure(run):
    import torch
    from python_gpt2 import apart, batches, embedded_batches, train_in_python, warm_up, without_dropout
    with tempfile.TemporaryDirectory(prefix="lockstep_curve_") as folder:
        model, data, out = (os.path.join(folder, name) for name in ("model", "in.pt", "out.pt"))
        subprocess.run([run.program("gpt2_job"), "scratch", run.model, model], check=True)
        vocabulary = without_dropout(model)["vocab_size"]
        ids = embedded_batches(run, folder) if run.data == "embedded" else batches(run, vocabulary)
        torch.save({"ids": ids, "lr": run.lr, "warm_up": warm_up(run)}, data)
        subprocess.run([run.program("gpt2_job"), "train", model, data, out, run.device, run.dtype], check=True)
        ours = torch.load(out, weights_only=True)
        theirs, seconds = train_in_python(model, ids, run)
        spread = python_spread(run, folder, model, ids, theirs) if run.spread else None
    losses = ours["losses"]
    most, of_means = apart(losses, theirs)
    if losses[-5:].mean() >= losses[:5].mean():
        raise RuntimeError("the loss does not fall")
    if most > MOST_APART[run.dtype]:
        raise RuntimeError(f"losses are apart by {most:.1e}, more than {MOST_APART[run.dtype]:g}")
    run.details = ["| step | lockstep | Python |", "|---|---|---|",
                   *(f"| {step + 1} | {losses[step]:.4f} | {theirs[step]:.4f} |"
                     for step in range(0, run.steps, max(1, run.steps // 15)))]
    found = {"apart": most, "means": of_means, "step": Pair(1e3 * float(ours["seconds"]), 1e3 * seconds)}
    if spread:
        found |= {"seeds": spread[0][0], "kernels": spread[1][0]}
        if most > spread[0][0] or of_means > spread[0][1]:
            raise RuntimeError("lockstep is further from PyTorch than PyTorch from itself with another start")
    return found


def python_spread(run, folder, model, ids, theirs):
    """How far PyTorch is from itself: from another start, and with another kernel for attention."""
    from python_gpt2 import apart, train_in_python, without_dropout
    from torch.nn.attention import SDPBackend, sdpa_kernel
    other = os.path.join(folder, "other")
    subprocess.run([run.program("gpt2_job"), "scratch", run.model, other, "2"], check=True)
    without_dropout(other)
    seeds = apart(train_in_python(other, ids, run)[0], theirs)
    with sdpa_kernel(SDPBackend.MATH):
        return seeds, apart(train_in_python(model, ids, run)[0], theirs)


BENCH = Bench(
    name="gpt2_curve", title="Losses of a GPT-2, lockstep beside Python", peer="Python, eager", measure=measure, rounds=3,
    metrics=(Metric("apart", "losses are apart by at most, of a loss", ""),
             Metric("means", "the same in means of 20 steps", ""), Metric("step", "a step", "ms"),
             Metric("seeds", "two of Python's, from different starts", ""),
             Metric("kernels", "two of Python's, with different attention kernels", "")),
    options={"model": "tiny", "device": "cpu", "dtype": "fp32", "steps": 50, "batch": 4, "tokens": 64, "lr": 6e-4,
             "data": "series", "spread": 0},
    quick={"steps": 25}, programs=("gpt2_job",), modules=("torch",),
    notes="The same weights, batches and schedule. It fails where losses are apart by more than 0.001 (fp32), 0.05 (bf16) or 0.01 (autocast).")
