"""How long a snapshot pauses training, and how long it takes in all, against torch.save.

Both take turns, so that both meet what else the machine is doing; the median of the rounds counts.
torch.save pauses training for as long as it takes, and leaves the file in the page cache; a snapshot
counts as done when everything is on the disk and has been read back from there.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from report import Report  # noqa: E402

PAUSE_GOAL, TOTAL_GOAL = 10.0, 1.0


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True, help="the program snapshot_save")
    parser.add_argument("--megabytes", type=float, default=1500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where to write (a new one under the temporary folder)")
    parser.add_argument("--save", metavar="FOLDER", help="also write a report there")
    parser.add_argument("--check", action="store_true", help="fail if a goal is missed")
    return parser.parse_args()


def tensors(megabytes):
    layers = int(megabytes / 3 / (4 * 1024 * 1024 / 1e6))
    model = {f"layer.{i}.weight": torch.rand(1024, 1024) for i in range(layers)}
    state = {i: {"exp_avg": torch.rand(1024, 1024), "exp_avg_sq": torch.rand(1024, 1024)}
             for i in range(layers)}
    return {"model": model, "optimizer": {"state": state}}


def torch_save(value, path, sync):
    began = time.perf_counter()
    torch.save(value, path)
    if sync:
        with open(path, "rb+") as file:
            os.fsync(file.fileno())
    return time.perf_counter() - began


def main():
    options = parse()
    folder = options.folder or tempfile.mkdtemp(prefix="lockstep_bench_")
    value = tensors(options.megabytes)
    report = Report("snapshot", "Saving a snapshot")
    ours = subprocess.Popen([options.program, os.path.join(folder, "snapshots"),
                             str(options.megabytes), str(options.rounds + 1)],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    pauses, totals, theirs, synced = [], [], [], []
    try:
        for round_ in range(options.rounds + 1):
            pause, total = map(float, ours.stdout.readline().split())
            path = os.path.join(folder, "file.pt")
            plain = torch_save(value, path, sync=False)
            os.sync()
            durable = torch_save(value, path, sync=True)
            if round_ > 0:  # the first warms up
                pauses.append(pause)
                totals.append(total)
                theirs.append(plain)
                synced.append(durable)
            print(f"round {round_}: pause {pause:.3f} s, total {total:.3f} s; torch.save "
                  f"{plain:.3f} s, with fsync {durable:.3f} s", flush=True)
            ours.stdin.write("\n")
            ours.stdin.flush()
    finally:
        ours.stdin.close()
        ours.wait()
        shutil.rmtree(folder, ignore_errors=True)

    pause, total = statistics.median(pauses), statistics.median(totals)
    peer, peer_synced = statistics.median(theirs), statistics.median(synced)
    report.expect(peer / pause >= PAUSE_GOAL,
                  f"pause: {peer / pause:.1f}, the goal is {PAUSE_GOAL:.0f}")
    report.expect(peer / total >= TOTAL_GOAL,
                  f"total: {peer / total:.2f}, the goal is {TOTAL_GOAL:.0f}")
    return report.end(options, "bench/snapshot/run", [
        "| | lockstep | torch.save | torch.save / lockstep | goal |",
        "|---|---|---|---|---|",
        f"| training paused | {1000 * pause:.0f} ms | {1000 * peer:.0f} ms | {peer / pause:.1f} "
        f"| >= {PAUSE_GOAL:.0f} |",
        f"| all in all | {total:.2f} s (on the disk, read back) | {peer:.2f} s (in the page cache) "
        f"| {peer / total:.2f} | >= {TOTAL_GOAL:.0f} |",
        f"| all in all, both on the disk | {total:.2f} s | {peer_synced:.2f} s "
        f"| {peer_synced / total:.2f} | |",
    ], (f"{options.megabytes:.0f} MB in tensors of 4 MB. Medians of {options.rounds} rounds, taking "
        "turns."))


if __name__ == "__main__":
    sys.exit(main())
