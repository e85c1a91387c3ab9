"""Kills training runs with SIGKILL, lets them go on, and compares every byte they leave behind with
those of a run that nothing happened to.

resume_test.py LOCKSTEP RESUME_JOB --ranks N... [--all]
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "track"))
from run_files import check_other_curves  # noqa: E402

STEPS = 30
# 230 samples, micro-batches of 5, two of them a step: how many steps an epoch has, by ranks.
STEPS_PER_EPOCH = {1: 23, 2: 12, 3: 8, 4: 6}


class Run:
    """A folder in which a job runs, perhaps several times."""

    def __init__(self, arguments, folder, slots, steps=STEPS):
        self.arguments, self.folder, self.slots = arguments, pathlib.Path(folder), slots
        self.steps = steps

    def start(self, ranks=None, **settings):
        """Returns the launcher's exit code."""
        environment = dict(os.environ, DIRECTORY=str(self.folder), STEPS=str(self.steps),
                           OMP_NUM_THREADS="1", LOCKSTEP_QUIET="1", TRACK="tensorboard,wandb",
                           WANDB_RUN_ID="exp",
                           **{name: str(value) for name, value in settings.items()})
        command = [self.arguments.lockstep, "run", "--quiet", "--recovery", "restart",
                   "--nproc-per-node",
                   str(ranks or self.slots), self.arguments.job]
        result = subprocess.run(command, env=environment, cwd=self.folder.parent, timeout=120,
                                capture_output=True, text=True)
        self.output = result.stdout + result.stderr
        return result.returncode

    def finish(self, **settings):
        code = self.start(**settings)
        if code != 0:
            raise SystemExit(f"{self.folder.name}: exit code {code}\n{self.output}")

    def files(self):
        last = self.folder / "snapshots" / f"step_{self.steps}"
        return {path.name: path.read_bytes() for path in sorted(last.iterdir())
                if path.name != "manifest.json"}  # which has the time

    def best(self):
        return os.readlink(self.folder / "snapshots" / "best")

    def log(self):
        """All lines but for when they were written and where the time of a step went."""
        text = (self.folder / "metrics" / "rank_0.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        return [{name: value for name, value in line.items() if not name.startswith("time")}
                for line in lines]

    def expect_resumed(self, name, step):
        found = re.findall(r"goes on from step (\d+)", self.output) or ["0"]
        if step is not None and found != [str(step)]:
            raise SystemExit(f"{name}: resumed from step {found}, not {step}\n{self.output}")


def compare(name, run, undisturbed):
    expected, found = undisturbed.files(), run.files()
    assert {"model.safetensors", "optimizer.safetensors", "ema.safetensors"} <= set(expected)
    if set(found) != set(expected):
        raise SystemExit(f"{name}: files {sorted(found)}, not {sorted(expected)}")
    if run.best() != undisturbed.best():
        raise SystemExit(f"{name}: the best is {run.best()}, not {undisturbed.best()}")
    for file, content in found.items():
        if content != expected[file]:
            raise SystemExit(f"{name}: {file} of step {run.steps} differs from the undisturbed run's")
    if run.log() != undisturbed.log():
        for mine, theirs in zip(run.log(), undisturbed.log()):
            if mine != theirs:
                raise SystemExit(f"{name}: the log has {mine}, the undisturbed run's {theirs}")
        raise SystemExit(f"{name}: the log has {len(run.log())} lines, not {len(undisturbed.log())}")
    check_other_curves(run.folder, "exp", run.log())
    print(f"{name}: equal", flush=True)


def kills(slots):
    """Where a run is killed: a name, the settings of the run that dies, and the step from which the
    next one goes on; None where that depends on how far the save had come."""
    edge = STEPS_PER_EPOCH[slots]
    yield "mid-epoch", {"KILL_AT_STEP": 6, "BACKGROUND": 0}, 4
    yield "at an epoch's edge", {"KILL_AT_STEP": edge, "BACKGROUND": 0}, (edge - 1) // 4 * 4
    yield ("after an epoch", {"KILL_AT_EPOCH": 0, "KILL_RANK": slots - 1, "BACKGROUND": 0},
           (edge - 1) // 4 * 4)
    yield "right after a save", {"KILL_IN_SAVE": 8, "BACKGROUND": 0}, 8
    yield "in the middle of a save", {"KILL_IN_SAVE": 8}, None
    yield "before the first save", {"KILL_AT_STEP": 2}, 0


def test(arguments, slots, folder):
    undisturbed = Run(arguments, folder / f"{slots}_undisturbed", slots)
    undisturbed.finish()
    assert len(undisturbed.log()) == STEPS + STEPS // STEPS_PER_EPOCH[slots], undisturbed.log()

    for where, settings, step in kills(slots):
        name = f"{slots} ranks, killed {where}"
        run = Run(arguments, folder / name.replace(" ", "_"), slots)
        code = run.start(**settings)
        if code != 137:
            raise SystemExit(f"{name}: it should have been killed, but ended with {code}\n{run.output}")
        run.finish(LOADER_THREADS=0 if where == "mid-epoch" else 3)
        run.expect_resumed(name, step)
        compare(name, run, undisturbed)

    test_last_edge(arguments, slots, folder)

    if slots > 1:
        run = Run(arguments, folder / f"{slots}_on_fewer", slots)
        assert run.start(KILL_AT_STEP=6, BACKGROUND=0) == 137, run.output
        for ranks in range(1, slots):
            copy = Run(arguments, folder / f"{slots}_on_{ranks}", slots)
            shutil.copytree(run.folder, copy.folder, symlinks=True)
            copy.finish(ranks=ranks)
            copy.expect_resumed(copy.folder.name, 4)
            compare(f"{slots} slots, resumed with {ranks} ranks", copy, undisturbed)

    again = Run(arguments, folder / f"{slots}_again", slots)
    for step in range(5, STEPS, 7):
        assert again.start(KILL_AT_STEP=step, KILL_RANK=step % slots) == 137, again.output
    again.finish()
    compare(f"{slots} ranks, killed again and again", again, undisturbed)

    if arguments.all:
        masked = Run(arguments, folder / f"{slots}_masked", slots)
        masked.finish(MASKED=1)
        killed = Run(arguments, folder / f"{slots}_masked_killed", slots)
        assert killed.start(MASKED=1, KILL_AT_STEP=10) == 137, killed.output
        killed.finish(MASKED=1)
        compare(f"{slots} ranks, sums and counts, killed", killed, masked)


def test_last_edge(arguments, slots, folder):
    """The last step is that of an epoch, and the run dies while it saves there."""
    steps = 2 * STEPS_PER_EPOCH[slots]
    undisturbed = Run(arguments, folder / f"{slots}_edge", slots, steps)
    undisturbed.finish(SAVE_EVERY=STEPS_PER_EPOCH[slots])
    for name, background in (("after", 0), ("in", 1)):
        run = Run(arguments, folder / f"{slots}_edge_killed_{name}", slots, steps)
        code = run.start(SAVE_EVERY=STEPS_PER_EPOCH[slots], KILL_IN_SAVE=steps,
                         BACKGROUND=background)
        assert code == 137, run.output
        run.finish(SAVE_EVERY=STEPS_PER_EPOCH[slots])
        compare(f"{slots} ranks, killed {name} the last save", run, undisturbed)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lockstep")
    parser.add_argument("job")
    parser.add_argument("--ranks", type=int, nargs="+", required=True)
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lockstep_resume_") as folder:
        for slots in arguments.ranks:
            test(arguments, slots, pathlib.Path(folder))


sys.exit(main())
