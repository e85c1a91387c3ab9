"""Kills ranks of a job while the others go on, and compares every byte that it leaves behind with a
run that nothing happened to.

recovery_test.py LOCKSTEP RESUME_JOB phases [--some PHASE... | --but PHASE...] [--ranks N...]
recovery_test.py LOCKSTEP RESUME_JOB random --kills N [--seed S] [--ranks N...] [--model net|gpt]
Both take --spares N, and --shard STAGE with --replicas N, or with --copies and --machines N, for a sharded run.
`phases` takes --recorded: steps are rehearsed as CUDA graphs, and all ranks go on from a snapshot.
"""

import argparse
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "track"))
from run_files import check_other_curves  # noqa: E402
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import test_script  # noqa: E402

# 230 samples, micro-batches of 5, two of them a step: how many steps an epoch has, by ranks.
STEPS_PER_EPOCH = {2: 12, 3: 8, 4: 6}
LIMIT = 600  # seconds that a run may take


class Run:
    """A job in a folder of its own."""

    def __init__(self, arguments, folder, ranks, steps, **settings):
        self.arguments, self.folder = arguments, pathlib.Path(folder)
        self.hang_timeout = str(settings.pop("hang_timeout", 60))
        self.max_replacements = str(settings.pop("max_replacements", 1000))
        self.options = settings.pop("options", [])  # more of the launcher's
        settings.pop("says", None)  # what is looked for afterwards
        self.ranks, self.steps, self.settings = ranks, steps, settings
        (self.folder / "ids").mkdir(parents=True, exist_ok=True)
        self.process = None

    def start(self):
        command = [self.arguments.lockstep, "run", "--nproc-per-node", str(self.ranks),
                   "--max-replacements", self.max_replacements, "--hang-timeout", self.hang_timeout,
                   "--spares", str(self.arguments.spares), "--run-dir", str(self.folder / "run"),
                   *self.options, self.arguments.job]
        self.output = open(self.folder / "output", "a")
        self.process = subprocess.Popen(command, env=self.environment(), cwd=self.folder,
                                        stdout=self.output, stderr=subprocess.STDOUT,
                                        start_new_session=True)
        return self

    def environment(self):
        environment = dict(os.environ, DIRECTORY=str(self.folder), STEPS=str(self.steps),
                           OMP_NUM_THREADS="1", SAVE_EVERY="8", TRACK="tensorboard,wandb",
                           WANDB_RUN_ID="exp",
                           PROCESS_IDS=str(self.folder / "ids"),
                           KILL_ONCE=str(self.folder / "killed"),
                           KILL_JOINING_ONCE=str(self.folder / "killed_joining"))
        if getattr(self.arguments, "shard", 0):
            environment |= {"SHARD": str(self.arguments.shard),
                            "REPLICAS": str(1 if self.arguments.copies else self.arguments.replicas),
                            "COPIES": str(int(self.arguments.copies)),
                            "MACHINES": str(self.arguments.machines),
                            "MODEL": self.arguments.model}
        if getattr(self.arguments, "recorded", False):
            environment |= {"RECORDED": "1", "LOCKSTEP_REHEARSE_GRAPHS": "1"}
        environment |= {name: str(value) for name, value in self.settings.items()}
        environment.pop("LOCKSTEP_RUN_DIR", None)
        return environment

    def end(self):
        """Waits; returns the launcher's exit code."""
        try:
            return self.process.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise SystemExit(f"{self.folder.name}: not finished after {LIMIT} s\n{self.text()}")
        finally:
            self.output.close()

    def finish(self):
        code = self.start().end()
        if code != 0:
            raise SystemExit(f"{self.folder.name}: exit code {code}\n{self.text()}")
        return self

    def text(self):
        return (self.folder / "output").read_text(errors="replace")

    def recoveries(self):
        return re.findall(r"all ranks go on after step (\d+) \(([0-9.]+) s", self.text())

    def events(self, kind):
        lines = (self.folder / "run" / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def spares_used(self):
        return sum(event["spare"] for event in self.events("worker_start"))

    def process_id(self, rank):
        try:
            return int((self.folder / "ids" / str(rank)).read_text())
        except (FileNotFoundError, ValueError):
            return None

    def files(self):
        last = self.folder / "snapshots" / f"step_{self.steps}"
        return {path.name: path.read_bytes() for path in sorted(last.iterdir())
                if path.name != "manifest.json"}  # which has the time

    def best(self):
        return os.readlink(self.folder / "snapshots" / "best")

    def log(self, rank=0):
        """All lines but for when they were written and where the time of a step went."""
        path = self.folder / "metrics" / f"rank_{rank}.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [{name: value for name, value in line.items() if not name.startswith("time")}
                for line in lines]

    def lines(self):
        try:
            return (self.folder / "metrics" / "rank_0.jsonl").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0


