"""How soon the board shows a run of 100,000 steps on 64 ranks, and how it answers fifty connections at once.
The peer is Python's json module, reading the lines of one of the 64 ranks.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, ".."), os.path.join(HERE, "..", "..", "tests", "board")]
import make_runs  # noqa: E402
from board_process import Board  # noqa: E402
from suite import Bench, Metric, Pair  # noqa: E402

NAMES = ["loss", "lr", "grad_norm", "tok/s", "time/total", "time/forward", "time/backward", "time/reduce"]


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


def load(board, run):
    """wrk's percentiles in ms, requests per second, and answers that were none."""
    done = subprocess.run(["wrk", "-t2", f"-c{run.connections}", f"-d{run.seconds}s", "--latency", "--timeout", "30s",
                           "-H", f"Cookie: {board.cookie}", "-s", os.path.join(HERE, "pages.lua"), board.base],
                          check=True, capture_output=True, text=True).stdout
    percentiles = {int(share): milliseconds(value) for share, value in re.findall(r"(\d\d)%\s+([\d.]+\w+)", done)}
    bad = done.count("status ") + len(re.findall(r"Socket errors|Non-2xx", done))
    return percentiles, float(re.search(r"Requests/sec:\s+([\d.]+)", done)[1]), bad


def cpu_seconds(board):
    fields = pathlib.Path(f"/proc/{board.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def large_run(run):
    folder = tempfile.TemporaryDirectory(prefix="lsboard")
    make_runs.write_large(folder.name, run.steps, run.ranks)
    return folder


def measure(run):
    folder = run.keep("run", lambda: large_run(run), lambda made: made.cleanup()).name
    one = pathlib.Path(folder, "large", "metrics", "rank_0.jsonl")
    python, _ = timed(lambda: [json.loads(line) for line in open(one)])
    with Board(run.program("lockstep"), folder) as board:
        seconds, shown = timed(lambda: page(board))
    if run.keep("first", lambda: shown) != shown:
        raise RuntimeError("killed and started again it shows something else")
    with Board(run.program("lockstep"), folder) as board:
        page(board)
        before = cpu_seconds(board)
        percentiles, rate, bad = load(board, run)
        cpu = (cpu_seconds(board) - before) / (rate * run.seconds) * 1e3
        memory = board.memory() / (1 << 20)
    if bad:
        raise RuntimeError(f"{bad} answers were refused")
    return {"opened": Pair(seconds, python), "p50": percentiles[50], "p99": percentiles[99], "rate": rate, "cpu": cpu,
            "memory": memory}


BENCH = Bench(
    name="board", title="The board under load", peer="Python's json, one rank", measure=measure, rounds=3,
    metrics=(Metric("opened", "a large run opened, all ranks", "s", goal=1),
             Metric("p50", "an answer, median", "ms"),
             Metric("p99", "an answer, 99th percentile", "ms", goal=50),
             Metric("rate", "answers", "1/s", better="higher"),
             Metric("cpu", "processor time of an answer", "ms"),
             Metric("memory", "resident memory after that", "MB", goal=400)),
    options={"steps": 100_000, "ranks": 64, "seconds": 15, "connections": 50},
    quick={"steps": 5000, "ranks": 8, "seconds": 2},
    programs=("lockstep", "lockstep-board"), tools=("wrk",),
    notes="Requests are those of the page for this run, in turn: the list, the run, events, curves, a part of a curve, the map "
          "of ranks. Killed and started again it shows the same.")
