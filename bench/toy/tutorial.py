"""The tutorial's job in Python, as toy_trainer does it in C++: Linear(20, 1) on 2,048 random samples,
two ranks or more under torchrun, a snapshot every few epochs.

tutorial.py TOTAL_EPOCHS SAVE_EVERY [--batch_size N] [--snapshot_path FILE]
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class RandomPairs(Dataset):
    def __init__(self, size):
        self.pairs = [(torch.rand(20), torch.rand(1)) for _ in range(size)]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]


class Trainer:
    def __init__(self, model, data, optimizer, save_every, snapshot_path):
        self.rank = dist.get_rank()
        self.model, self.data, self.optimizer = model, data, optimizer
        self.save_every, self.snapshot_path, self.epochs_run = save_every, snapshot_path, 0
        if os.path.exists(snapshot_path):
            snapshot = torch.load(snapshot_path, weights_only=True)
            self.model.load_state_dict(snapshot["MODEL_STATE"])
            self.epochs_run = snapshot["EPOCHS_RUN"]
            print(f"Resuming training from snapshot at Epoch {self.epochs_run}")
        self.model = DistributedDataParallel(self.model)

    def run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(source), targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def run_epoch(self, epoch):
        self.data.sampler.set_epoch(epoch)
        losses = [self.run_batch(source, targets) for source, targets in self.data]
        print(f"[rank{self.rank}] Epoch {epoch} | Batchsize: {self.data.batch_size} | "
              f"Steps: {len(losses)} | Loss: {sum(losses) / len(losses)}")

    def save_snapshot(self, epoch):
        torch.save({"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch + 1},
                   self.snapshot_path)
        print(f"Epoch {epoch} | Training snapshot saved at {self.snapshot_path}")

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            self.run_epoch(epoch)
            if self.rank == 0 and (epoch + 1) % self.save_every == 0:
                self.save_snapshot(epoch)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("total_epochs", type=int)
    parser.add_argument("save_every", type=int)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--snapshot_path", default="snapshot.pt")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = RandomPairs(2048)
    data = DataLoader(dataset, batch_size=arguments.batch_size, sampler=DistributedSampler(dataset))
    model = torch.nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    trainer = Trainer(model, data, optimizer, arguments.save_every, arguments.snapshot_path)
    start = time.perf_counter()
    trainer.train(arguments.total_epochs)
    if dist.get_rank() == 0:
        print(f"Trained {arguments.total_epochs - trainer.epochs_run} epochs on "
              f"{dist.get_world_size()} rank(s) in {time.perf_counter() - start:.4f} s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
