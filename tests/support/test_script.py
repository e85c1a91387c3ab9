"""What test scripts share: which of their cases they run, and how they end, so that a test that did not run is not
taken for one that passed."""

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


def add_choice(parser):
    """Options of a script whose cases are the keys of a dictionary: --some CASE..., or --but CASE... for the others."""
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--some", nargs="+", metavar="CASE", help="only these cases")
    choice.add_argument("--but", nargs="+", metavar="CASE", help="all cases but these")


def chosen(cases, arguments):
    """Those that run. A name that is no case's is an error: else a case could run nowhere, or twice."""
    names = arguments.some or arguments.but or []
    if unknown := [name for name in names if name not in cases]:
        sys.exit(f"no such case: {', '.join(unknown)}; there are: {', '.join(cases)}")
    found = {name: case for name, case in cases.items() if not names or (name in names) == bool(arguments.some)}
    return found or sys.exit("no case is left")


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


def _cases(suite):
    return [case for part in suite for case in _cases(part)] if isinstance(suite, unittest.TestSuite) else [suite]


class _AllBut(unittest.TestLoader):
    """Loads all cases of a script but those that are named."""

    def __init__(self, names):
        super().__init__()
        self.names = names

    def loadTestsFromModule(self, module, **options):
        named = {case.id() for case in _cases(self.loadTestsFromNames(self.names, module))}
        if self.errors or not named:
            sys.exit("--but: " + ("\n".join(self.errors) or "it needs names of cases"))
        everything = _cases(super().loadTestsFromModule(module, **options))
        return self.suiteClass(case for case in everything if case.id() not in named)


def main(argv=None, **options):
    """unittest.main() with another end: 1 after a failure or without a case, 77 if all cases were skipped. Its
    arguments may end with `--but NAME...`: then all cases run but those that NAME... would run."""
    argv = list(argv or sys.argv)
    if "--but" in argv:
        place = argv.index("--but")
        argv, options["testLoader"] = argv[:place], _AllBut(argv[place + 1:])
    result = unittest.main(argv=argv, exit=False, testRunner=_Runner, **options).result
    if not result.wasSuccessful():
        sys.exit(1)
    if not result.ran and not result.skipped:
        sys.exit("no case was selected")
    if not result.ran:
        skip("; ".join(dict.fromkeys(_one_line(reason) for _, reason in result.skipped)))
    for test, reason in result.skipped:
        left_out(_name(test), reason)
    sys.exit(0)
