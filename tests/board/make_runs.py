"""Run directories as jobs leave them, for tests and benchmarks of the board.

make_runs.py DIR STEPS RANKS writes one large run to DIR/large.
"""

import json
import math
import pathlib
import random
import sys

START = 1_790_000_000.0
STEP_SECONDS = 0.25
HOSTILE = "<img src=x onerror=alert(1)>"
HOSTILE_METRIC = "<script>alert(2)</script>"


def metric_line(step, rank, rng, scale=1.0, slow=1.0, more=None):
    """A line as train_llm writes it."""
    loss = scale * (1.6 + 9 * math.exp(-step / 300) + 4 / (1 + step / 40)) + rng.gauss(0, 0.04)
    forward, backward = 31 * slow + rng.random(), 62 * slow + 2 * rng.random()
    total = 160 if slow > 1 else 108 + 2 * rng.random()
    values = {
        "step": step, "time": START + STEP_SECONDS * step + 0.001 * rank, "epoch": step // 1000,
        "grad_norm": 0.8 + 3 / (1 + step / 50) + 0.2 * rng.random(), "loss": loss,
        "lr": 3e-4 * min(1, step / 100) * (0.55 + 0.45 * math.cos(min(1, step / 4000) * math.pi)),
        "mem/host_gb": 1.5 + 0.01 * rng.random(), "mem/host_peak_gb": 1.52,
        "time/backward": backward, "time/data": 0.4 + rng.random(), "time/forward": forward,
        "time/reduce": max(0.5, total - forward - backward - 4), "time/total": total, "time/update": 2.2,
        "tok/s": 64_000 / slow + 800 * rng.random(), "tok/s_rank": 8000 / slow + 100 * rng.random(),
    }
    return json.dumps({**values, **(more or {})}, separators=(",", ":"))


def write_metrics(folder, rank, first, last, **options):
    path = pathlib.Path(folder) / "metrics" / f"rank_{rank}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = random.Random(rank)
    slow_from = options.pop("slow_from", None)
    with open(path, "a") as file:
        for step in range(first, last + 1):
            slow = 1.6 if slow_from is not None and step >= slow_from else 1.0
            file.write(metric_line(step, rank, rng, slow=slow, **options) + "\n")


def event(kind, time, epoch=1, slot=None, **fields):
    return json.dumps({"time": round(START + time, 3), "mono_ns": int(1e9 * time), "host": "node7",
                       "epoch": epoch, "slot": slot, "kind": kind, **fields}) + "\n"


def beginning(ranks):
    return "".join([event("job_start", 0, 0, run_id="7b79", workers=ranks),
                    event("epoch_start", 0.03, world_size=ranks, restart_count=0),
                    *(event("worker_start", 0.06, slot=rank, pid=500 + rank, local_rank=rank) for rank in range(ranks)),
                    *(event("worker_hello", 0.9, slot=rank, program="train_llm") for rank in range(ranks))])


def recovery(time, epoch, rank, step):
    reason = f"rank {rank} on node7 was ended by SIGKILL (last heard of at step {step})"
    return "".join([
        event("worker_exit", time, epoch, rank, pid=500 + rank, exit_code=0, signal=9),
        event("worker_failed", time, epoch, rank, failure={"rank": rank, "signal": 9}),
        event("note", time, epoch, text=reason + ": a replacement takes its place (1 of 100)"),
        event("revoked", time + 0.001, epoch + 1, lost=str(rank), reason=reason),
        event("epoch_start", time + 0.004, epoch + 1, world_size=2, restart_count=0),
        event("worker_start", time + 0.03, epoch + 1, rank, pid=700, local_rank=rank),
        event("worker_hello", time + 0.42, epoch + 1, rank, program="train_llm"),
        event("recovers", time + 0.61, epoch + 1, rank, step=step, able=True),
        event("recovered", time + 0.68, epoch + 1, step=step, ms_since_loss=680.4)])


def write_records(folder, config, steps, ended=True):
    path = pathlib.Path(folder) / "records" / "rank_0.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = random.Random(5)
    with open(path, "w") as file:
        def put(kind, at, **fields):
            file.write(json.dumps({"kind": kind, "time": START + STEP_SECONDS * at, **fields}) + "\n")
        put("start", 0, step=0, lines=0, config=config)
        for step in range(40, steps + 1, 40):
            put("system", step, **{"cpu": 78 + 9 * rng.random(), "proc.cpu": 96 + 3 * rng.random(), "load": 2 + rng.random(),
                                   "memory_percent": 41 + rng.random(), "proc.memory.rssMB": 1500 + step / 10,
                                   "network.recv_MBps": 9 * rng.random(), "network.sent_MBps": 9 * rng.random(),
                                   "gpu.0.gpu": 91 + 6 * rng.random(), "gpu.0.powerWatts": 520 + 60 * rng.random(),
                                   "gpu.0.temp": 61 + 3 * rng.random()})
        for step in range(200, steps + 1, 200):
            put("text", step, step=step, name="sample", text=f"### Instruction:\nreverse\n### Input:\nabcd\n### Response:\ndcba (at step {step})")
        if ended:
            put("end", steps, succeeded=True)


