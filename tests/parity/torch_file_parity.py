"""Files of torch.save and safetensors between Python and C++, both ways, to the last bit.

torch_file_parity.py JOB LOCKSTEP [large]: the programs torch_file_job and lockstep; "large" compares only a
file of more than 4 GiB, for which the zip format has other records.
"""

import collections
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

job, lockstep = sys.argv[1], sys.argv[2]
folder = tempfile.TemporaryDirectory()


def path(name):
    return os.path.join(folder.name, name)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def bits(tensor):
    return tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)


def same(a, b, where=""):
    """Equal in value, type and kind of container; an OrderedDict is one."""
    check(type(a) is type(b) or isinstance(a, torch.Tensor), f"{where}: {type(a)} became {type(b)}")
    if isinstance(a, torch.Tensor):
        check(a.dtype == b.dtype and a.shape == b.shape, f"{where}: {a.dtype} {a.shape} -> {b.dtype} {b.shape}")
        check(torch.equal(bits(a.detach()), bits(b)), f"{where}: other bits")
    elif isinstance(a, dict):
        check(list(a) == list(b), f"{where}: keys {list(a)} became {list(b)}")
        for key in a:
            same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        check(len(a) == len(b), f"{where}: length")
        for index, pair in enumerate(zip(a, b)):
            same(*pair, f"{where}[{index}]")
    else:
        check(a == b or a != a and b != b, f"{where}: {a} became {b}")


def everything():
    base = torch.arange(24, dtype=torch.float32)
    tensors = collections.OrderedDict()
    for dtype in [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
                  torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16,
                  torch.float32, torch.float64, torch.complex64, torch.complex128,
                  torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz,
                  torch.float8_e5m2fnuz]:
        tensors[str(dtype)] = torch.randn(3, 5).to(dtype)
    tensors["scalar"] = torch.tensor(1.5)
    tensors["empty"] = torch.empty(0, 3)
    tensors["view"] = base[3:7]
    tensors["transposed"] = base.view(4, 6).t()
    tensors["step"] = base[::5]
    tensors["expanded"] = torch.tensor([1.0, 2.0]).expand(3, 2)
    tensors["parameter"] = torch.nn.Parameter(base[:4])
    tensors["grad"] = torch.ones(2, requires_grad=True)
    return {"tensors": tensors, "none": None, "true": True, "zero": 0, "large": 2**40, "minus": -3,
            "edge": -(2**63), "beyond": 2**64 - 1, "pi": 3.141592653589793, "inf": float("inf"),
            "nan": float("nan"), "text": "Grüße \N{SNOWMAN}", "list": [1, [2, "x"], None],
            "tuple": (0.9, 0.999), "one": (1,), "nothing": (), "dict": {"a": {}, 3: "number"},
            "size": torch.Size([2, 3])}


def containers_and_types():
    value = everything()
    torch.save(value, path("in.pt"))
    run(job, "copy", path("in.pt"), path("out.pt"))
    value["size"] = (2, 3)  # becomes a tuple
    same(value, torch.load(path("out.pt"), weights_only=True), "copy")
    same(value, torch.load(path("out.pt"), weights_only=True, mmap=True), "mmap")
    # What a view does not show is not written.
    torch.save({"v": torch.zeros(100_000)[:10]}, path("in.pt"))
    run(job, "copy", path("in.pt"), path("out.pt"))
    check(os.path.getsize(path("out.pt")) < 5000, "a view brought its whole storage")


def tied_tensors():
    weight = torch.randn(40, 40)
    torch.save(collections.OrderedDict(a=weight, b=weight), path("in.pt"))
    run(job, "copy", path("in.pt"), path("out.pt"))
    back = torch.load(path("out.pt"), weights_only=True)
    check(back["a"].data_ptr() == back["b"].data_ptr(), "tied tensors came apart")


def module():
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4),
                               torch.nn.Linear(4, 3, bias=False))


def gradients(net):
    for parameter in net.parameters():
        parameter.grad = torch.randn_like(parameter)


