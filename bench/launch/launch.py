"""How long a job takes to start and end, under lockstep run and under torchrun, and the most memory that
the launcher itself had resident while its workers ran."""

import os
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from suite import Bench, Metric, Pair  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent


def seconds(command):
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def resident_mb(command):
    """The launcher's own peak, while two workers sleep."""
    process = subprocess.Popen([*command, "sleep", "1"], stderr=subprocess.DEVNULL)
    peak = 0.0
    while process.poll() is None:
        try:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            break
        lines = [line for line in status.splitlines() if line.startswith("VmHWM")]
        if lines:
            peak = max(peak, int(lines[0].split()[1]) / 1024)
        time.sleep(0.02)
    return peak


def measure(run):
    ours = [run.program("lockstep"), "run", "--quiet", "--nproc-per-node"]
    peer = [run.python, "-m", "torch.distributed.run", "--nproc-per-node"]

    def in_ms(*words):
        return lambda: 1e3 * seconds([str(word) for word in words])
    return {
        "four_true": run.in_turn(in_ms(*ours, 4, "--no-python", "true"), in_ms(*peer, 4, "--no-python", "true")),
        "barrier": run.in_turn(in_ms(*ours, 2, run.program("bench/first_barrier")),
                               in_ms(*peer, 2, HERE / "first_barrier.py")),
        "memory": Pair(resident_mb([*ours, "2", "--no-python"]), resident_mb([*peer, "2", "--no-python"])),
    }


BENCH = Bench(
    name="launch", title="Starting a job", peer="torchrun", measure=measure,
    metrics=(Metric("four_true", "4 x `true`, from the command to its end", "ms", goal=30, ratio_goal=80),
             Metric("barrier", "2 ranks to a first barrier and their end", "ms", goal=900, ratio_goal=6),
             Metric("memory", "the launcher's resident memory", "MB", goal=10)),
    programs=("lockstep", "bench/first_barrier"), modules=("torch",),
    notes="The first barrier is a C++ program under lockstep and a Python one under torchrun.")
