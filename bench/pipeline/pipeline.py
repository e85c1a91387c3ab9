"""A step of a pipeline of two stages, C++ against Python's torch.distributed.pipelining, on two ranks of this machine.

Each repetition starts two ranks anew and measures one model in blocks of steps, with both schedules. The best block counts:
the others met more of whatever else the machine was doing. One thread a rank.
"""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ranks import run_ranks  # noqa: E402
from suite import Bench, Metric, Pair  # noqa: E402

WORLD_SIZE = 2
LIMIT = 300
WIDTH, INNER, BLOCKS, BATCH, MICRO_BATCHES = 512, 2048, 8, 64, 8
SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B"}


def python_rank(seconds):
    """What pipeline_step.cpp does, in Python."""
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(WIDTH, INNER), torch.nn.Linear(INNER, WIDTH)

        def forward(self, x):
            return x + self.down(torch.tanh(self.up(x)))

    def measure(name, make):
        rank = dist.get_rank()
        module = torch.nn.Sequential(*(Block() for _ in range(BLOCKS // WORLD_SIZE)))
        size = sum(parameter.numel() for parameter in module.parameters())
        stage = PipelineStage(module, rank, WORLD_SIZE, torch.device("cpu"))
        schedule = make(stage, n_microbatches=MICRO_BATCHES, loss_fn=torch.nn.functional.mse_loss)
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
        x, y = torch.rand((BATCH, WIDTH)), torch.rand((BATCH, WIDTH))

        def seconds_of(steps):
            start = time.perf_counter()
            for _ in range(steps):
                if rank == 0:
                    schedule.step(x)
                else:
                    schedule.step(target=y, losses=[])
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
        if rank == 0:
            print(name, size, 1e3 * best / steps, "-", flush=True)

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    measure("gpipe", ScheduleGPipe)
    measure("1f1b", Schedule1F1B)
    dist.destroy_process_group()


def rows(command):
    """Starts the ranks; returns {schedule: (parameters, milliseconds, bubble)}."""
    lines = (line.split() for line in run_ranks(command, WORLD_SIZE, LIMIT).splitlines())
    return {name: (int(size), float(ms), bubble) for name, size, ms, bubble in lines if name in SCHEDULES}


def measure(run):
    seconds = str(run.seconds)
    program = run.program("bench/pipeline_step")
    pair = run.in_turn(lambda: (rows([program, seconds]), rows([program, seconds, "gloo"])),
                       lambda: rows([run.python, __file__, seconds]))
    shared, gloo = pair.ours
    sizes = {row[0] for found in (shared, gloo, pair.peer) for row in found.values()}
    if len(sizes) != 1:
        raise RuntimeError(f"the two sides do not train the same stage: {sorted(sizes)} parameters")
    results = {}
    for name in SCHEDULES:
        results[name] = Pair(shared[name][1], pair.peer[name][1])
        results[f"{name}_gloo"] = Pair(gloo[name][1], pair.peer[name][1])
        results[f"{name}_bubble"] = Pair(100 * float(shared[name][2]), None)
    return results


def metrics():
    for name, title in SCHEDULES.items():
        yield Metric(name, f"a step, {title}", "ms", ratio_goal=1, best=True)
        yield Metric(f"{name}_gloo", f"a step, {title}, both over Gloo", "ms", ratio_goal=1, best=True)
        yield Metric(f"{name}_bubble", f"not computing, {title}", "%", best=True)


THEORY = 100 * (WORLD_SIZE - 1) / (MICRO_BATCHES + WORLD_SIZE - 1)

BENCH = Bench(
    name="pipeline", title="A step of a pipeline, C++ against torch.distributed.pipelining",
    peer="Python torch.distributed.pipelining (Gloo)", measure=measure, metrics=tuple(metrics()),
    options={"seconds": 2.0}, quick={"seconds": 0.5}, programs=("bench/pipeline_step",), modules=("torch",),
    notes=f"{BLOCKS} residual blocks of {WIDTH}-{INNER}-{WIDTH} (17 million parameters) in two stages, batch {BATCH} in "
          f"{MICRO_BATCHES} micro-batches, AdamW, 2 ranks, one thread a rank. A step is the best of all blocks. The share that is "
          f"not computing is of the forward and backward of both stages, without the optimizer; the bubble by the formula is "
          f"{THEORY:.1f} %.")

if __name__ == "__main__":
    python_rank(float(sys.argv[1]))
