"""How long it takes from the start of a job's last agent until all workers run, when all other agents wait
already, under lockstep run and under torchrun's c10d rendezvous.

All agents are on this machine, one worker each, which does nothing but say that it runs.
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from suite import Bench, Metric, Pair  # noqa: E402

AGENTS = {2: None, 16: 20, 64: None}  # and the least ratio
LIMIT = 600  # seconds for everything; only reached by a failure
JOIN_LIMIT = 400  # seconds for all but the last agent to load and to join
SETTLE = 3  # seconds more, in which an agent that has connected says what it wants


class NeverJoined(RuntimeError):
    """More agents than this machine can load."""


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


def seconds_of(command, count):
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


def measure(run):
    def ours(count, endpoint, secret):
        return [run.program("lockstep"), "run", "--quiet", "--nnodes", str(count), "--nproc-per-node", "1",
                "--rdzv-backend", "c10d", "--rdzv-id", "bench", "--rdzv-endpoint", endpoint,
                "--secret-file", str(secret), "--no-python"]

    def theirs(count, endpoint, _):
        return [run.python, "-m", "torch.distributed.run", "--nnodes", str(count), "--nproc-per-node", "1",
                "--rdzv-backend", "c10d", "--rdzv-id", "bench", "--rdzv-endpoint", endpoint, "--no-python"]

    def peer(count):
        if count > run.most_of_peer:
            return None
        try:
            return 1e3 * seconds_of(theirs, count)
        except NeverJoined:
            return None
    found = {}
    for count in AGENTS:
        if count <= run.most:
            pair = run.in_turn(lambda: 1e3 * seconds_of(ours, count), lambda: peer(count))
            found[str(count)] = Pair(pair.ours, pair.peer)
    return found


BENCH = Bench(
    name="rendezvous", title="From the last agent's start to all workers running", peer="torchrun", measure=measure, rounds=3,
    metrics=tuple(Metric(str(count), f"{count} agents", "ms", ratio_goal=goal) for count, goal in AGENTS.items()),
    options={"most": 64, "most_of_peer": 16}, quick={"most": 2},
    programs=("lockstep",), modules=("torch",),
    notes="The other agents have joined and wait when the last one is started; torchrun's time has the import of torch by that "
          "one in it, as whoever starts a job has. lockstep's links are authenticated. 64 of torchrun's agents do not fit on "
          "a small machine, and are left out (most_of_peer).")
