"""How long a job stands still when one of its two ranks is killed, and what it repeats: under
lockstep run, with recovery in place, and under torchrun, with a snapshot every 20 steps.

Both take turns; rank 1 is killed with SIGKILL at step 50. The time is from the kill to the first step
that is committed after it and was not before.
"""

import argparse
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
GOAL_SECONDS = 0.5
LIMIT = 120


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True, help="the folder of lockstep and bench/")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--width", type=int, default=512, help="of the layer; state is 12 bytes "
                        "times its square")
    parser.add_argument("--large", type=int, default=6400, help="the width of the large job; 0: none")
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


def measure(command, width):
    """Returns seconds to the first new step, steps repeated, and the console; None where the job
    never comes back."""
    with tempfile.TemporaryDirectory(prefix="lockstep_bench_") as name:
        folder = pathlib.Path(name)
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        console = open(folder / "console", "w")
        process = subprocess.Popen([*command, str(STEPS), str(width), name], env=environment,
                                   stdout=console, stderr=console, start_new_session=True)
        try:
            limit = time.monotonic() + LIMIT
            while not any(step >= KILL_AT for step, _ in notes(folder)):
                if time.monotonic() > limit or process.poll() is not None:
                    raise SystemExit((folder / "console").read_text())
                time.sleep(0.002)
            victim = int((folder / "pid_1").read_text())
            killed = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            process.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            console.close()
        all_notes = notes(folder)
        # What a rank had begun when the other died may still be committed.
        before = max(step for step, when in all_notes if when <= killed + 0.002)
        after = [(when, step) for step, when in all_notes if step > before]
        if not after or process.returncode != 0:
            return None
        rank_0 = [int(line.split()[0]) for line in (folder / "steps_0").read_text().splitlines()]
        repeated = len(rank_0) - len(set(rank_0))
        return min(after)[0] - killed, repeated, (folder / "console").read_text()


def main():
    options = parse()
    ours = [f"{options.bin}/lockstep", "run", "--nproc-per-node", "2",
            f"{options.bin}/bench/recovery_job"]
    peer = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
            "--max-restarts", "3", str(HERE / "recovery_peer.py")]
    report = Report("recovery", "A killed rank")
    rows = ["| job | lockstep s | repeated | torchrun s | repeated | ratio |",
            "|---|---|---|---|---|---|"]
    widths = [options.width] + ([options.large] if options.large else [])
    for width in widths:
        mine, theirs = [], []
        for _ in range(options.rounds):
            mine.append(measure(ours, width))
            theirs.append(measure(peer, width))
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
        for line in re.findall(r"lockstep: .*(?:go on|replacement).*", mine[-1][2]):
            rows.append(f"    {line}")
    return report.end(options, "bench/recovery/run", rows,
                      "Two ranks; rank 1 killed with SIGKILL at step 50; medians.")


sys.exit(main())
