"""How training a small GPT-2 scales: 1 to 8 ranks on this machine, and 1 to 4 machines (network namespaces,
a rank each) whose cables carry 1 Gbit/s. Weak scaling: each rank has the same batch; strong scaling: all
ranks together have.

The peer is the same model of transformers in Python's DistributedDataParallel on Gloo, as in train_llm_cpu.
Where ranks outnumber cores no speed can be gained any more; what is lost there is what ranks cost.
"""

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from ranks import limited_network, network_missing, run_ranks  # noqa: E402
from suite import Bench, Metric  # noqa: E402
from svg import line_chart  # noqa: E402

PEER = str(ROOT / "bench" / "train_llm_cpu" / "train_llm_cpu.py")
LIMIT = 600
RANKS, NODES = (1, 2, 4, 8), (1, 2, 3, 4)
SHAPE = ("128", "4", "4", "512", "128")  # width, layers, heads, vocabulary, tokens
TOKENS, WEAK_BATCH, STRONG_BATCH = 128, 4, 8
WARM_UP, BLOCKS, STEPS = 2, 3, 3


def speed(command, count, batch, network=None):
    """Tokens per second of all ranks."""
    words = [*command, *SHAPE, str(batch), "0", str(WARM_UP), str(BLOCKS), str(STEPS)]
    seconds = float(run_ranks(words, count, LIMIT, network).splitlines()[-1].split()[1])
    return STEPS * count * batch * TOKENS / seconds


def picture(run, kind, title, unit, counts, peer):
    """Of this repetition; the table has all of them."""
    series = {"lockstep": [(count, kind[count].ours) for count in counts]}
    if all(kind[count].peer is not None for count in counts):
        series[peer] = [(count, kind[count].peer) for count in counts]
    series["ideal, a core each"] = [(count, kind[counts[0]].ours * min(count, os.cpu_count())) for count in counts]
    return line_chart(title, unit, "tokens/s", series)


def measure(run):
    ours, peer = [run.program("bench/train_llm_bench")], [run.python, PEER]
    kinds = {"weak": {}, "strong": {}, "nodes": {}}
    for count in RANKS:
        if count > run.most_ranks:
            continue
        for kind, batch in (("weak", WEAK_BATCH), ("strong", STRONG_BATCH // count)):
            kinds[kind][count] = run.in_turn(lambda: speed(ours, count, batch), lambda: speed(peer, count, batch))
    for count in NODES:
        if count > run.most_nodes:
            continue
        network = limited_network(count, run.rate)
        try:
            kinds["nodes"][count] = run.in_turn(lambda: speed(ours, count, WEAK_BATCH, network),
                                                lambda: speed(peer, count, WEAK_BATCH, network))
        finally:
            network.close()
    titles = {"weak": f"Weak scaling, batch {WEAK_BATCH} a rank", "strong": f"Strong scaling, batch {STRONG_BATCH} in all",
              "nodes": f"Weak scaling over machines, {run.rate} cables"}
    for kind, values in kinds.items():
        if len(values) > 1:
            run.plots[kind] = picture(run, values, titles[kind], "machines" if kind == "nodes" else "ranks",
                                      sorted(values), BENCH.peer)
    return {f"{kind}_{count}": pair for kind, values in kinds.items() for count, pair in values.items()}


def needs(run):
    missing = network_missing() if run.most_nodes else None
    return missing and f"{missing} (--set most_nodes=0 leaves machines out)"


BENCH = Bench(
    name="scaling", title="Scaling of training a small GPT-2", peer="Python DDP", measure=measure, rounds=3, needs=needs,
    metrics=(*(Metric(f"weak_{count}", f"batch {WEAK_BATCH} a rank, {count} rank{'s' if count > 1 else ''}", "tokens/s",
                      better="higher") for count in RANKS),
             *(Metric(f"strong_{count}", f"batch {STRONG_BATCH} in all, {count} rank{'s' if count > 1 else ''}", "tokens/s",
                      better="higher") for count in RANKS),
             *(Metric(f"nodes_{count}", f"batch {WEAK_BATCH} a rank, {count} machine{'s' if count > 1 else ''}", "tokens/s",
                      better="higher") for count in NODES)),
    options={"most_ranks": 8, "most_nodes": 4, "rate": "1gbit"}, quick={"most_ranks": 2, "most_nodes": 0},
    programs=("bench/train_llm_bench",), modules=("torch", "transformers"),
    notes="1M parameters, T=128, float32, one thread a rank. Plots show the last repetition.")
