"""Loss by loss, a GPT-2 that trains here beside the same one in Python.

Both start from the same directory of weights, see the same batches and use AdamW with a warm-up and a
cosine; one process each, on one device, one after the other. Python's model is written here with torch
alone, so that nothing has to be installed where the device is. In float32 the losses agree to a few
last digits; in bfloat16 they follow each other. `autocast` keeps the weights in float32: on a GPU that is
our fused path against PyTorch's operators. With --spread Python also trains from another start, and from
the same one with another of its attention kernels: how far apart PyTorch's own runs are, to compare with.
"""

import argparse
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from report import Report  # noqa: E402

WARM_UP = 5  # steps that are not timed
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "autocast": torch.float32}
MOST_APART = {"fp32": 1e-3, "bf16": 5e-2, "autocast": 1e-2}  # of a loss, relative
VOCABULARY = 600  # of the embedded data's tokenizer


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", required=True, help="the program gpt2_job")
    parser.add_argument("--model", default="tiny", help="gpt2, gpt2-medium, ..., tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=TYPES, default="fp32", help="of the weights")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--data", choices=("series", "embedded"), default="series",
                        help="made-up series of numbers, or the embedded instructions")
    parser.add_argument("--spread", action="store_true", help="Python also trains from another start")
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--save", metavar="FOLDER", help="also write a report there")
    parser.add_argument("--check", action="store_true", help="fail if the losses part")
    return parser.parse_args()


def read_safetensors(path):
    types = {"F32": torch.float32, "BF16": torch.bfloat16}
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = bytearray(file.read())
    return {name: torch.frombuffer(data, dtype=types[each["dtype"]], offset=each["data_offsets"][0],
                                   count=math.prod(each["shape"])).view(each["shape"]).clone()
            for name, each in header.items() if name != "__metadata__"}


