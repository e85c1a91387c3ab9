"""Losses and time per step of a small GPT whose gradients travel over a slow link, by compression.

Two ranks, each in a network namespace of its own. The link is limited in both directions by tc's token
bucket; what it carries is counted at the sender. The curves are those of one run each, from the same
weights and with the same samples; the time of a step is the median over the run, the first steps left out.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE.parent.parent / "tests" / "launch")]

from network import Network  # noqa: E402
from report import Report  # noqa: E402

LIMIT = 900  # seconds that a run may take
SETTLED = 20  # steps before which none is timed, and after which PowerSGD begins


def limit_rate(network, node, rate):
    for place in (network.namespace(node), network.switch):
        device = "eth0" if place != network.switch else f"port{node}"
        subprocess.run(["ip", "netns", "exec", place, "tc", "qdisc", "add", "dev", device, "root",
                        "tbf", "rate", rate, "burst", "128kb", "latency", "400ms"], check=True)


def sent_bytes(network, node):
    path = "/sys/class/net/eth0/statistics/tx_bytes"
    return int(subprocess.run(network.command(node, "cat", path), check=True, capture_output=True,
                              text=True).stdout)


class Training:
    """A job on both machines."""

    def __init__(self, args, network, folder, compress):
        self.args, self.network = args, network
        self.folder = folder / compress.replace(":", "_")
        self.folder.mkdir()
        self.compress = compress

    def command(self, node):
        return self.network.command(
            node, self.args.lockstep, "run", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend",
            "c10d", "--rdzv-endpoint", f"{self.network.address(1)}:29400", "--rdzv-id", "bench",
            "--insecure", "--quiet", self.args.train_llm, "--save-dir", str(self.folder),
            "--experiment-name", "gpt", "--model", "tiny", "--n-layer", "4", "--n-embd", "128", "--n-head",
            "4", "--seq-length", "64", "--batch-size", "4", "--dtype", "fp32", "--lr", "1e-3", "--schedule",
            "linear", "--schedule-steps", "0", "--warmup", "10", "--grad-clip", "1", "--max-steps",
            str(self.args.steps), "--log-freq", "1", "--ckpt-freq", "1000000", "--samples", "0",
            "--num-workers", "0", "--no-progress", "--compress", self.compress, "--cache-dir",
            str(self.folder.parent / "cache"))

    def run(self):
        # Without this, gradients would go through memory, which the namespaces share.
        environment = dict(os.environ, OMP_NUM_THREADS="1", LOCKSTEP_SHM="0")
        before = sent_bytes(self.network, 2)
        launchers, logs = [], [self.folder / f"log_{node}" for node in (1, 2)]
        for node, log in zip((1, 2), logs):
            with open(log, "w") as output:
                launchers.append(subprocess.Popen(self.command(node), env=environment, stdout=output,
                                                  stderr=subprocess.STDOUT, start_new_session=True))
        try:
            codes = [launcher.wait(timeout=LIMIT) for launcher in launchers]
        except subprocess.TimeoutExpired:
            codes = ["time-out"]
        finally:
            for launcher in launchers:
                if launcher.poll() is None:
                    os.killpg(launcher.pid, 9)
                    launcher.wait()
        if any(codes):
            words = "\n".join(log.read_text(errors="replace")[-3000:] for log in logs)
            sys.exit(f"{self.compress}: exit codes {codes}\n{words}")
        self.bytes = (sent_bytes(self.network, 2) - before) / self.args.steps
        lines = (self.folder / "gpt" / "metrics" / "rank_0.jsonl").read_text().splitlines()
        steps = [line for line in map(json.loads, lines) if "time/total" in line]
        self.losses = {line["step"]: line["loss"] for line in steps}
        self.ms = statistics.median(line["time/total"] for line in steps if line["step"] > SETTLED)
        return self

    def loss_at(self, step):
        """The mean of the last ten, because each step has other samples."""
        return statistics.mean(self.losses[s] for s in range(step - 9, step + 1))


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lockstep", required=True)
    parser.add_argument("--train-llm", required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rate", default="100mbit", help="of the link, as tc takes it")
    parser.add_argument("--compress", nargs="+",
                        default=["none", "bf16", "fp16", "int8", f"powersgd:2:{SETTLED}",
                                 f"powersgd:8:{SETTLED}"])
    parser.add_argument("--save", help="folder for the result")
    parser.add_argument("--check", action="store_true", help="fail when a goal is missed")
    args = parser.parse_args()
    args.lockstep, args.train_llm = map(os.path.abspath, (args.lockstep, args.train_llm))
    return args


def main():
    args = parse()
    if not Network.possible() or shutil.which("tc") is None:
        sys.exit("compress: network namespaces need root, iproute2 and tc")
    report = Report("compress", "Compressed gradients over a slow link")
    network = Network(2)
    try:
        for node in (1, 2):
            limit_rate(network, node, args.rate)
        with tempfile.TemporaryDirectory(prefix="lockstep_compress_") as folder:
            runs = [Training(args, network, pathlib.Path(folder), compress).run()
                    for compress in args.compress]
    finally:
        network.close()

    marks = [step for step in (20, 50, 100, 150, 200, 300, 400) if step <= args.steps]
    lines = ["| compression | ms a step | faster | MB sent by a rank and step | "
             + " | ".join(f"loss at {step}" for step in marks) + " |",
             "|---|---|---|---|" + "---|" * len(marks)]
    for run in runs:
        lines.append(f"| {run.compress} | {run.ms:.0f} | {runs[0].ms / run.ms:.2f} | "
                     f"{run.bytes / 1e6:.2f} | "
                     + " | ".join(f"{run.loss_at(step):.3f}" for step in marks) + " |")
        if run is not runs[0]:
            report.expect(run.ms < runs[0].ms, f"{run.compress} is slower than none")
            report.expect(run.loss_at(marks[-1]) < 1.1 * runs[0].loss_at(marks[-1]),
                          f"{run.compress}: the loss stays behind")
    notes = (f"Two ranks in two network namespaces, {args.rate} each way (tc tbf), one thread a rank. GPT of 4 layers "
             "of 128, 64 tokens, 4 blocks a rank and step, AdamW. Losses: means of ten steps, over both ranks; the bytes "
             f"include the uncompressed first {SETTLED} steps of PowerSGD, the times do not.")
    return report.end(args, f"bench/compress/run --steps {args.steps} --rate {args.rate}", lines, notes)


if __name__ == "__main__":
    sys.exit(main())
