"""Compares optimizers, schedules, clipping, scaler and EMA with Python's torch, bit for bit.

usage: optim_parity.py PATH_OF_optim_job
"""

import itertools
import json
import math
import subprocess
import sys

import torch
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16,
          "float16": torch.float16}
SHAPES = [(7, 5), (5,), (3, 2, 2), (1,), (130,), (0,)]


def bits(tensor):
    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).tolist()).hex() \
        if tensor.numel() else ""


def dtype_of(test):
    return DTYPES[test.get("dtype", "float32")]


def make_parameters(dtype):
    return [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]


def set_gradients(parameters, step):
    for index, parameter in enumerate(parameters):
        gradient = torch.randn(parameter.shape)
        parameter.grad = None if index == 1 and step % 2 == 1 else gradient.to(parameter.dtype)


def make(test, parameters):
    groups = parameters
    if test.get("groups"):
        groups = [{"params": parameters[:2]},
                  {"params": parameters[2:], "lr": 0.03, "weight_decay": 0.2}]
    return getattr(torch.optim, test["type"])(groups, fused=True, **test["options_python"])


class WideSGD:
    """SGD in float32, rounded when stored: up to torch 2.13 the fused CPU kernel leaves most elements
    of float16 and bfloat16 parameters unchanged (pytorch#191763)."""

    def __init__(self, test, parameters):
        self.narrow, self.wide = parameters, [torch.nn.Parameter(p.float()) for p in parameters]
        self.optimizer = make(test, self.wide)
        self.state_dict = self.optimizer.state_dict

    def step(self):
        for narrow, wide in zip(self.narrow, self.wide):
            wide.grad = None if narrow.grad is None else narrow.grad.float()
        for name in ("grad_scale", "found_inf"):
            if hasattr(self, name):
                setattr(self.optimizer, name, getattr(self, name))
        self.optimizer.step()
        with torch.no_grad():
            for narrow, wide in zip(self.narrow, self.wide):
                narrow.copy_(wide)
                wide.copy_(narrow)
                state = self.optimizer.state.get(wide, {})
                if "momentum_buffer" in state:
                    state["momentum_buffer"] = state["momentum_buffer"].to(narrow.dtype).float()

    def narrow_state(self, state):
        dtype = self.narrow[0].dtype
        return {index: {key: value.to(dtype) for key, value in tensors.items()}
                for index, tensors in state.items()}


def run_optimizer(test):
    parameters = make_parameters(dtype_of(test))
    wide = test["type"] == "SGD" and test["dtype"] in ("float16", "bfloat16")
    optimizer = WideSGD(test, parameters) if wide else make(test, parameters)
    for step in range(test["steps"]):
        set_gradients(parameters, step)
        if test.get("scaled"):
            optimizer.grad_scale = torch.full((), 3.0)
            optimizer.found_inf = torch.full((), 1.0 if step % 5 == 3 else 0.0)
        optimizer.step()
    python = optimizer.state_dict()
    if wide:
        python["state"] = optimizer.narrow_state(python["state"])
    state = {str(index): {key: bits(value) for key, value in tensors.items()}
             for index, tensors in python["state"].items()}
    groups = [{key: list(value) if isinstance(value, tuple) else value
               for key, value in group.items()} for group in python["param_groups"]]
    for group in groups:
        group["initial_lr"] = group["lr"]
    return {"parameters": [bits(p) for p in parameters], "state": state, "groups": groups}


def run_clip(test):
    parameters = [torch.nn.Parameter(torch.zeros(3 + 40 * index).to(DTYPES[name]))
                  for index, name in enumerate(test["dtypes"])]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape).to(parameter.dtype)
    answer = {}
    if "limit" in test:
        torch.nn.utils.clip_grad_value_(parameters, test["limit"], foreach=True)
    else:
        norm = torch.nn.utils.clip_grad_norm_(parameters, test["max_norm"],
                                              float(test["norm_type"]), foreach=True)
        answer["norm"] = bits(norm)
    return answer | {"gradients": [bits(p.grad) for p in parameters]}


def run_scaler(test):
    weight = torch.nn.Parameter(torch.randn(16))
    optimizer = make(test, [weight])
    scaler = torch.amp.GradScaler("cpu", init_scale=64, growth_interval=3)
    scales = []
    for factor in test["factors"]:
        optimizer.zero_grad()
        used = math.inf if factor < 0 else factor
        scaler.scale((weight.square() * used).sum()).backward()
        if test["unscale"]:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_([weight], 0.7)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return {"scales": scales, "weight": bits(weight)}


