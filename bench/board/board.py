"""How soon the board shows a run of 100,000 steps on 64 ranks, and how it answers fifty connections
at once. The peer is Python's json module, reading the lines of one of the 64 ranks.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, ".."), os.path.join(HERE, "..", "..", "tests", "board")]
import make_runs  # noqa: E402
from board_process import Board  # noqa: E402
from report import Report  # noqa: E402

NAMES = ["loss", "lr", "grad_norm", "tok/s", "time/total", "time/forward", "time/backward", "time/reduce"]


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lockstep", required=True)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--save", metavar="FOLDER", help="also write a report there")
    parser.add_argument("--check", action="store_true", help="fail if a goal is missed")
    return parser.parse_args()


def page(board):
    """What the page asks for when a run is opened, and its map of ranks."""
    return [board.get("run", run="large"), board.get("events", run="large"),
            board.get("series", run="large", name=NAMES, points=600),
            board.get("ranks", run="large", name="time/total", columns=160)]


def timed(work):
    begin = time.monotonic()
    result = work()
    return time.monotonic() - begin, result


def milliseconds(text):
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text).groups()
    return float(number) * {"us": 1e-3, "ms": 1, "s": 1e3, "m": 6e4}[unit]


def load(board, args):
    """wrk's percentiles in ms, requests per second, and answers that were none."""
    done = subprocess.run(["wrk", "-t2", f"-c{args.connections}", f"-d{args.seconds}s", "--latency", "--timeout", "30s",
                           "-H", f"Cookie: {board.cookie}", "-s", os.path.join(HERE, "pages.lua"), board.base],
                          check=True, capture_output=True, text=True).stdout
    percentiles = {int(share): milliseconds(value) for share, value in re.findall(r"(\d\d)%\s+([\d.]+\w+)", done)}
    bad = done.count("status ") + len(re.findall(r"Socket errors|Non-2xx", done))
    return percentiles, float(re.search(r"Requests/sec:\s+([\d.]+)", done)[1]), bad


def cpu_seconds(board):
    fields = pathlib.Path(f"/proc/{board.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    args = parse()
    if not shutil.which("wrk"):
        print("bench/board needs wrk (Debian: wrk)")
        return 1
    report = Report("board", "The board under load")
    with tempfile.TemporaryDirectory(prefix="lsboard") as folder:
        make_runs.write_large(folder, args.steps, args.ranks)
        files = list(pathlib.Path(folder, "large", "metrics").iterdir())
        size = sum(file.stat().st_size for file in files)
        one = pathlib.Path(folder, "large", "metrics", "rank_0.jsonl")
        python, _ = timed(lambda: [json.loads(line) for line in open(one)])
        opened, first = [], None
        for _ in range(3):
            with Board(args.lockstep, folder) as board:
                seconds, shown = timed(lambda: page(board))
                opened.append((seconds, cpu_seconds(board)))
                report.expect(first is None or shown == first, "killed and started again it shows something else")
                first = shown
        with Board(args.lockstep, folder) as board:
            page(board)
            before = cpu_seconds(board)
            percentiles, rate, bad = load(board, args)
            cpu = (cpu_seconds(board) - before) / (rate * args.seconds) * 1e3
            memory = board.memory()
    best, best_cpu = min(opened)
    report.expect(best < 1, f"opened in {best:.2f} s, goal 1 s")
    report.expect(percentiles[99] < 50, f"p99 {percentiles[99]:.0f} ms, goal 50 ms")
    report.expect(memory < 400 << 20, f"{memory >> 20} MB, goal 400 MB")
    report.expect(bad == 0, f"{bad} answers were refused")
    lines = [
        "| what | value |", "|---|---|",
        f"| run | {args.steps:,} steps x {args.ranks} ranks, {size / 1e9:.2f} GB |",
        f"| Python's json, one rank of it | {python:.2f} s |",
        f"| opened by the board, all ranks (best of 3) | {best:.2f} s, {best_cpu:.2f} s of CPU; {python / best:.1f} x faster than one rank by Python |",
        f"| {args.connections} connections for {args.seconds} s | {rate:.0f} requests/s, {cpu:.2f} ms of CPU each |",
        f"| latency | p50 {percentiles[50]:.1f} ms, p90 {percentiles[90]:.1f} ms, p99 {percentiles[99]:.1f} ms |",
        f"| memory | {memory / (1 << 20):.0f} MB |",
        "| killed and started again | shows the same |",
    ]
    return report.end(args, "bench/board/run", lines, "Requests are those of the page for this run, in turn: the list, the run, "
                      "events, curves, a part of a curve, the map of ranks.")


if __name__ == "__main__":
    sys.exit(main())
