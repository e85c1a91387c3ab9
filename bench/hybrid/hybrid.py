"""Collectives between machines: the backend hybrid against flat Gloo, on two machines (network namespaces)
of two ranks (`--set each=4`: of four) that are joined by a link of 1 Gbit/s.

A call's time is the best of 5 blocks of calls, from the first rank's view; the two backends alternate, case
by case. Bytes are those that passed the first machine's interface, both ways, headers and all.

A step of DDP (bench/ddp_step's models, real gradients) is measured with the ordered reduction machine by
machine, and over Gloo (LOCKSTEP_SHM=0): the same sums by messages rank by rank, and Gloo's own all-reduce, a ring.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ranks import limited_network, network_missing, run_ranks  # noqa: E402
from suite import Bench, Metric, Pair  # noqa: E402

MACHINES = 2
LIMIT = 240
SIZES = {1 << 10: ("1k", "1 KiB"), 1 << 20: ("1m", "1 MiB"), 25 << 20: ("25m", "25 MiB")}
# Least ratio of Gloo's time to hybrid's. Each machine has to hear what the other has, so a tensor crosses the
# link once each way at least; Gloo's ring of N ranks carries 2 (N - 1) / N: 1.5 of four, 1.75 of eight.
GOALS = {("all_reduce", "25m"): 1.4, ("broadcast", "25m"): 1.5}
DDP_PEERS = {"ordered": "rank by rank", "native": "in a ring"}
DDP_GOALS = {"ordered": (1.5, 1.8), "native": (1.2, 1.4)}  # of the MLP's step: time, bytes
MODELS = {"linear": "Linear(20, 1)", "mlp": "an MLP of 9.5M parameters", "gpt": "a small GPT"}


def metrics():
    for name in ("all_reduce", "all_reduce_shared", "all_reduce_bfloat16", "broadcast", "all_gather", "ping_pong", "to_next"):
        for short, words in SIZES.values():
            yield Metric(f"{name}_{short}", f"{name} of {words}", "ms", ratio_goal=GOALS.get((name, short)))
    yield Metric("barrier", "barrier", "ms")
    for name in ("all_reduce", "all_reduce_bfloat16"):
        for short, words in SIZES.values():
            yield Metric(f"{name}_{short}_bytes", f"{name} of {words}, bytes on the link", "MB")
    for peer, how in DDP_PEERS.items():
        for name, words in MODELS.items():
            goals = DDP_GOALS[peer] if name == "mlp" else (None, None)
            what = f"a DDP step of {words}, Gloo {how}"
            yield Metric(f"ddp_{name}_{peer}", what, "ms", best=True, ratio_goal=goals[0])
            yield Metric(f"ddp_{name}_{peer}_bytes", f"{what}, bytes on the link", "MB", ratio_goal=goals[1])


def collectives(run, network):
    words = [run.program("bench/collectives_bench"), "1", str(run.seconds), "hybrid", "eth0"]
    found = {}
    for line in run_ranks(words, MACHINES * run.each, LIMIT, network, run.each, LOCKSTEP_QUIET="1").splitlines():
        name, size, *numbers = line.split()
        gloo, hybrid, gloo_bytes, hybrid_bytes = map(float, numbers)
        key = f"{name}_{SIZES[int(size)][0]}" if int(size) in SIZES else name
        found[key] = Pair(hybrid / 1e3, gloo / 1e3)
        if name in ("all_reduce", "all_reduce_bfloat16"):
            found[f"{key}_bytes"] = Pair(hybrid_bytes / 1e6, gloo_bytes / 1e6)
    return found


def steps(run, network, shared, reduction):
    """{model: (milliseconds, megabytes on the link)} of a step."""
    words = [run.program("bench/ddp_step"), "--seconds", str(run.seconds), "--link", "eth0", "--reduction", reduction]
    output = run_ranks(words, MACHINES * run.each, LIMIT, network, run.each, LOCKSTEP_QUIET="1", LOCKSTEP_SHM=shared)
    return {name: (float(wall) / 1e3, float(link) / 1e6) for name, _, wall, _, link in map(str.split, output.splitlines())}


def measure(run):
    network = limited_network(MACHINES, run.rate)
    try:
        found = collectives(run, network)
        for peer in DDP_PEERS:
            pair = run.in_turn(lambda: steps(run, network, "1", "ordered"), lambda: steps(run, network, "0", peer))
            for name in MODELS:
                for part, key in enumerate((f"ddp_{name}_{peer}", f"ddp_{name}_{peer}_bytes")):
                    found[key] = Pair(pair.ours[name][part], pair.peer[name][part])
    finally:
        network.close()
    return found


BENCH = Bench(
    name="hybrid", title="Collectives between machines: hybrid against flat Gloo", peer="Gloo", measure=measure, rounds=3,
    metrics=tuple(metrics()), options={"seconds": 0.5, "rate": "1gbit", "each": 2}, quick={"seconds": 0.05},
    programs=("bench/collectives_bench", "bench/ddp_step"), needs=lambda run: network_missing(),
    notes="2 machines of 2 ranks (--set each), one thread a rank, float32 where nothing is said; "
          "bytes of both directions per call.")
