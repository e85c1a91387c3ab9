"""Losses and time per step of a small GPT whose gradients travel over a slow link, by compression.

Two ranks, each in a network namespace of its own. The link is limited in both directions by tc's token
bucket; what it carries is counted at the sender. The curves are those of one run each, from the same
weights and with the same samples; the time of a step is the median over the run, the first steps left out.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ranks import limited_network, network_missing  # noqa: E402
from suite import Bench, Metric, Pair  # noqa: E402

LIMIT = 900  # seconds that a run may take
SETTLED = 20  # steps before which none is timed, and after which PowerSGD begins
# PowerSGD begins after a tenth of the run, as Python's documentation advises; its Q and its errors are kept
# from step to step (warm start, error feedback), which is the default here and there.
WAYS = {"fp16": "fp16", "bf16": "bf16", "int8": "int8", "powersgd2": f"powersgd:2:{SETTLED}",
        "powersgd4": f"powersgd:4:{SETTLED}", "powersgd8": f"powersgd:8:{SETTLED}"}
# Least, at 100 Mbit/s.
FASTER = {"bf16": 1.4, "fp16": 1.4, "int8": 1.6, "powersgd2": 2.0, "powersgd4": 2.0, "powersgd8": 2.0}


def sent_bytes(network, node):
    path = "/sys/class/net/eth0/statistics/tx_bytes"
    return int(subprocess.run(network.command(node, "cat", path), check=True, capture_output=True,
                              text=True).stdout)


class Training:
    """A job on both machines."""

    def __init__(self, run, network, folder, compress):
        self.options, self.network = run, network
        self.folder = folder / compress.replace(":", "_")
        self.folder.mkdir()
        self.compress = compress

    def command(self, node):
        return self.network.command(
            node, self.options.program("lockstep"), "run", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend",
            "c10d", "--rdzv-endpoint", f"{self.network.address(1)}:29400", "--rdzv-id", "bench",
            "--insecure", "--quiet", self.options.program("train_llm"), "--save-dir", str(self.folder),
            "--experiment-name", "gpt", "--model", "tiny", "--n-layer", "4", "--n-embd", "128", "--n-head",
            "4", "--seq-length", "64", "--batch-size", "4", "--dtype", "fp32", "--lr", "1e-3", "--schedule",
            "linear", "--schedule-steps", "0", "--warmup", "10", "--grad-clip", "1", "--max-steps",
            str(self.options.steps), "--log-freq", "1", "--ckpt-freq", "1000000", "--samples", "0",
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
            raise RuntimeError(f"{self.compress}: exit codes {codes}\n{words}")
        self.bytes = (sent_bytes(self.network, 2) - before) / self.options.steps
        lines = (self.folder / "gpt" / "metrics" / "rank_0.jsonl").read_text().splitlines()
        steps = [line for line in map(json.loads, lines) if "time/total" in line]
        self.losses = {line["step"]: line["loss"] for line in steps}
        self.ms = statistics.median(line["time/total"] for line in steps if line["step"] > SETTLED)
        return self

    def loss_at(self, step):
        """The mean of the last ten, because each step has other samples."""
        return statistics.mean(self.losses[s] for s in range(step - 9, step + 1))


def metrics():
    for key, compress in WAYS.items():
        yield Metric(f"ms_{key}", f"a step with {compress}", "ms", ratio_goal=FASTER[key])
        yield Metric(f"mb_{key}", f"sent by a rank and step with {compress}", "MB")
        yield Metric(f"loss_{key}", f"the loss at the end with {compress}", "")


def measure(run):
    network = limited_network(2, run.rate)
    try:
        with tempfile.TemporaryDirectory(prefix="lockstep_compress_") as folder:
            plain, *others = [Training(run, network, pathlib.Path(folder), compress).run()
                              for compress in ("none", *WAYS.values())]
    finally:
        network.close()
    marks = [step for step in (20, 50, 100, 200, 400) if step <= run.steps]
    run.details = ["| compression | ms a step | MB a step | " + " | ".join(f"loss at {step}" for step in marks) + " |",
                   "|---|---|---|" + "---|" * len(marks)]
    for each in (plain, *others):
        losses = " | ".join(f"{each.loss_at(step):.3f}" for step in marks)
        run.details.append(f"| {each.compress} | {each.ms:.0f} | {each.bytes / 1e6:.2f} | {losses} |")
    found = {}
    for key, each in zip(WAYS, others):
        found[f"ms_{key}"] = Pair(each.ms, plain.ms)
        found[f"mb_{key}"] = Pair(each.bytes / 1e6, plain.bytes / 1e6)
        found[f"loss_{key}"] = Pair(each.loss_at(marks[-1]), plain.loss_at(marks[-1]))
    return found


BENCH = Bench(
    name="compress", title="Compressed gradients over a slow link", peer="uncompressed", measure=measure, rounds=1,
    metrics=tuple(metrics()), options={"steps": 200, "rate": "100mbit"}, quick={"steps": 30},
    programs=("lockstep", "train_llm"), needs=lambda run: network_missing(),
    notes="Two ranks in two network namespaces, one thread a rank. GPT of 4 layers of 128, 64 tokens, 4 blocks a rank and step, "
          "AdamW. Losses: means of ten steps, over both ranks; the bytes include the uncompressed first "
          f"{SETTLED} steps of PowerSGD, the times do not.")
