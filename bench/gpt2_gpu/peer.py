"""The same step in Python: peer.py MODEL BATCH TOKENS STEPS eager|compile|checkpoint. Prints what gpt2_step prints.

`checkpoint` is eager, with the activations of blocks computed again in backward.
"""

import json
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

SHAPES = {"gpt2": (12, 12, 768), "gpt2-medium": (24, 16, 1024), "gpt2-xl": (48, 25, 1600)}  # layers, heads, width
VOCABULARY = 50304  # padded to a multiple of 128, which products like


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, layers, heads, width):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.recompute = False
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, ids, labels):
        x = self.tokens(ids) + self.places.weight[:ids.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1))


def main():
    name, batch, tokens, steps, how = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
    torch.set_float32_matmul_precision("high")
    model = Gpt2(*SHAPES[name]).cuda()
    model.recompute = how == "checkpoint"
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True,
                                  capturable=True)
    # Where kernels are short, with CUDA graphs.
    mode = "reduce-overhead" if batch * tokens < 16384 else None
    forward = torch.compile(model, mode=mode) if how == "compile" else model
    ids = torch.randint(50257, (batch, tokens), device="cuda")
    labels = ids.roll(-1, 1)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(ids, labels)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(8):
        loss = step()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    events[0].record()
    for event in events[1:]:
        loss = step()
        event.record()
    torch.cuda.synchronize()
    print(json.dumps({"ms": [a.elapsed_time(b) for a, b in zip(events, events[1:])],
                      "losses": [loss.item()], "bytes": torch.cuda.max_memory_reserved()}))


main()
