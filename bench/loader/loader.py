"""Samples per second of lockstep's Loader and of Python's DataLoader, on this machine.

Both read the same kind of samples in batches of 32, shuffled, with as many workers (threads here,
processes there, which are kept from epoch to epoch); whole epochs after a first one.
"""

import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from suite import Bench, Metric  # noqa: E402

LIMIT = 600
CASES = {
    "tensors": "two tensors, rows of 20 and 1 floats (TensorDataset)",
    "pairs": "the same, sample by sample (a dataset of the user's)",
    "records": "128 bytes to floats, scaled, shifted at random",
    "images": "3x32x32 bytes to floats, normalised, mirrored at random",
}
SMALL = ("tensors", "pairs", "records")


def dataset_of(case):
    import torch
    from torch.utils.data import Dataset, TensorDataset

    class Pairs(Dataset):
        def __init__(self):
            self.inputs, self.targets = torch.rand(65536, 20), torch.rand(65536, 1)

        def __len__(self):
            return len(self.inputs)

        def __getitem__(self, index):
            return self.inputs[index], self.targets[index]

    class Records(Dataset):
        def __init__(self):
            self.bytes = torch.randint(256, (65536, 128), dtype=torch.uint8)

        def __len__(self):
            return len(self.bytes)

        def __getitem__(self, index):
            shift = float(torch.rand(()))
            return self.bytes[index].to(torch.float32).div_(255).sub_(shift), index % 10

    class Images(Dataset):
        def __init__(self):
            self.bytes = torch.randint(256, (4096, 3, 32, 32), dtype=torch.uint8)

        def __len__(self):
            return len(self.bytes)

        def __getitem__(self, index):
            image = self.bytes[index].to(torch.float32).div_(255).sub_(0.5).div_(0.25)
            if torch.rand(()) < 0.5:
                image = image.flip(2)
            return image, index % 10

    if case == "tensors":
        return TensorDataset(torch.rand(65536, 20), torch.rand(65536, 1))
    return {"pairs": Pairs, "records": Records, "images": Images}[case]()


def python_rate(case, seconds, workers):
    from torch.utils.data import DataLoader
    loader = DataLoader(dataset_of(case), batch_size=32, shuffle=True, num_workers=workers,
                        persistent_workers=workers > 0)
    for _ in loader:
        pass
    samples, start = 0, time.perf_counter()
    while True:
        for inputs, _ in loader:
            samples += len(inputs)
        passed = time.perf_counter() - start
        if passed >= seconds:
            return samples / passed


def rate(command):
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT).stdout)


def measure(run):
    words = [str(run.seconds), str(run.workers)]
    return {case: run.in_turn(lambda: rate([run.program("bench/loader_bench"), case, *words]),
                              lambda: rate([run.python, __file__, case, *words]))
            for case in CASES}


BENCH = Bench(
    name="loader", title="Loader, lockstep against Python's DataLoader", peer="DataLoader", measure=measure,
    metrics=tuple(Metric(case, what, "samples/s", better="higher", ratio_goal=5 if case in SMALL else None)
                  for case, what in CASES.items()),
    options={"seconds": 2.0, "workers": 2}, quick={"seconds": 0.3},
    programs=("bench/loader_bench",), modules=("torch",),
    notes="Records are made with operators in Python and with a loop in C++, images with the same operators in both, which "
          "take most of the time there.")

if __name__ == "__main__":
    print(python_rate(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