def compare(name, run, undisturbed):
    expected, found = undisturbed.files(), run.files()
    if getattr(run.arguments, "shard", 0):
        parts = {f"{part}.rank_{rank}.safetensors"
                 for part in ("model", "optimizer") for rank in range(run.ranks)}
        assert parts <= set(expected), sorted(expected)
    else:
        assert {"model.safetensors", "optimizer.safetensors", "ema.safetensors"} <= set(expected)

    def fail(what):
        raise SystemExit(f"{name}: {what}\n{run.text()}")

    if set(found) != set(expected):
        fail(f"files {sorted(found)}, not {sorted(expected)}")
    if run.best() != undisturbed.best():
        fail(f"the best is {run.best()}, not {undisturbed.best()}")
    for file, content in found.items():
        if content != expected[file]:
            fail(f"{file} of step {run.steps} differs from the undisturbed run's")
    if run.log() != undisturbed.log():
        for mine, theirs in zip(run.log(), undisturbed.log()):
            if mine != theirs:
                fail(f"the log has {mine}, the undisturbed run's {theirs}")
        fail(f"the log has {len(run.log())} lines, not {len(undisturbed.log())}")
    check_other_curves(run.folder, "exp", run.log())


def check_the_loop_was_found(name, run, settings):
    hangs = run.events("worker_hang")
    found = [(hang["slot"], hang["phase"], hang["step"]) for hang in hangs]
    if found != [(settings["KILL_RANK"], "train", settings["LOOP_IN_STEP"])]:
        raise SystemExit(f"{name}: those that hang are said to be {found}\n{run.text()}")
    stack = hangs[0]["stack"]
    if "loop_for_ever()" not in stack and "not permitted" not in stack:
        raise SystemExit(f"{name}: the stack does not show the loop: {stack}")


def sharded_cases(ranks, arguments):
    """Deaths around the agreement that comes before each update. Two ranks hold each part: 0 and 1, or 0
    and 2, and 1 and 3; with copies each rank and the one before it, or one on another machine."""
    last = ranks - 1
    cases = {
        "before the agreement": {"KILL_BEFORE_AGREEMENT": 9, "KILL_RANK": last},
        "rank 0 before the agreement": {"KILL_BEFORE_AGREEMENT": 9, "KILL_RANK": 0},
        "after the agreement": {"KILL_AFTER_AGREEMENT": 9, "KILL_RANK": last},
        "rank 0 after the agreement": {"KILL_AFTER_AGREEMENT": 10, "KILL_RANK": 0},
    }
    if arguments.copies and arguments.machines > 1:
        return cases | machine_cases()
    if arguments.copies:
        return cases | copied_cases(ranks)
    if ranks == 4:
        cases |= {
            # Rank 0 has made the update, the holders of the other part have not.
            "with all holders of a part behind": {"KILL_AT_STEP": 10, "KILL_RANK": 2,
                                                  "HELD_IN_AGREEMENT": 9, "HELD_RANKS": "13",
                                                  "AHEAD_RANKS": "0"},
            "with those behind that hold its part": {"KILL_AT_STEP": 10, "KILL_RANK": 2,
                                                     "HELD_IN_AGREEMENT": 9, "HELD_RANKS": "0",
                                                     "AHEAD_RANKS": "13"},
            "together with a holder of another part": {"KILL_IN_STEP": 9, "KILL_RANK": 3,
                                                       "KILL_RANK_TOO": 0},
            "together with the other holder of its part": {
                "KILL_IN_STEP": 13, "KILL_RANK": 3, "KILL_RANK_TOO": 1,
                "options": ["--max-restarts", "3"]},
        }
    return cases


