"""The time of a DDP training step, C++ against Python, on two ranks of this machine.

Rounds of both languages alternate, so that both meet the same load. Each round starts two ranks
anew and measures three models in 20 blocks of steps. The best block of all rounds counts: the others
met more of whatever else the machine was doing. Processor time is the median of the rounds. One
thread a rank.
"""

import argparse
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ranks import run_ranks  # noqa: E402
from report import Report  # noqa: E402

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
WORLD_SIZE = 2
ROUND_SECONDS = 120
MODELS = {
    "linear": "Linear(20, 1), batch 32",
    "mlp": "MLP 512-2048-2048-2048-10, batch 8",
    "gpt": "GPT, 4 layers of 128, 64 tokens, batch 4",
}
GOALS = {"linear": 2.0, "mlp": 1.0, "gpt": 1.0}  # least ratio of Python's time to C++'s


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpp", help="the C++ program")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring a model in a round")
    parser.add_argument("--reduction", choices=["automatic", "ordered", "native"],
                        default="automatic", help="of the C++ side")
    parser.add_argument("--save", metavar="FOLDER", help="also write a report there")
    parser.add_argument("--check", action="store_true", help="fail if a goal is missed")
    parser.add_argument("--python-rank", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def python_rank(args):
    """What ddp_step.cpp does, in Python."""
    sys.path.insert(0, os.path.join(ROOT, "tests", "parity"))
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel

    import models

    def measure(name, model, loss_of):
        ddp = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)

        def seconds_of(steps):
            start = time.perf_counter()
            for _ in range(steps):
                loss_of(ddp).backward()
                optimizer.step()
                optimizer.zero_grad()
            return time.perf_counter() - start

        blocks = 20
        seconds_of(5)
        count = torch.tensor(args.seconds * 5 / seconds_of(5) / blocks, dtype=torch.double)
        dist.broadcast(count, 0)
        steps = max(1, int(count.item()))
        dist.barrier()
        before = time.process_time()
        best = min(seconds_of(steps) for _ in range(blocks))
        cpu = (time.process_time() - before) / blocks
        if dist.get_rank() == 0:
            size = sum(parameter.numel() for parameter in model.parameters())
            print(name, size, 1e6 * best / steps, 1e6 * cpu / steps, flush=True)

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    x, y = torch.rand((32, 20)), torch.rand((32, 1))
    measure("linear", torch.nn.Linear(20, 1), lambda ddp: F.mse_loss(ddp(x), y))
    x, y = torch.rand((8, 512)), torch.randint(10, (8,))
    measure("mlp", models.Mlp((512, 2048, 2048, 2048, 10)), lambda ddp: F.cross_entropy(ddp(x), y))
    tokens = torch.randint(256, (4, 65))
    x, y = tokens[:, :-1], tokens[:, 1:].flatten()
    measure("gpt", models.Gpt(256, 64, 128, 4, 4),
            lambda ddp: F.cross_entropy(ddp(x).flatten(0, 1), y))
    dist.destroy_process_group()


def run_round(command):
    """Starts two ranks; returns {model: (parameters, microseconds, of processor time)}."""
    rows = (line.split() for line in run_ranks(command, WORLD_SIZE, ROUND_SECONDS).splitlines())
    return {name: (int(size), float(wall), float(cpu)) for name, size, wall, cpu in rows}


def table(rounds, report):
    lines = ["| model | parameters | C++ us | Python us | Python / C++ | goal "
                     "| processor time, C++ | Python | Python / C++ |",
                     "|---|---|---|---|---|---|---|---|---|"]
    for name, what in MODELS.items():
        def over_rounds(statistic, side, column):
            return statistic(each[name][column] for each in rounds[side])

        size = rounds["C++"][0][name][0]
        if size != rounds["Python"][0][name][0]:
            sys.exit(f"ddp_step: the two sides do not train the same {name} model")
        cells = []
        for statistic, column in ((min, 1), (statistics.median, 2)):
            cpp, python = (over_rounds(statistic, side, column) for side in ("C++", "Python"))
            cells.append(f"{cpp:,.0f} | {python:,.0f} | {python / cpp:.2f}")
        ratio = over_rounds(min, "Python", 1) / over_rounds(min, "C++", 1)
        lines.append(f"| {what} | {size:,} | {cells[0]} | >= {GOALS[name]:g} | {cells[1]} |")
        report.expect(ratio >= GOALS[name], f"{name}: {ratio:.2f}, the goal is {GOALS[name]:g}")
    return lines


def main():
    args = parse()
    if args.python_rank:
        return python_rank(args)
    if not args.cpp:
        sys.exit("ddp_step: --cpp is needed (bench/ddp_step/run gives it)")
    report = Report("ddp_step", "DDP step, C++ against Python")
    options = ["--seconds", str(args.seconds)]
    commands = {"C++": [args.cpp, *options, "--reduction", args.reduction],
                "Python": [sys.executable, __file__, "--python-rank", *options]}
    rounds = {"C++": [], "Python": []}
    for number in range(args.rounds):
        for side, command in commands.items():
            rounds[side].append(run_round(command))
            print(f"round {number + 1}, {side}: " + ", ".join(
                f"{name} {wall:.0f} us (processor {cpu:.0f})"
                for name, (_, wall, cpu) in rounds[side][-1].items()), flush=True)
    command = f"bench/ddp_step/run --rounds {args.rounds} --seconds {args.seconds:g} " \
              f"--reduction {args.reduction}"
    return report.end(args, command, table(rounds, report), (
        f"{WORLD_SIZE} ranks, Gloo, one thread a rank; C++ reduction: {args.reduction}, "
        f"LOCKSTEP_SHM={os.environ.get('LOCKSTEP_SHM', '1')}; best of {args.rounds} rounds of 20 "
        f"blocks in {args.seconds:g} s per model; processor time of rank 0, median of the rounds."))


if __name__ == "__main__":
    sys.exit(main())
