"""Compares lockstep's samplers, and the batches of its loader, with those of torch.utils.data.

usage: sampler_parity.py PATH_OF_sampler_dump
"""

import random
import subprocess
import sys

import torch
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler
from torch.utils.data.distributed import DistributedSampler

SIZES = [0, 1, 2, 3, 5, 7, 16, 17, 31, 97, 100, 101, 257, 1009]
SEEDS = [0, 1, 42, 2**31, 2**32 + 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1000]
EPOCHS = [0, 1, 2, 10, 999]


def generator(seed):
    return torch.Generator().manual_seed(seed)


def distributed(draw, size, world_size, rank, shuffle, drop_last):
    seed, epoch = draw.choice(SEEDS), draw.choice(EPOCHS)
    sampler = DistributedSampler(range(size), world_size, rank, shuffle, seed, drop_last)
    sampler.set_epoch(epoch)
    line = f"distributed {size} {world_size} {rank} {epoch} {seed} {shuffle:d} {drop_last:d}"
    return line, sampler


def loader(draw, size, world_size, shuffle, drop_last):
    """A loader's batches are those of a BatchSampler over a DistributedSampler; -1 ends each."""
    seed, epoch, rank = draw.choice(SEEDS), draw.choice(EPOCHS), draw.randrange(world_size)
    batch_size = draw.choice([1, 2, 3, 8, 40])
    sampler = DistributedSampler(range(size), world_size, rank, shuffle, seed, drop_last)
    sampler.set_epoch(epoch)
    line = (f"loader {size} {world_size} {rank} {epoch} {seed} {shuffle:d} {drop_last:d} "
            f"{batch_size}")
    batches = BatchSampler(sampler, batch_size, drop_last)
    return line, [index for batch in batches for index in [*batch, -1]]


def cases():
    """Pairs of a line for sampler_dump and the sampler of Python that it must equal."""
    draw = random.Random(1)
    flags = [(shuffle, drop_last) for shuffle in (False, True) for drop_last in (False, True)]
    for size in SIZES:
        for world_size in range(1, 18):
            for shuffle, drop_last in flags:
                for rank in {0, world_size - 1, draw.randrange(world_size)}:
                    yield distributed(draw, size, world_size, rank, shuffle, drop_last)
    for size in SIZES:
        for world_size in range(1, 8):
            for shuffle, drop_last in flags:
                yield loader(draw, size, world_size, shuffle, drop_last)
    # 30,000 is where torch.randperm changes its algorithm.
    for size in (29_999, 30_000, 30_001, 100_003):
        for shuffle, drop_last in flags:
            yield distributed(draw, size, 3, draw.randrange(3), shuffle, drop_last)

    for size in SIZES[1:]:
        for replacement in (False, True):
            for count in (None, 1, 31, 32, 33, 300):
                seed, epoch = draw.choice(SEEDS), draw.choice(EPOCHS)
                line = f"random {size} {epoch} {seed} {replacement:d} {count or -1}"
                yield line, RandomSampler(range(size), replacement, count, generator(seed + epoch))
    for count in SIZES:
        seed, epoch = draw.choice(SEEDS), draw.choice(EPOCHS)
        subset = range(5, 5 + 3 * count, 3)
        yield f"subset 5 3 {count} {epoch} {seed}", SubsetRandomSampler(subset, generator(seed + epoch))


def main():
    pairs = list(cases())
    dump = subprocess.run([sys.argv[1]], input="\n".join(line for line, _ in pairs) + "\n",
                          capture_output=True, text=True, timeout=60)
    if dump.returncode != 0:
        sys.exit(f"sampler_dump ended with {dump.returncode}: {dump.stderr.strip()}")
    answers = dump.stdout.splitlines()
    if len(answers) != len(pairs):
        sys.exit(f"asked for {len(pairs)} samplers, got {len(answers)}")
    for (line, sampler), answer in zip(pairs, answers):
        expected = list(sampler)
        got = [int(index) for index in answer.split()]
        if got != expected:
            where = next((i for i, (a, b) in enumerate(zip(got, expected)) if a != b),
                         min(len(got), len(expected)))
            sys.exit(f"{line}: differs from Python at position {where}: "
                     f"lockstep {got[where:where + 5]} (of {len(got)}), "
                     f"Python {expected[where:where + 5]} (of {len(expected)})")
    count = sum(line.startswith("distributed") for line, _ in pairs)
    if count < 1000:
        sys.exit(f"only {count} distributed samplers compared; at least 1000 are wanted")
    print(f"{count} distributed samplers and {len(pairs) - count} others and loaders equal Python's")


if __name__ == "__main__":
    main()
