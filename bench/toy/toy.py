"""The tutorial's job from the command to its end: Python under torchrun against toy_trainer under
`lockstep run`.

Both train Linear(20, 1) on 2,048 samples with two ranks, save a snapshot every 10 epochs and print a
line per epoch and rank. One thread a rank, as torchrun sets it. The loop is what the programs measure
themselves: training without starting and meeting.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from suite import Bench, Metric, Pair, one_thread  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
LIMIT = 300  # seconds for one run


def job(command, run):
    """Seconds of the whole and of the loop."""
    with tempfile.TemporaryDirectory(prefix="lockstep_toy_") as folder:
        start = time.perf_counter()
        done = subprocess.run(command, cwd=folder, env=one_thread(), stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=LIMIT)
        seconds = time.perf_counter() - start
        lines = len(re.findall(r"Epoch \d+ \| Batchsize", done.stdout))
        saved = os.path.exists(os.path.join(folder, "snapshot.pt"))
        if done.returncode != 0 or lines != run.epochs * run.ranks or not saved:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return seconds, float(re.search(r"Trained \d+ epochs on \d+ rank\(s\) in (\S+) s", done.stdout)[1])


def measure(run):
    words = [str(run.epochs), "10"]
    ours = [run.program("lockstep"), "run", "--nproc-per-node", str(run.ranks), run.program("toy_trainer"), *words]
    peer = [run.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(run.ranks),
            str(HERE / "tutorial.py"), *words]
    pair = run.in_turn(lambda: job(ours, run), lambda: job(peer, run))
    return {"whole": Pair(pair.ours[0], pair.peer[0]), "loop": Pair(pair.ours[1], pair.peer[1])}


BENCH = Bench(
    name="toy", title="The tutorial's job, lockstep against Python under torchrun", peer="Python, torchrun", measure=measure,
    metrics=(Metric("whole", "from the command to its end", "s", goal=1.5, ratio_goal=8),
             Metric("loop", "the loop", "s", goal=0.4)),
    options={"epochs": 50, "ranks": 2}, quick={"epochs": 10},
    programs=("lockstep", "toy_trainer"), modules=("torch",), notes="Batches of 32, one thread a rank.")
