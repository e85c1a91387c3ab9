"""Jobs of several ranks in each stage: how much memory they take, what they send, and that one trains where
DistributedDataParallel has not enough memory. Give it the launcher and the program shard_job."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "launch"))
import launcher  # noqa: E402
from network import Network, enter_namespaces  # noqa: E402
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

JOB = None
LIMIT = 240  # seconds
ENVIRONMENT = {"LOCKSTEP_SHM": "0", "OMP_NUM_THREADS": "1"}
# What is freed goes back at once: a limit is then one of memory in use, and not of what malloc keeps.
THRIFTY = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_ARENA_MAX": "2"}


def run_job(ranks, *words, prefix=(), environment=None):
    """Returns the exit code, the lines of all ranks and their errors."""
    launcher.LIMIT = LIMIT
    job = launcher.Job(["--standalone", "--nproc-per-node", str(ranks), JOB, *words], env=ENVIRONMENT | (environment or {}),
                       prefix=prefix)
    code, output, errors = job.end()
    return code, [line.split() for line in output.splitlines()], errors


class MemoryTest(unittest.TestCase):
    def compare(self, ranks):
        code, lines, errors = run_job(ranks, "memory")
        self.assertEqual(code, 0, errors)
        self.assertEqual(len(lines), 4 * ranks, lines)
        peaks = {}
        for _, stage, _, predicted, _, measured in lines:
            self.assertAlmostEqual(int(measured) / int(predicted), 1, delta=0.1, msg=f"stage {stage}:\n{errors}")
            peaks[int(stage)] = max(peaks.get(int(stage), 0), int(measured))
        self.assertEqual(sorted(peaks, key=peaks.get), [3, 2, 1, 0], peaks)
        print(f"{ranks} ranks: {peaks}")

    def test_two_ranks_take_what_is_predicted(self):
        self.compare(2)

    def test_four_ranks_take_what_is_predicted(self):
        self.compare(4)


class LimitTest(unittest.TestCase):
    def test_stage_3_trains_where_ddp_has_not_enough_memory(self):
        mebibytes = "520"
        code, _, errors = run_job(4, "limit", "0", mebibytes, environment=THRIFTY)
        self.assertNotEqual(code, 0)
        self.assertRegex(errors, "(not enough|can't allocate) memory")
        code, lines, errors = run_job(4, "limit", "3", mebibytes, environment=THRIFTY)
        self.assertEqual(code, 0, errors)
        self.assertEqual(lines, [["trained"]])


class TrafficTest(unittest.TestCase):
    def compare(self, ranks):
        if missing := Network.missing():
            self.skipTest(missing)
        network = Network(1)
        self.addCleanup(network.close)
        code, lines, errors = run_job(ranks, "traffic", prefix=network.command(1))
        self.assertEqual(code, 0, errors)
        self.assertEqual(len(lines), 4, lines)
        link = {}
        for line in lines:
            stage, theory, counted = int(line[1]), line[3:5], line[6:8]
            if stage > 0:
                self.assertEqual(theory, counted, line)
            link[stage] = int(line[9])
            # The rest are headers, acknowledgements and the meetings at barriers.
            expected = sum(int(bytes) for bytes in theory)
            self.assertGreater(link[stage], expected * 0.99, line)
            self.assertLess(link[stage], expected * 1.03, line)
        self.assertLess(link[3] / link[0], 1.5, link)
        print(f"{ranks} ranks: {link}")

    def test_two_ranks_send_what_theory_says(self):
        self.compare(2)

    def test_three_ranks_send_what_theory_says(self):
        self.compare(3)


if __name__ == "__main__":
    launcher.set_launcher(sys.argv.pop(1))
    JOB = sys.argv.pop(1)
    enter_namespaces()
    test_script.main()
