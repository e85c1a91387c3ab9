"""Starts the ranks of a measurement without a launcher, whose own time would be part of it."""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "launch"))  # network

ENDING = 60  # seconds from the end of the first rank to that of the last


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
    ranks, streams = [], []
    for rank in range(count):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank % each), "GROUP_RANK": str(rank // each)}
        if network:  # they would find each other's memory: it is one machine after all
            place["LOCKSTEP_MACHINE"] = f"m{rank // each}"
        words = network.command(rank // each + 1, *command) if network else command
        streams.append((tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")))
        ranks.append(subprocess.Popen(words, env={**os.environ, **shared, **place}, stdin=subprocess.DEVNULL,
                                      stdout=streams[-1][0], stderr=streams[-1][1]))
    try:
        deadline = time.monotonic() + limit
        while any(rank.poll() is None for rank in ranks):
            if any(rank.poll() is not None for rank in ranks):  # the others may wait for it for ever
                deadline = min(deadline, time.monotonic() + ENDING)
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
    finally:
        late = [rank for rank in ranks if rank.poll() is None]
        for rank in late:
            rank.kill()
            rank.wait()
    said = []
    for files in streams:
        texts = []
        for file in files:
            file.seek(0)
            texts.append(file.read())
            file.close()
        said.append(texts)
    for rank, (_, errors) in zip(ranks, said):
        if rank.returncode != 0 and rank not in late:
            raise RuntimeError(f"{' '.join(command)} ended with {rank.returncode}:\n{errors}")
    if late:
        raise RuntimeError(f"{' '.join(command)}: rank {ranks.index(late[0])} did not end in {limit} s, or {ENDING} s "
                           "after another one")
    return said[0][0]


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
    if Network.missing():
        return "network namespaces need root and iproute2"
    return None if shutil.which("tc") else "the command tc is not there (iproute2)"