class Holder(torch.nn.Module):
    def __init__(self, parameters):
        super().__init__()
        self.list = torch.nn.ParameterList(parameters)
        self.register_buffer("buffer", torch.zeros(2))


def run_ema(test):
    model = Holder(make_parameters(dtype_of(test)))
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(test["decay"]))
    with torch.no_grad():
        for _ in range(test["steps"]):
            for parameter in model.list:
                parameter.add_(torch.randn(parameter.shape).to(parameter.dtype))
            model.buffer.add_(1)
            ema.update_parameters(model)
    averages = [*ema.module.list, ema.module.buffer]
    return {"averages": [bits(average) for average in averages]}


# The factors that transformers' get_*_schedule give to LambdaLR.
def lambda_of(test):
    options = test["options_schedule"]
    warmup, total = options.get("warmup_steps", 0), options.get("total_steps", 0)
    name = test["schedule"]
    scale = options.get("timescale") or warmup or 10_000

    def after(step):
        if name == "constant":
            return 1.0
        if name == "linear":
            return max(0.0, float(total - step) / float(max(1, total - warmup)))
        if name == "cosine":
            progress = float(step - warmup) / float(max(1, total - warmup))
            factor = 0.5 * (1.0 + math.cos(math.pi * float(options.get("cycles", 0.5)) * 2.0 * progress))
            low = options.get("min_factor", 0.0)
            return max(0.0, factor * (1 - low) + low)
        return 1.0 / math.sqrt((step + (scale - warmup)) / scale)  # inverse_sqrt

    def noam(step):
        step = max(1, step)
        return 1.0 * (options["model_size"] ** -0.5 * min(step ** -0.5, step * warmup ** -1.5))

    if name == "noam":
        return noam
    return lambda step: float(step) / float(max(1, warmup)) if step < warmup else after(step)


def scheduler_of(test, optimizer):
    options = test["options_schedule"]
    if test["schedule"] == "step":
        return StepLR(optimizer, options["step_size"], options["gamma"])
    if test["schedule"] == "one_cycle":
        return OneCycleLR(optimizer, options["max_lr"], options["total_steps"],
                          pct_start=options.get("pct_start", 0.3),
                          anneal_strategy="linear" if options.get("linear") else "cos",
                          three_phase=options.get("three_phase", False))
    if test["schedule"] == "plateau":
        return ReduceLROnPlateau(
            optimizer, "max" if options.get("max") else "min", options.get("factor", 0.1),
            options.get("patience", 10), options.get("threshold", 1e-4),
            "abs" if options.get("absolute") else "rel", options.get("cooldown", 0),
            options.get("min_lr", 0))
    return LambdaLR(optimizer, lambda_of(test))


def run_schedule(test):
    optimizer = make(test, make_parameters(torch.float32))
    scheduler = scheduler_of(test, optimizer)
    rates = []

    def note():
        group = optimizer.param_groups[0]
        momentum = group["betas"][0] if "betas" in group else group["momentum"]
        rates.append([*(float(group["lr"]) for group in optimizer.param_groups), momentum])

    for step in range(test["steps"]):
        if "metrics" in test:
            scheduler.step(test["metrics"][step])
            note()
        else:
            note()
            optimizer.step()
            scheduler.step()
    return {"rates": rates}


def run_accumulation(test):
    """The recipe of Python programs: means over micro-batches, parts of them, then DDP's mean."""
    weight = torch.nn.Parameter(torch.randn(4, 5))
    optimizer = make(test, [weight])
    even = len({rows for rank in test["batches"] for rows in rank}) == 1
    for _ in range(test["steps"]):
        of_rank, inputs, targets = [], [], []
        for rank in test["batches"]:
            weight.grad = None
            for rows in rank:
                inputs.append(torch.randn(rows, 5))
                targets.append(torch.randn(rows, 4))
                if even:
                    loss = torch.nn.functional.mse_loss(torch.mm(inputs[-1], weight.t()), targets[-1])
                    (loss / len(rank)).backward()
            of_rank.append(weight.grad)
        if even:
            weight.grad = (of_rank[0] + of_rank[1]) / len(of_rank)
        else:  # what any such recipe should give: the mean over all rows
            weight.grad = None
            output = torch.mm(torch.cat(inputs), weight.t())
            torch.nn.functional.mse_loss(output, torch.cat(targets)).backward()
        torch.nn.utils.clip_grad_norm_([weight], test["max_norm"])
        optimizer.step()
    return {"weight": bits(weight)}


