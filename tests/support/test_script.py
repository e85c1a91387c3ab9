"""What test scripts share: how they end, so that a test that did not run is not taken for one that passed."""

import re
import sys
import unittest

SKIPPED = 77  # the exit code; ctest knows it (SKIP_RETURN_CODE)


def _one_line(text):
    return " ".join(text.split())


def left_out(case, reason):
    """Says that the script goes on without a case, in the form that tools/skipped reads."""
    print(f"skipped: {case}: {_one_line(reason)}", flush=True)


def skip(reason):
    """Ends the script because it cannot run here."""
    print(f"skipped: {_one_line(reason)}", flush=True)
    sys.exit(SKIPPED)


def only_if(wanted):
    """A decorator of cases that are left out unless they are asked for: such a case is none, and so not skipped."""
    return lambda case: case if wanted else None


def _name(test):
    """One word. A fixture that skips its cases is called "setUpClass (module.Case)"."""
    fixture = re.fullmatch(r"setUp\w+ \((.+)\)", test.id())
    words = (fixture[1] if fixture else test.id()).split()
    return "all" if words[0] == "__main__" else words[0].removeprefix("__main__.")


class _Result(unittest.TextTestResult):
    ran = False  # whether any case did, to its end

    def addSuccess(self, test):
        super().addSuccess(test)
        self.ran = True

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        self.ran = True

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.ran = True


class _Runner(unittest.TextTestRunner):
    resultclass = _Result


def main(**options):
    """unittest.main() with another end: 1 after a failure or without a case, 77 if all cases were skipped."""
    result = unittest.main(exit=False, testRunner=_Runner, **options).result
    if not result.wasSuccessful():
        sys.exit(1)
    if not result.ran and not result.skipped:
        sys.exit("no case was selected")
    if not result.ran:
        skip("; ".join(dict.fromkeys(_one_line(reason) for _, reason in result.skipped)))
    for test, reason in result.skipped:
        left_out(_name(test), reason)
    sys.exit(0)
