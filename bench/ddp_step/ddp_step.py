"""The time of a DDP training step, C++ against Python, on two ranks of this machine.

Each repetition starts two ranks anew and measures three models in 20 blocks of steps. The best block
counts: the others met more of whatever else the machine was doing. One thread a rank.
"""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ranks import run_ranks  # noqa: E402
from suite import ROOT, Bench, Metric, Pair  # noqa: E402

WORLD_SIZE = 2
LIMIT = 120
MODELS = {
    "linear": "Linear(20, 1), batch 32",
    "mlp": "MLP 512-2048-2048-2048-10, batch 8",
    "gpt": "GPT, 4 layers of 128, 64 tokens, batch 4",
}
GOALS = {"linear": 2, "mlp": 2, "gpt": 1}


def python_rank(seconds):
    """What ddp_step.cpp does, in Python."""
    sys.path.insert(0, str(ROOT / "tests" / "parity"))
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel

    import models

    def measure(name, model, loss_of):
        ddp = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)

        def seconds_of(steps):
            start = time.perf_counter()
            for _ in range(steps):
                loss_of(ddp).backward()
                optimizer.step()
                optimizer.zero_grad()
            return time.perf_counter() - start

        blocks = 20
        seconds_of(5)
        count = torch.tensor(seconds * 5 / seconds_of(5) / blocks, dtype=torch.double)
        dist.broadcast(count, 0)
        steps = max(1, int(count.item()))
        dist.barrier()
        before = time.process_time()
        best = min(seconds_of(steps) for _ in range(blocks))
        cpu = (time.process_time() - before) / blocks
        if dist.get_rank() == 0:
            size = sum(parameter.numel() for parameter in model.parameters())
            print(name, size, 1e6 * best / steps, 1e6 * cpu / steps, flush=True)

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    x, y = torch.rand((32, 20)), torch.rand((32, 1))
    measure("linear", torch.nn.Linear(20, 1), lambda ddp: F.mse_loss(ddp(x), y))
    x, y = torch.rand((8, 512)), torch.randint(10, (8,))
    measure("mlp", models.Mlp((512, 2048, 2048, 2048, 10)), lambda ddp: F.cross_entropy(ddp(x), y))
    tokens = torch.randint(256, (4, 65))
    x, y = tokens[:, :-1], tokens[:, 1:].flatten()
    measure("gpt", models.Gpt(256, 64, 128, 4, 4),
            lambda ddp: F.cross_entropy(ddp(x).flatten(0, 1), y))
    dist.destroy_process_group()


def rows(command):
    """Starts two ranks; returns {model: (parameters, microseconds, of processor time)}."""
    lines = (line.split() for line in run_ranks(command, WORLD_SIZE, LIMIT).splitlines())
    return {name: (int(size), float(wall), float(cpu)) for name, size, wall, cpu, *_ in lines}


def measure(run):
    seconds = str(run.seconds)
    pair = run.in_turn(lambda: rows([run.program("bench/ddp_step"), "--seconds", seconds, "--reduction", run.reduction]),
                       lambda: rows([run.python, __file__, seconds]))
    found = {}
    for name in MODELS:
        ours, peer = pair.ours[name], pair.peer[name]
        if ours[0] != peer[0]:
            raise RuntimeError(f"the two sides do not train the same {name} model")
        found[name] = Pair(ours[1], peer[1])
        found[f"{name}_cpu"] = Pair(ours[2], peer[2])
    return found


BENCH = Bench(
    name="ddp_step", title="DDP step, C++ against Python", peer="Python DDP", measure=measure,
    metrics=(*(Metric(name, f"a step of {what}", "us", ratio_goal=GOALS[name], best=True) for name, what in MODELS.items()),
             *(Metric(f"{name}_cpu", f"processor time of rank 0, {what}", "us") for name, what in MODELS.items())),
    options={"seconds": 1.0, "reduction": "automatic"}, quick={"seconds": 0.2},
    programs=("bench/ddp_step",), modules=("torch",),
    notes="2 ranks, one thread a rank; Python reduces by Gloo. A step is the best of all blocks.")

if __name__ == "__main__":
    python_rank(float(sys.argv[1]))
