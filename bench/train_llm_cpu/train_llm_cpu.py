"""Tokens per second of training a GPT-2 on two ranks of this machine's processor, C++ against Python.

Python is what one writes there: GPT2LMHeadModel of transformers in DistributedDataParallel on Gloo, with
the fused AdamW. C++ is lockstep's Gpt2 in its Trainer. The same model, batches of the same size, float32, one
thread a rank. Rounds of both languages alternate, so that both meet the same load; each starts two ranks
anew. The best block of steps of all rounds counts: the others met more of whatever else the machine was
doing. Processor time is the median of the rounds.
"""

import argparse
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ranks import run_ranks  # noqa: E402
from report import Report  # noqa: E402

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
    output = run_ranks(command, WORLD_SIZE, ROUND_SECONDS)
    size, wall, processor = output.splitlines()[-1].split()
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


def main():
    args = parse()
    if args.python_rank:
        return python_rank(args.python_rank)
    if not args.cpp:
        sys.exit("train_llm_cpu: --cpp is needed (bench/train_llm_cpu/run gives it)")
    report = Report("train_llm_cpu", "Training a GPT-2 on the processor, C++ against Python")
    lines = ["| model | parameters | C++ tokens/s | Python tokens/s | C++ / Python | goal "
             "| processor us a token, C++ | Python | Python / C++ |", "|---|---|---|---|---|---|---|---|---|"]
    for name in MODELS:
        if args.only and not name.startswith(args.only):
            continue
        row, ratio = measure(name, args)
        lines.append(row)
        report.expect(ratio >= GOAL, f"{name}: {ratio:.2f}, the goal is {GOAL:g}")
    only = f" --only '{args.only}'" if args.only else ""
    return report.end(args, f"bench/train_llm_cpu/run --rounds {args.rounds}{only}", lines, (
        f"{WORLD_SIZE} ranks, float32, one thread a rank; Python: transformers, DDP, Gloo, fused AdamW; "
        f"C++: the Trainer; best of {args.rounds} rounds of {BLOCKS} blocks; processor time of rank 0, "
        "median of the rounds."))


if __name__ == "__main__":
    sys.exit(main())
