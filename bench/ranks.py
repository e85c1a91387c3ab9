"""Starts the ranks of a measurement without a launcher, whose own time would be part of it."""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "launch"))  # network


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ranks(command, count, limit, network=None, each=1, **variables):
    """Runs the command as `count` ranks of one thread each; returns what rank 0 printed. Throws if a
    rank fails, or takes longer than `limit` seconds. With a network (tests/launch/network.py) every
    `each` ranks are on a machine of their own there. `variables` are for the ranks."""
    each = each if network else count
    shared = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(each), "MASTER_PORT": str(free_port()),
              "MASTER_ADDR": network.address(1) if network else "127.0.0.1", "OMP_NUM_THREADS": "1", **variables}
    if network:
        shared["GLOO_SOCKET_IFNAME"] = "eth0"
    ranks = []
    for rank in range(count):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank % each), "GROUP_RANK": str(rank // each)}
        if network:  # they would find each other's memory: it is one machine after all
            place["LOCKSTEP_MACHINE"] = f"m{rank // each}"
        words = network.command(rank // each + 1, *command) if network else command
        ranks.append(subprocess.Popen(words, env={**os.environ, **shared, **place}, stdin=subprocess.DEVNULL,
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


def limited_network(count, rate):
    """Machines whose cables carry `rate` (as tc says it) in either direction; to be closed."""
    from network import Network
    network = Network(count)
    try:
        for node in range(1, count + 1):
            for namespace, device in ((network.namespace(node), "eth0"), (network.switch, f"port{node}")):
                subprocess.run(["tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", "rate", rate,
                                "burst", "256kb", "latency", "100ms"], check=True, capture_output=True)
    except BaseException:
        network.close()
        raise
    return network


def network_missing():
    """Why there can be no such machines here; None: there can."""
    from network import Network
    if not Network.possible():
        return "network namespaces need root and iproute2"
    return None if shutil.which("tc") else "the command tc is not there (iproute2)"
