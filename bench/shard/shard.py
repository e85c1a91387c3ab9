"""A training step of a model in parts, C++ against Python's FSDP2, on two ranks of this machine.

Each repetition starts two ranks anew and measures one model in blocks of steps, whole and in parts. The best
block counts: the others met more of whatever else the machine was doing. One thread a rank.
"""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ranks import run_ranks  # noqa: E402
from suite import Bench, Metric, Pair  # noqa: E402

WORLD_SIZE = 2
LIMIT = 300
WIDTH, INNER, BLOCKS, BATCH = 512, 2048, 6, 16
# Ours, the peer's way to the same memory, and what both keep.
KINDS = {
    "ddp": ("ddp", "whole (DDP)"),
    "stage_1": (None, "optimizer in parts (stage 1)"),
    "stage_2": ("fsdp_2", "gradients, too (stage 2; FSDP2 without reshard_after_forward)"),
    "stage_3": ("fsdp_3", "parameters, too (stage 3; FSDP2)"),
}


def python_rank(seconds):
    """What shard_step.cpp does, in Python."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(WIDTH, INNER), torch.nn.Linear(INNER, WIDTH)

        def forward(self, x):
            return x + self.down(torch.tanh(self.up(x)))

    class Residual(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.into = torch.nn.Linear(WIDTH, WIDTH)
            self.blocks = torch.nn.ModuleList(Block() for _ in range(BLOCKS))
            self.out = torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            x = self.into(x)
            for block in self.blocks:
                x = block(x)
            return self.out(x)

    def measure(name):
        model = Residual()
        size = sum(parameter.numel() for parameter in model.parameters())
        if name == "ddp":
            model = DistributedDataParallel(model)
        else:
            for block in model.blocks:
                fully_shard(block, reshard_after_forward=name == "fsdp_3")
            fully_shard(model, reshard_after_forward=False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        x = torch.rand((BATCH, WIDTH))

        def seconds_of(steps):
            start = time.perf_counter()
            for _ in range(steps):
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            return time.perf_counter() - start

        blocks = 10
        seconds_of(2)
        count = torch.tensor(seconds * 2 / seconds_of(2) / blocks, dtype=torch.double)
        dist.broadcast(count, 0)
        steps = max(1, int(count.item()))
        dist.barrier()
        best = min(seconds_of(steps) for _ in range(blocks))
        if dist.get_rank() == 0:
            print(name, size, 1e3 * best / steps, flush=True)

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    for name in ("ddp", "fsdp_2", "fsdp_3"):
        measure(name)
    dist.destroy_process_group()


def rows(command):
    """Starts the ranks; returns {kind: (parameters, milliseconds)}."""
    lines = (line.split() for line in run_ranks(command, WORLD_SIZE, LIMIT).splitlines())
    return {name: (int(size), float(ms)) for name, size, ms in lines}


def measure(run):
    seconds = str(run.seconds)
    pair = run.in_turn(lambda: rows([run.program("bench/shard_step"), seconds]),
                       lambda: rows([run.python, __file__, seconds]))
    sizes = {size for size, _ in (*pair.ours.values(), *pair.peer.values())}
    if len(sizes) != 1:
        raise RuntimeError(f"the two sides do not train the same model: {sorted(sizes)} parameters")
    return {kind: Pair(pair.ours[kind][1], pair.peer[peer][1] if peer else None)
            for kind, (peer, _) in KINDS.items()}


BENCH = Bench(
    name="shard", title="A step of a model in parts, C++ against FSDP2", peer="Python DDP and FSDP2", measure=measure,
    metrics=tuple(Metric(kind, f"a step, {what}", "ms", ratio_goal=1 if peer else None, best=True)
                  for kind, (peer, what) in KINDS.items()),
    options={"seconds": 2.0}, quick={"seconds": 0.5}, programs=("bench/shard_step",), modules=("torch",),
    notes=f"{BLOCKS} residual blocks of {WIDTH}-{INNER}-{WIDTH} (13 million parameters), batch {BATCH}, AdamW, 2 ranks, "
          "one thread a rank; Python reduces by Gloo. A step is the best of all blocks.")

if __name__ == "__main__":
    python_rank(float(sys.argv[1]))
