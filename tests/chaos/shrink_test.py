"""Runs that go on with fewer processes than they began with, and with all of them again, compared
byte for byte with runs that nothing happened to.

shrink_test.py LOCKSTEP RESUME_JOB [--some CASE... | --but CASE...] [--ranks N...] [--model net|gpt...]
shrink_test.py LOCKSTEP RESUME_JOB --model together
shrink_test.py LOCKSTEP RESUME_JOB --kills N [--seed S] [--ranks N...] [--model net|gpt...]
"""

import argparse
import json
import os
import pathlib
import random
import re
import signal
import sys
import tempfile
import time

from recovery_test import LIMIT, STEPS_PER_EPOCH, Run, compare, test_script

STEPS = 30
# Each forward takes that long until SLOW_UNTIL is there: what is waited for comes long before the
# run could end.
SLOW_MS = 25


def fail(name, run, what):
    raise SystemExit(f"{name}: {what}\n{run.text()}")


def left_out(run):
    return re.findall(r"rank (\d+)\b[^\n]*left out, (\d+) of (\d+) ranks go on", run.text())


def sizes(run):
    """How many ranks went on each time, as the launcher says it."""
    said = re.findall(r"(all|\d+ of \d+) ranks go on after step", run.text())
    return [run.ranks if text == "all" else int(text.split()[0]) for text in said]


def wait_for(name, run, what, condition):
    deadline = time.monotonic() + LIMIT / 4
    while not condition():
        if run.process.poll() is not None or time.monotonic() > deadline:
            fail(name, run, f"it never came to this: {what}")
        time.sleep(0.01)


def go_on_for(name, run, lines):
    """Waits until so many more lines are in the curves."""
    enough = run.lines() + lines
    wait_for(name, run, f"{lines} more lines", lambda: run.lines() >= enough)


def grows_back(name, run):
    """After a while with fewer processes, all are there again, and nothing holds the run up."""
    wait_for(name, run, "a rank is left out", lambda: left_out(run))
    go_on_for(name, run, 2)
    wait_for(name, run, "fewer go on", lambda: min(sizes(run), default=run.ranks) < run.ranks)
    wait_for(name, run, "all go on", lambda: sizes(run)[-1] == run.ranks)
    (run.folder / "hurry").touch()


def dies_while_shrunken(name, run):
    """One more death, of a rank that can be replaced."""
    wait_for(name, run, "a rank is left out", lambda: left_out(run))
    go_on_for(name, run, 2)
    slot = 1 if run.settings["KILL_RANK"] != 0 else run.ranks - 1
    before, times = run.process_id(slot), len(sizes(run))
    os.kill(before, signal.SIGKILL)
    wait_for(name, run, f"rank {slot} is replaced", lambda: run.process_id(slot) != before)
    wait_for(name, run, "they go on", lambda: len(sizes(run)) > times)
    (run.folder / "hurry").touch()


def for_good(least, **settings):
    """A rank that dies is left out, and never comes back."""
    return {"max_replacements": 0, "options": ["--min-world", str(least)], **settings}


def dies_twice(step, rank, least, rejoin_after=1, **settings):
    """It dies in the middle of a step, its replacement in the same step, and it is left out."""
    options = ["--min-world", str(least), "--rejoin-after", str(rejoin_after)]
    return {"options": options, "KILL_IN_STEP": step, "KILL_RANK": rank, "KILL_ONCE": "", **settings}


