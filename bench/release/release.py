"""How soon survivors are let go when a rank is killed in the middle of a collective.

tests/comm/release_job forks ranks, kills one of them with SIGKILL while all call the collective again and
again, and tells the time from the kill to the exception of the last survivor: three ranks on one machine,
and two machines of two ranks of which a leader is killed, or another. No peer: Gloo has no such promise.
"""

import collections
import os
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from suite import Bench, Metric  # noqa: E402

LIMIT = 600  # seconds
PROMISE = 100  # ms
COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter",
               "barrier", "send_recv", "ordered_mean")
BACKENDS = ("shm", "hybrid")


def measure(run):
    found = {}
    for backend in BACKENDS:
        with tempfile.TemporaryDirectory(prefix="release.") as folder:  # other programs' files say nothing
            done = subprocess.run([run.program("release_job"), backend, str(run.kills)], text=True, timeout=LIMIT,
                                  env=dict(os.environ, TMPDIR=folder), capture_output=True)
        if done.returncode != 0:
            raise RuntimeError(f"release_job {backend}:\n{done.stdout}{done.stderr}")
        times = collections.defaultdict(list)
        for line in done.stdout.splitlines():
            collective, _, milliseconds = line.split()
            times[collective].append(float(milliseconds))
        for collective, measured in times.items():
            found[f"{backend}_{collective}"] = statistics.median(measured)
        found[f"{backend}_worst"] = max(max(measured) for measured in times.values())
    return found


def metrics():
    for backend in BACKENDS:
        for collective in COLLECTIVES:
            yield Metric(f"{backend}_{collective}", f"{backend}, {collective}, median of kills", "ms", goal=PROMISE)
        yield Metric(f"{backend}_worst", f"{backend}, the worst of all kills", "ms", goal=PROMISE)


BENCH = Bench(
    name="release", title="Survivors of a killed rank", measure=measure, rounds=3, metrics=tuple(metrics()),
    options={"kills": 5}, quick={"kills": 1}, programs=("release_job",),
    notes="From SIGKILL to the last survivor's PeerLost, 1.2 MB a tensor, one thread a rank.")
