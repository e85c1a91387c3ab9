"""Remote calls between two ranks of this machine, C++ against torch.distributed.rpc (TensorPipe).

Each repetition starts two ranks anew; rank 0 calls rank 1, one call at a time, and then with 64 open. One thread a rank for
computing; both serve calls on threads of their own.
"""

import collections
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ranks import run_ranks  # noqa: E402
from suite import Bench, Metric, Pair  # noqa: E402

LIMIT = 300
SIZES = {"1k": 1 << 10, "1m": 1 << 20, "25m": 25 << 20}


def nothing():
    """Served."""


def echo(tensor):
    """Served."""
    return tensor


def take(_):
    """Served."""


def python_rank(seconds):
    """What rpc_bench.cpp does, in Python."""
    import torch
    import torch.distributed.rpc as rpc

    def latency(name, call):
        for _ in range(10):
            call()
        times, start = [], time.perf_counter()
        while time.perf_counter() - start < seconds or len(times) < 5:
            before = time.perf_counter()
            call()
            times.append(1e6 * (time.perf_counter() - before))
        print(name, statistics.median(times), flush=True)

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    if rank == 0:
        latency("empty", lambda: rpc.rpc_sync("worker1", nothing))
        for name, size in SIZES.items():
            tensor = torch.ones(size // 4)
            latency(name, lambda: rpc.rpc_sync("worker1", echo, args=(tensor,)))
        latency("25m_one_way", lambda: rpc.rpc_sync("worker1", take, args=(torch.ones(25 << 18),)))
        waiting, done, start = collections.deque(), 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            while len(waiting) < 64:
                waiting.append(rpc.rpc_async("worker1", nothing))
            waiting.popleft().wait()
            done += 1
        print("rate", done / (time.perf_counter() - start), flush=True)
        for each in waiting:
            each.wait()
    rpc.shutdown()


def rows(command):
    """Starts the ranks; returns {name: value}."""
    lines = (line.split() for line in run_ranks(command, 2, LIMIT).splitlines())
    return {name: float(value) for name, value in lines}


def measure(run):
    seconds = str(run.seconds)
    pair = run.in_turn(lambda: rows([run.program("bench/rpc_bench"), seconds]),
                       lambda: rows([run.python, __file__, seconds]))
    return {metric.key: Pair(pair.ours[metric.key], pair.peer.get(metric.key)) for metric in BENCH.metrics}


def missing(_):
    import torch.distributed.rpc
    return None if torch.distributed.rpc.is_available() else "this torch has no torch.distributed.rpc"


BENCH = Bench(
    name="rpc", title="Remote calls, C++ against torch.distributed.rpc", peer="torch.distributed.rpc", measure=measure,
    metrics=(Metric("empty", "a call without values, there and back", "us", ratio_goal=1),
             *(Metric(name, f"a tensor of {name.upper()}iB, there and back", "us", ratio_goal=1) for name in SIZES),
             Metric("25m_one_way", "a new tensor of 25MiB is made and sent", "us", ratio_goal=1),
             Metric("25m_shared", "a shared_tensor of 25MiB is sent", "us"),
             Metric("rate", "calls without values, 64 open", "1/s", better="higher", ratio_goal=1)),
    options={"seconds": 1.0}, quick={"seconds": 0.2}, programs=("bench/rpc_bench",), modules=("torch",), needs=missing,
    notes="Two ranks of this machine; medians of single calls. Through shared memory on our side; TensorPipe chooses its way itself.")

if __name__ == "__main__":
    python_rank(float(sys.argv[1]))
