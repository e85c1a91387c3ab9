"""Kills ranks of a hand-written loop under recoverable(), and compares every byte that it leaves
behind with a run that nothing happened to.

recoverable_test.py LOCKSTEP RECOVERABLE_JOB points [--some POINT... | --but POINT...]
recoverable_test.py LOCKSTEP RECOVERABLE_JOB three_ranks
recoverable_test.py LOCKSTEP RECOVERABLE_JOB left_out
recoverable_test.py LOCKSTEP RECOVERABLE_JOB random --kills N [--seed S] [--ranks N...]
"""

import argparse
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import test_script  # noqa: E402

LIMIT = 240  # seconds that a run may take
POINTS = ["step", "backward", "gather", "commit", "apply", "update", "committed"]


class Run:
    """A job in a folder of its own."""

    def __init__(self, arguments, folder, ranks, steps, kills=(), options=(), **settings):
        self.arguments, self.folder, self.ranks = arguments, folder, ranks
        self.kills, self.steps = [":".join(map(str, kill)) for kill in kills], steps
        self.options = options or ["--max-replacements", "1000"]  # the launcher's
        self.settings = {name.upper(): str(value) for name, value in settings.items()}

    def finish(self):
        self.folder.mkdir()
        environment = dict(os.environ, OUT=str(self.folder), STEPS=str(self.steps),
                           KILLS=",".join(self.kills), OMP_NUM_THREADS="1", **self.settings)
        environment.pop("LOCKSTEP_RUN_DIR", None)
        command = [self.arguments.lockstep, "run", "--nproc-per-node", str(self.ranks),
                   *self.options, self.arguments.job]
        with open(self.folder / "output", "w") as output:
            process = subprocess.Popen(command, env=environment, cwd=self.folder, stdout=output,
                                       stderr=subprocess.STDOUT, start_new_session=True)
            try:
                code = process.wait(timeout=LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                self.fail(f"not finished after {LIMIT} s")
        if code != 0:
            self.fail(f"exit code {code}")
        for kill in self.kills:
            if not (self.folder / f"killed_{kill}").exists():
                self.fail(f"{kill} did not happen")
        return self

    def fail(self, what):
        raise SystemExit(f"{self.folder.name}: {what}\n{self.text()}")

    def text(self):
        return (self.folder / "output").read_text(errors="replace")

    def committed(self, rank, step):
        return (self.folder / f"committed_{rank}_{step}").exists()

    def final(self, rank):
        return (self.folder / f"final_{rank}.safetensors").read_bytes()

    def snapshot(self):
        last = (self.steps - 1) // 8 * 8
        folder = self.folder / "snapshots" / f"step_{last}"
        return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}

    def compare(self, undisturbed):
        for rank in range(self.ranks):
            if self.final(rank) != undisturbed.final(0):
                self.fail(f"rank {rank} ends with other bits than in the undisturbed run")
        if not undisturbed.snapshot() or self.snapshot() != undisturbed.snapshot():
            self.fail("the last snapshot is not that of the undisturbed run")


def points(arguments, folder):
    """A death at each point of a step, in one run."""
    steps = 30
    kills = {point: ((number + 1) % 2, point, 3 * number + 1) for number, point in enumerate(POINTS)}
    kills["committed, last step"] = (0, "committed", steps - 1)
    kills = list(test_script.chosen(kills, arguments).values())
    undisturbed = Run(arguments, folder / "two_undisturbed", 2, steps).finish()
    run = Run(arguments, folder / "two_killed", 2, steps, kills).finish()
    run.compare(undisturbed)
    print(f"2 ranks, {len(kills)} deaths: equal", flush=True)


def three_ranks(arguments, folder):
    """Deaths while one rank is behind, while the ranks meet again, and of a replacement."""
    # Without buffers a commit is no collective, so that a rank can be held behind the others.
    steps = 16
    undisturbed = Run(arguments, folder / "three_undisturbed", 3, steps, buffers=0).finish()
    kills = [(2, "committed", 5),  # while rank 1 is behind
             (0, "gather", 9), (2, "forming", 2),  # a second death while the ranks meet again
             (1, "apply", 12), (1, "start", 1)]    # the replacement, too
    run = Run(arguments, folder / "three_killed", 3, steps, kills, buffers=0, hold="1:5").finish()
    if run.committed(1, 5) or not run.committed(0, 5):
        run.fail("rank 1 was not behind")
    run.compare(undisturbed)
    print(f"3 ranks, one of them behind, {len(kills)} deaths: equal", flush=True)


def left_out(arguments, folder):
    """Ranks that are not replaced, the first one among them. The others' numbers are of their own
    kind, but all of them end with the same."""
    run = Run(arguments, folder / "left_out", 4, 20, [(3, "gather", 7), (0, "gather", 12)],
              options=["--max-replacements", "0", "--min-world", "2"]).finish()
    for fewer in (3, 2):
        if f"{fewer} of 4 processes go on: averages are over those" not in run.text():
            run.fail(f"nobody says that {fewer} are left")
    if run.final(1) != run.final(2):
        run.fail("ranks 1 and 2 end with different bits")
    if not run.snapshot():
        run.fail("what was to be saved after the last loss is not there")
    print("4 ranks, 2 left out: went on with the others", flush=True)


def random_kills(arguments, folder, ranks, seed):
    """Any rank, anywhere in any step."""
    rng = random.Random(seed)
    steps = 5 * arguments.kills + 5
    undisturbed = Run(arguments, folder / f"{ranks}_undisturbed", ranks, steps).finish()
    # Not in neighbouring steps: while a rank dies after its last collective, the others are in the
    # next step already.
    kills = [(rng.randrange(ranks), rng.choice(POINTS), step)
             for step in sorted(rng.sample(range(0, steps, 2), arguments.kills))]
    run = Run(arguments, folder / f"{ranks}_killed", ranks, steps, kills).finish()
    run.compare(undisturbed)
    print(f"{ranks} ranks, seed {seed}, {len(kills)} deaths: equal", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lockstep")
    parser.add_argument("job")
    parser.add_argument("what", choices=["points", "three_ranks", "left_out", "random"])
    test_script.add_choice(parser)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    arguments.lockstep, arguments.job = map(os.path.abspath, (arguments.lockstep, arguments.job))
    with tempfile.TemporaryDirectory(prefix="lockstep_recoverable_") as folder:
        if arguments.what == "points":
            return points(arguments, pathlib.Path(folder))
        if arguments.what == "three_ranks":
            return three_ranks(arguments, pathlib.Path(folder))
        if arguments.what == "left_out":
            return left_out(arguments, pathlib.Path(folder))
        print(f"seed {arguments.seed}", flush=True)
        for ranks in arguments.ranks:
            random_kills(arguments, pathlib.Path(folder), ranks, arguments.seed)


sys.exit(main())
