"""Compares DDP jobs of three ranks on one machine (backend shm), on two machines (hybrid) and over Gloo.

    layout_parity.py CASES FOLDER CASE --cpp PATH_OF_ddp_job

The case and its first weights are those of ddp_parity.py, whose comparisons with Python have two ranks: too few for
hybrid. shm and hybrid add in rank order, so they must agree to the bit. Gloo's ring begins elsewhere for each part of a
tensor: its losses are close.
"""

import argparse
import os
import struct
import sys
import tempfile

import ddp_parity
from ddp_parity import Failed, Job, compare, job_options, read_result

RANKS = 3
MACHINES = {"shm": (0, 0, 0), "hybrid": (0, 0, 1), "gloo": (0, 0, 0)}
CLOSE = 1e-3  # relative


def run(backend, options, cpp, folder):
    outs = [os.path.join(folder, f"{backend}.{rank}") for rank in range(RANKS)]
    commands = [["env", f"LOCKSTEP_BACKEND={backend}", f"LOCKSTEP_MACHINE=m{machine}", cpp, *options, "--out", out]
                for machine, out in zip(MACHINES[backend], outs)]
    job = Job(backend, commands, folder)
    job.wait()
    if "over TCP" in job.last_words():
        raise Failed(f"{backend} was not to be had{job.last_words()}")
    return [read_result(out) for out in outs]


def losses(result):
    return [struct.unpack("f", bytes.fromhex(bits))[0] for what, (_, bits) in result.items()
            if what.startswith("loss")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("cases", "folder", "case"):
        parser.add_argument(name)
    parser.add_argument("--cpp", required=True)
    args = parser.parse_args()
    ddp_parity.WORLD_SIZE = RANKS
    with tempfile.TemporaryDirectory(prefix="parity.") as folder:
        results = {backend: run(backend, job_options(args), args.cpp, folder) for backend in MACHINES}
    for rank in range(RANKS):
        compare((f"hybrid's rank {rank}", f"shm's rank {rank}"), results["hybrid"][rank], results["shm"][rank])
        for step, (ours, gloo) in enumerate(zip(losses(results["shm"][rank]), losses(results["gloo"][rank]))):
            if abs(ours - gloo) > CLOSE * abs(gloo):
                raise Failed(f"rank {rank}, step {step}: the loss is {ours} on shm and {gloo} on Gloo")
    print(f"{sum(map(len, results['shm']))} values of hybrid equal shm's to the bit; Gloo's losses are close")


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(f"parity: {failure}")
