"""How long a job stands still when one of its two ranks is killed, and what it repeats: under lockstep run,
with recovery in place, and under torchrun, with a snapshot every 20 steps.

Rank 1 is killed with SIGKILL at step 50 (in the large job at step 25). The time is from the kill to the first
step that is committed after it and was not before; of lockstep's, also where it went. Then what it costs to be
recoverable when nothing happens, and to compare replicas, on a small GPT.
"""

import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from suite import Bench, Metric, Pair  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
KILL_AT, STEPS = 50, 120
LARGE_KILL_AT, LARGE_STEPS = 25, 35  # its steps take long
STEPS_WITH_SPARE = 4000  # it must have loaded the program by the time of the kill
COMPARE_EVERY = 100  # Trainer's default
STAGES = ("detected", "revoked", "process started", "formed again", "state sent", "checked", "first step")
LIMIT = 120
PEER_LIMIT = 45  # from the kill; where torchrun comes back at all, it needs a quarter of it


def notes(folder):
    """Step and time of every commit, of both ranks."""
    found = []
    for rank in (0, 1):
        path = folder / f"steps_{rank}"
        if path.exists():
            lines = path.read_text().splitlines(keepends=True)
            found += [(int(line.split()[0]), float(line.split()[1])) for line in lines
                      if line.endswith("\n")]
    return found


