"""Ranks that are killed in the middle of each collective, in shared memory and between machines: the others
are let go by the death itself, and nothing is left. Give it the program release_job."""

import collections
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

JOB = None
LIMIT = 400  # seconds
KILLS = 3
COLLECTIVES = 11
# Far below the time-out of the ranks, which would let them go, too. How soon it is, bench/release measures.
AT_ONCE_MS = 5000


class ReleaseTest(unittest.TestCase):
    def release(self, backend, victims):
        with tempfile.TemporaryDirectory(prefix="release.") as folder:
            done = subprocess.run([JOB, backend, str(KILLS)], env=dict(os.environ, TMPDIR=folder), text=True,
                                  timeout=LIMIT, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        times = collections.defaultdict(list)
        for line in done.stdout.splitlines():
            collective, victim, milliseconds = line.split()
            times[collective, victim].append(float(milliseconds))
        self.assertEqual(len(times), COLLECTIVES * victims, times)
        for kill, measured in times.items():
            self.assertLess(max(measured), AT_ONCE_MS, (kill, measured))

    def test_in_shared_memory(self):
        self.release("shm", 1)

    def test_between_machines_of_a_leader_and_of_another(self):
        self.release("hybrid", 2)


if __name__ == "__main__":
    JOB = os.path.abspath(sys.argv.pop(1))
    test_script.main()
