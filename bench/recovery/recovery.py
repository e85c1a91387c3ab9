"""How long a job stands still when one of its two ranks is killed, and what it repeats: under
lockstep run, with recovery in place, and under torchrun, with a snapshot every 20 steps.

Both take turns; rank 1 is killed with SIGKILL at step 50. The time is from the kill to the first step
that is committed after it and was not before; of lockstep's, also where it went. Then what it costs to
be recoverable when nothing happens, and to compare replicas, on a small GPT.
"""

import argparse
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
from report import Report  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
KILL_AT, STEPS = 50, 120
LARGE_KILL_AT, LARGE_STEPS = 25, 35  # its steps take long
STEPS_WITH_SPARE = 4000  # it must have loaded the program by the time of the kill
GOAL_SECONDS, GOAL_WITH_SPARE = 0.5, 0.2
GOAL_COST, GOAL_COMPARING = 0.01, 0.005  # of a step
COMPARE_EVERY = 100  # Trainer's default
STAGES = ("detected", "revoked", "process started", "formed again", "state sent", "checked",
          "first step")
LIMIT = 120
PEER_LIMIT = 45  # from the kill; where torchrun comes back at all, it needs a quarter of it


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True, help="the folder of lockstep and bench/")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--width", type=int, default=512, help="of the layer; state is 12 bytes "
                        "times its square")
    parser.add_argument("--large", type=int, default=6400, help="the width of the large job; 0: none")
    parser.add_argument("--cost-rounds", type=int, default=5)
    parser.add_argument("--save", metavar="FOLDER", help="also write a report there")
    parser.add_argument("--check", action="store_true", help="fail if a goal is missed")
    return parser.parse_args()


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


def measure_costs(ours, options, report):
    """What a step takes with and without recovery, and with a comparison after every step."""
    kinds = {"restart": ["--recovery", "restart"], "in-place": []}
    times = {name: [] for name in [*kinds, "compared"]}
    for _ in range(options.cost_rounds):
        for name, flags in kinds.items():
            times[name].append(step_seconds([*ours[:2], *flags, *ours[2:]]))
        times["compared"].append(step_seconds(ours, "1"))
    step, with_recovery, compared = (min(times[name]) for name in times)
    cost = with_recovery / step - 1
    comparing = (compared - with_recovery) / COMPARE_EVERY / step
    report.expect(cost <= GOAL_COST, f"being recoverable costs {cost:.2%}, wanted at most 1 %")
    report.expect(comparing <= GOAL_COMPARING,
                  f"comparing replicas costs {comparing:.2%}, wanted at most 0.5 %")
    return ["", f"A step of a small GPT: {step * 1e3:.1f} ms with --recovery restart, "
            f"{with_recovery * 1e3:.1f} ms with recovery in place ({cost:+.2%}); comparing replicas "
            f"takes {(compared - with_recovery) * 1e3:.2f} ms, every {COMPARE_EVERY} steps "
            f"{comparing:.3%} of the time (the best of {options.cost_rounds} medians each)."]


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


def measure(command, width, spare=False, large=False):
    """Returns seconds to the first new step, steps repeated, the console, and the stages if it is
    lockstep's; None where the job never comes back."""
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


def main():
    options = parse()
    ours = [f"{options.bin}/lockstep", "run", "--nproc-per-node", "2",
            f"{options.bin}/bench/recovery_job"]
    peer = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
            "--max-restarts", "3", str(HERE / "recovery_peer.py")]
    report = Report("recovery", "A killed rank")
    rows = ["| job | lockstep s | repeated | torchrun s | repeated | ratio |",
            "|---|---|---|---|---|---|"]
    where = []
    widths = [options.width] + ([options.large] if options.large else [])
    for width in widths:
        mine, theirs = [], []
        for _ in range(options.rounds):
            large = width != options.width
            mine.append(measure(ours, width, large=large))
            theirs.append(measure(peer, width, large=large))
        lost = [sum(run is None for run in runs) for runs in (mine, theirs)]
        mine = [run for run in mine if run]
        theirs = [run for run in theirs if run]
        report.expect(lost[0] == 0, f"width {width}: {lost[0]} runs of lockstep never came back")
        if not mine:
            continue
        seconds = statistics.median(run[0] for run in mine)
        repeated = max(run[1] for run in mine)
        report.expect(repeated == 0, f"width {width}: {repeated} steps repeated, wanted 0")
        if width == options.width:
            report.expect(seconds <= GOAL_SECONDS,
                          f"{seconds:.2f} s, wanted at most {GOAL_SECONDS}")
        peer_text = "never", "", ""
        if theirs:
            other = statistics.median(run[0] for run in theirs)
            peer_text = (f"{other:.2f}" + (f" ({lost[1]} never)" if lost[1] else ""),
                         f"{max(run[1] for run in theirs)}", f"{other / seconds:.1f}")
        state = 12 * (width * width + 2 * width + 1) / 1e6
        rows.append(f"| {state:.0f} MB of state | {seconds:.2f} | {repeated} | "
                    f"{peer_text[0]} | {peer_text[1]} | {peer_text[2]} |")
        parts = [statistics.median(run[2][i] for run in mine) for i in range(len(STAGES))]
        where.append(f"| {state:.0f} MB | " + " | ".join(f"{part:.0f}" for part in parts) + " |")
    with_spare = [measure(ours, options.width, spare=True) for _ in range(options.rounds)]
    report.expect(all(with_spare), "a run with a spare never came back")
    if all(with_spare):
        seconds = statistics.median(run[0] for run in with_spare)
        report.expect(seconds <= GOAL_WITH_SPARE,
                      f"{seconds:.2f} s with a spare, wanted at most {GOAL_WITH_SPARE}")
        rows.append(f"| with a spare | {seconds:.2f} | {max(run[1] for run in with_spare)} | | | |")
    rows += ["", "Where lockstep's time goes, ms:", "", "| state | " + " | ".join(STAGES) + " |",
             "|---" * (len(STAGES) + 1) + "|", *where]
    rows += measure_costs(ours, options, report)
    return report.end(options, "bench/recovery/run", rows,
                      "Two ranks; rank 1 killed with SIGKILL at step 50, in the large job at step "
                      "25; medians.")


sys.exit(main())
