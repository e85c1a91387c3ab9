"""Every command has a manual page that groff takes without a word and that names every option of --help.

manual_test.py LOCKSTEP SHARE [PROGRAM...]    programs beside `lockstep` that have a page
"""

import gzip
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

LOCKSTEP, SHARE, PROGRAMS = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
WITHOUT_PAGE = {"completion", "man", "version"}  # a word each, in lockstep(1)


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def page(name):
    return gzip.decompress((SHARE / f"man/man1/{name}.1.gz").read_bytes()).decode()


def commands():
    return re.findall(r"^  ([a-z]+) ", output(LOCKSTEP, "--help"), re.M)


class Manual(unittest.TestCase):
    def check_options(self, name, help_text):
        text = page(name).replace("\\-", "-")
        options = set(re.findall(r"(?<![\w-])--[a-z][a-z_-]*[a-z]", help_text))
        self.assertTrue(options, name)
        self.assertEqual([], sorted(option for option in options if option not in text), name)

    def test_every_command_has_a_page_with_all_of_its_options(self):
        self.assertGreater(len(commands()), 8)
        for command in set(commands()) - WITHOUT_PAGE - {"launch"}:
            with self.subTest(command):
                if command == "board" and not (SHARE / "man/man1/lockstep-board.1.gz").exists():
                    continue  # built without it
                self.check_options(f"lockstep-{command}", output(LOCKSTEP, command, "--help"))
        self.assertEqual(page("lockstep-launch"), ".so man1/lockstep-run.1\n")

    def test_the_page_of_lockstep_names_every_command(self):
        for command in commands():
            self.assertIn(f".B {command}\n", page("lockstep"))

    def test_programs_have_pages(self):
        for program in PROGRAMS:
            with self.subTest(program):
                self.check_options(pathlib.Path(program).name, output(program, "--help"))

    @unittest.skipUnless(shutil.which("groff"), "groff is not installed")
    def test_groff_finds_nothing_wrong(self):
        for path in sorted((SHARE / "man/man1").glob("*.1.gz")):
            with self.subTest(path.name):
                text = gzip.decompress(path.read_bytes())
                if text.startswith(b".so "):
                    continue
                done = subprocess.run(["groff", "-man", "-ww", "-Tutf8"], input=text,
                                      capture_output=True, check=True)
                self.assertEqual(b"", done.stderr)
                self.assertIn(b"SYNOPSIS", re.sub(rb".\x08", b"", done.stdout))

    def test_completions_are_made_for_three_shells(self):
        for name in ("bash-completion/completions/lockstep", "zsh/vendor-completions/_lockstep",
                     "fish/vendor_completions.d/lockstep.fish"):
            self.assertIn("nproc-per-node", (SHARE / name).read_text(), name)


if __name__ == "__main__":
    test_script.main(argv=sys.argv[:1])
