"""The launcher's own coordinator and agents in virtual time, on very many nodes: how much faster than real
time, and what one node costs. The same program as the test, which also checks the bounds. No peer: torchrun
cannot be run in virtual time.
"""

import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from suite import Bench, Metric  # noqa: E402

AGENTS = (100, 1000, 10000)
COLUMNS = {  # key: (pattern in what the program prints, what, unit)
    "messages": (r"([\d.]+) messages per agent,", "messages of a node", ""),
    "per_epoch": (r"at most ([\d.]+) messages", "most messages of a node in an epoch", ""),
    "survey": (r"([\d.]+) about the network", "of them about the network", ""),
    "beats": (r"([\d.]+) signs of life", "signs of life of a node", ""),
    "longest": (r"longest (\d+) bytes", "the longest message", "bytes"),
    "looks": (r"([\d.]+) looks at nodes", "looks at nodes for a message", ""),
}


def measure(run):
    found = {}
    for agents in AGENTS:
        if agents > run.most:
            continue
        out = subprocess.run([run.program("sim"), "--agents", str(agents)], check=True, capture_output=True, text=True).stdout

        def number(pattern):
            return float(re.search(pattern, out).group(1))
        found[f"{agents}_speed"] = number(r"([\d.]+) s simulated") / number(r"simulated in ([\d.]+) s")
        for key, (pattern, _, _) in COLUMNS.items():
            found[f"{agents}_{key}"] = number(pattern)
    return found


BENCH = Bench(
    name="sim", title="Jobs on very many nodes, simulated", measure=measure, rounds=1,
    metrics=tuple(metric for agents in AGENTS for metric in (
        Metric(f"{agents}_speed", f"{agents:,} nodes: simulated time / real", "x", better="higher"),
        *(Metric(f"{agents}_{key}", f"{agents:,} nodes: {what}", unit) for key, (_, what, unit) in COLUMNS.items()))),
    options={"most": 10000}, quick={"most": 100}, programs=("sim",),
    notes="One job per size: nodes come late, a rack loses power and comes back, others are rebooted in waves, and the "
          "coordinator's node dies and comes back. One thread. The longest message is that of any node but the first, which "
          "gets the list of all.")
