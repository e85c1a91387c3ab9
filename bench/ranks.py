"""Starts the ranks of a measurement without a launcher, whose own time would be part of it."""

import os
import socket
import subprocess
import time


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ranks(command, count, limit, network=None):
    """Runs the command as `count` ranks of one thread each; returns what rank 0 printed. Throws if a
    rank fails, or takes longer than `limit` seconds. With a network (tests/launch/network.py) each
    rank is on a node of its own."""
    ranks = []
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": network.address(1) if network else "127.0.0.1",
              "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    if network:
        shared["GLOO_SOCKET_IFNAME"] = "eth0"
    for rank in range(count):
        local = 0 if network else rank
        environment = dict(os.environ, **shared, RANK=str(rank), LOCAL_RANK=str(local),
                           LOCAL_WORLD_SIZE="1" if network else str(count))
        words = network.command(rank + 1, *command) if network else command
        ranks.append(subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        deadline = time.monotonic() + limit
        outputs = [rank.communicate(timeout=max(1, deadline - time.monotonic())) for rank in ranks]
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{command[0]} did not end in {limit} s") from None
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
    for rank, (_, errors) in zip(ranks, outputs):
        if rank.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {rank.returncode}:\n{errors}")
    return outputs[0][0]