def copied_cases(ranks):
    """Who is behind, and who dies together, where rank r - 1 keeps a copy of the part of rank r."""
    from_snapshot = {"options": ["--max-restarts", "3"]}
    cases = {
        # A wrong bit in the last rank's part, which only the copy tells: nobody knows who is right.
        "by a flipped bit": {"FLIP_AT_STEP": 8, "VERIFY_EVERY": 4, "KILL_RANK": ranks - 1,
                             **from_snapshot},
        # The one with the copy of its part has not made the update, and rolls forward if others have.
        "with its copy behind": {"KILL_AT_STEP": 10, "KILL_RANK": 1, "HELD_IN_AGREEMENT": 9,
                                 "HELD_RANKS": "0", "AHEAD_RANKS": "" if ranks == 2 else "2"},
    }
    if ranks > 2:
        cases |= {
            "with its copy ahead": {"KILL_AT_STEP": 10, "KILL_RANK": 1, "HELD_IN_AGREEMENT": 9,
                                    "HELD_RANKS": "2", "AHEAD_RANKS": "0"},
            "together with its neighbour": {"KILL_IN_STEP": 13, "KILL_RANK": 2, "KILL_RANK_TOO": 1,
                                            **from_snapshot},
        }
    if ranks == 4:
        cases |= {
            "with all others behind": {"KILL_AT_STEP": 10, "KILL_RANK": 2, "HELD_IN_AGREEMENT": 9,
                                       "HELD_RANKS": "013"},
            "together with no neighbour": {"KILL_IN_STEP": 9, "KILL_RANK": 3, "KILL_RANK_TOO": 1},
            "together with no neighbour after the agreement": {
                "KILL_AFTER_AGREEMENT": 9, "KILL_RANK": 0, "KILL_RANK_TOO": 2},
            "together with rank 0, its neighbour": {"KILL_IN_STEP": 13, "KILL_RANK": 3,
                                                    "KILL_RANK_TOO": 0, **from_snapshot},
            # What its machine would be if there were two.
            "with all of its machine": {"KILL_IN_STEP": 13, "KILL_RANK": 3, "KILL_RANK_TOO": 2,
                                        **from_snapshot},
        }
    return cases


def machine_cases():
    """4 ranks on 2 machines: the copy of rank r's part is at rank r - 2."""
    all_of_it = {"KILL_RANK": 3, "KILL_RANK_TOO": 2}
    with_rank_0 = {"KILL_RANK": 0, "KILL_RANK_TOO": 1}
    return {
        "with all of its machine": {
            "KILL_IN_STEP": 13, **all_of_it,
            "says": r"rank 1 gave rank 3 a copy of part 1 \(\S+B\)( and part 3 \(\S+B\))?: formed"},
        "with all of rank 0's machine": {"KILL_IN_STEP": 9, **with_rank_0},
        "with all of its machine before the agreement": {"KILL_BEFORE_AGREEMENT": 9, **all_of_it},
        "with all of rank 0's machine after the agreement": {"KILL_AFTER_AGREEMENT": 9, **with_rank_0},
        "with all of its machine in the last save": {"KILL_IN_SAVE": 30, **all_of_it},
        # All are on one machine then: by itself a new process would keep the copy of the next part.
        "with all of its machine, and replaced elsewhere": {"KILL_IN_STEP": 9, "JOINS_MACHINE": "m0",
                                                            "VERIFY_EVERY": 4, **all_of_it},
        # The one with the copy of its part has not made the update.
        "with its copy behind": {"KILL_AT_STEP": 10, "KILL_RANK": 1, "HELD_IN_AGREEMENT": 9,
                                 "HELD_RANKS": "3", "AHEAD_RANKS": "02"},
        "together with who keeps its copy": {"KILL_IN_STEP": 13, "KILL_RANK": 3, "KILL_RANK_TOO": 1,
                                             "options": ["--max-restarts", "3"]},
    }