def run_autocast(test):
    first = torch.nn.Parameter(torch.randn(8, 4))
    second = torch.nn.Parameter(torch.randn(1, 8))
    optimizer = make(test, [first, second])
    for _ in range(test["steps"]):
        optimizer.zero_grad()
        value = torch.randn(6, 4)
        with torch.autocast("cpu", dtype_of(test)):
            hidden = torch.relu(torch.nn.functional.linear(value, first))
            output = torch.nn.functional.linear(hidden, second)
            loss = torch.nn.functional.mse_loss(output, value.narrow(1, 0, 1))
        loss.backward()
        optimizer.step()
    return {"weights": [bits(first), bits(second)]}


def optimizer_cases():
    sgd = [{"lr": 0.1}, {"lr": 0.1, "weight_decay": 0.03}]
    for dampening, decay, maximize in itertools.product((0.0, 0.2), (0.0, 0.05), (False, True)):
        sgd.append({"lr": 0.05, "momentum": 0.9, "dampening": dampening, "weight_decay": decay,
                    "maximize": maximize})
    sgd += [{"lr": 0.05, "momentum": 0.8, "nesterov": True, "maximize": m} for m in (False, True)]
    adam = [{"lr": 0.01, "betas": [0.85, 0.97], "eps": 1e-6, "weight_decay": decay,
             "amsgrad": amsgrad, "maximize": maximize}
            for decay, amsgrad, maximize in itertools.product((0.0, 0.1), (False, True), (False, True))]
    kinds = [("SGD", options) for options in sgd]
    kinds += [(name, options) for name in ("Adam", "AdamW") for options in adam + [{}]]
    for (name, options), dtype in itertools.product(kinds, DTYPES):
        base = {"kind": "optimizer", "type": name, "options": options, "dtype": dtype, "steps": 40}
        yield base
        yield base | {"groups": True, "scaled": True}


def clip_cases():
    mixes = [["float32"] * 4, ["bfloat16"] * 3, ["float64"] * 3, ["float32", "float64", "float32"],
             ["float32", "bfloat16", "float32", "bfloat16", "float64"]]
    for dtypes in mixes:
        for norm_type, max_norm in itertools.product((2, 1, 3, "inf"), (0.1, 1.0, 1e6)):
            yield {"kind": "clip", "dtypes": dtypes, "norm_type": norm_type, "max_norm": max_norm}
        yield {"kind": "clip", "dtypes": dtypes, "limit": 0.3}


def schedule_cases():
    plain = [("constant", {}), ("constant", {"warmup_steps": 17}),
             ("linear", {"warmup_steps": 13, "total_steps": 350}), ("linear", {"total_steps": 333}),
             ("cosine", {"warmup_steps": 10, "total_steps": 301}),
             ("cosine", {"warmup_steps": 10, "total_steps": 301, "cycles": 1.75}),
             ("cosine", {"total_steps": 250, "min_factor": 0.1}),
             ("step", {"step_size": 7, "gamma": 0.93}), ("step", {"step_size": 1, "gamma": 0.999}),
             ("inverse_sqrt", {"warmup_steps": 40}), ("inverse_sqrt", {}),
             ("inverse_sqrt", {"warmup_steps": 20, "timescale": 77}),
             ("noam", {"model_size": 384, "warmup_steps": 60})]
    for pct, linear, three in itertools.product((0.3, 0.45), (False, True), (False, True)):
        plain.append(("one_cycle", {"max_lr": 0.37, "total_steps": 400, "pct_start": pct,
                                    "linear": linear, "three_phase": three}))
    optimizers = [("SGD", {"lr": 0.7, "momentum": 0.9}), ("AdamW", {"lr": 0.013})]
    for (name, options), (schedule, values) in itertools.product(optimizers, plain):
        yield {"kind": "schedule", "type": name, "options": options, "groups": True, "steps": 400,
               "schedule": schedule, "options_schedule": values}
    generator = torch.Generator().manual_seed(5)
    metrics = (torch.rand(300, generator=generator, dtype=torch.float64) + 0.2).tolist()
    for values in ({}, {"patience": 3, "factor": 0.7}, {"max": True, "patience": 2, "cooldown": 4},
                   {"absolute": True, "threshold": 0.05, "patience": 5, "factor": 0.5, "min_lr": 0.01},
                   {"absolute": True, "max": True, "patience": 1, "factor": 0.9}):
        yield {"kind": "schedule", "type": "SGD", "options": {"lr": 0.7}, "groups": True,
               "steps": 300, "schedule": "plateau", "options_schedule": values, "metrics": metrics}