def cases_for(ranks):
    last, least, edge = ranks - 1, ranks - 1, STEPS_PER_EPOCH[ranks]
    cases = {
        "left out": (for_good(least, KILL_AT_STEP=6, KILL_RANK=last), None),
        "rank 0 left out": (
            for_good(least, KILL_AT_STEP=7, KILL_RANK=0, LOG_ALL_RANKS=1, PROGRESS=1), None),
        "left out in a step": (for_good(least, KILL_IN_STEP=9, KILL_RANK=last), None),
        "rank 0 left out in the first step": (for_good(least, KILL_IN_STEP=0, KILL_RANK=0), None),
        "left out at an epoch's edge": (for_good(least, KILL_AT_STEP=edge, KILL_RANK=last), None),
        "left out in an evaluation": (for_good(least, KILL_IN_EVALUATION=edge, KILL_RANK=last), None),
        "rank 0 left out in an evaluation": (
            for_good(least, KILL_IN_EVALUATION=edge, KILL_RANK=0), None),
        "rank 0 left out in a save": (for_good(least, KILL_IN_SAVE=8, KILL_RANK=0), None),
        "rank 0 left out in the save of the best": (
            for_good(least, KILL_IN_SAVE=edge, KILL_RANK=0), None),
        "rank 0 left out in the last save": (for_good(least, KILL_IN_SAVE=STEPS, KILL_RANK=0), None),
        "left out after the last step": (for_good(least, KILL_AT_STEP=STEPS, KILL_RANK=last), None),
        "left out and back": (dies_twice(9, last, least), grows_back),
        "rank 0 left out and back": (
            dies_twice(9, 0, least, LOG_ALL_RANKS=1, PROGRESS=1), grows_back),
        "left out in an epoch's first step and back": (dies_twice(edge, last, least), grows_back),
    }
    if ranks > 2:
        cases |= {
            "left out, and another dies": (
                dies_twice(5, last, least, rejoin_after=1000), dies_while_shrunken),
            "rank 0 left out, and another dies": (
                dies_twice(5, 0, least, rejoin_after=1000), dies_while_shrunken),
            "two left out": (for_good(ranks - 2, KILL_IN_STEP=11, KILL_RANK=last, KILL_RANK_TOO=0),
                             None),
            "two left out and back": (
                dies_twice(9, last, ranks - 2, KILL_RANK_TOO=0), grows_back),
        }
    return cases


def disturbed(arguments, name, folder, ranks, settings, meddle, model):
    """A run with fewer processes for a while, or to its end."""
    settings = dict(settings, MODEL=model)
    if meddle:
        settings |= {"SLOW_MS": SLOW_MS, "SLOW_UNTIL": folder / "hurry"}
    run = Run(arguments, folder, ranks, STEPS, **settings).start()
    try:
        if meddle:
            meddle(name, run)
        code = run.end()
    except BaseException:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)
        raise
    if code != 0:
        fail(name, run, f"exit code {code}")
    if not left_out(run):
        fail(name, run, "nobody was left out")
    return run


def check_all_logs(name, run, undisturbed, ranks):
    """Each process that lived on has a log without a gap."""
    for rank in range(ranks):
        if rank == run.settings["KILL_RANK"]:
            continue
        if run.log(rank) != undisturbed.log(0):
            fail(name, run, f"rank {rank} has {len(run.log(rank))} lines, not those of the run")


def check_progress(name, run):
    """Whoever is rank 0 shows how far the run is, and nobody else."""
    said = run.text().count(f"step {STEPS}/{STEPS}")
    if said != 1:
        fail(name, run, f"{said} processes say that the run is at its end")


def check_resumed(arguments, name, run, folder):
    """What was saved while processes were missing is where all of them go on."""
    more = STEPS + 6
    model = {"MODEL": run.settings["MODEL"]}
    whole = Run(arguments, folder / f"whole_{run.ranks}_{more}", run.ranks, more, **model).finish()
    resumed = Run(arguments, run.folder, run.ranks, more, **model).finish()
    compare(name + ", then resumed by all", resumed, whole)


def with_state(run):
    """The slots whose processes have said in the newest membership that they have the state."""
    newest, slots = -1, set()
    for line in (run.folder / "run" / "events.jsonl").read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            break  # it is being written
        event = json.loads(line)
        if event["kind"] != "recovers" or event["epoch"] < newest:
            continue
        if event["epoch"] > newest:
            newest, slots = event["epoch"], set()
        slots.add(event["slot"])
    return slots


def kill_one(run, rng, bad):
    """Kills any rank that is there, unless it is the last one that has the state. Every other time
    its place is bad: whoever takes it dies. Returns who was killed."""
    victim = rng.choice(sorted(with_state(run)))
    if not with_state(run) - {victim}:
        return None
    if rng.random() < 0.5:
        (bad / str(victim)).touch()
    try:
        os.kill(run.process_id(victim), signal.SIGKILL)
    except (ProcessLookupError, TypeError):  # it has just ended, or its successor has not begun
        return None
    return victim