def stages(folder, killed, first_step):
    """Milliseconds of each stage, from the launcher's events and the words of who gave its state."""
    events = {}
    for line in (folder / "run" / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["kind"] == "worker_exit" and event["signal"] or event["kind"] in (
                "revoked", "recovered") or event["kind"] == "worker_hello" and event["epoch"] > 1:
            events.setdefault(event["kind"], event["mono_ns"] / 1e9)
    said = re.search(r"sent in (\d+) ms, checked in (\d+) ms", (folder / "console").read_text())
    sent, checked = (int(text) / 1e3 for text in said.groups())
    times = [killed, events["worker_exit"], events["revoked"], events["worker_hello"],
             events["recovered"] - sent - checked, events["recovered"] - checked,
             events["recovered"], first_step]
    return [1e3 * (after - before) for before, after in zip(times, times[1:])]


def step_seconds(command, verify_every="0"):
    """The median time of a step of the small GPT in which nothing happens."""
    with tempfile.TemporaryDirectory(prefix="lockstep_bench_") as name:
        subprocess.run([*command, "80", "0", name, verify_every], check=True, timeout=LIMIT,
                       env=dict(os.environ, OMP_NUM_THREADS="1"), capture_output=True)
        when = [float(line.split()[1]) for line in
                (pathlib.Path(name) / "steps_0").read_text().splitlines()][20:]
        return statistics.median(after - before for before, after in zip(when, when[1:]))


def spare_is_ready(folder):
    try:
        return '"spare_ready"' in (folder / "run" / "events.jsonl").read_text()
    except FileNotFoundError:
        return False


def kill_workers(folder):
    """Those of a torchrun that has ended may live on."""
    for path in folder.glob("pid_*"):
        try:
            os.kill(int(path.read_text()), signal.SIGKILL)
        except ProcessLookupError:
            pass


def stand_still(command, width, spare=False, large=False):
    """Returns seconds to the first new step, steps repeated, and the stages if it is lockstep's; None where the
    job never comes back."""
    with tempfile.TemporaryDirectory(prefix="lockstep_bench_") as name:
        folder = pathlib.Path(name)
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        console = open(folder / "console", "w")
        is_ours = command[1] == "run"
        if is_ours:
            command = [*command[:2], "--run-dir", str(folder / "run"),
                       *(["--spares", "1"] if spare else []), *command[2:]]
        steps = STEPS_WITH_SPARE if spare else LARGE_STEPS if large else STEPS
        kill_at = LARGE_KILL_AT if large else KILL_AT
        process = subprocess.Popen([*command, str(steps), str(width), name], env=environment,
                                   stdout=console, stderr=console, start_new_session=True)
        try:
            limit = time.monotonic() + LIMIT
            while not (any(step >= kill_at for step, _ in notes(folder))
                       and (not spare or spare_is_ready(folder))):
                if time.monotonic() > limit or process.poll() is not None:
                    raise SystemExit((folder / "console").read_text())
                time.sleep(0.002)
            victim = int((folder / "pid_1").read_text())
            killed = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            process.wait(timeout=LIMIT if is_ours else PEER_LIMIT)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            kill_workers(folder)
            console.close()
        all_notes = notes(folder)
        # What a rank had begun when the other died may still be committed.
        before = max(step for step, when in all_notes if when <= killed + 0.002)
        after = [(when, step) for step, when in all_notes if step > before]
        if not after or process.returncode != 0:
            return None
        rank_0 = [int(line.split()[0]) for line in (folder / "steps_0").read_text().splitlines()]
        repeated = len(rank_0) - len(set(rank_0))
        first = min(after)[0]
        where = stages(folder, killed, first) if is_ours and not spare else None
        return first - killed, repeated, where


def add(found, key, ours, peer):
    """The time and the steps repeated; a run that never came back has none."""
    found[key] = Pair(ours and ours[0], peer and peer[0])
    found[f"{key}_repeated"] = Pair(ours and ours[1], peer and peer[1])


def costs(ours):
    """What a step takes with recovery in place over one without, and comparing replicas, in percent."""
    plain = step_seconds([*ours[:2], "--recovery", "restart", *ours[2:]])
    recoverable, compared = step_seconds(ours), step_seconds(ours, "1")
    return {"cost": 100 * (recoverable / plain - 1),
            "comparing": 100 * (compared - recoverable) / COMPARE_EVERY / plain}


def measure(run):
    ours = [run.program("lockstep"), "run", "--nproc-per-node", "2", run.program("bench/recovery_job")]
    peer = [run.python, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "3",
            str(HERE / "recovery_peer.py")]
    found, where = {}, []
    for key, width in (("small", run.width), ("large", run.large)):
        if width == 0:
            continue
        large = key == "large"
        pair = run.in_turn(lambda: stand_still(ours, width, large=large), lambda: stand_still(peer, width, large=large))
        add(found, key, pair.ours, pair.peer)
        if pair.ours:
            state = 12 * (width * width + 2 * width + 1) / 1e6
            where.append(f"| {state:.0f} MB | " + " | ".join(f"{part:.0f}" for part in pair.ours[2]) + " |")
    spare = stand_still(ours, run.width, spare=True)
    found["spare"] = Pair(spare and spare[0])
    if run.costs:
        found |= costs(ours)
    run.details = ["Where lockstep's time goes, ms (last repetition):", "", "| state | " + " | ".join(STAGES) + " |",
                   "|---" * (len(STAGES) + 1) + "|", *where]
    return found


BENCH = Bench(
    name="recovery", title="A killed rank", peer="torchrun", measure=measure,
    metrics=(Metric("small", "3 MB of state: from the kill to the first new step", "s", goal=0.5),
             Metric("small_repeated", "steps repeated", "", goal=0),
             Metric("large", "490 MB of state: from the kill to the first new step", "s"),
             Metric("large_repeated", "steps repeated", "", goal=0),
             Metric("spare", "3 MB of state, with a warm spare", "s", goal=0.2),
             Metric("cost", "a step's time for being recoverable", "%", goal=1, best=True),
             Metric("comparing", f"a step's time for comparing replicas every {COMPARE_EVERY} steps", "%", goal=0.5, best=True)),
    options={"width": 512, "large": 6400, "costs": 1}, quick={"large": 0, "costs": 0},
    programs=("lockstep", "bench/recovery_job"), modules=("torch",),
    notes="Two ranks, one thread each. Where torchrun has fewer values, its job never came back in the others.")