def trained_model():
    """Python trains and saves as its DDP does; C++ goes on; Python takes over again."""
    torch.manual_seed(3)
    net = module()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, betas=(0.8, 0.95), fused=True)
    net(torch.randn(6, 5))  # moves BatchNorm's buffers
    for _ in range(3):
        gradients(net)
        optimizer.step()
    gradients(net)
    state = collections.OrderedDict(("module." + k, v.clone()) for k, v in net.state_dict().items())
    torch.save({"MODEL_STATE": state, "OPTIMIZER": optimizer.state_dict(), "EPOCHS_RUN": 10,
                "GRADIENTS": {k: p.grad for k, p in net.named_parameters()}}, path("in.pt"))
    run(job, "train", path("in.pt"), path("out.pt"), path("snapshots"))

    optimizer.step()
    back = torch.load(path("out.pt"), weights_only=True)
    check(back["EPOCHS_RUN"] == 11, "EPOCHS_RUN")
    twin = module()
    twin.load_state_dict(back["MODEL_STATE"])
    for name, value in net.state_dict().items():
        same(value, twin.state_dict()[name], f"weights {name}")
    other = torch.optim.AdamW(twin.parameters(), fused=True)
    other.load_state_dict(back["OPTIMIZER"])
    for number, slots in optimizer.state_dict()["state"].items():
        for name, value in slots.items():
            same(value, other.state_dict()["state"][number][name], f"optimizer {number} {name}")
    check(other.param_groups[0]["lr"] == 0.01, "lr")
    # And one more step in Python is the same from both.
    gradients(net)
    for mine, theirs in zip(twin.parameters(), net.parameters()):
        mine.grad = theirs.grad.clone()
    optimizer.step()
    other.step()
    for name, value in net.state_dict().items():
        same(value, twin.state_dict()[name], f"after the step {name}")


def converted_snapshot():
    """After trained_model(): the snapshot that C++ saved, by way of `lockstep snapshot convert`."""
    run(lockstep, "snapshot", "convert", path("snapshots"), path("exported.pt"))
    exported = torch.load(path("exported.pt"), weights_only=True)
    direct = torch.load(path("out.pt"), weights_only=True)
    check(exported["lockstep_snapshot"]["step"] == 11, "step")
    same(direct["MODEL_STATE"], exported["model"], "exported model")
    net = module()
    net.load_state_dict(exported["model"])
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    optimizer.load_state_dict(exported["optimizer"])
    same(direct["OPTIMIZER"]["state"], optimizer.state_dict()["state"], "exported optimizer")
    run(lockstep, "snapshot", "convert", path("exported.pt"), path("imported"))
    run(lockstep, "snapshot", "diff", path("snapshots"), path("imported"))
    run(lockstep, "snapshot", "verify", path("imported"))


def foreign_files_are_refused():
    files = {"a bare pickle": lambda name: pickle.dump({"x": 1}, open(name, "wb")),
             "legacy": lambda name: torch.save({"x": torch.ones(2)}, name, _use_new_zipfile_serialization=False),
             "numpy": lambda name: torch.save({"x": __import__("numpy").float64(1)}, name),
             "script": lambda name: torch.jit.script(torch.nn.Linear(2, 2)).save(name)}
    for what, write in files.items():
        write(path("odd.pt"))
        done = subprocess.run([job, "copy", path("odd.pt"), path("out.pt")], capture_output=True, text=True)
        check(done.returncode == 1 and len(done.stderr.splitlines()) == 1, f"{what}: {done}")


def safetensors_files():
    try:
        import safetensors.torch
    except ImportError:
        test_script.left_out("safetensors_files", "safetensors is not installed")
        return
    tensors = {name: value.detach().contiguous() for name, value in everything()["tensors"].items()
               if value.dtype != torch.complex128}
    tensors["view"] = tensors["view"].clone()
    tensors["parameter"] = tensors["parameter"].clone()
    safetensors.torch.save_file(tensors, path("in.safetensors"), metadata={"format": "pt"})
    run(job, "safetensors", path("in.safetensors"), path("out.safetensors"))
    back = safetensors.torch.load_file(path("out.safetensors"))
    check(set(back) == set(tensors), "names")
    for name, value in tensors.items():
        same(value, back[name], name)
    model = safetensors.torch.load_file(path("snapshots/latest/model.safetensors"))
    net = module()
    net.load_state_dict(model)
    with safetensors.safe_open(path("snapshots/latest/model.safetensors"), "pt") as file:
        check(file.metadata() == {"format": "pt"}, "metadata")


def more_than_four_gigabytes():
    run(job, "large", path("large.pt"))
    back = torch.load(path("large.pt"), weights_only=True, mmap=True)
    check(back["zeros"].shape == (1_100_000_000,) and back["zeros"][-1] == 0, "zeros")
    check(torch.equal(back["behind"], torch.arange(1000)), "the tensor behind")
    # The other way round: Python's own large file.
    torch.save({"large": torch.zeros(1_100_000_000), "behind": torch.arange(9)}, path("large.pt"))
    run(lockstep, "snapshot", "verify", path("large.pt"))
    check("behind: int64[9]" in run(lockstep, "snapshot", "inspect", path("large.pt")), "inspect")


ALL = [containers_and_types, tied_tensors, trained_model, converted_snapshot,
       foreign_files_are_refused, safetensors_files]
for case in [more_than_four_gigabytes] if sys.argv[3:] == ["large"] else ALL:
    case()
    print("ok:", case.__name__)
