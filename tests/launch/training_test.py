"""Training jobs under `lockstep run`, in Python and in C++, with and without a restart.

Usage: training_test.py LOCKSTEP PYTHON-WITH-TORCH TOY_TRAINER
"""

import json
import pathlib
import re
import signal
import sys
import tempfile
import textwrap
import unittest

from launcher import run, set_launcher

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

set_launcher(sys.argv.pop(1))
PYTHON = sys.argv.pop(1)
TOY_TRAINER = sys.argv.pop(1)
TUTORIAL = str(pathlib.Path(__file__).resolve().parent / "ddp_tutorial.py")


class Training(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def tutorial(self, ranks, *options, env=None):
        """Trains three epochs; returns the final weights, the same on every rank."""
        snapshot = self.folder / f"snapshot{len(list(self.folder.iterdir()))}.pt"
        code, out, err = run(
            ["--nproc-per-node", str(ranks), *options, TUTORIAL, "3", str(snapshot)],
            env={"PYTHON_EXEC": PYTHON, **(env or {})},
        )
        self.assertEqual(code, 0, err)
        lines = re.findall(r"rank (\d+) of (\d+) done (\S+)", out)
        self.assertEqual(sorted(int(rank) for rank, _, _ in lines), list(range(ranks)))
        self.assertEqual({int(size) for _, size, _ in lines}, {ranks})
        (weights,) = {weights for _, _, weights in lines}
        return weights

    def test_python_on_one_rank(self):
        self.tutorial(1)

    def test_python_on_four_ranks(self):
        self.tutorial(4)

    def test_python_on_two_ranks_ends_the_same_after_a_restart(self):
        undisturbed = self.tutorial(2)
        restarted = self.tutorial(2, "--max-restarts", "1", env={"FAIL_IN_EPOCH": "1"})
        self.assertEqual(undisturbed, restarted)

    def test_a_rank_killed_while_others_wait_in_a_collective_is_the_one_reported(self):
        worker = self.folder / "killed.py"
        worker.write_text(textwrap.dedent("""
            import os, signal, torch
            import torch.distributed as dist
            dist.init_process_group("gloo")
            dist.barrier()
            if dist.get_rank() == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(torch.ones(1))
            signal.pause()
            """))
        code, _, err = run(["--nproc-per-node", "3", str(worker)], env={"PYTHON_EXEC": PYTHON})
        self.assertEqual(code, 128 + signal.SIGKILL, err)
        self.assertIn("First failure: rank 2", err)
        self.assertIn("SIGKILL", err)

    def toy(self, ranks, *options, env=None, program=(TOY_TRAINER, "2")):
        # An empty folder: it goes on from a snapshot that it finds.
        folder = tempfile.mkdtemp(dir=self.folder)
        code, out, err = run(["--nproc-per-node", str(ranks), *options, *program], env=env,
                             cwd=folder)
        self.assertEqual(code, 0, err)
        self.assertIn(f"Trained 2 epochs on {ranks} rank", out + err)

    def test_a_native_program(self):
        for ranks in (1, 2, 4):
            with self.subTest(ranks=ranks):
                self.toy(ranks)

    def test_a_native_program_talks_to_the_launcher_and_events_tell_the_story(self):
        record = self.folder / "run"
        self.toy(2, "--run-dir", str(record))
        events = [json.loads(line) for line in (record / "events.jsonl").read_text().splitlines()]
        kinds = [(event["kind"], event["slot"]) for event in events]
        for kind in ("worker_start", "worker_hello", "worker_exit"):
            self.assertEqual(sorted(slot for k, slot in kinds if k == kind), [0, 1], kinds)
        self.assertEqual(kinds[0], ("job_start", None))
        self.assertEqual(kinds[-1], ("job_end", None))
        self.assertEqual(events[-1]["exit_code"], 0)

    def test_a_native_program_is_restarted(self):
        wrapper = self.folder / "wrapper.sh"
        wrapper.write_text(
            '#!/bin/sh\n[ "$TORCHELASTIC_RESTART_COUNT$RANK" = 01 ] && kill -9 $$\nexec "$@"\n'
        )
        wrapper.chmod(0o755)
        self.toy(2, "--max-restarts", "1", program=(str(wrapper), TOY_TRAINER, "2"))


if __name__ == "__main__":
    test_script.main(verbosity=2)