def cases():
    yield from optimizer_cases()
    yield from clip_cases()
    yield from schedule_cases()
    optimizers = [("SGD", {"lr": 0.01}), ("SGD", {"lr": 0.01, "momentum": 0.9}),
                  ("Adam", {"lr": 0.01, "amsgrad": True}), ("AdamW", {"lr": 0.01})]
    for (name, options), unscale in itertools.product(optimizers, (False, True)):
        # -1 stands for infinity; the first step counts, as Python's SGD needs (docs/optimizers.md).
        yield {"kind": "scaler", "type": name, "options": options, "unscale": unscale,
               "factors": [1, 0.5, -1, 1, 2, 3, 0.25, -1, -1, 1, 1e30, 1, 1, 1, 1, 1, 1, 0.3]}
    for dtype, decay in itertools.product(DTYPES, (0.9, 0.999)):
        yield {"kind": "ema", "dtype": dtype, "decay": decay, "steps": 30}
    for dtype in ("bfloat16", "float16"):
        yield {"kind": "autocast", "type": "AdamW", "options": {"lr": 0.05}, "dtype": dtype,
               "steps": 20}
    for max_norm in (0.125, 1e6):
        base = {"kind": "accumulation", "type": "AdamW", "options": {"lr": 0.05}, "steps": 20,
                "max_norm": max_norm}
        yield base | {"batches": [[8, 8], [8, 8]]}  # all factors are powers of two: exact
        yield base | {"batches": [[6, 6, 6], [6, 6, 6]], "tolerance": 1e-5}
        yield base | {"batches": [[7, 2], [5, 4]], "tolerance": 1e-5}


def floats(text, dtype=torch.float32):
    return torch.frombuffer(bytearray.fromhex(text), dtype=dtype)


def matches(test, mine, theirs):
    if "tolerance" not in test:
        return mine == theirs
    return torch.allclose(floats(mine["weight"]), floats(theirs["weight"]), test["tolerance"],
                          test["tolerance"])


def main():
    torch.set_num_threads(1)
    tests = [test | {"options_python": test.get("options", {})} for test in cases()]
    for test in tests:  # Python's spelling, and the schedule's options apart from the optimizer's
        if "betas" in test["options_python"]:
            test["options_python"] = test["options_python"] | {"betas": tuple(test["options"]["betas"])}
    lines = []
    for test in tests:
        sent = {key: value for key, value in test.items() if key != "options_python"}
        lines.append(json.dumps(sent))
    job = subprocess.run([sys.argv[1]], input="\n".join(lines) + "\n", capture_output=True, text=True,
                         timeout=120)
    answers = job.stdout.splitlines()
    if job.returncode != 0 or len(answers) != len(tests):
        sys.exit(f"optim_job ended with {job.returncode} after {len(answers)} of {len(tests)} cases:\n"
                 f"{lines[min(len(answers), len(lines) - 1)]}\n{job.stderr}")
    failures = 0
    for test, line, answer in zip(tests, lines, answers):
        torch.manual_seed(1)
        expected = globals()["run_" + test["kind"]](test)
        mine = json.loads(answer)
        if not matches(test, mine, expected):
            failures += 1
            if failures <= 5:
                different = [key for key in expected if mine.get(key) != expected[key]]
                print(f"differs in {different}: {line[:300]}")
                for key in different:
                    print("  Python  ", str(expected[key])[:300])
                    print("  lockstep", str(mine.get(key))[:300])
    if failures:
        sys.exit(f"{failures} of {len(tests)} cases differ")
    print(f"{len(tests)} cases are equal to Python's torch {torch.__version__}")


if __name__ == "__main__":
    main()
