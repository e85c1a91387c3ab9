"""The completions in the shells that they are for. Usage: completion_test.py LOCKSTEP

A shell that is not installed is named in the output and left out.
"""

import os
import pathlib
import pty
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

LOCKSTEP = sys.argv.pop(1)
LIMIT = 60  # seconds; only ever reached by a failure


def script(shell):
    return subprocess.run([LOCKSTEP, "completion", shell], capture_output=True, text=True, check=True).stdout


class Completion(unittest.TestCase):
    def shell(self, name):
        path = shutil.which(name)
        if path is None:
            self.skipTest(f"{name} is not installed")
        return path

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(text)
        return path


class Bash(Completion):
    def complete(self, *words):
        """What bash offers for the last word."""
        path = self.file("lockstep.bash", script("bash"))
        program = f"""
            source {path}
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*"
            _lockstep lockstep "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
            printf '%s\\n' "${{COMPREPLY[@]}}"
            """
        done = subprocess.run([self.shell("bash"), "--norc", "-c", program, "bash", *words],
                              capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_commands_options_and_values(self):
        self.assertEqual(self.complete("lockstep", "st"), ["stack"])
        self.assertEqual(self.complete("lockstep", "run", "--rdzv-b"), ["--rdzv-backend="])
        self.assertEqual(self.complete("lockstep", "run", "--rdzv-backend", "c"), ["c10d"])
        self.assertNotIn("--use-env", self.complete("lockstep", "run", "--"))
        self.assertIn("--use-env", self.complete("lockstep", "launch", "--"))
        self.assertEqual(self.complete("lockstep", "doctor", "--shared"), ["--shared-dir="])
        self.assertEqual(self.complete("lockstep", "board", "--tok"), ["--token-file="])
        self.assertEqual(self.complete("lockstep", "top", "--o"), ["--once"])
        self.assertEqual(self.complete("lockstep", "snapshot", "v"), ["verify"])
        self.assertEqual(self.complete("lockstep", "snapshot", "diff", "--p"), ["--part="])


class Fish(Completion):
    def complete(self, line):
        path = self.file("lockstep.fish", script("fish"))
        done = subprocess.run([self.shell("fish"), "--no-config", "-c", f"source {path}; complete -C '{line}'"],
                              capture_output=True, text=True, timeout=LIMIT,
                              env={**os.environ, "HOME": self.folder})
        self.assertEqual(done.stderr, "")
        return [line.partition("\t")[0] for line in done.stdout.splitlines()]

    def test_commands_options_and_values(self):
        self.assertEqual(self.complete("lockstep st"), ["stack"])
        self.assertIn("--rdzv-backend", [each.rstrip("=") for each in self.complete("lockstep run --rdzv-b")])
        self.assertIn("c10d", self.complete("lockstep run --rdzv-backend c"))
        self.assertNotIn("--use-env", self.complete("lockstep run --use"))
        self.assertIn("--use-env", self.complete("lockstep launch --use"))
        self.assertIn("--shared-dir", [each.rstrip("=") for each in self.complete("lockstep doctor --sh")])
        self.assertIn("--token-file", [each.rstrip("=") for each in self.complete("lockstep board --tok")])
        self.assertEqual(self.complete("lockstep snapshot ver"), ["verify"])


class Zsh(Completion):
    """zsh completes only at a terminal, so this types."""

    def complete(self, typed):
        """The words of the command after `typed` and a tab."""
        shell = self.shell("zsh")
        path = self.file("_lockstep", script("zsh"))
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.folder)
            os.execve(shell, [shell, "-f", "-i"],
                      {"PATH": os.environ["PATH"], "HOME": self.folder, "TERM": "dumb", "PS1": "ready> "})
        try:
            self.wait_for(terminal, "ready> ")
            self.type(terminal, f"fpath=({self.folder} $fpath); autoload -U compinit; compinit -u -D; "
                                "unsetopt zle_bracketed_paste; lockstep() { print -r -- \"got:\"$*: }\n")
            self.type(terminal, f"print compl''eted set-up; source {path}\n")
            self.wait_for(terminal, "completed set-up")
            self.wait_for(terminal, "ready> ")
            self.type(terminal, typed + "\t")
            self.type(terminal, "\n")
            text = self.wait_for(terminal, "got:")
            text += self.wait_for(terminal, ":")
            return text.rpartition("got:")[2].rstrip(":").split()
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            os.close(terminal)

    def type(self, terminal, text):
        os.write(terminal, text.encode())

    def wait_for(self, terminal, wanted):
        deadline = time.monotonic() + LIMIT
        text = ""
        while wanted not in text:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([terminal], [], [], left)[0]:
                self.fail(f"'{wanted}' did not come, but:\n{text}")
            # One at a time, so that nothing behind it is lost.
            text += os.read(terminal, 1).decode(errors="replace")
        return text

    def test_commands_options_and_values(self):
        self.assertEqual(self.complete("lockstep st"), ["stack"])
        self.assertEqual(self.complete("lockstep run --rdzv-backend c"), ["run", "--rdzv-backend", "c10d"])
        # The "=" behind it goes when the line ends there.
        self.assertEqual(self.complete("lockstep run --rdzv-b"), ["run", "--rdzv-backend"])
        self.assertEqual(self.complete("lockstep launch --use"), ["launch", "--use-env"])
        self.assertEqual(self.complete("lockstep doctor --js"), ["doctor", "--json"])
        self.assertEqual(self.complete("lockstep snapshot ver"), ["snapshot", "verify"])


if __name__ == "__main__":
    test_script.main(verbosity=2)
