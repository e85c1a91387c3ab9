"""What tests of workers that outlive others share."""

import json
import os
import pathlib
import signal
import tempfile
import time
import unittest

from launcher import LIMIT, Job

WORKER = str(pathlib.Path(__file__).with_name("recovering_worker.py"))


class RecoveryCase(unittest.TestCase):
    def setUp(self):
        self.folder = self.new_folder()

    def new_folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return pathlib.Path(folder.name)

    def hold(self, step):
        """No worker begins a later step until release(): what a test does, it does to a job at work,
        however long this process has to wait for a processor."""
        (self.folder / "hold.new").write_text(str(step))
        (self.folder / "hold.new").rename(self.folder / "hold")

    def release(self):
        (self.folder / "hold").unlink()

    def job(self, *options, ranks=2, steps=20, step_seconds=0.005, trick="", run_dir="run", hold=None,
            program=WORKER, prefix=(), env=None):
        if hold:
            self.hold(hold)
        env = {**(env or {}), **({"RECOVERING_WORKER": trick} if trick else {})}
        return Job(["--nproc-per-node", str(ranks), "--run-dir", str(self.folder / run_dir), *options,
                    program, str(self.folder), str(steps), str(step_seconds)], env=env, prefix=prefix)

    @staticmethod
    def whole_lines(path):
        """But for one that is being written; none where there is no file yet."""
        try:
            text = path.read_text()
        except FileNotFoundError:
            return []
        return text[:text.rfind("\n") + 1].splitlines()

    def lines(self):
        """What workers wrote: (rank, pid, words)."""
        words = [line.split() for line in self.whole_lines(self.folder / "log")]
        return [(int(line[0]), int(line[1]), line[2:]) for line in words]

    def wait_for(self, what, holds):
        deadline = time.monotonic() + LIMIT
        while not holds():
            self.assertLess(time.monotonic(), deadline, f"{what} did not come: {self.lines()[-20:]}")
            time.sleep(0.005)

    def wait_for_step(self, step):
        self.wait_for(f"step {step}", lambda: any(
            words[0] == "committed" and int(words[1]) >= step for _, _, words in self.lines()))

    def pids(self, rank):
        return [pid for each, pid, words in self.lines() if each == rank and words[0] == "start"]

    def kill(self, *ranks, number=signal.SIGKILL):
        for pid in [self.pids(rank)[-1] for rank in ranks]:
            os.kill(pid, number)

    def events(self, kind, run_dir="run"):
        lines = self.whole_lines(self.folder / run_dir / "events.jsonl")
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def wait_for_event(self, kind, run_dir="run"):
        self.wait_for(f"the event '{kind}'", lambda: self.events(kind, run_dir))

    def check_no_step_is_lost(self, ranks, steps):
        """`ranks`: that end well; a number of them, or a list. Every worker commits each step after the one before, all of a membership go on after the
        same step, and nobody who lives goes back. Only a step that nobody but the dead had committed
        is made again: it is the last one, because each needs all ranks."""
        position = {}
        begins = {}
        newest = 0
        for _, pid, words in self.lines():
            if words[0] == "met":
                epoch, step = int(words[1]), int(words[3])
                self.assertEqual(begins.setdefault(epoch, step), step)
                self.assertGreaterEqual(step, position.get(pid, 0), "a survivor lost a step")
                self.assertIn(step, (newest - 1, newest) if newest else (0,), "steps were lost")
                position[pid] = step
            if words[0] == "committed":
                self.assertEqual(int(words[1]), position[pid] + 1)
                position[pid] = int(words[1])
                newest = max(newest, position[pid])
        ended = {rank: pid for rank, pid, words in self.lines() if words[0] == "end"}
        self.assertEqual(sorted(ended), ranks if isinstance(ranks, list) else list(range(ranks)))
        self.assertEqual({position[pid] for pid in ended.values()}, {steps})
