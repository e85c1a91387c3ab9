"""Samples per second of lockstep's Loader and of Python's DataLoader, on this machine.

Both read the same kind of samples in batches of 32, shuffled, with as many workers (threads here,
processes there, which are kept from epoch to epoch). The two take turns; the median of the rounds
counts, of whole epochs after a first one.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from report import Report  # noqa: E402

GOAL = 5.0  # least ratio of our samples per second to Python's, for small samples
CASES = {
    "tensors": "two tensors, rows of 20 and 1 floats (TensorDataset)",
    "pairs": "the same, sample by sample (a dataset of the user's)",
    "records": "128 bytes to floats, scaled, shifted at random",
    "images": "3x32x32 bytes to floats, normalised, mirrored at random",
}
SMALL = ("tensors", "pairs", "records")


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", required=True, help="folder of loader_bench")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round, at least")
    parser.add_argument("--save", metavar="FOLDER", help="also write a report there")
    parser.add_argument("--check", action="store_true", help="fail if the goal is missed")
    parser.add_argument("--peer", metavar="CASE", help=argparse.SUPPRESS)
    return parser.parse_args()


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


def measure(command):
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True,
                                timeout=600).stdout)


def main():
    args = parse()
    if args.peer:
        print(python_rate(args.peer, args.seconds, args.workers))
        return 0
    report = Report("loader", "Loader, lockstep against Python's DataLoader")
    seconds, workers = str(args.seconds), str(args.workers)
    rows, worst = [], float("inf")
    for case, words in CASES.items():
        ours, python = [], []
        for _ in range(args.rounds):
            ours.append(measure([os.path.join(args.programs, "loader_bench"), case, seconds, workers]))
            python.append(measure([sys.executable, __file__, "--programs", args.programs, "--peer", case,
                                   "--seconds", seconds, "--workers", workers]))
        ratio = statistics.median(ours) / statistics.median(python)
        if case in SMALL:
            worst = min(worst, ratio)
        rows.append(f"| {words} | {statistics.median(ours):,.0f} ({min(ours):,.0f} to {max(ours):,.0f}) "
                    f"| {statistics.median(python):,.0f} ({min(python):,.0f} to {max(python):,.0f}) "
                    f"| {ratio:.1f} | {f'>= {GOAL:g}' if case in SMALL else ''} |")
    report.expect(worst >= GOAL, f"small samples: {worst:.1f}, the goal is {GOAL:g}")
    table = ["| samples | lockstep, samples/s (range) | Python, samples/s (range) "
             "| lockstep / Python | goal |", "|---|---|---|---|---|"]
    summary = f"Least ratio of small samples: {worst:.1f} (goal >= {GOAL:g})"
    options = f"--workers {args.workers} --rounds {args.rounds} --seconds {args.seconds:g}"
    return report.end(args, f"bench/loader/run {options}", [*table, *rows, "", summary], (
        f"Batches of 32, shuffled, {args.workers} workers (threads; processes in Python, kept between "
        "epochs); whole epochs after a first one; the two take turns, medians. Records are made with "
        "operators in Python and with a loop in C++, images with the same operators in both, which "
        "take most of the time there."))


if __name__ == "__main__":
    sys.exit(main())
