"""A job as the DDP tutorials have it: a toy model, a distributed sampler, a snapshot per epoch from
which a restarted job goes on. Knows nothing of lockstep. Usage: ddp_tutorial.py EPOCHS SNAPSHOT"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    epochs, snapshot = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = TensorDataset(torch.rand(256, 20), torch.rand(256, 1))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    model = torch.nn.Linear(20, 1)
    first = 0
    if os.path.exists(snapshot):
        state = torch.load(snapshot, weights_only=True)
        model.load_state_dict(state["model"])
        first = state["epoch"] + 1
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-2)
    for epoch in range(first, epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(ddp(inputs), targets).backward()
            optimizer.step()
        if dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "epoch": epoch}, snapshot)
        dist.barrier()
        fails = os.environ.get("FAIL_IN_EPOCH") == str(epoch)
        if fails and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 0:
            raise RuntimeError("this epoch fails, once")
    weights = model.weight.detach().double().sum().item()
    # One write: print() makes two, and ranks share the launcher's output.
    sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()} done {weights:.17g}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
