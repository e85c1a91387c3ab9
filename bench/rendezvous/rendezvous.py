"""How long it takes from the start of a job's last agent until all workers run, when all other
agents wait already, under lockstep run and under torchrun's c10d rendezvous.

All agents are on this machine, one worker each, which does nothing but say that it runs.
"""

import argparse
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from report import Report  # noqa: E402

GOALS = {16: 20.0}
LIMIT = 600  # seconds for everything; only reached by a failure
JOIN_LIMIT = 400  # seconds for all but the last agent to load and to join
SETTLE = 3  # seconds more, in which an agent that has connected says what it wants


class NeverJoined(RuntimeError):
    """More agents than this machine can load."""


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lockstep", required=True)
    parser.add_argument("--agents", type=int, nargs="+", default=[2, 16, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", metavar="FOLDER", help="also write a report there")
    parser.add_argument("--check", action="store_true", help="fail if a goal is missed")
    return parser.parse_args()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def connections_to(port):
    """How many are open to that port of this machine, as the kernel lists them."""
    count = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in pathlib.Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            count += state == "01" and int(local.rpartition(":")[2], 16) == port
    return count


def wait_until_they_have_joined(agents, port):
    """Each has a connection to the one that hosts; that one may have none to itself."""
    deadline = time.monotonic() + JOIN_LIMIT
    while connections_to(port) < len(agents) - 1:
        if any(agent.poll() is not None for agent in agents):
            raise RuntimeError("an agent ended early")
        if time.monotonic() > deadline:
            raise NeverJoined(f"{connections_to(port)} of {len(agents)} agents in {JOIN_LIMIT} s")
        time.sleep(0.2)
    time.sleep(SETTLE)


def stop(agents):
    for agent in agents:
        try:
            agent.wait(LIMIT / 10)
        except subprocess.TimeoutExpired:
            agent.send_signal(signal.SIGKILL)
            agent.wait()


def measure(command, count):
    """Seconds from the last agent's start to the last worker's first sign of life."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        secret = folder / "secret"
        secret.touch(mode=0o600)
        secret.write_text(os.urandom(32).hex())
        worker = f": > {folder}/rank_$RANK; until [ -e {folder}/end ]; do sleep 0.2; done"
        port = free_port()
        words = [*command(count, f"127.0.0.1:{port}", secret), "sh", "-c", worker]

        def start():
            return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        agents = [start() for _ in range(count - 1)]
        try:
            wait_until_they_have_joined(agents, port)
            began = time.time()
            agents.append(start())
            deadline = time.monotonic() + LIMIT
            while len(running := list(folder.glob("rank_*"))) < count:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"only {len(running)} of {count} workers run")
                time.sleep(0.01)
            return max(path.stat().st_mtime for path in running) - began
        finally:
            (folder / "end").touch()
            stop(agents)


def main():
    options = parse()

    def ours(count, endpoint, secret):
        return [options.lockstep, "run", "--quiet", "--nnodes", str(count), "--nproc-per-node", "1",
                "--rdzv-backend", "c10d", "--rdzv-id", "bench", "--rdzv-endpoint", endpoint,
                "--secret-file", str(secret), "--no-python"]

    def theirs(count, endpoint, _):
        return [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(count),
                "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "bench",
                "--rdzv-endpoint", endpoint, "--no-python"]

    report = Report("rendezvous", "From the last agent's start to all workers running")
    rows = []
    for count in options.agents:
        times = {ours: [], theirs: []}
        for _ in range(options.rounds):
            times[ours].append(measure(ours, count))
            try:
                times[theirs].append(measure(theirs, count))
            except NeverJoined:
                break
        mine, goal = statistics.median(times[ours]), GOALS.get(count)
        if not times[theirs]:
            rows.append(f"| {count} | {1000 * mine:.0f} ms | the others have not joined in {JOIN_LIMIT} s "
                        f"| | {f'>= {goal:.0f}' if goal else ''} |")
            report.expect(not goal, f"{count} agents: torchrun's never joined")
            continue
        other = statistics.median(times[theirs])
        ratio = other / mine
        rows.append(f"| {count} | {1000 * mine:.0f} ms | {1000 * other:.0f} ms | {ratio:.1f} "
                    f"| {f'>= {goal:.0f}' if goal else ''} |")
        if goal:
            report.expect(ratio >= goal, f"{count} agents: {ratio:.1f}, the goal is {goal:.0f}")
    table = ["| agents | lockstep | torchrun | torchrun / lockstep | goal |", "|---|---|---|---|---|"]
    return report.end(options, "bench/rendezvous/run", table + rows, (
        f"Medians of {options.rounds} rounds, taking turns. The other agents have joined and wait when "
        "the last one is started; torchrun's time has the import of torch by that one in it, as "
        "whoever starts a job has. lockstep's links are authenticated."))


if __name__ == "__main__":
    sys.exit(main())
