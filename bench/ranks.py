"""Starts the ranks of a measurement without a launcher, whose own time would be part of it."""

import os
import socket
import subprocess
import sys
import time


def run_ranks(command, count, limit):
    """Runs the command as `count` ranks of one thread each; returns what rank 0 printed. Ends the
    program if a rank fails, or takes longer than `limit` seconds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(count):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(count), LOCAL_RANK=str(rank),
                           LOCAL_WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1",
                           MASTER_PORT=str(port), OMP_NUM_THREADS="1")
        ranks.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
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
