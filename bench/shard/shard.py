"""A training step of a model in parts, C++ against Python's FSDP2, on two ranks of this machine.

Each repetition starts two ranks anew and measures one model in blocks of steps, whole and in parts: ours through
shared memory and again over Gloo, which is Python's only way. The best block counts: the others met more of whatever
else the machine was doing. One thread a rank.
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
    "stage_1": ("zero_1", "optimizer in parts (stage 1; ZeroRedundancyOptimizer)"),
    "stage_2": ("fsdp_2", "gradients, too (stage 2; FSDP2 without reshard_after_forward)"),
    "stage_3": ("fsdp_3", "parameters, too (stage 3; FSDP2)"),
}
OVER_GLOO = {"LOCKSTEP_BACKEND": "gloo", "LOCKSTEP_SHM": "0"}


def theory(stage):
    """Bytes that a rank has to send in a step: parameters come together once, in stage 3 those of blocks once more,
    and gradients go apart once."""
    root = 2 * (WIDTH + 1) * WIDTH
    blocks = BLOCKS * ((WIDTH + 1) * INNER + (INNER + 1) * WIDTH)
    return 4 * (2 * root + (3 if stage == 3 else 2) * blocks) * (WORLD_SIZE - 1) / WORLD_SIZE


def python_rank(seconds):
    """What shard_step.cpp does, in Python."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer
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
        if name in ("ddp", "zero_1"):
            model = DistributedDataParallel(model)
        else:
            for block in model.blocks:
                fully_shard(block, reshard_after_forward=name == "fsdp_3")
            fully_shard(model, reshard_after_forward=False)
        if name == "zero_1":
            optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4, fused=True)
        else:
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
    for name in ("ddp", "zero_1", "fsdp_2", "fsdp_3"):
        measure(name)
    dist.destroy_process_group()


def rows(command, **variables):
    """Starts the ranks; returns {kind: (parameters, milliseconds, bytes sent where it is counted)}."""
    lines = (line.split() for line in run_ranks(command, WORLD_SIZE, LIMIT, **variables).splitlines())
    return {name: (int(size), float(ms), *map(int, sent)) for name, size, ms, *sent in lines}


def measure(run):
    seconds = str(run.seconds)
    ours = [run.program("bench/shard_step"), seconds]
    pair = run.in_turn(lambda: (rows(ours), rows(ours, **OVER_GLOO)), lambda: rows([run.python, __file__, seconds]))
    shared, gloo = pair.ours
    sizes = {row[0] for row in (*shared.values(), *gloo.values(), *pair.peer.values())}
    if len(sizes) != 1:
        raise RuntimeError(f"the two sides do not train the same model: {sorted(sizes)} parameters")
    values = {}
    for kind, (peer, _) in KINDS.items():
        values[kind] = Pair(shared[kind][1], pair.peer[peer][1])
        values[f"{kind}_gloo"] = Pair(gloo[kind][1], pair.peer[peer][1])
    for stage in (1, 2, 3):
        values[f"sent_{stage}"] = shared[f"stage_{stage}"][2] / 1e6
    return values


BENCH = Bench(
    name="shard", title="A step of a model in parts, C++ against FSDP2", peer="Python DDP, ZeRO-1 and FSDP2", measure=measure,
    metrics=(*(Metric(kind, f"a step, {what}", "ms", ratio_goal=1, best=True) for kind, (_, what) in KINDS.items()),
             *(Metric(f"{kind}_gloo", f"the same over Gloo, {what}", "ms", ratio_goal=1, best=True)
               for kind, (_, what) in KINDS.items()),
             # A thousandth more than theory has: parts are rounded up to 64 elements.
             *(Metric(f"sent_{stage}", f"sent by a rank in a step, stage {stage} (theory: {theory(stage) / 1e6:.2f})",
                      "MB", goal=theory(stage) * 1.001 / 1e6) for stage in (1, 2, 3))),
    options={"seconds": 2.0}, quick={"seconds": 0.5}, programs=("bench/shard_step",), modules=("torch",),
    notes=f"{BLOCKS} residual blocks of {WIDTH}-{INNER}-{WIDTH} (13 million parameters), batch {BATCH}, AdamW, 2 ranks, "
          "one thread a rank; Python reduces by Gloo, lockstep through shared memory where nothing is said. A step is the best "
          "of all blocks.")

if __name__ == "__main__":
    python_rank(float(sys.argv[1]))
