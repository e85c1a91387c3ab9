"""Requests per second of our store and of torch's own TCPStore server, on this machine, under the same
load (store_load.cpp)."""

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from suite import Bench, Metric, Pair  # noqa: E402

LIMIT = 300
TICKS = os.sysconf("SC_CLK_TCK")
HOST_TORCH = """
import datetime, sys
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, None, True, datetime.timedelta(seconds=3000))
print(store.port, flush=True)
sys.stdin.read()
"""


class Server:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = self.process.stdout.readline().strip()

    def processor_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def measure(self, run):
        """Requests per second, their median and 99th percentile in us, processor us of each."""
        before = self.processor_seconds()
        words = [run.program("bench/store_load"), self.port, str(run.clients), str(run.seconds)]
        answer = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT).stdout
        requests, median, tail = map(float, answer.split())
        used = self.processor_seconds() - before
        return requests, median, tail, used / (requests * run.seconds) * 1e6

    def end(self):
        self.process.stdin.close()
        self.process.wait(30)


def measure(run):
    peer = run.keep("peer", lambda: Server([run.python, "-c", HOST_TORCH]), Server.end)
    ours = run.keep("ours", lambda: Server([run.program("bench/store_host")]), Server.end)
    pair = run.in_turn(lambda: ours.measure(run), lambda: peer.measure(run))
    return {metric.key: Pair(mine, other) for metric, mine, other in zip(BENCH.metrics, pair.ours, pair.peer)}


BENCH = Bench(
    name="store", title="Store, lockstep against torch's TCPStore server", peer="torch's server", measure=measure,
    metrics=(Metric("requests", "requests", "1/s", better="higher", ratio_goal=1),
             Metric("p50", "a request, median", "us"), Metric("p99", "a request, 99th percentile", "us"),
             Metric("cpu", "processor time of a request", "us")),
    options={"clients": 64, "seconds": 2.0}, quick={"seconds": 0.3, "clients": 16},
    programs=("bench/store_load", "bench/store_host"), modules=("torch",),
    notes="Connections over loopback from one thread, one request in flight each; torch's server (libuv) runs in Python.")
