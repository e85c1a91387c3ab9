"""`lockstep doctor`, as users meet it. Usage: doctor_test.py LOCKSTEP"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "launch"))

LOCKSTEP = sys.argv.pop(1)
LIMIT = 60  # seconds; only ever reached by a failure


def clean_environment():
    return {name: value for name, value in os.environ.items()
            if not name.startswith(("PET_", "LOCKSTEP_", "NCCL_", "GLOO_", "OMP_", "FI_"))}


def doctor(*arguments, env=None):
    done = subprocess.run([LOCKSTEP, "doctor", *arguments], capture_output=True, text=True,
                          timeout=LIMIT, env={**clean_environment(), **(env or {})})
    return done.returncode, done.stdout, done.stderr


class Alone(unittest.TestCase):
    def test_a_machine_is_looked_at_and_summed_up(self):
        code, out, err = doctor()
        self.assertIn(code, (0, 1), err)
        self.assertEqual(err, "")
        self.assertIn("versions: lockstep", out)
        self.assertRegex(out.splitlines()[-1], r"^doctor: .* on 1 node \([0-9.]+ s\)$")

    def test_an_error_is_last_has_a_cure_and_decides_the_exit_code(self):
        code, out, _ = doctor("--quiet", env={"NCCL_SOCKET_IFNAME": "nowhere7"})
        self.assertEqual(code, 1)
        line = out.splitlines()[-2]
        self.assertIn("error", line)
        self.assertIn("nowhere7", line)
        self.assertIn(" -> ", line)
        self.assertNotIn("  ok ", out)

    def test_a_shared_folder_is_tried_and_left_clean(self):
        with tempfile.TemporaryDirectory() as folder:
            _, out, _ = doctor("--shared-dir", folder)
            self.assertIn("rename, fsync, O_EXCL and flock work", out)
            self.assertEqual(os.listdir(folder), [])
        code, out, _ = doctor("--shared-dir", folder)
        self.assertEqual(code, 1)
        self.assertIn("shared folder", out)

    def test_json_is_one_document(self):
        _, out, err = doctor("--json")
        report = json.loads(out)
        self.assertEqual(err, "")
        self.assertEqual(len(report["nodes"]), 1)
        self.assertLessEqual({"node", "check", "level", "what", "cure"}, set(report["findings"][0]))

    def test_a_wrong_command_line_is_named(self):
        code, out, err = doctor("--jason")
        self.assertEqual((code, out), (2, ""))
        self.assertIn("--jason", err)


if __name__ == "__main__":
    unittest.main()