def recorded_cases(ranks):
    """The first three steps are not recorded."""
    from_snapshot = {"BACKGROUND": 0, "options": ["--max-restarts", "1"]}
    return {
        "in a recorded step": {"KILL_IN_STEP": 13, "KILL_RANK": ranks - 1, **from_snapshot},
        "rank 0 after a recorded step": {"KILL_AT_STEP": 11, "KILL_RANK": 0, **from_snapshot},
    }


def sign_of_a_snapshot(settings, arguments):
    """What is said where ranks go on from a snapshot, and not in other runs."""
    if arguments.recorded:
        return "lockstep: goes on from step "
    return "are not the same on" if "FLIP_AT_STEP" in settings else "is lost with them"


def check_who_has_the_part(name, run):
    line = "its part is also on 1 other rank(s), as rank 0's"
    if run.arguments.copies:
        apart, distance = run.arguments.machines > 1, run.ranks // run.arguments.machines
        line = (f"a copy of its part is on another {'machine' if apart else 'rank'}, "
                f"as rank 0's is on rank {run.ranks - (distance if apart else 1)}\n")
    if "a rank that dies is replaced in place: " + line not in run.text():
        raise SystemExit(f"{name}: nobody says whether a rank can be replaced\n{run.text()}")


def phases(arguments, ranks, folder):
    """One death at each point of a run at which something else is under way."""
    edge, steps = STEPS_PER_EPOCH[ranks], 30
    last = ranks - 1
    cases = {
        "after a commit": {"KILL_AT_STEP": 6, "KILL_RANK": last},
        "rank 0 after a commit": {"KILL_AT_STEP": 7, "KILL_RANK": 0},
        "in a step": {"KILL_IN_STEP": 9, "KILL_RANK": last},
        "rank 0 in a step": {"KILL_IN_STEP": 10, "KILL_RANK": 0},
        "in the first step": {"KILL_IN_STEP": 0, "KILL_RANK": last},
        "at an epoch's edge": {"KILL_AT_STEP": edge, "KILL_RANK": last},
        "after an epoch": {"KILL_AT_EPOCH": 0, "KILL_RANK": 0},
        "in an evaluation": {"KILL_IN_EVALUATION": edge, "KILL_RANK": last},
        "rank 0 in an evaluation": {"KILL_IN_EVALUATION": edge, "KILL_RANK": 0},
        "in a save": {"KILL_IN_SAVE": 8, "KILL_RANK": 0},
        "in the save of the best": {"KILL_IN_SAVE": edge, "KILL_RANK": last},
        "rank 0 in the save of the best": {"KILL_IN_SAVE": edge, "KILL_RANK": 0},
        "in the last save": {"KILL_IN_SAVE": steps, "KILL_RANK": 0},
        "after the last step": {"KILL_AT_STEP": steps, "KILL_RANK": last},
        "the replacement, too": {"KILL_AT_STEP": 6, "KILL_RANK": last, "KILL_JOINING_MS": 0},
        # Slow enough that the run is far from its end then.
        "the replacement a moment later": {"KILL_AT_STEP": 6, "KILL_RANK": 0, "SLOW_MS": 60,
                                           "KILL_JOINING_MS": 700},
        "and stopped in a step": {"KILL_IN_STEP": 9, "KILL_RANK": last, "hang_timeout": 3,
                                  "KILL_SIGNAL": int(signal.SIGSTOP)},
        "in an endless loop": {"LOOP_IN_STEP": 9, "KILL_RANK": last, "hang_timeout": 3},
        "rank 0 in an endless loop": {"LOOP_IN_STEP": 10, "KILL_RANK": 0, "hang_timeout": 3},
    }
    if arguments.recorded:
        cases = recorded_cases(ranks)
    elif arguments.shard:
        cases |= sharded_cases(ranks, arguments)
    elif ranks > 2:
        cases |= {
            "together with rank 0 in a step": {"KILL_IN_STEP": 11, "KILL_RANK": last,
                                               "KILL_RANK_TOO": 0},
            "by a flipped bit": {"FLIP_AT_STEP": 8, "VERIFY_EVERY": 4, "KILL_RANK": last},
            "by a flipped bit on rank 0": {"FLIP_AT_STEP": 8, "VERIFY_EVERY": 4, "KILL_RANK": 0},
        }
    if arguments.spares:  # late enough that one has loaded the program
        cases |= {"when a spare waits": {"KILL_AT_STEP": 20, "KILL_RANK": last, "SLOW_MS": 60}}
    cases = test_script.chosen(cases, arguments)
    undisturbed = Run(arguments, folder / f"{ranks}_undisturbed", ranks, steps).finish()
    for where, settings in cases.items():
        name = f"{ranks} ranks, killed {where}"
        run = Run(arguments, folder / name.replace(" ", "_"), ranks, steps, **settings).finish()
        if not (run.folder / "killed").exists():
            raise SystemExit(f"{name}: nobody was killed")
        if "KILL_JOINING_MS" in settings and not (run.folder / "killed_joining").exists():
            raise SystemExit(f"{name}: the replacement was not killed")
        if "KILL_RANK_TOO" in settings and not (run.folder / "killed_too").exists():
            raise SystemExit(f"{name}: only one was killed")
        for mark, key in (("held", "HELD_RANKS"), ("ahead", "AHEAD_RANKS")):
            for rank in settings.get(key, ""):
                if not (run.folder / f"killed_{mark}_{rank}").exists():
                    raise SystemExit(f"{name}: rank {rank} was not {mark}")
        if arguments.shard:
            check_who_has_the_part(name, run)
        if "options" in settings:
            if sign_of_a_snapshot(settings, arguments) not in run.text():
                raise SystemExit(f"{name}: nobody says why it cannot go on in place\n{run.text()}")
            compare(name, run, undisturbed)
            print(f"{name}: equal, from the newest snapshot", flush=True)
            continue
        if not run.recoveries():
            raise SystemExit(f"{name}: the launcher says nothing of a recovery\n{run.text()}")
        if "FLIP_AT_STEP" in settings and (
                f"step 8: the state of rank {settings['KILL_RANK']} is not" not in run.text()):
            raise SystemExit(f"{name}: nobody says whose state it was\n{run.text()}")
        if "LOOP_IN_STEP" in settings:
            check_the_loop_was_found(name, run, settings)
        if "NAN_IN_STEP" in os.environ and "the step is skipped" not in run.text():
            raise SystemExit(f"{name}: no step was skipped\n{run.text()}")
        if "says" in settings and not re.search(settings["says"], run.text()):
            raise SystemExit(f"{name}: nobody says '{settings['says']}'\n{run.text()}")
        compare(name, run, undisturbed)
        print(f"{name}: equal, {run.recoveries()[0][1]} s, {run.spares_used()} by spares", flush=True)


