"""The runner of the benchmarks. Usage: runner_test.py BUILD-FOLDER"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest
import xml.etree.ElementTree

BUILD = os.path.abspath(sys.argv.pop(1))
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import figures  # noqa: E402
import suite  # noqa: E402
import svg  # noqa: E402
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

LIMIT = 100

FAKE = """
from suite import Bench, Metric, Pair

def measure(run):
    run.details = [f"repetition {run.number}"]
    run.plots["curve"] = "<svg/>"
    pair = run.in_turn(lambda: run.ms + run.number, lambda: 100.0)
    order = run.keep("order", list)
    return {"time": pair, "speed": 5.0}

BENCH = Bench(name="fake", title="A fake", peer="nobody", measure=measure, rounds=3,
              metrics=(Metric("time", "a thing", "ms", ratio_goal=20), Metric("speed", "things", "1/s", better="higher", goal=4),
                       Metric("never", "not measured", "s")),
              options={"ms": 10.0}, quick={"ms": 1.0})
"""


class Runner(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.add("fake", FAKE)

    def add(self, name, text):
        (self.folder / name).mkdir()
        (self.folder / name / f"{name}.py").write_text(textwrap.dedent(text))

    def run_bench(self, *words, code=0, build=BUILD, benches=True):
        command = [sys.executable, str(ROOT / "bench" / "runner.py"), "--build", build,
                   *(["--benches", str(self.folder)] if benches else []), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def stored(self, name="fake"):
        found = sorted((self.folder / "out").glob(f"*-{name}.json"))
        self.assertEqual(len(found), 1)
        return json.loads(found[0].read_text()), found[0].with_suffix(".md").read_text()

    def test_results_have_medians_spread_ratios_goals_and_where_they_are_from(self):
        out = self.run_bench("fake", "--save", str(self.folder / "out"))
        report, text = self.stored()
        time = report["metrics"][0]
        self.assertEqual(time["ours"], [10, 11, 12])
        self.assertEqual(time["ours_summary"], {"median": 11, "least": 10, "most": 12})
        self.assertAlmostEqual(time["ratio"]["median"], 100 / 11)
        self.assertEqual([row["key"] for row in report["metrics"]], ["time", "speed"])
        self.assertIn("goal missed: a thing: 9.09 times, the goal is 20", out)
        self.assertIn("| a thing | ms | 11.0 (10.0 to 12.0) | 100 | 9.09 (8.33 to 10.0) | >= 20 x (missed) |", text)
        self.assertIn("repetition 2", text)
        for key in ("machine", "versions", "load", "commit", "date", "command"):
            self.assertTrue(report[key], key)
        self.assertTrue((self.folder / "out" / report["plots"][0]).exists())
        self.run_bench("fake", "--no-save", "--check", code=1)

    def test_a_result_is_compared_with_the_last_one_stored(self):
        save = ["--save", str(self.folder / "out")]
        self.run_bench("fake", *save)
        slower = FAKE.replace("run.ms + run.number", "run.ms + 40 + run.number")
        (self.folder / "fake" / "fake.py").write_text(textwrap.dedent(slower))
        out = self.run_bench("fake", *save)
        self.assertRegex(out, r"\| a thing .*\| \+364 %, worse \|")
        self.assertRegex(out, r"\| things .*\| \+0 % \|")
        self.assertNotIn("since", self.run_bench("fake", "--set", "ms=3", "--no-save", *save))

    def test_what_is_missing_is_said_and_what_fails_does_not_stop_the_others(self):
        self.add("needy", FAKE.replace('"fake"', '"needy"').replace("rounds=3", 'tools=("no-such-tool",)'))
        self.add("broken", FAKE.replace('"fake"', '"broken"').replace("run.details =", "raise RuntimeError('no luck')\n    x ="))
        out = self.run_bench("--quick", code=1)
        self.assertIn("skipped: needy: the command no-such-tool is not there", out)
        self.assertIn("failed: broken: no luck", out)
        self.assertIn("# A fake", out)
        self.assertIn("[skipped here: the command no-such-tool is not there]", self.run_bench("--list"))
        self.assertFalse((self.folder / "out").exists(), "--quick stores nothing")

    def test_mistakes_are_one_line(self):
        self.assertIn("there is no benchmark 'nothing'; there are fake", self.run_bench("nothing", code=2))
        self.assertIn("fake has the options ms", self.run_bench("fake", "--set", "x=1", code=2))
        self.assertIn("ms is like 10.0", self.run_bench("fake", "--set", "ms=soon", code=2))
        self.assertIn("it must be at least 1", self.run_bench("--rounds", "0", code=2))

    def test_all_of_the_project_are_defined_before_they_are_measured(self):
        for name in suite.names():
            bench = suite.load(name)
            self.assertTrue(bench.title and bench.metrics, name)
            keys = [metric.key for metric in bench.metrics]
            self.assertEqual(len(set(keys)), len(keys), name)
            self.assertLessEqual(set(bench.quick), set(bench.options), name)
            self.assertIn(f"## {name}\n", (ROOT / "docs" / "benchmarks.md").read_text())

    def test_a_real_one(self):
        out = self.run_bench("tracking", "--quick", "--save", str(self.folder / "out"), benches=False)
        if "skipped: tracking" in out:
            self.skipTest(out)
        report, _ = self.stored("tracking")
        self.assertGreater(report["metrics"][0]["ours"][0], -50)


class Parts(unittest.TestCase):
    def test_only_what_cannot_be_chance_is_a_change(self):
        def row(*values, better="lower"):
            metric = suite.Metric("x", "x", "s", better=better)
            return figures.judge(metric, list(values), [None] * len(values))
        self.assertEqual(figures.change(row(10, 11, 12), row(8, 10.5, 13))[1], "same")
        self.assertEqual(figures.change(row(14, 15, 16), row(8, 10, 13))[1], "worse")
        self.assertEqual(figures.change(row(14, 15, 16, better="higher"), row(8, 10, 13, better="higher"))[1], "better")

    def test_a_chart_is_an_svg_with_all_of_its_curves(self):
        picture = svg.line_chart("a < b", "ranks", "speed", {"ours": [(1, 10), (2, 19)], "ideal": [(1, 10), (2, 20)]})
        root = xml.etree.ElementTree.fromstring(picture)
        self.assertEqual(len(root.findall("{*}polyline")), 2)
        self.assertIn("a < b", [text.text for text in root.findall("{*}text")])


if __name__ == "__main__":
    test_script.main()
