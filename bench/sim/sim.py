"""The launcher's own coordinator and agents in virtual time, on very many nodes: how much faster
than real time, and what one node costs. The same program as the test, which also checks the bounds.
"""

import argparse
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from report import Report  # noqa: E402


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sim", required=True, help="the program sim")
    parser.add_argument("--agents", type=int, nargs="+", default=[100, 1000, 10000])
    parser.add_argument("--save", metavar="FOLDER", help="also write a report there")
    parser.add_argument("--check", action="store_true", help="fail if a goal is missed")
    return parser.parse_args()


def numbers(text, *patterns):
    return [float(re.search(pattern, text).group(1)) for pattern in patterns]


def main():
    options = parse()
    report = Report("sim", "Jobs on very many nodes, simulated")
    rows = []
    for agents in options.agents:
        out = subprocess.run([options.sim, "--agents", str(agents)], check=True,
                             capture_output=True, text=True).stdout
        epochs, per_epoch, longest, messages, survey, beats, looks, simulated, real = numbers(
            out, r"(\d+) epochs", r"at most ([\d.]+) messages", r"longest (\d+) bytes",
            r"([\d.]+) messages per agent,", r"([\d.]+) about the network",
            r"([\d.]+) signs of life",
            r"([\d.]+) looks at nodes", r"([\d.]+) s simulated", r"simulated in ([\d.]+) s")
        rows.append(f"| {agents} | {simulated:.0f} s | {real:.1f} s | {simulated / real:.1f} "
                    f"| {epochs:.0f} | {messages:.1f} | {per_epoch:.1f} | {survey:.1f} | {beats:.1f} "
                    f"| {longest:.0f} | {looks:.1f} |")
    table = ["| nodes | simulated | took | simulated / real | epochs | messages per node | most per node "
             "and epoch | about the network | signs of life per node "
             "| longest message, bytes | looks at nodes per message |",
             "|---|---|---|---|---|---|---|---|---|---|---|"]
    return report.end(options, "bench/sim/run", table + rows, (
        "One job per row: nodes come late, a rack loses power and comes back, others are rebooted in "
        "waves, and the coordinator's node dies and comes back. One thread. The longest message is "
        "that of any node but the first, which gets the list of all."))


if __name__ == "__main__":
    sys.exit(main())
