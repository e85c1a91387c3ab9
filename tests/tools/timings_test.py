"""tools/timings, with small logs of ninja's and ctest's."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# By the time they began, ninja's runs: start and end of each step since then, and its outputs. The second run compiled
# comm/mesh.cpp again.
RUNS = {
    1000: [(0, 60, "src/CMakeFiles/lockstep.dir/cmake_pch.hxx.gch"),
           (60, 90, "src/CMakeFiles/lockstep.dir/comm/mesh.cpp.o"),
           (60, 100, "src/CMakeFiles/lockstep_core.dir/Unity/unity_lockstep_core_0_cxx.cxx.o")],
    1101: [(1, 9, "src/CMakeFiles/lockstep.dir/comm/mesh.cpp.o"),
           (1, 11, "src/CMakeFiles/lockstep.dir/Unity/unity_groups_cxx.cxx.o"),
           (9, 12, "tests/CMakeFiles/comm_test.dir/Unity/unity_0_cxx.cxx.o"),
           (12, 13, "tests/archive/CMakeFiles/archive_test.dir/files_test.cpp.o"),
           (12, 14, "lib/liblockstep_plugin.so.1", "lib/liblockstep_plugin.so"),
           (14, 15, "bin/comm_test"),
           (15, 19, "BUILD/tests/fuzz/core.o"),
           (15, 20.5, "apps/CMakeFiles/train_llm.dir/Unity/unity_data_cxx.cxx.o"),
           (15, 21, "share/man/man1/lockstep.1.gz")],
    1200: [(0, 3, "build.ninja")]}

BATCHES = {"src/CMakeFiles/lockstep_core.dir/Unity/unity_lockstep_core_0_cxx.cxx": ("core/hmac", "core/record", "control/link"),
           "src/CMakeFiles/lockstep.dir/Unity/unity_groups_cxx.cxx": ("comm/groups", "comm/teams")}

JUNIT = """\
<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="(empty)" tests="6" failures="1" disabled="1" skipped="2" hostname="" time="7" timestamp="2026-11-19T21:28:27">
  <testcase name="launch.run" classname="launch.run" time="4.5" status="run"><system-out></system-out></testcase>
  <testcase name="launch.join" classname="launch.join" time="1.3" status="fail"><failure message=""/></testcase>
  <testcase name="comm_test" classname="comm_test" time="2" status="run"/>
  <testcase name="comm.mpi" classname="comm.mpi" time="0.2" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>
  <testcase name="board.off" classname="board.off" time="0" status="disabled"/>
  <testcase name="board.gone" classname="board.gone" time="0" status="notrun"><skipped message="Unable to find executable"/></testcase>
</testsuite>
"""


class Timings(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name).resolve()

    def write_build(self, order=lambda entries: entries):
        entries = [f"{start * 1000:.0f}\t{end * 1000:.0f}\t{(began + end) * 10**9:.0f}\t{output}\t{outputs[0]}\n"
                   for began, steps in RUNS.items() for start, end, *outputs in steps for output in outputs]
        text = "".join(["# ninja log v5\n", *order(entries)]).replace("BUILD", str(self.build))
        (self.build / ".ninja_log").write_text(text)
        for name, sources in BATCHES.items():
            (self.build / name).parent.mkdir(parents=True, exist_ok=True)
            (self.build / name).write_text("".join(f'#include "/x/src/{source}.cpp"\n' for source in sources))

    def timings(self, *words, code=0):
        done = subprocess.run([ROOT / "tools/timings", *words], env={**os.environ, "BUILD": str(self.build)},
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout if code == 0 else done.stderr

    def table(self, out):
        """{name: (seconds, count)} of all rows with a percentage."""
        found = re.findall(r"^ *([\d.]+) +\d+ % +(\d+) +(.*)$", out, re.MULTILINE)
        return {name: (float(seconds), int(count)) for seconds, count, name in found}

    def test_steps_are_counted_once_and_by_area(self):
        self.write_build()
        out = self.timings("--build")
        self.assertEqual(self.table(out), {
            "library": (58, 3), "src/control+core": (40, 1), "src/comm": (18, 2), "precompiled headers": (60, 1),
            "tests": (4, 2), "comm_test": (3, 1), "archive_test": (1, 1), "linking": (3, 2), "fuzz targets": (4, 1),
            "programs": (5.5, 1), "others": (6, 1)})
        self.assertIn("all steps, each as it ran last: 11 of 140.5 s", out)
        self.assertIn("last run of ninja: 9 steps of 40.5 s in 20.0 s of wall time, 2.0 at a time", out)
        self.assertIn("unity_lockstep_core_0_cxx.cxx.o (3 sources)", out)
        self.assertNotIn("Tests", out)

    def test_a_log_that_cmake_shuffled_says_the_same(self):
        self.write_build()
        out = self.timings("--build")
        # CMake has ninja rewrite its log, which leaves one entry of each output.
        self.write_build(order=lambda entries: sorted(entries[:1] + entries[2:], reverse=True))
        self.assertEqual(sorted(self.timings("--build").splitlines()), sorted(out.splitlines()))

    def test_tests_are_summed_by_prefix_over_both_stages(self):
        (self.build / "tests-fast.xml").write_text(JUNIT)
        (self.build / "tests-slow.xml").write_text(JUNIT.replace("launch.", "sim."))
        out = self.timings("--tests")
        self.assertEqual(self.table(out), {"launch": (5.8, 2), "sim": (5.8, 2), "comm_test": (4, 2),
                                           "comm": (0.4, 2), "board": (0, 4)})
        self.assertIn("make test, 2026-11-19 21:28:27: 2 passed, 2 failed, 1 skipped, 1 disabled; 8.0 s in 7 s of wall time", out)
        self.assertRegex(out, r"longest tests\n +4\.5  launch\.run\n +4\.5  sim\.run\n")
        self.assertIn("1.3  launch.join (failed)", out)

    def test_long_tables_are_cut_off(self):
        (self.build / "tests-fast.xml").write_text(JUNIT)
        self.assertEqual(self.table(self.timings("--tests", "--top", "1")), {"launch": (5.8, 2), "3 others": (2.2, 4)})

    def test_a_missing_log_is_one_line(self):
        self.assertRegex(self.timings("--build", code=2), r"^timings: there is no \S+/\.ninja_log; run make build first\n$")
        self.assertRegex(self.timings("--tests", code=2), r"^timings: there is no tests-fast\.xml .*; run make test first\n$")
        self.write_build()
        self.assertIn("longest steps", self.timings())
        (self.build / "tests-fast.xml").write_text("<testsuite>")
        self.assertRegex(self.timings("--tests", code=2), r"^timings: cannot read \S+: .*\n$")


if __name__ == "__main__":
    unittest.main()
