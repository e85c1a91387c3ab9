"""tools/soak: a word decides which tests run and from which seeds, and no kind is left out."""

import json
import os
import pathlib
import re
import runpy
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

SOAK = pathlib.Path(__file__).resolve().parents[2] / "tools" / "soak"
FUNCTIONS = runpy.run_path(str(SOAK))
KINDS = {"soak_one": ["one.test"], "soak_two": ["two.a", "two.b"],
         "soak_many": [f"many.{number}" for number in range(19)]}
# As ctest lists them.
LISTING = json.dumps({"tests": [{"name": name, "properties": [{"name": "LABELS", "value": ["soak", kind]}]}
                                for kind, names in KINDS.items() for name in names]})


def soak(*arguments, **options):
    return subprocess.run([sys.executable, SOAK, *arguments], env=dict(os.environ, LOCKSTEP_SOAK_SEED="1234abcd"),
                          text=True, capture_output=True, **options)


class Share(unittest.TestCase):
    def share(self, word):
        return FUNCTIONS["share"](word, KINDS)

    def test_is_a_quarter_of_each_kind_and_at_least_one(self):
        for word in map(str, range(100)):
            counts = {kind: len(set(names) & set(self.share(word))) for kind, names in KINDS.items()}
            self.assertEqual(counts, {"soak_one": 1, "soak_two": 1, "soak_many": 5})

    def test_is_decided_by_the_word_and_reaches_every_test(self):
        self.assertEqual(self.share("1234abcd"), self.share("1234abcd"))
        reached = {name for word in range(100) for name in self.share(str(word))}
        self.assertEqual(reached, set(sum(KINDS.values(), [])))

    def test_is_what_the_pattern_does_not_leave_out(self):
        result = soak("left-out", input=LISTING, check=True)
        runs = [name for name in sum(KINDS.values(), []) if not re.search(result.stdout.strip(), name)]
        self.assertEqual(sorted(runs), self.share("1234abcd"))
        self.assertIn("picks 7 of 22 long random tests; LOCKSTEP_SOAK_SEED=1234abcd repeats them: " + " ".join(
            self.share("1234abcd")), result.stderr)

    def test_of_no_tests_is_an_error(self):
        result = soak("left-out", input='{"tests": []}')
        self.assertEqual((result.returncode, result.stdout), (1, ""))


class Run(unittest.TestCase):
    def test_a_seed_depends_on_the_word_and_the_test(self):
        number = FUNCTIONS["number"]
        self.assertEqual(number("1", "a"), number("1", "a"))
        self.assertEqual(len({number(word, test) for test in "ab" for word in "12"}), 4)

    def test_the_command_gets_the_seed_and_its_exit_code_stays(self):
        result = soak("run", "a.test", "sh", "-c", "echo $0; exit 7", "-seed={seed}")
        self.assertEqual(result.returncode, 7)
        self.assertIn(f"\n-seed={FUNCTIONS['number']('1234abcd', 'a.test')}\n", result.stdout)
        self.assertIn("LOCKSTEP_SOAK_SEED=1234abcd ctest -R '^a\\.test$'", result.stdout)


if __name__ == "__main__":
    test_script.main()
