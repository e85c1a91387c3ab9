"""Requests per second of our store and of torch's own TCPStore server, on this machine.

The two servers take turns under the same load (store_load.cpp), so that both meet what else the
machine is doing. The median of the rounds counts.
"""

import argparse
import os
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from report import Report  # noqa: E402

GOAL = 1.0  # least ratio of our requests per second to torch's
TICKS = os.sysconf("SC_CLK_TCK")
HOST_TORCH = """
import datetime, sys
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, None, True, datetime.timedelta(seconds=300))
print(store.port, flush=True)
sys.stdin.read()
"""


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", required=True, help="folder of store_load and store_host")
    parser.add_argument("--clients", type=int, default=64, help="an even number")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round")
    parser.add_argument("--save", metavar="FOLDER", help="also write a report there")
    parser.add_argument("--check", action="store_true", help="fail if the goal is missed")
    return parser.parse_args()


class Server:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        self.port = self.process.stdout.readline().strip()
        self.requests, self.median, self.tail, self.processor = [], [], [], []

    def processor_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def measure(self, load, args):
        before = self.processor_seconds()
        answer = subprocess.run([load, self.port, str(args.clients), str(args.seconds)], check=True,
                                stdout=subprocess.PIPE, text=True, timeout=300).stdout.split()
        requests, median, tail = map(float, answer)
        self.requests.append(requests)
        self.median.append(median)
        self.tail.append(tail)
        used = self.processor_seconds() - before
        self.processor.append(used / (requests * args.seconds) * 1e6)

    def row(self, name):
        return (f"| {name} | {statistics.median(self.requests):,.0f} "
                f"({min(self.requests):,.0f} to {max(self.requests):,.0f}) | "
                f"{statistics.median(self.processor):.1f} | {statistics.median(self.median):,.0f} | "
                f"{statistics.median(self.tail):,.0f} |")

    def end(self):
        self.process.stdin.close()
        self.process.wait(30)


def main():
    args = parse()
    report = Report("store", "Store, lockstep against torch's TCPStore server")
    torch = Server([sys.executable, "-c", HOST_TORCH])
    ours = Server([os.path.join(args.programs, "store_host")])
    try:
        for _ in range(args.rounds):
            for server in (torch, ours):
                server.measure(os.path.join(args.programs, "store_load"), args)
    finally:
        torch.end()
        ours.end()
    ratio = statistics.median(ours.requests) / statistics.median(torch.requests)
    report.expect(ratio >= GOAL, f"{ratio:.2f}, the goal is {GOAL:g}")
    lines = ["| server | requests/s, median (range) | processor us a request | p50 us | p99 us |",
             "|---|---|---|---|---|", torch.row("torch, libuv"), ours.row("lockstep"), "",
             f"lockstep / torch: {ratio:.2f} (goal >= {GOAL:g})"]
    options = f"--clients {args.clients} --rounds {args.rounds} --seconds {args.seconds:g}"
    return report.end(args, f"bench/store/run {options}", lines, (
        f"{args.clients} connections over loopback from one thread, one request in flight each; the "
        "servers take turns; torch's runs in Python."))


if __name__ == "__main__":
    sys.exit(main())
