"""tools/soak: a word decides which tests run and from which seeds, and no kind is left out."""

import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

SOAK = pathlib.Path(__file__).resolve().parents[2] / "tools" / "soak"
KINDS = {"one": ["one.test"], "two": ["two.a", "two.b"], "many": [f"many.{number}" for number in range(19)]}


def soak(*arguments, word="word", **options):
    environment = dict(os.environ, LOCKSTEP_SOAK_SEED=word)
    return subprocess.run([sys.executable, SOAK, *arguments], env=environment, text=True,
                          capture_output=True, **options)


def tests_that_run(word):
    """Of those that ctest would list."""
    tests = [{"name": name, "properties": [{"name": "LABELS", "value": ["soak", f"soak_{kind}"]}]}
             for kind, names in KINDS.items() for name in names]
    pattern = soak("left-out", word=word, input=json.dumps({"tests": tests}), check=True).stdout.strip()
    return {kind: [name for name in names if not re.search(pattern, name)] for kind, names in KINDS.items()}


class Share(unittest.TestCase):
    def test_is_a_quarter_of_each_kind_and_at_least_one(self):
        for word in map(str, range(8)):
            counts = {kind: len(names) for kind, names in tests_that_run(word).items()}
            self.assertEqual(counts, {"one": 1, "two": 1, "many": 5})

    def test_is_decided_by_the_word(self):
        self.assertEqual(tests_that_run("1234abcd"), tests_that_run("1234abcd"))
        self.assertGreater(len({str(tests_that_run(str(word))) for word in range(8)}), 4)

    def test_says_how_to_repeat_it(self):
        listing = {"tests": [{"name": "a.test", "properties": [{"name": "LABELS", "value": ["soak_kind"]}]}]}
        said = soak("left-out", word="1234abcd", input=json.dumps(listing), check=True).stderr
        self.assertIn("picks 1 of 1 long random tests; LOCKSTEP_SOAK_SEED=1234abcd repeats them: a.test", said)

    def test_without_tests_is_an_error(self):
        result = soak("left-out", input='{"tests": []}')
        self.assertEqual((result.returncode, result.stdout), (1, ""))


class Run(unittest.TestCase):
    def seed(self, test, word):
        said = soak("run", test, "echo", "-seed={seed}", word=word, check=True).stdout
        self.assertIn(f"LOCKSTEP_SOAK_SEED={word}", said)
        return int(re.search(r"^-seed=(\d+)$", said, re.M).group(1))

    def test_a_seed_depends_on_the_word_and_the_test(self):
        self.assertEqual(self.seed("a", "1"), self.seed("a", "1"))
        self.assertEqual(len({self.seed(test, word) for test in "ab" for word in "12"}), 4)

    def test_the_exit_code_is_that_of_the_command(self):
        self.assertEqual(soak("run", "a", "sh", "-c", "exit 7").returncode, 7)


if __name__ == "__main__":
    unittest.main()
