"""How long a snapshot pauses training, and how long it takes in all, against torch.save.

torch.save pauses training for as long as it takes, and leaves the file in the page cache; a snapshot
counts as done when everything is on the disk and has been read back from there.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from suite import Bench, Metric, Pair  # noqa: E402

MOST_ROUNDS = 1000


def tensors(megabytes):
    import torch
    layers = int(megabytes / 3 / (4 * 1024 * 1024 / 1e6))
    model = {f"layer.{i}.weight": torch.rand(1024, 1024) for i in range(layers)}
    state = {i: {"exp_avg": torch.rand(1024, 1024), "exp_avg_sq": torch.rand(1024, 1024)}
             for i in range(layers)}
    return {"model": model, "optimizer": {"state": state}}


def torch_save(value, path, sync):
    import torch
    began = time.perf_counter()
    torch.save(value, path)
    if sync:
        with open(path, "rb+") as file:
            os.fsync(file.fileno())
    return time.perf_counter() - began


class Ours:
    """A program that saves its snapshot anew for each line that it gets."""

    def __init__(self, run):
        self.folder = tempfile.mkdtemp(prefix="lockstep_bench_")
        self.process = subprocess.Popen([run.program("bench/snapshot_save"), os.path.join(self.folder, "snapshots"),
                                         str(run.megabytes), str(MOST_ROUNDS)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.waits = False

    def save(self):
        """Seconds that training was paused, and of all."""
        if self.waits:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        self.waits = True
        pause, total = map(float, self.process.stdout.readline().split())
        return pause, total

    def end(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def measure(run):
    value = run.keep("value", lambda: tensors(run.megabytes))
    ours = run.keep("ours", lambda: Ours(run), Ours.end)
    path = os.path.join(ours.folder, "file.pt")

    def peer():
        plain = torch_save(value, path, sync=False)
        os.sync()
        return plain, torch_save(value, path, sync=True)
    run.keep("warm-up", lambda: (ours.save(), peer()))
    pair = run.in_turn(ours.save, peer)
    return {"pause": Pair(1e3 * pair.ours[0], 1e3 * pair.peer[0]), "total": Pair(pair.ours[1], pair.peer[0]),
            "durable": Pair(pair.ours[1], pair.peer[1])}


BENCH = Bench(
    name="snapshot", title="Saving a snapshot", peer="torch.save", measure=measure,
    metrics=(Metric("pause", "training paused", "ms", goal=250, ratio_goal=10),
             Metric("total", "all in all (there: in the page cache)", "s", ratio_goal=1),
             Metric("durable", "all in all, both on the disk", "s")),
    options={"megabytes": 1500.0}, quick={"megabytes": 100.0},
    programs=("bench/snapshot_save",), modules=("torch",), notes="Tensors of 4 MB.")