def random_shrinks(arguments, place, ranks, model):
    """Kills at any moment, of ranks that come back at once or later."""
    print(f"seed {arguments.seed}", flush=True)
    rng = random.Random(arguments.seed)
    between = 12
    steps = between * (arguments.kills + 1)
    undisturbed = Run(arguments, place / "undisturbed", ranks, steps, MODEL=model).finish()
    bad = place / "bad"
    bad.mkdir()
    options = ["--min-world", "1", "--rejoin-after", "1"]
    killed = place / "killed"  # a run that waits for the last kill before its end
    run = Run(arguments, killed, ranks, steps, MODEL=model, SLOW_MS=10, BAD_SLOTS=bad, options=options,
              SLOW_UNTIL=killed / "hurry", HELD_AT_STEP=steps - 5).start()
    name = f"{model}, {ranks} ranks, seed {arguments.seed}, {arguments.kills} random kills"
    try:
        for done in range(arguments.kills):
            wait_for(name, run, "the next kill", lambda: run.lines() >= (done + 1) * between)
            time.sleep(rng.random() * 0.05)
            said = len(run.text())
            victim = kill_one(run, rng, bad)
            if done == arguments.kills - 1:
                (killed / "hurry").touch()
            if victim is not None:
                resolved = re.compile(rf"rank {victim}\b[^\n]* was ended by .*ranks go on after step", re.S)
                wait_for(name, run, f"rank {victim} is replaced or left out",
                         lambda: resolved.search(run.text()[said:]))
            for file in bad.iterdir():
                if rng.random() < 0.5:
                    file.unlink()
        code = run.end()
    except BaseException:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)
        raise
    if code != 0:
        fail(name, run, f"exit code {code}")
    compare(name, run, undisturbed)
    print(f"{name}: equal, {len(left_out(run))} left out, went on with {sizes(run)}", flush=True)


def one_process_for_each_slot(arguments, place):
    """A model that needs them all cannot go on without one, and starts again with all of them."""
    name, ranks = "SyncBatchNorm, 3 ranks, left out", 3
    undisturbed = Run(arguments, place / "undisturbed", ranks, STEPS, MODEL="together").finish()
    run = Run(arguments, place / "left_out", ranks, STEPS, MODEL="together", max_replacements=0,
              options=["--min-world", "2", "--max-restarts", "1"], KILL_AT_STEP=10, KILL_RANK=1)
    run.finish()
    for line in ("left out, 2 of 3 ranks go on", "SyncBatchNorm needs a process for each of the 3"):
        if line not in run.text():
            fail(name, run, f"nobody says '{line}'")
    compare(name, run, undisturbed)
    print(f"{name}: equal after a restart", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lockstep")
    parser.add_argument("job")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4])
    parser.add_argument("--model", nargs="+", default=["net"])
    test_script.add_choice(parser)
    parser.add_argument("--resume", action="store_true", help="go on from what the first one saved")
    parser.add_argument("--kills", type=int, help="at random, instead of the cases")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--spares", type=int, default=0)
    arguments = parser.parse_args()
    arguments.lockstep, arguments.job = map(os.path.abspath, (arguments.lockstep, arguments.job))
    with tempfile.TemporaryDirectory(prefix="lockstep_shrink_") as folder:
        if arguments.model == ["together"]:
            return one_process_for_each_slot(arguments, pathlib.Path(folder))
        for model in arguments.model:
            for ranks in arguments.ranks:
                place = pathlib.Path(folder) / f"{model}_{ranks}"
                if arguments.kills:
                    random_shrinks(arguments, place, ranks, model)
                else:
                    run_cases(arguments, place, ranks, model)


def run_cases(arguments, place, ranks, model):
    cases = test_script.chosen(cases_for(ranks), arguments)
    undisturbed = Run(arguments, place / "undisturbed", ranks, STEPS, MODEL=model).finish()
    resume = arguments.resume
    for where, (settings, meddle) in cases.items():
        name = f"{model}, {ranks} ranks, {where}"
        folder = place / where.replace(" ", "_").replace(",", "")
        run = disturbed(arguments, name, folder, ranks, settings, meddle, model)
        compare(name, run, undisturbed)
        if "LOG_ALL_RANKS" in settings:
            check_all_logs(name, run, undisturbed, ranks)
        if "PROGRESS" in settings:
            check_progress(name, run)
        if resume:
            check_resumed(arguments, name, run, place)
            resume = False
        print(f"{name}: equal, went on with {sizes(run)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