def choose_victims(rng, ranks, arguments):
    """One rank, or sometimes two; where parts are copied not two of which one has the other's copy."""
    if ranks < (4 if arguments.copies else 3) or rng.random() >= 0.2:
        return [rng.randrange(ranks)]
    if arguments.copies:
        distance = ranks // arguments.machines if arguments.machines > 1 else 1
        first = rng.randrange(ranks)
        return [first, rng.choice([other for other in range(ranks) if other != first
                                   and (other - first) % ranks not in (distance, ranks - distance)])]
    return rng.sample(range(ranks), 2)


def random_kills(arguments, ranks, folder, kills, seed):
    """Kills from outside, at any moment, of any rank, sometimes of two at once; and now and then a
    rank is not killed but stopped, so that it hangs."""
    rng = random.Random(seed)
    between = arguments.steps_between
    steps = between * (kills + 1)
    settings = {"MODEL": arguments.model, "SLOW_MS": arguments.slow_ms}
    undisturbed = Run(arguments, folder / "undisturbed", ranks, steps, **settings).finish()
    # A neighbour may die before a replacement has its part and its copy.
    options = ["--max-restarts", str(kills)] if arguments.copies else []
    all_killed = folder / "all_killed"  # without it the run waits for the last kill before its end
    run = Run(arguments, folder / "killed_at_random", ranks, steps, hang_timeout=3, options=options,
              SLOW_UNTIL=all_killed, HELD_AT_STEP=steps - 5, **settings).start()
    done, hangs, deadline = 0, 0, time.monotonic() + LIMIT
    try:
        while done < kills and run.process.poll() is None and time.monotonic() < deadline:
            # The log also has lines of evaluations; where exactly a kill falls is left to chance.
            if run.lines() < (done + 1) * between:
                time.sleep(0.005)
                continue
            time.sleep(rng.random() * 0.05)
            victims = choose_victims(rng, ranks, arguments)
            how = signal.SIGSTOP if rng.random() < arguments.hangs else signal.SIGKILL
            hangs += how == signal.SIGSTOP
            known = {rank: run.process_id(rank) for rank in victims}
            for rank in victims:
                try:
                    os.kill(known[rank], how)
                except (ProcessLookupError, TypeError):
                    pass
            done += 1
            if done == kills:
                all_killed.touch()
            limit = time.monotonic() + 30
            while time.monotonic() < limit and run.process.poll() is None and any(
                    run.process_id(rank) == known[rank] for rank in victims):
                time.sleep(0.005)
    except BaseException:
        os.killpg(run.process.pid, signal.SIGKILL)
        raise
    code = run.end()
    name = f"{ranks} ranks, {arguments.model}, seed {seed}, {done} random kills, {hangs} of them hangs"
    if code != 0 or done < kills:
        raise SystemExit(f"{name}: exit code {code}\n{run.text()}")
    compare(name, run, undisturbed)
    times = sorted(float(seconds) for _, seconds in run.recoveries())
    if not times:
        raise SystemExit(f"{name}: the launcher says nothing of a recovery\n{run.text()}")
    if arguments.spares and kills >= 10 and run.spares_used() == 0:  # a few may find none ready
        raise SystemExit(f"{name}: no spare took a place\n{run.text()}")
    print(f"{name}: equal; {len(times)} recoveries, median {times[len(times) // 2]} s, "
          f"longest {times[-1]} s; {run.spares_used()} by spares", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lockstep")
    parser.add_argument("job")
    parser.add_argument("what", choices=["phases", "random"])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    test_script.add_choice(parser)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--hangs", type=float, default=0, help="the share of victims that hang")
    parser.add_argument("--model", default="net")
    parser.add_argument("--steps-between", type=int, default=20)
    parser.add_argument("--slow-ms", type=int, default=2)
    parser.add_argument("--spares", type=int, default=0)
    parser.add_argument("--recorded", action="store_true", help="steps are rehearsed as CUDA graphs")
    parser.add_argument("--shard", type=int, default=0, help="the stage")
    parser.add_argument("--replicas", type=int, default=2, help="with --shard")
    parser.add_argument("--copies", action="store_true",
                        help="with --shard: copies of parts at other ranks instead")
    parser.add_argument("--machines", type=int, default=1,
                        help="with --shard: so many, each with as many ranks")
    arguments = parser.parse_args()
    arguments.lockstep, arguments.job = map(os.path.abspath, (arguments.lockstep, arguments.job))
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="lockstep_recovery_") as folder:
        for ranks in arguments.ranks:
            if arguments.what == "phases":
                phases(arguments, ranks, pathlib.Path(folder))
            else:
                place = pathlib.Path(folder) / f"{ranks}"
                place.mkdir()
                random_kills(arguments, ranks, place, arguments.kills, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