def write_logs(folder, rank, lines):
    path = pathlib.Path(folder) / "logs" / "attempt_1" / str(rank) / "stderr.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        for number in lines:
            word = " WARNING: the loader fell behind <b>twice</b>" if number % 321 == 320 else ""
            file.write(f"[rank {rank}] step {number}: loss {1.6 + 4 / (1 + number / 40):.4f}{word}\n")


def write_snapshot(folder, step, whole=True):
    path = pathlib.Path(folder) / "snapshots" / f"step_{step}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"x" * 400_000)
    (path / "manifest.json").write_text(json.dumps(
        {"step": step, "files": {"model.safetensors": {"bytes": 400_000 if whole else 400_001}}}))


def write_all(folder):
    """Some runs of each kind."""
    folder = pathlib.Path(folder)
    for name, scale, rate in (("gpt2/base", 1.0, 3e-4), ("gpt2/wide", 0.9, 2e-4)):
        run = folder / name
        for rank in range(2):
            # Curves with nothing above zero, or nothing at all in them.
            write_metrics(run, rank, 1, 1200, scale=scale, more={"never": 0, "bad": None})
            write_logs(run, rank, range(1, 1201))
        write_records(run, {"max_steps": 1200, "lr": rate, "model": {"layers": 12, "width": 768 if scale == 1 else 1024}}, 1200)
        (run / "events.jsonl").write_text(beginning(2) + recovery(120, 1, 1, 479)
                                          + event("job_end", 301, 2, exit_code=0, reason=""))
        write_snapshot(run, 600)
        write_snapshot(run, 1200, whole=scale == 1)
        (run / "snapshots" / "latest").symlink_to("step_1200")
    with open(folder / "gpt2" / "wide" / "events.jsonl", "a") as file:
        file.write(event("node_joined", 0.01, 0, node="node7", address="10.0.0.7", workers=1)
                   + event("node_lost", 40, 1, node="node8", address="10.0.0.8", workers=1, reason="nothing was heard of it for 15 s"))
    run = folder / "ranks64"
    for rank in range(64):
        write_metrics(run, rank, 1, 400, slow_from=200 if rank == 37 else None)
    (run / "events.jsonl").write_text(beginning(64) + event("straggler", 70, slot=37, text="rank 37 is slow: 1.6 x the others")
                                      + event("job_end", 101, exit_code=1, reason="rank 3 on node7 failed (exit code 1)"))
    run = folder / HOSTILE
    write_metrics(run, 0, 1, 50, more={HOSTILE_METRIC: 3})
    (run / "events.jsonl").write_text(event("job_start", 0, 0, workers=1) + event(HOSTILE_METRIC, 1, text=HOSTILE)
                                      + event("job_end", 20, exit_code=1, reason=HOSTILE))
    write_records(run, {HOSTILE: HOSTILE, "max_steps": 50}, 200)
    path = run / "logs" / "attempt_1" / "0" / "stderr.log"
    path.parent.mkdir(parents=True)
    path.write_text(HOSTILE + "\n" + HOSTILE_METRIC + "\n")


def write_large(folder, steps, ranks):
    """Lines are made once and used for all ranks: what differs between ranks is rank 7's speed."""
    run = pathlib.Path(folder) / "large"
    (run / "metrics").mkdir(parents=True)
    write_metrics(run, 0, 1, steps)
    write_metrics(run, 7, 1, steps, slow_from=steps // 2)
    text = (run / "metrics" / "rank_0.jsonl").read_bytes()
    for rank in range(ranks):
        path = run / "metrics" / f"rank_{rank}.jsonl"
        if not path.exists():
            path.write_bytes(text)
    (run / "events.jsonl").write_text(beginning(ranks) + recovery(500, 1, 1, 2000) + event("job_end", STEP_SECONDS * steps, 2, exit_code=0, reason=""))
    write_records(run, {"max_steps": steps}, steps)


if __name__ == "__main__":
    write_large(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
