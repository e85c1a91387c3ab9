"""Kills ranks of jobs whose gradients are compressed with error feedback, and compares every byte that
they leave behind, the error memory of all ranks included, with a run that nothing happened to.

compression_test.py LOCKSTEP RESUME_JOB --compress HOW... [--some CASE... | --but CASE...]
"""

import argparse
import functools
import os
import pathlib
import sys
import tempfile

from recovery_test import Run, compare, test_script

RANKS, STEPS = 2, 30
SAYS = "recovery is not bit-identical"


def start(arguments, folder, name, compress, **settings):
    return Run(arguments, folder / f"{compress}_{name}".replace(":", "_").replace(" ", "_"), RANKS,
               STEPS, COMPRESS=compress, **settings)


def check_recovery(arguments, folder, compress, undisturbed, where, settings):
    """A process is replaced while the others go on."""
    run = start(arguments, folder, where, compress, **settings).finish()
    if not (run.folder / "killed").exists() or not run.recoveries():
        raise SystemExit(f"{compress}, killed {where}: nobody was replaced\n{run.text()}")
    if SAYS in run.text():
        raise SystemExit(f"{compress}: it warns although it is mirrored\n{run.text()}")
    compare(f"{compress}, killed {where}", run, undisturbed)
    print(f"{compress}, killed {where}: equal", flush=True)


def check_resume(arguments, folder, compress, undisturbed):
    """All processes end and the next ones go on from a snapshot."""
    run = start(arguments, folder, "resumed", compress, options=["--recovery", "restart"],
                KILL_AT_STEP=11, KILL_RANK=1, BACKGROUND=0)
    if run.start().end() != 137:
        raise SystemExit(f"{compress}: it should have been killed\n{run.text()}")
    run.finish()
    if "goes on from step 8" not in run.text():
        raise SystemExit(f"{compress}: it did not go on from a snapshot\n{run.text()}")
    compare(f"{compress}, resumed", run, undisturbed)
    print(f"{compress}, resumed: equal", flush=True)


def check_without_mirror(arguments, folder, compress, _):
    run = start(arguments, folder, "no mirror", compress, MIRROR="never", KILL_IN_STEP=9,
                KILL_RANK=1).finish()
    if run.text().count(SAYS) != 1 or not run.recoveries():
        raise SystemExit(f"{compress}: it should say once that bits may differ\n{run.text()}")
    print(f"{compress}, without a mirror: says so, and comes through", flush=True)


KILLS = {"in a step": {"KILL_IN_STEP": 9, "KILL_RANK": 1},
         "rank 0 in a step": {"KILL_IN_STEP": 10, "KILL_RANK": 0},
         "after a commit": {"KILL_AT_STEP": 7, "KILL_RANK": 1},
         "rank 0 after a commit": {"KILL_AT_STEP": 12, "KILL_RANK": 0},
         "in the first step": {"KILL_IN_STEP": 0, "KILL_RANK": 1}}
CASES = {where: functools.partial(check_recovery, where=where, settings=settings) for where, settings in KILLS.items()}
CASES |= {"resumed": check_resume, "without a mirror": check_without_mirror}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lockstep")
    parser.add_argument("job")
    parser.add_argument("--compress", nargs="+", required=True)
    test_script.add_choice(parser)
    arguments = parser.parse_args()
    cases = test_script.chosen(CASES, arguments)
    arguments.spares = 0
    arguments.lockstep, arguments.job = map(os.path.abspath, (arguments.lockstep, arguments.job))
    with tempfile.TemporaryDirectory(prefix="lockstep_compression_") as name:
        folder = pathlib.Path(name)
        for compress in arguments.compress:
            undisturbed = start(arguments, folder, "undisturbed", compress).finish()
            if "compression.safetensors" not in undisturbed.files():
                raise SystemExit(f"{compress}: the snapshot has no state of the compression")
            for check in cases.values():
                check(arguments, folder, compress, undisturbed)


if __name__ == "__main__":
    sys.exit(main())
