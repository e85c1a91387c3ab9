"""The same job as recovery_job.cpp with DistributedDataParallel, under torchrun: it saves a snapshot
every 20 steps and goes on from it when it is started again.

recovery_peer.py STEPS WIDTH FOLDER
"""

import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    steps, width, folder = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    (folder / f"pid_{rank}").write_text(f"{os.getpid()}\n")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(),
                                torch.nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    snapshot, first = folder / "snapshot.pt", 0
    if snapshot.exists():
        saved = torch.load(snapshot)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    ddp = DistributedDataParallel(model)
    base = torch.arange(width, dtype=torch.float32) * 0.001
    with open(folder / f"steps_{rank}", "a") as notes:
        for step in range(first, steps):
            rows = base + 0.01 * torch.arange(16).unsqueeze(1) * (step + 1)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(ddp(torch.sin(rows)), torch.cos(rows[:, :1])).backward()
            optimizer.step()
            notes.write(f"{step + 1} {time.monotonic():.6f}\n")
            notes.flush()
            if rank == 0 and (step + 1) % 20 == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                            "step": step + 1}, str(snapshot) + ".new")
                os.replace(str(snapshot) + ".new", snapshot)
    dist.barrier()


main()
