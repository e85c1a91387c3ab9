"""One rank of a Python DDP job, for comparison with ddp_job.cpp (same options, same output).

Ranks meet by env:// (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), or where --meet says. With --cases,
one start of Python runs many jobs: rank 0 writes the initial weights of every model to FOLDER/init, for
both languages to start from, then the ranks run each line of the file, "<name> <options>", into
FOLDER/<name>.<rank>.
"""

import argparse
import contextlib
import os
from unittest import mock

import torch
import torch.distributed as dist
# Before init_process_group(): its functions have the default group as an argument's default, as it is when
# they are imported, and DistributedDataParallel() imports them. With that reference
# destroy_process_group() would leave Gloo's threads running, and one that releases an object of Python's
# while the interpreter ends aborts the process (pytorch/pytorch#190489).
import torch.distributed.nn  # noqa: F401
from torch.distributed.algorithms.ddp_comm_hooks import (default_hooks, post_localSGD_hook,
                                                         powerSGD_hook)
from torch.distributed.algorithms.model_averaging import averagers
from torch.nn.parallel import DistributedDataParallel

from models import MODELS


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", metavar="FILE")
    parser.add_argument("--folder")
    parser.add_argument("--meet", metavar="URL", default="env://")
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--bucket-cap-mb", default="default")
    parser.add_argument("--view", action="store_true")
    parser.add_argument("--static-graph", action="store_true")
    parser.add_argument("--hook", default="none", help="none, fp16, bf16, powersgd:RANK or local_sgd")
    parser.add_argument("--init")
    parser.add_argument("--out")
    return parser.parse_args(arguments)


def write_init(folder):
    os.makedirs(folder, exist_ok=True)
    for name, (model, _) in MODELS.items():
        torch.manual_seed(1)
        torch.save(dict(model().state_dict()), os.path.join(folder, name + ".pt"))


# Python refuses the hook by its name unless the backend is NCCL. Gloo can do it.
def bf16_under_another_name(group, bucket):
    return default_hooks.bf16_compress_hook(group, bucket)


# In place of random numbers, which are not those of C++.
def first_q(*shape, **_):
    numel = torch.Size(shape).numel()
    return torch.sin(torch.arange(numel, dtype=torch.float32) * 1.7 + 0.3).view(shape)


def power_sgd_with_given_q(state, bucket):
    with mock.patch.object(torch, "randn", first_q):
        return powerSGD_hook.powerSGD_hook(state, bucket)


def wrap(model, args):
    options = {}
    if args.bucket_cap_mb != "default":
        options["bucket_cap_mb"] = float(args.bucket_cap_mb)
    ddp = DistributedDataParallel(model, find_unused_parameters=args.model == "unused",
                                  gradient_as_bucket_view=args.view,
                                  static_graph=args.static_graph, **options)
    if args.hook == "fp16":
        ddp.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)
    elif args.hook == "bf16":
        ddp.register_comm_hook(dist.group.WORLD, bf16_under_another_name)
    elif args.hook.startswith("powersgd:"):
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=int(args.hook.split(":")[1]), start_powerSGD_iter=5,
            min_compression_rate=1.2)
        ddp.register_comm_hook(state, power_sgd_with_given_q)
    elif args.hook == "local_sgd":
        subgroup, _ = dist.new_subgroups(1)  # each rank is one of its own
        state = post_localSGD_hook.PostLocalSGDState(None, subgroup, start_localSGD_iter=10)
        ddp.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    return ddp


def train(ddp, loss_of, args, out):
    rank = dist.get_rank()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    averager = averagers.PeriodicModelAverager(period=4, warmup_steps=10)
    for step in range(args.steps):
        for micro in range(args.accumulate):
            data = torch.Generator().manual_seed((step * args.accumulate + micro) * 1000 + rank)
            last = micro + 1 == args.accumulate
            with contextlib.nullcontext() if last else ddp.no_sync():
                loss = loss_of(ddp, data, step, rank)
                (loss / args.accumulate).backward()
            out.write(f"loss {step}.{micro} {bits(loss.detach())}\n")
        optimizer.step()
        if args.hook == "local_sgd":
            averager.average_parameters(ddp.parameters())
        optimizer.zero_grad()


def bits(tensor):
    return tensor.contiguous().numpy().tobytes().hex()


def write_tensors(kind, tensors, out):
    for name, tensor in tensors:
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        dtype = str(tensor.dtype).removeprefix("torch.")
        out.write(f"{kind} {name} {dtype} {shape} {bits(tensor.detach())}\n")


def run(args):
    model_type, loss_of = MODELS[args.model]
    model = model_type()
    model.load_state_dict(torch.load(args.init, weights_only=True))
    ddp = wrap(model, args)
    with open(args.out, "w") as out:
        train(ddp, loss_of, args, out)
        write_tensors("parameter", model.named_parameters(), out)
        write_tensors("buffer", model.named_buffers(), out)
        buckets = ddp._get_ddp_logging_data().get("rebuilt_bucket_sizes", "")
        out.write(f"buckets {buckets}\n")


def run_cases(cases, folder):
    init = os.path.join(folder, "init")
    if dist.get_rank() == 0:
        write_init(init)
    dist.barrier()
    with open(cases) as lines:
        for line in lines:
            name, *options = line.split()
            args = parse(options)
            args.init = os.path.join(init, args.model + ".pt")
            args.out = os.path.join(folder, f"{name}.{dist.get_rank()}")
            run(args)


def main():
    args = parse()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=args.meet, rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))
    if args.cases:
        run_cases(args.cases, args.folder)
    else:
        run(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
