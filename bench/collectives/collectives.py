"""Collectives through shared memory against Gloo, in the same processes, on 2 and on 4 ranks.

A call's time is the best of 5 blocks of calls, from the first rank's view. The two backends alternate,
case by case, so that both meet the same load. "shared" are tensors in memory that all ranks can reach
(ProcessGroup::shared_empty_like), as DistributedDataParallel has its buckets.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ranks import run_ranks  # noqa: E402
from suite import Bench, Metric, Pair  # noqa: E402

LIMIT = 120  # seconds for one start of the ranks
SIZES = {"1k": "1 KiB", "1m": "1 MiB", "25m": "25 MiB"}
# Least ratio of Gloo's time to that through shared memory.
GOALS = {(2, "all_reduce_shared", "25m"): 5, (2, "all_reduce", "1k"): 20, (4, "all_reduce", "25m"): 2,
         (4, "all_reduce_shared", "25m"): 2, (4, "all_reduce", "1k"): 2}


def metrics():
    for ranks in (2, 4):
        for name in ("all_reduce", "all_reduce_shared", "broadcast", "all_gather"):
            for size, words in SIZES.items():
                yield Metric(f"{ranks}_{name}_{size}", f"{ranks} ranks, {name} of {words}", "us",
                             ratio_goal=GOALS.get((ranks, name, size)))
        for name, what in (("ping_pong", "a message to another rank and one back"),
                           ("to_next", "a message from each rank to the next")):
            for size, words in SIZES.items():
                yield Metric(f"{ranks}_{name}_{size}", f"{ranks} ranks, {what}, {words}", "us")
        yield Metric(f"{ranks}_barrier", f"{ranks} ranks, barrier", "us")


def key(ranks, name, size):
    short = {1 << 10: "1k", 1 << 20: "1m", 25 << 20: "25m"}.get(int(size))
    return f"{ranks}_{name}_{short}" if short else f"{ranks}_{name}"


def measure(run):
    found = {}
    for ranks in (2, 4):
        output = run_ranks([run.program("bench/collectives_bench"), "1", str(run.seconds)], ranks, LIMIT)
        for line in output.splitlines():
            name, size, gloo, shm, *_ = line.split()
            found[key(ranks, name, size)] = Pair(float(shm), float(gloo))
    return found


BENCH = Bench(
    name="collectives", title="Collectives through shared memory against Gloo", peer="Gloo",
    metrics=tuple(metrics()), measure=measure, options={"seconds": 0.2}, quick={"seconds": 0.02},
    programs=("bench/collectives_bench",),
    notes="Both backends in one process, one thread a rank, float32.")
