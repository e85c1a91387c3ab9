"""Tokens per second of training a GPT-2 on two ranks of this machine's processor, C++ against Python.

Python is what one writes there: GPT2LMHeadModel of transformers in DistributedDataParallel on Gloo, with
the fused AdamW. C++ is lockstep's Gpt2 in its Trainer. The same model, batches of the same size, float32, one
thread a rank. Rounds of both languages alternate, so that both meet the same load; each starts two ranks
anew. The best block of steps of all rounds counts: the others met more of whatever else the machine was
doing. Processor time is the median of the rounds.
"""

import argparse
import datetime
import os
import platform
import socket
import statistics
import subprocess
import sys
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
WORLD_SIZE = 2
ROUND_SECONDS = 300
GOAL = 1.3  # least ratio of C++'s tokens per second to Python's
BLOCKS = 6
# width, layers, heads, vocabulary, tokens, batch, dropout, warm-up, steps of a block
MODELS = {
    "1M, T=128": (128, 4, 4, 512, 128, 8, 0, 3, 4),
    "1M, T=256": (128, 4, 4, 512, 256, 4, 0, 3, 4),
    "1M, T=128, dropout 0.1": (128, 4, 4, 512, 128, 8, 0.1, 3, 4),
    "10M, T=256": (320, 7, 5, 4096, 256, 2, 0, 2, 2),
    "10M, T=128": (320, 7, 5, 4096, 128, 4, 0, 2, 2),
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpp", help="the C++ program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", metavar="TEXT", help="models whose name begins with it")
    parser.add_argument("--save", metavar="FOLDER", help="also write a report there")
    parser.add_argument("--check", action="store_true", help="fail if a goal is missed")
    parser.add_argument("--python-rank", nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args()


def python_rank(words):
    """What train_llm_bench.cpp does, in Python."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from transformers import GPT2Config, GPT2LMHeadModel

    width, layers, heads, vocabulary, tokens, batch = map(int, words[:6])
    dropout = float(words[6])
    warm_up, blocks, steps = map(int, words[7:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=vocabulary, n_positions=tokens, n_embd=width, n_layer=layers, n_head=heads,
        embd_pdrop=dropout, attn_pdrop=dropout, resid_pdrop=dropout, bos_token_id=0, eos_token_id=0))
    ddp = DistributedDataParallel(model.train())
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-4, fused=True)
    data = torch.randint(vocabulary, (16, batch, tokens))

    def run(count):
        start = time.perf_counter()
        for step in range(count):
            ids = data[step % len(data)]
            loss = ddp(input_ids=ids, labels=ids).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return time.perf_counter() - start

    run(warm_up)
    dist.barrier()
    before = time.process_time()
    best = min(run(steps) for _ in range(blocks))
    processor = (time.process_time() - before) / blocks
    if dist.get_rank() == 0:
        print(sum(parameter.numel() for parameter in model.parameters()), best, processor, flush=True)
    dist.destroy_process_group()


def run_round(command):
    """Starts two ranks; returns (parameters, seconds of the best block, of processor time a block)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(WORLD_SIZE):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(WORLD_SIZE),
                           LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(WORLD_SIZE),
                           MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
        ranks.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        deadline = time.monotonic() + ROUND_SECONDS
        outputs = [rank.communicate(timeout=max(1, deadline - time.monotonic())) for rank in ranks]
    except subprocess.TimeoutExpired:
        sys.exit(f"train_llm_cpu: {command[0]} did not end in {ROUND_SECONDS} s")
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
    for rank, (_, errors) in zip(ranks, outputs):
        if rank.returncode != 0:
            sys.exit(f"train_llm_cpu: {' '.join(command)} ended with {rank.returncode}:\n{errors}")
    size, wall, processor = outputs[0][0].splitlines()[-1].split()
    return int(size), float(wall), float(processor)


def measure(name, args):
    """A row of the table, and the ratio."""
    *shape, warm_up, steps = MODELS[name]
    words = [str(word) for word in (*shape, warm_up, BLOCKS, steps)]
    commands = {"C++": [args.cpp, *words], "Python": [sys.executable, __file__, "--python-rank", *words]}
    results = {"C++": [], "Python": []}
    for number in range(args.rounds):
        for side, command in commands.items():
            results[side].append(run_round(command))
    if results["C++"][0][0] != results["Python"][0][0]:
        sys.exit(f"train_llm_cpu: the two sides do not train the same model for {name}")
    tokens = steps * WORLD_SIZE * MODELS[name][4] * MODELS[name][5]
    speed, processor = {}, {}
    for side, rounds in results.items():
        speed[side] = tokens / min(wall for _, wall, _ in rounds)
        processor[side] = 1e6 * statistics.median(cpu for *_, cpu in rounds) / tokens * WORLD_SIZE
    ratio = speed["C++"] / speed["Python"]
    row = (f"| {name} | {results['C++'][0][0]:,} | {speed['C++']:,.0f} | {speed['Python']:,.0f} | {ratio:.2f} "
           f"| >= {GOAL:g} | {processor['C++']:.0f} | {processor['Python']:.0f} "
           f"| {processor['Python'] / processor['C++']:.2f} |")
    print(row, flush=True)
    return row, ratio


def cpu_name():
    try:
        with open("/proc/cpuinfo") as lines:
            names = {line.split(":")[1].strip() for line in lines if line.startswith("model name")}
        return ", ".join(sorted(names))
    except OSError:
        return ""


def save(folder, args, lines):
    date = datetime.date.today().isoformat()
    path = os.path.join(folder, f"{date}-train_llm_cpu.md")
    os.makedirs(folder, exist_ok=True)
    with open(path, "w") as file:
        file.write(f"# Training a GPT-2 on the processor, C++ against Python, {date}\n\n"
                   f"`bench/train_llm_cpu/run --rounds {args.rounds}`\n\n" + "\n".join(lines) + "\n")
    print(f"written to {os.path.relpath(path, ROOT)}")


def main():
    args = parse()
    if args.python_rank:
        return python_rank(args.python_rank)
    if not args.cpp:
        sys.exit("train_llm_cpu: --cpp is needed (bench/train_llm_cpu/run gives it)")
    load = os.getloadavg()
    lines = ["| model | parameters | C++ tokens/s | Python tokens/s | C++ / Python | goal "
             "| processor us a token, C++ | Python | Python / C++ |", "|---|---|---|---|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    missed = []
    for name in MODELS:
        if args.only and not name.startswith(args.only):
            continue
        row, ratio = measure(name, args)
        lines.append(row)
        if ratio < GOAL:
            missed.append(f"{name}: {ratio:.2f}, the goal is {GOAL:g}")
    machine = f"{os.cpu_count()} cores, {platform.machine()} {cpu_name()}".strip()
    lines += ["", f"Machine: {machine}, {platform.system()} {platform.release()}; load average before "
                  f"{load[0]:.2f}, after {os.getloadavg()[0]:.2f} (the ranks are 2 of it).",
              f"{WORLD_SIZE} ranks, float32, one thread a rank; Python: transformers, DDP, Gloo, fused AdamW; "
              f"C++: the Trainer; best of {args.rounds} rounds of {BLOCKS} blocks; processor time of rank 0, "
              "median of the rounds."]
    print("\n".join(lines[-2:]))
    if args.save:
        save(args.save, args, lines)
    for miss in missed:
        print(f"goal missed: {miss}")
    return 1 if args.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
