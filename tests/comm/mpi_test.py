"""Jobs over backend mpi, started by Open MPI's mpirun on this machine.

mpi_test.py LOCKSTEP MPI_JOB [unittest's arguments]
"""

import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

LIMIT = 120  # seconds that a job may take
MPI_VARIABLES = ("OMPI_", "PMIX_", "PMI_")


def environment(**more):
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(MPI_VARIABLES + ("LOCKSTEP_", "MASTER_", "RANK", "WORLD_SIZE"))}
    return dict(kept, OMP_NUM_THREADS="1", **more)


def mpirun(ranks, *arguments, **more):
    """(exit code, output) of a job."""
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "btl_tcp_if_include", "lo",
               "--mca", "oob_tcp_if_include", "lo", "-n", str(ranks), JOB, *arguments]
    done = subprocess.run(command, env=environment(**more), text=True, timeout=LIMIT,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def under_lockstep(ranks, *arguments, **more):
    command = [LOCKSTEP, "run", "--quiet", "--nproc-per-node", str(ranks), JOB, *arguments]
    done = subprocess.run(command, env=environment(**more), text=True, timeout=LIMIT,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


class Mpi(unittest.TestCase):
    def check_collectives(self, ranks):
        code, output = mpirun(ranks, "collectives")
        self.assertEqual(code, 0, output)
        self.assertIn(" checks", output)

    def test_every_collective_equals_a_reference(self):
        self.check_collectives(2)

    def test_every_collective_of_more_ranks_equals_a_reference(self):
        for ranks in (3, 4):
            self.check_collectives(ranks)

    def test_weights_are_those_of_gloo(self):
        for reduction in ("ddp_native", "ddp_ordered"):
            lines = []
            for start, backend in ((mpirun, "mpi"), (under_lockstep, "gloo")):
                code, output = start(2, reduction, LOCKSTEP_BACKEND=backend)
                self.assertEqual(code, 0, output)
                lines += [line.partition(f"{backend}: ")[2] for line in output.splitlines()
                          if f"{backend}: " in line and "rank dies" not in line and "ranks," not in line]
            self.assertEqual(len(lines), 2, lines)
            self.assertEqual(lines[0], lines[1])

    def test_a_rank_that_dies_ends_the_job(self):
        code, output = mpirun(2, "die")
        self.assertNotEqual(code, 0, output)
        self.assertIn("backend mpi: when a rank dies, mpirun ends the job", output)

    def test_a_rank_that_does_not_come_is_not_waited_for_for_ever(self):
        _, output = mpirun(2, "wait_in_vain")
        self.assertIn("timeout: rank 0: all_reduce", output)

    def test_without_mpirun_it_says_how_to_start(self):
        code, output = under_lockstep(2, "ddp_native", LOCKSTEP_BACKEND="mpi")
        self.assertNotEqual(code, 0, output)
        self.assertIn("was not started by mpirun", output)

    def test_without_the_plugin_it_says_how_to_get_it(self):
        code, output = mpirun(1, "collectives", LOCKSTEP_MPI_PLUGIN="/nowhere.so")
        self.assertNotEqual(code, 0, output)
        self.assertIn("install libopenmpi-dev", output)


if __name__ == "__main__":
    LOCKSTEP, JOB = map(os.path.abspath, sys.argv[1:3])
    test_script.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
