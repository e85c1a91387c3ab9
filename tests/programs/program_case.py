"""A program that trains, as a user runs it: by itself or on several ranks, until it ends or is killed."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest


class ProgramCase(unittest.TestCase):
    """Each test has a folder of its own, in which the program runs."""

    program = lockstep = None  # their paths
    limit = 400  # seconds; a busy machine needs several times what a free one does

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep_program_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        of_others = ("PET_", "LOCKSTEP_", "TORCHELASTIC_", "HF_", "WANDB_")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(of_others)}
        self.environment |= {"OMP_NUM_THREADS": "1", "TMPDIR": folder.name, "HOME": folder.name,
                             "XDG_CACHE_HOME": folder.name + "/cache", "CUDA_VISIBLE_DEVICES": ""}

    def start(self, *arguments, ranks=None, launch=(), stdin=subprocess.DEVNULL):
        """In a process group of its own, so that all its ranks can be killed."""
        launcher = [self.lockstep, "run", "--quiet", "--nproc-per-node", str(ranks), *launch] if ranks else []
        return subprocess.Popen([*launcher, self.program, *map(str, arguments)], cwd=self.folder, text=True,
                                env=self.environment, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                start_new_session=True)

    def finish(self, process, code=0, text=None):
        """Returns what it printed."""
        try:
            out, err = process.communicate(text, timeout=self.limit)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        self.assertEqual(process.returncode, code, out + err)
        return out, err

    def run_program(self, *arguments, ranks=None, code=0):
        return self.finish(self.start(*arguments, ranks=ranks), code)

    def one_line(self, *arguments, ranks=None):
        """What the program says when it refuses to start."""
        out, err = self.run_program(*arguments, ranks=ranks, code=2)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertNotRegex(out, r"(?m)^step \d")
        return err

    def process_of(self, rank):
        """Of a rank of the job that runs in this folder."""
        mine = {f"TMPDIR={self.folder}", f"RANK={rank}"}
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                started = (process / "cmdline").read_bytes().split(b"\0")[0].decode()
                variables = set((process / "environ").read_bytes().decode().split("\0"))
            except (OSError, UnicodeDecodeError):
                continue
            if started == self.program and mine <= variables:
                return int(process.name)
        return None

    def wait_for(self, what, find, process):
        """Returns what is found, while the process runs."""
        limit = time.monotonic() + self.limit
        while True:
            is_over = process.poll() is not None or time.monotonic() > limit
            if found := find():
                return found
            self.assertFalse(is_over, f"there is no {what}")
            time.sleep(0.002)

    def wait_for_snapshot(self, name, step, process):
        """Until a run has saved this step or, if that has been removed again, a later one."""
        self.wait_for(f"snapshot of step {step}", lambda: self.newest_snapshot(name) >= step, process)

    def kill_rank(self, rank, name, step, process):
        """As soon as the run has saved a step. Which process it is is found out before."""
        victim = self.wait_for(f"rank {rank}", lambda: self.process_of(rank), process)
        self.wait_for_snapshot(name, step, process)
        os.kill(victim, signal.SIGKILL)

    def kill(self, process):
        """All of its ranks, if it has not ended yet. Returns what it printed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.communicate(timeout=self.limit)

    @contextlib.contextmanager
    def killed_where_this_fails(self, process):
        try:
            yield
        except BaseException:
            print(*self.kill(process), sep="\n")
            raise

    def run_folder(self, name):
        return self.folder / "outputs" / name

    def newest_snapshot(self, name):
        """Its step; 0 where there is none yet."""
        try:
            return int(os.readlink(self.run_folder(name) / "snapshots" / "latest").split("_")[1])
        except FileNotFoundError:
            return 0

    def files(self, name, step):
        """Everything that a snapshot holds but for the time that it was made."""
        folder = self.run_folder(name) / "snapshots" / f"step_{step}"
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "manifest.json"}

    def metrics(self, name, rank=0):
        path = self.run_folder(name) / "metrics" / f"rank_{rank}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]
