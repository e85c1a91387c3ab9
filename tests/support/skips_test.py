"""How test scripts choose their cases and end (test_script.py), and what tools/skipped makes of a run: skips_test.py CTEST

A ctest runs real scripts here, because what counts is what it writes.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

import test_script

HERE = pathlib.Path(__file__).resolve().parent
TOOL = HERE.parents[1] / "tools" / "skipped"
CTEST = sys.argv.pop(1)
SCRIPT = """
import sys, unittest
sys.path.insert(0, {here!r})
import test_script
{body}
test_script.main()
"""
PASSES = """
class Passes(unittest.TestCase):
    def test_it(self): pass
"""
FAILS = """
class Fails(unittest.TestCase):
    def test_it(self): self.fail()
"""
SKIPS = """
class Skips(unittest.TestCase):
    @unittest.skip("no\\n etcd")
    def test_one(self): pass
    def test_two(self): self.skipTest("no etcd")
"""
CLASS_SKIPS = """
class Class(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise unittest.SkipTest("no root: none")
    def test_it(self): pass
"""
MODULE_SKIPS = """
def setUpModule(): raise unittest.SkipTest("no Slurm")
"""
SUBTESTS = """
class Parts(unittest.TestCase):
    def test_it(self):
        for part in range(2):
            with self.subTest(part=part):
                if part: self.skipTest("no second part")
"""
GTEST_OUTPUT = """\
[ RUN      ] Store.damaged
/a/b.cpp:59: Skipped
no file system

[  SKIPPED ] Store.damaged (0 ms)
[ RUN      ] Sizes/Tiles.of/1
[  SKIPPED ] Sizes/Tiles.of/1, where GetParam() = 3 (0 ms)
[==========] 3 tests from 2 test suites ran. (1 ms total)
[  PASSED  ] 1 test.
[  SKIPPED ] 2 tests, listed below:
[  SKIPPED ] Store.damaged
"""


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def script(self, *parts, name="script"):
        path = self.folder / f"{name}.py"
        path.write_text(SCRIPT.format(here=str(HERE), body="".join(parts)))
        return path


class Script(Folder):
    def ends(self, code, *parts, arguments=()):
        done = subprocess.run([sys.executable, "-B", self.script(*parts), *arguments], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stderr)
        return [line for line in done.stdout.splitlines() if line.startswith("skipped: ")]

    def test_what_ran_has_passed_or_failed(self):
        self.assertEqual(self.ends(0, PASSES), [])
        self.assertEqual(self.ends(1, FAILS), [])
        self.assertEqual(self.ends(1, FAILS, SKIPS, PASSES), [])

    def test_where_all_is_skipped_it_ends_with_77_and_one_line(self):
        self.assertEqual(self.ends(77, SKIPS), ["skipped: no etcd"])
        self.assertEqual(self.ends(77, CLASS_SKIPS, SKIPS), ["skipped: no root: none; no etcd"])
        self.assertEqual(self.ends(77, MODULE_SKIPS, PASSES), ["skipped: no Slurm"])
        self.assertEqual(self.ends(77, SKIPS, PASSES, arguments=["Skips"]), ["skipped: no etcd"])

    def test_where_some_are_skipped_each_is_named(self):
        self.assertEqual(self.ends(0, PASSES, CLASS_SKIPS, SKIPS),
                         ["skipped: Class: no root: none", "skipped: Skips.test_one: no etcd",
                          "skipped: Skips.test_two: no etcd"])
        self.assertEqual(self.ends(0, SUBTESTS), ["skipped: Parts.test_it: no second part"])

    def test_without_a_case_it_has_failed(self):
        self.ends(1, "")
        self.ends(1, SKIPS, arguments=["-k", "nothing"])

    def test_with_but_all_other_cases_run(self):
        self.ends(0, FAILS, PASSES, arguments=["--but", "Fails"])
        self.ends(1, FAILS, PASSES, arguments=["--but", "Passes.test_it"])
        self.assertEqual(self.ends(77, SKIPS, PASSES, FAILS, arguments=["--but", "Skips.test_one", "Passes", "Fails"]),
                         ["skipped: no etcd"])
        self.assertEqual(self.ends(77, CLASS_SKIPS, PASSES, arguments=["--but", "Passes"]), ["skipped: no root: none"])

    def test_a_name_that_is_no_cases_is_an_error(self):
        for arguments in (["--but", "Fails", "Passes.test_that"], ["--but", "Fails", "Fail"],
                          ["Passes", "Passes.test_that"]):
            with self.subTest(arguments):
                self.ends(1, FAILS, PASSES, arguments=arguments)
        self.ends(1, PASSES, arguments=["--but"])
        self.ends(1, PASSES, arguments=["--but", "Passes"])


class Choice(unittest.TestCase):
    """Of the cases of a script that are in a dictionary."""

    def chosen(self, *arguments):
        parser = argparse.ArgumentParser()
        test_script.add_choice(parser)
        return list(test_script.chosen({"a": 1, "b": 2, "c": 3}, parser.parse_args(arguments)))

    def test_is_all_of_them_or_some_or_the_others(self):
        self.assertEqual(self.chosen(), ["a", "b", "c"])
        self.assertEqual(self.chosen("--some", "c", "a"), ["a", "c"])
        self.assertEqual(self.chosen("--but", "c", "a"), ["b"])

    def test_has_no_unknown_name_and_is_not_empty(self):
        for arguments in (["--some", "a", "d"], ["--but", "a", "d"], ["--but", "a", "b", "c"]):
            with self.subTest(arguments), self.assertRaises(SystemExit):
                self.chosen(*arguments)


class Summary(Folder):
    def run_ctest(self, *lines):
        """Of tests that are written as in CTestTestfile.cmake."""
        (self.folder / "CTestTestfile.cmake").write_text("\n".join(lines))
        subprocess.run([CTEST, "--test-dir", self.folder, "--output-junit", "junit.xml",
                        "--test-output-size-passed", "1000000"], capture_output=True)

    def add_script(self, name, *parts):
        path = self.script(*parts, name=name)
        return f'add_test({name} "{sys.executable}" -B "{path}")\nset_tests_properties({name} PROPERTIES SKIP_RETURN_CODE 77)'

    def add_output(self, name, text):
        (self.folder / name).write_text(text)
        return f'add_test({name} cat "{self.folder / name}")'

    def said(self, *options, code=0):
        done = subprocess.run([sys.executable, TOOL, *options, self.folder / "junit.xml"], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout.splitlines()

    def allowed(self, text):
        (self.folder / "allowed").write_text(textwrap.dedent(text))
        return ["--allowed", self.folder / "allowed"]

    def test_where_all_ran_it_says_so(self):
        self.run_ctest(self.add_script("good", PASSES), self.add_script("bad", FAILS))
        self.assertEqual(self.said(), ["Nothing was skipped."])
        self.said(*self.allowed(""))

    def test_skips_are_counted_by_reason(self):
        self.run_ctest(
            self.add_script("none", SKIPS), self.add_script("some", PASSES, SKIPS), self.add_script("good", PASSES),
            self.add_output("gtest", GTEST_OUTPUT), 'add_test(off "true")\nset_tests_properties(off PROPERTIES DISABLED ON)')
        self.assertEqual(self.said(), [
            "Skipped: 2 tests, and 4 cases of others.",
            "    3  no etcd: none, some Skips.test_one, some Skips.test_two",
            "    1  no file system: gtest Store.damaged",
            "    1  no reason given: gtest Sizes/Tiles.of/1",
            "    1  disabled in CMake: off"])

    def test_a_skip_is_found_in_a_long_output_and_in_that_of_a_ctest_within(self):
        self.run_ctest(self.add_output("long", "x\n" * 100000 + "skipped: Late: no etcd\n"),
                       self.add_output("within", "".join(f"3: {line}\n4: other\n" for line in GTEST_OUTPUT.splitlines())))
        self.assertEqual(self.said()[:3], ["Skipped: 0 tests, and 3 cases of others.", "    1  no etcd: long Late",
                                           "    1  no file system: within Store.damaged"])

    def test_only_what_a_list_allows_may_be_skipped(self):
        self.run_ctest(self.add_script("none", SKIPS), self.add_script("some", PASSES, CLASS_SKIPS))
        self.said(*self.allowed("""\
            # what this machine lacks
            none: no etcd  # there is no package
            some *: no root* # a container
            """))
        self.assertEqual(self.said(*self.allowed("none: *  # why not\n"), code=1)[-2:],
                         [f"{self.folder / 'allowed'} does not allow:", "  some Class: no root: none"])
        self.said(*self.allowed("*\n"), code=1)  # without a reason

    def test_without_a_result_it_fails(self):
        self.said(code=1)


if __name__ == "__main__":
    test_script.main()
