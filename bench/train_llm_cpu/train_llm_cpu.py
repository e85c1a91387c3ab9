"""Tokens per second of training a GPT-2 on two ranks of this machine's processor, C++ against Python.

Python is what one writes there: GPT2LMHeadModel of transformers in DistributedDataParallel on Gloo, with
the fused AdamW. C++ is lockstep's Gpt2 in its Trainer. The same model, batches of the same size, float32, one
thread a rank. Each repetition starts two ranks anew. The best block of steps counts: the others met more of
whatever else the machine was doing.
"""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ranks import run_ranks  # noqa: E402
from suite import Bench, Metric, Pair  # noqa: E402

WORLD_SIZE = 2
LIMIT = 300
BLOCKS = 6
# what, width, layers, heads, vocabulary, tokens, batch, dropout, warm-up, steps of a block
MODELS = {
    "1m_128": ("1M parameters, T=128", 128, 4, 4, 512, 128, 8, 0, 3, 4),
    "1m_256": ("1M parameters, T=256", 128, 4, 4, 512, 256, 4, 0, 3, 4),
    "1m_dropout": ("1M parameters, T=128, dropout 0.1", 128, 4, 4, 512, 128, 8, 0.1, 3, 4),
    "10m_256": ("10M parameters, T=256", 320, 7, 5, 4096, 256, 2, 0, 2, 2),
    "10m_128": ("10M parameters, T=128", 320, 7, 5, 4096, 128, 4, 0, 2, 2),
}


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


def seconds_of(command):
    """Starts two ranks; returns (parameters, seconds of the best block, of processor time a block)."""
    size, wall, processor = run_ranks(command, WORLD_SIZE, LIMIT).splitlines()[-1].split()
    return int(size), float(wall), float(processor)


def measure(run):
    found = {}
    for name, (_, *shape, warm_up, steps) in MODELS.items():
        if not name.startswith(run.only):
            continue
        words = [str(word) for word in (*shape, warm_up, BLOCKS, steps)]
        pair = run.in_turn(lambda: seconds_of([run.program("bench/train_llm_bench"), *words]),
                           lambda: seconds_of([run.python, __file__, *words]))
        if pair.ours[0] != pair.peer[0]:
            raise RuntimeError(f"the two sides do not train the same model for {name}")
        tokens = steps * WORLD_SIZE * shape[4] * shape[5]
        found[name] = Pair(tokens / pair.ours[1], tokens / pair.peer[1])
        found[f"{name}_cpu"] = Pair(*(1e6 * side[2] * WORLD_SIZE / tokens for side in (pair.ours, pair.peer)))
    return found


BENCH = Bench(
    name="train_llm_cpu", title="Training a GPT-2 on the processor, C++ against Python", peer="transformers, DDP",
    measure=measure, rounds=3,
    metrics=tuple(metric for name, (what, *_) in MODELS.items() for metric in (
        Metric(name, what, "tokens/s", better="higher", ratio_goal=1.3, best=True),
        Metric(f"{name}_cpu", f"processor time of a token, {what}", "us"))),
    options={"only": ""}, quick={"only": "1m_128"},
    programs=("bench/train_llm_bench",), modules=("torch", "transformers"),
    notes="2 ranks, float32, one thread a rank; Gloo and the fused AdamW in Python, the Trainer in C++.")

if __name__ == "__main__":
    python_rank(sys.argv[1:])
