"""Collectives between machines: the backend hybrid against flat Gloo, on two machines (network
namespaces) of two ranks that are joined by a link of 1 Gbit/s.

A call's time is the best of 5 blocks of calls, from the first rank's view. Rounds alternate between
the two backends, case by case; the median of the rounds' ratios counts, with the lowest and highest
beside it. Bytes are those that passed the first machine's interface, both ways, headers and all.

A step of DDP (bench/ddp_step's models) is measured with the ordered reduction over Gloo's messages
(LOCKSTEP_SHM=0) and machine by machine; the best block of all rounds counts.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tests", "launch"))
from network import Network  # noqa: E402
from report import Report  # noqa: E402

MACHINES, EACH = 2, 2
ROUND_SECONDS = 120
PORT = 29511
# (collective, bytes): least ratio of Gloo's time to hybrid's. Each machine has to hear what the other
# has, so a tensor crosses the link once each way at least; Gloo's ring of four ranks carries 1.5.
GOALS = {("all_reduce", 25 << 20): 1.4, ("broadcast", 25 << 20): 1.5}
DDP_GOAL = 1.7  # least ratio of the MLP's step rank by rank (each way twice) to machine by machine


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpp", required=True, help="the program that measures collectives")
    parser.add_argument("--ddp", required=True, help="the program that measures steps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="of measuring a case in a round")
    parser.add_argument("--rate", default="1gbit", help="of the link, as tc says it")
    parser.add_argument("--save", metavar="FOLDER", help="also write a report there")
    parser.add_argument("--check", action="store_true", help="fail if a goal is missed")
    return parser.parse_args()


def limit_rate(network, rate):
    for machine in range(1, MACHINES + 1):
        subprocess.run(["tc", "-n", network.namespace(machine), "qdisc", "add", "dev", "eth0", "root",
                        "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"], check=True)


def run_ranks(network, command, limit, **variables):
    """What rank 0 printed."""
    ranks = []
    for rank in range(MACHINES * EACH):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(MACHINES * EACH),
                           LOCAL_RANK=str(rank % EACH), LOCAL_WORLD_SIZE=str(EACH),
                           GROUP_RANK=str(rank // EACH), LOCKSTEP_MACHINE=f"m{rank // EACH}",
                           MASTER_ADDR=network.address(1), MASTER_PORT=str(PORT),
                           OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="eth0", LOCKSTEP_QUIET="1",
                           **variables)
        ranks.append(subprocess.Popen(network.command(rank // EACH + 1, *command), env=environment,
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True))
    try:
        deadline = time.monotonic() + limit
        outputs = [rank.communicate(timeout=max(1, deadline - time.monotonic())) for rank in ranks]
    except subprocess.TimeoutExpired:
        sys.exit(f"{command[0]} did not end in {limit} s")
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
    for rank, (_, errors) in zip(ranks, outputs):
        if rank.returncode != 0:
            sys.exit(f"{' '.join(command)} ended with {rank.returncode}:\n{errors}")
    return outputs[0][0]


def size_text(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB" if size else "-"


def collectives_table(output, report):
    rows = {}
    for line in output.splitlines():
        name, size, *numbers = line.split()
        rows.setdefault((name, int(size)), []).append([float(number) for number in numbers])
    lines = ["| collective | size | Gloo ms | hybrid ms | Gloo / hybrid | goal | link MB, Gloo "
             "| hybrid | Gloo / hybrid |", "|---|---|---|---|---|---|---|---|---|"]
    for (name, size), rounds in rows.items():
        ratios = sorted(gloo / hybrid for gloo, hybrid, _, _ in rounds)
        gloo, hybrid, gloo_bytes, bytes_ = (statistics.median(column) for column in zip(*rounds))
        ratio, goal = statistics.median(ratios), GOALS.get((name, size))
        lines.append(
            f"| {name} | {size_text(size)} | {gloo / 1000:,.2f} | {hybrid / 1000:,.2f} "
            f"| {ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) | {f'>= {goal:g}' if goal else ''} "
            f"| {gloo_bytes / 1e6:,.3f} | {bytes_ / 1e6:,.3f} | {gloo_bytes / bytes_:.2f} |")
        if goal:
            report.expect(ratio >= goal,
                          f"{name} of {size_text(size)}: {ratio:.2f}, the goal is {goal:g}")
    return lines


def ddp_table(network, args, report):
    best = {}
    for _ in range(args.rounds):
        for way, shared in (("rank by rank", "0"), ("machine by machine", "1")):
            output = run_ranks(network, [args.ddp, "--seconds", str(args.seconds)], ROUND_SECONDS,
                               LOCKSTEP_SHM=shared)
            for line in output.splitlines():
                name, _, wall, _ = line.split()
                key = (name, way)
                best[key] = min(best.get(key, float("inf")), float(wall))
    lines = ["", "| DDP step, ordered | rank by rank ms | machine by machine ms | ratio |",
             "|---|---|---|---|"]
    for name in dict.fromkeys(name for name, _ in best):
        flat, by_machine = best[name, "rank by rank"], best[name, "machine by machine"]
        lines.append(f"| {name} | {flat / 1000:,.2f} | {by_machine / 1000:,.2f} "
                     f"| {flat / by_machine:.2f} |")
    ratio = best["mlp", "rank by rank"] / best["mlp", "machine by machine"]
    report.expect(ratio >= DDP_GOAL, f"DDP step of the MLP: {ratio:.2f}, the goal is {DDP_GOAL:g}")
    return lines


def main():
    args = parse()
    if not Network.possible() or shutil.which("tc") is None:
        print("bench/hybrid: needs root and iproute2 (network namespaces); skipped")
        return 0
    report = Report("hybrid", "Collectives between machines: hybrid against flat Gloo")
    network = Network(MACHINES)
    try:
        limit_rate(network, args.rate)
        output = run_ranks(network, [args.cpp, str(args.rounds), str(args.seconds), "hybrid", "eth0"],
                           ROUND_SECONDS * (args.rounds + 1))
        lines = collectives_table(output, report) + ddp_table(network, args, report)
    finally:
        network.close()
    command = f"bench/hybrid/run --rounds {args.rounds} --seconds {args.seconds:g} --rate {args.rate}"
    return report.end(args, command, lines, (
        f"{MACHINES} machines of {EACH} ranks, a link of {args.rate}, one thread a rank, float32; "
        f"medians of {args.rounds} rounds, in brackets the lowest and highest ratio; bytes of both "
        "directions per call."))


if __name__ == "__main__":
    sys.exit(main())
