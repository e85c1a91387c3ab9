"""A GPT-2 with torch alone, so that nothing has to be installed where the device is; and its training."""

import json
import math
import os
import struct
import subprocess
import time

import torch
import torch.nn.functional as F

WARM_UP = 5  # steps that are not timed
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "autocast": torch.float32}
VOCABULARY = 600  # of the embedded data's tokenizer


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
    subprocess.run([args.program("gpt2_job"), "tokens", str(VOCABULARY), str(math.prod(shape)), path], check=True)
    return torch.load(path, weights_only=True)["tokens"].view(shape)


def apart(some, others):
    """The largest relative distance, and that of the means of 20 steps, which noise hardly moves."""
    means = [losses[:len(losses) // 20 * 20].view(-1, 20).mean(1) for losses in (some, others)]
    return (((some - others).abs() / others).max().item(),
            ((means[0] - means[1]).abs() / means[1]).max().item())
