"""toy_trainer's snapshots: read by Python, taken from Python, gone on from to the bit, through kills.

toy_trainer_test.py TOY_TRAINER LOCKSTEP [[--but] CASE...], in a Python that has torch.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "track"))
import run_files  # noqa: E402
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

LOCKSTEP = os.path.abspath(sys.argv.pop(2))
TOY_TRAINER = os.path.abspath(sys.argv.pop(1))
TUTORIAL = str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "toy" / "tutorial.py")
LIMIT = 300  # seconds for what takes a few; only ever reached by a failure
# More epochs than any machine trains before the test has acted.
ENDLESS = "1000000"


class ToyTrainer(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep_toy_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith(("PET_", "LOCKSTEP_", "TORCHELASTIC_"))}
        self.environment |= {"OMP_NUM_THREADS": "1", "TMPDIR": folder.name}

    def place(self, name):
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return folder

    def start(self, folder, *arguments, launcher=()):
        """In a process group of its own, so that all its ranks can be killed."""
        return subprocess.Popen([*launcher, TOY_TRAINER, *arguments], cwd=folder, text=True,
                                env=self.environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                start_new_session=True)

    def run_toy(self, folder, *arguments, launcher=(), code=0):
        """Returns what it printed."""
        process = self.start(folder, *arguments, launcher=launcher)
        try:
            out, err = process.communicate(timeout=LIMIT)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        self.assertEqual(process.returncode, code, out + err)
        return out, err

    def wait_for_file(self, process, path):
        deadline = time.monotonic() + LIMIT
        while not path.exists():
            self.assertIsNone(process.poll(), "it ended before it saved")
            self.assertLess(time.monotonic(), deadline, f"no {path.name} within {LIMIT} s")
            time.sleep(0.002)

    def epochs_run(self, folder):
        return torch.load(folder / "snapshot.pt", weights_only=True)["EPOCHS_RUN"]

    def expect_same_end(self, folder, ranks, epochs):
        """The folder's snapshot is, byte for byte, that of a run that nothing happened to."""
        undisturbed = self.place(f"{folder.name}_undisturbed")
        self.run_toy(undisturbed, str(epochs), "--ranks", str(ranks))
        self.assertEqual((folder / "snapshot.pt").read_bytes(),
                         (undisturbed / "snapshot.pt").read_bytes())

    def test_python_reads_the_snapshot_and_the_checkpoint(self):
        out, _ = self.run_toy(self.folder, "3", "2", "--checkpoint_path", "checkpoint.pt")
        self.assertEqual(re.findall(r"Epoch (\d+) \| Training snapshot saved at snapshot.pt", out),
                         ["1", "2"])
        snapshot = torch.load(self.folder / "snapshot.pt", weights_only=True)
        self.assertEqual(set(snapshot), {"MODEL_STATE", "EPOCHS_RUN"})
        self.assertEqual(snapshot["EPOCHS_RUN"], 3)
        model = torch.nn.Linear(20, 1)
        model.load_state_dict(snapshot["MODEL_STATE"])
        self.assertEqual(model.weight.dtype, torch.float32)
        checkpoint = torch.load(self.folder / "checkpoint.pt", weights_only=True)
        self.assertEqual(set(checkpoint), {"weight", "bias"})
        for name, tensor in checkpoint.items():
            self.assertTrue(torch.equal(tensor, snapshot["MODEL_STATE"][name]), name)

    def test_goes_on_from_pythons_snapshot(self):
        torch.manual_seed(7)
        model = torch.nn.Linear(20, 1)
        weights = model.state_dict()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        with_prefix = torch.nn.parallel.DistributedDataParallel(model).state_dict()
        dist.destroy_process_group()
        self.assertEqual(list(with_prefix), ["module.weight", "module.bias"])
        ends = []
        for name, state in (("model", weights), ("ddp", with_prefix)):
            folder = self.place(name)
            torch.save({"MODEL_STATE": state, "EPOCHS_RUN": 4}, folder / "snapshot.pt")
            out, _ = self.run_toy(folder, "6", "--ranks", "2")
            self.assertIn("Resuming training from snapshot at Epoch 4\n", out)
            self.assertEqual(re.findall(r"\[rank1\] Epoch (\d+) ", out), ["4", "5"])
            self.assertIn("Trained 2 epochs on 2 rank(s)", out)
            ends.append((folder / "snapshot.pt").read_bytes())
        self.assertEqual(ends[0], ends[1])
        self.assertEqual(self.epochs_run(folder), 6)
        trained = torch.load(folder / "snapshot.pt", weights_only=True)["MODEL_STATE"]
        for name, tensor in weights.items():
            self.assertFalse(torch.equal(tensor, trained[name]), name)
            self.assertTrue(torch.allclose(tensor, trained[name], atol=0.2), name)

    def test_python_goes_on_from_the_snapshot(self):
        self.run_toy(self.folder, "4", "--ranks", "2")
        before = torch.load(self.folder / "snapshot.pt", weights_only=True)["MODEL_STATE"]
        done = subprocess.run([LOCKSTEP, "run", "--nproc-per-node", "2", TUTORIAL, "6", "2"],
                              cwd=self.folder, env=self.environment | {"PYTHON_EXEC": sys.executable},
                              capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("Resuming training from snapshot at Epoch 4", done.stdout)
        self.assertEqual(self.epochs_run(self.folder), 6)
        after = torch.load(self.folder / "snapshot.pt", weights_only=True)["MODEL_STATE"]
        self.assertFalse(torch.equal(before["weight"], after["weight"]))
        out, _ = self.run_toy(self.folder, "7", "--ranks", "2")
        self.assertIn("Trained 1 epochs on 2 rank(s)", out)

    def test_ten_epochs_at_once_or_four_and_six_are_the_same_file(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                at_once, in_two = self.place(f"once_{ranks}"), self.place(f"two_{ranks}")
                self.run_toy(at_once, "10", "--ranks", str(ranks))
                self.run_toy(in_two, "4", "--ranks", str(ranks))
                self.assertEqual(self.epochs_run(in_two), 4)
                out, _ = self.run_toy(in_two, "10", "--ranks", str(ranks))
                self.assertEqual(re.findall(r"\[rank0\] Epoch (\d+) ", out),
                                 [str(epoch) for epoch in range(4, 10)])
                self.assertEqual((at_once / "snapshot.pt").read_bytes(),
                                 (in_two / "snapshot.pt").read_bytes())

    def test_curves_go_on_with_the_snapshot(self):
        for epochs in ("2", "4"):
            self.run_toy(self.folder, epochs, "--ranks", "2", "--track", "tensorboard,wandb")
        for rank in range(2):
            lines = (self.folder / "toy_run" / "metrics" / f"rank_{rank}.jsonl").read_text()
            steps = [json.loads(line)["step"] for line in lines.splitlines()]
            self.assertEqual(steps, list(range(10, 121, 10)))
        log = [json.loads(line) for line in lines.splitlines()]
        run_files.check_other_curves(self.folder / "toy_run", "toy_run", log)

    def test_a_finished_run_is_not_repeated(self):
        self.run_toy(self.folder, "3")
        before = (self.folder / "snapshot.pt").read_bytes()
        out, _ = self.run_toy(self.folder, "3")
        self.assertIn("Trained 0 epochs", out)
        self.assertNotIn("Batchsize", out)
        self.assertEqual((self.folder / "snapshot.pt").read_bytes(), before)

    def check_killed(self, ranks):
        folder = self.place(f"killed_{ranks}")
        process = self.start(folder, ENDLESS, "1", "--ranks", str(ranks))
        self.wait_for_file(process, folder / "snapshot.pt")
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        epochs = self.epochs_run(folder) + 20
        out, _ = self.run_toy(folder, str(epochs), "--ranks", str(ranks))
        self.assertIn(f"Trained 20 epochs on {ranks} rank(s)", out)
        self.expect_same_end(folder, ranks, epochs)

    def test_killed_and_resumed_on_one_rank_ends_the_same(self):
        self.check_killed(1)

    def test_killed_and_resumed_on_two_ranks_ends_the_same(self):
        self.check_killed(2)

    def test_a_killed_rank_under_the_launcher_restarts_from_the_snapshot(self):
        # Rank 1 dies once, as soon as there is something to go on from.
        wrapper = self.folder / "wrapper.sh"
        wrapper.write_text(
            '#!/bin/sh\n'
            'if [ "$TORCHELASTIC_RESTART_COUNT$RANK" = 01 ]; then\n'
            '  me=$$; (until [ -e snapshot.pt ]; do sleep 0.01; done; kill -9 $me) &\n'
            'fi\n'
            'exec "$@"\n')
        wrapper.chmod(0o755)
        folder = self.place("restarted")
        launcher = (LOCKSTEP, "run", "--nproc-per-node", "2", "--max-restarts", "1", str(wrapper))
        out, err = self.run_toy(folder, "200", "10", launcher=launcher)
        resumed = re.findall(r"Resuming training from snapshot at Epoch (\d+)", out)
        self.assertEqual(len(resumed), 1, out[-2000:] + err)
        self.assertEqual(int(resumed[0]) % 10, 0)
        self.expect_same_end(folder, 2, 200)

    def check_sigterm(self, ranks, *arguments, launcher=()):
        """It saves the last whole epoch and ends with 75."""
        folder = self.place("stopped")
        process = self.start(folder, ENDLESS, ENDLESS, *arguments, launcher=launcher)
        for line in process.stdout:
            if "Epoch 3 " in line:
                break
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 75, out + err)
        epochs = self.epochs_run(folder)
        self.assertGreaterEqual(epochs, 4)
        self.run_toy(folder, str(epochs + 3), *arguments, launcher=launcher)
        self.expect_same_end(folder, ranks, epochs + 3)

    def test_sigterm_to_one_rank_saves_the_last_whole_epoch_and_ends_with_75(self):
        self.check_sigterm(1)

    def test_sigterm_to_two_ranks_saves_the_last_whole_epoch_and_ends_with_75(self):
        self.check_sigterm(2, "--ranks", "2")

    def test_sigterm_to_the_launcher_saves_the_last_whole_epoch_and_ends_with_75(self):
        self.check_sigterm(2, launcher=(LOCKSTEP, "run", "--quiet", "--nproc-per-node", "2"))

    def check_damaged(self, ranks):
        """One line says so, and the file is left alone."""
        self.run_toy(self.folder, "2")
        path = self.folder / "snapshot.pt"
        good = path.read_bytes()
        place = good.index(b"MODEL_STATE")
        flipped = good[:place] + bytes([good[place] ^ 1]) + good[place + 1:]
        for what, content in (("cut", good[:200]), ("empty", b""), ("text", b"not a snapshot\n"),
                              ("flipped", flipped)):
            with self.subTest(what):
                path.write_bytes(content)
                out, err = self.run_toy(self.folder, "5", "--ranks", ranks, code=2)
                self.assertEqual(err.count("\n"), 1, err)
                self.assertIn("'snapshot.pt' is no snapshot to go on from", err)
                self.assertIn("move it away to begin anew", err)
                self.assertNotIn("Epoch", out)
                self.assertEqual(path.read_bytes(), content)

    def test_a_damaged_snapshot_gets_one_line_and_is_left_alone(self):
        self.check_damaged("1")

    def test_a_damaged_snapshot_gets_one_line_of_two_ranks_and_is_left_alone(self):
        self.check_damaged("2")

    def test_a_snapshot_of_something_else_is_refused(self):
        path = self.folder / "snapshot.pt"
        state = torch.nn.Linear(20, 1).state_dict()
        for what, content in (("EPOCHS_RUN", {"MODEL_STATE": state}),
                              ("MODEL_STATE", {"EPOCHS_RUN": 3}),
                              ("-1", {"MODEL_STATE": state, "EPOCHS_RUN": -1}),
                              ("weight", {"MODEL_STATE": torch.nn.Linear(20, 2).state_dict(),
                                          "EPOCHS_RUN": 3})):
            with self.subTest(what):
                torch.save(content, path)
                _, err = self.run_toy(self.folder, "5", code=2)
                self.assertEqual(err.count("\n"), 1, err)
                self.assertIn(what, err)

    def test_a_folder_that_is_missing_fails_the_run_at_its_end(self):
        out, err = self.run_toy(self.folder, "2", "1", "--snapshot_path", "no/such/snapshot.pt",
                                code=1)
        self.assertIn("training goes on", err)
        self.assertIn("Epoch 1 ", out)
        self.assertIn("no/such/snapshot.pt", err)


if __name__ == "__main__":
    test_script.main(verbosity=2)