class Gpt2(torch.nn.Module):
    """From the files of a directory; without dropout."""

    def __init__(self, folder):
        super().__init__()
        config = json.load(open(os.path.join(folder, "config.json")))
        self.heads, self.layers = config["n_head"], config["n_layer"]
        self.epsilon = config["layer_norm_epsilon"]
        weights = read_safetensors(os.path.join(folder, "model.safetensors"))
        self.weights = torch.nn.ParameterDict(
            {name.removeprefix("transformer.").replace(".", "/"): torch.nn.Parameter(tensor)
             for name, tensor in weights.items() if not name.startswith("lm_head")})

    def weight(self, name):
        return self.weights[name.replace(".", "/")]

    def norm(self, name, x):
        return F.layer_norm(x, x.shape[-1:], self.weight(f"{name}.weight"),
                            self.weight(f"{name}.bias"), self.epsilon)

    def linear(self, name, x):
        return F.linear(x, self.weight(f"{name}.weight").t(), self.weight(f"{name}.bias"))

    def forward(self, ids, labels):
        x = F.embedding(ids, self.weight("wte.weight")) + self.weight("wpe.weight")[:ids.shape[1]]
        for layer in range(self.layers):
            name = f"h.{layer}"
            parts = self.linear(f"{name}.attn.c_attn", self.norm(f"{name}.ln_1", x)).chunk(3, dim=-1)
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.linear(f"{name}.attn.c_proj", seen.transpose(1, 2).flatten(2))
            inner = F.gelu(self.linear(f"{name}.mlp.c_fc", self.norm(f"{name}.ln_2", x)),
                           approximate="tanh")
            x = x + self.linear(f"{name}.mlp.c_proj", inner)
        logits = F.linear(self.norm("ln_f", x), self.weight("wte.weight"))
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def train_in_python(folder, ids, args):
    """Losses, and seconds a step."""
    model = Gpt2(folder).to(args.device, TYPES[args.dtype])
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1, fused=True)
    ids, losses = ids.to(args.device), []
    for step in range(args.steps):
        if step == WARM_UP:
            start = wait(args.device)
        rising = warm_up(args)
        share = step / rising if step < rising else \
            0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, args.steps - rising)))
        optimizer.param_groups[0]["lr"] = args.lr * share
        with torch.autocast(args.device.split(":")[0], torch.bfloat16, enabled=args.dtype == "autocast"):
            loss = model(ids[step, :, :-1], ids[step, :, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses).cpu().float(), (wait(args.device) - start) / (args.steps - WARM_UP)


def warm_up(args):
    return max(10, args.steps // 10)


def wait(device):
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter()


def without_dropout(folder):
    """Changes the directory's config.json, and returns it."""
    path = os.path.join(folder, "config.json")
    with open(path) as file:
        config = json.load(file)
    config.update(embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0)
    with open(path, "w") as file:
        json.dump(config, file)
    return config


def batches(args, vocabulary):
    """Sequences that can be learned: each token is the one before it plus a step that the sequence
    keeps, within a part of the vocabulary, now and then broken by chance."""
    random = torch.Generator().manual_seed(1)
    shape = (args.steps, args.batch, args.tokens + 1)
    limit = min(vocabulary, 1000)
    start = torch.randint(limit, (*shape[:2], 1), generator=random)
    stride = torch.randint(1, 8, (*shape[:2], 1), generator=random)
    ids = (start + stride * torch.arange(shape[2])) % limit
    noise = torch.rand(shape, generator=random) < 0.05
    return torch.where(noise, torch.randint(limit, shape, generator=random), ids)


def embedded_batches(args, folder):
    path = os.path.join(folder, "tokens.pt")
    shape = (args.steps, args.batch, args.tokens + 1)
    subprocess.run([args.job, "tokens", str(VOCABULARY), str(math.prod(shape)), path], check=True)
    return torch.load(path, weights_only=True)["tokens"].view(shape)


def apart(some, others):
    """The largest relative distance, and that of the means of 20 steps, which noise hardly moves."""
    means = [losses[:len(losses) // 20 * 20].view(-1, 20).mean(1) for losses in (some, others)]
    return (((some - others).abs() / others).max().item(),
            ((means[0] - means[1]).abs() / means[1]).max().item())


def main():
    args = parse()
    report = Report("gpt2_curve", "Losses of a GPT-2, lockstep beside Python")
    with tempfile.TemporaryDirectory(prefix="lockstep_curve_") as folder:
        model, data, out = (os.path.join(folder, name) for name in ("model", "in.pt", "out.pt"))
        subprocess.run([args.job, "scratch", args.model, model], check=True)
        vocabulary = without_dropout(model)["vocab_size"]
        ids = embedded_batches(args, folder) if args.data == "embedded" else batches(args, vocabulary)
        torch.save({"ids": ids, "lr": args.lr, "warm_up": warm_up(args)}, data)
        subprocess.run([args.job, "train", model, data, out, args.device, args.dtype], check=True)
        ours = torch.load(out, weights_only=True)
        theirs, seconds = train_in_python(model, ids, args)
        if args.spread:
            other = os.path.join(folder, "other")
            subprocess.run([args.job, "scratch", args.model, other, "2"], check=True)
            without_dropout(other)
            seeds_apart = apart(train_in_python(other, ids, args)[0], theirs)
            with sdpa_kernel(SDPBackend.MATH):
                kernels_apart = apart(train_in_python(model, ids, args)[0], theirs)
    losses = ours["losses"]
    most, of_means = apart(losses, theirs)
    report.expect(most <= MOST_APART[args.dtype],
                  f"losses are apart by {most:.1e}, the goal is {MOST_APART[args.dtype]:g}")
    notes = [f"Apart by at most {most:.1e} of a loss, {of_means:.1e} in the mean of 20 steps."]
    if args.spread:
        report.expect(most <= seeds_apart[0] and of_means <= seeds_apart[1],
                      "lockstep is further from PyTorch than PyTorch from itself with another start")
        notes.append(f"Two PyTorch runs from different starts: {seeds_apart[0]:.1e} and "
                     f"{seeds_apart[1]:.1e}; from the same start with another attention kernel: "
                     f"{kernels_apart[0]:.1e} and {kernels_apart[1]:.1e}.")
    report.expect(losses[-5:].mean() < losses[:5].mean(), "the loss does not fall")
    rows = [f"| {step + 1} | {losses[step]:.4f} | {theirs[step]:.4f} |"
            for step in range(0, args.steps, max(1, args.steps // 15))]
    command = (f"bench/gpt2_curve/run --model {args.model} --device {args.device} --dtype {args.dtype} "
               f"--steps {args.steps} --batch {args.batch} --tokens {args.tokens} --data {args.data}")
    what = torch.cuda.get_device_name() if args.device != "cpu" else "the processor"
    return report.end(args, command, [
        "| step | lockstep | Python |", "|---|---|---|", *rows, "", *notes,
        f"Milliseconds a step on {what}: lockstep {1000 * ours['seconds']:.1f}, Python (eager) "
        f"{1000 * seconds:.1f}."],
        f"torch {torch.__version__}; the same weights, batches and schedule.")


if __name__ == "__main__":
    sys.exit(main())
