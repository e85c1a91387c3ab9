"""GPT-2 here against the one of transformers.

gpt2_parity.py JOB: the program gpt2_job. Compared are logits, loss, every gradient, directories both
ways, 200 steps of training, and what is generated. Nothing is fetched: models are small and random.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", HF_HUB_DISABLE_PROGRESS_BARS="1")

import torch

try:
    from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup
except ImportError:
    test_script.skip("transformers is not installed")

job = sys.argv[1]
folder = tempfile.TemporaryDirectory()


def path(name):
    return os.path.join(folder.name, name)


def run(*words):
    done = subprocess.run([job, *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"gpt2_job {' '.join(map(str, words))}: {done.returncode}\n{done.stdout}{done.stderr}")


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def load(name):
    return torch.load(path(name), weights_only=True)


def close(ours, theirs, what, tolerance=1e-5):
    """To a part of the largest value: single values near zero have no digits to compare."""
    check(ours.shape == theirs.shape and ours.dtype == theirs.dtype, f"{what}: {ours.shape}, {ours.dtype}")
    apart = (ours - theirs).abs().max().item() / max(theirs.abs().max().item(), 1e-30)
    check(apart <= tolerance, f"{what}: apart by {apart:.2e}")
    return apart


def model_of(**options):
    config = dict(vocab_size=211, n_positions=48, n_embd=48, n_layer=3, n_head=4, embd_pdrop=0.0,
                  attn_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    config.update(options)
    torch.manual_seed(3)
    model = GPT2LMHeadModel(GPT2Config(**config)).eval()
    with torch.no_grad():  # new ones have biases of 0 and norms of 1, where mistakes hide
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def own_name(name):
    return name.removeprefix("transformer.")


def compare_forward(name, **options):
    model = model_of(**options)
    model.save_pretrained(path(name))
    data = torch.Generator().manual_seed(5)
    ids = torch.randint(0, 211, (3, 40), generator=data)
    labels = torch.randint(0, 211, (3, 40), generator=data)
    labels[torch.rand(3, 40, generator=data) < 0.3] = -100
    torch.save({"ids": ids, "labels": labels}, path("in.pt"))
    run("forward", path(name), path("in.pt"), path("out.pt"))
    ours = load("out.pt")

    output = model(ids, labels=labels, shift_labels=labels)
    output.loss.backward()
    apart = [close(ours["logits"], output.logits.detach(), f"{name}: logits"),
             close(ours["loss"], output.loss.detach(), f"{name}: loss")]
    gradients = {own_name(key): value.grad for key, value in model.named_parameters()}
    check(list(gradients) == ours["names"], f"{name}: parameters {ours['names']}")  # also their order
    for key, gradient in gradients.items():
        apart.append(close(ours["gradients"][key], gradient, f"{name}: gradient of {key}"))
    print(f"{name}: apart by at most {max(apart):.1e}")


def same_weights(model, directory):
    loaded = GPT2LMHeadModel.from_pretrained(directory).eval()
    theirs, ours = model.state_dict(), loaded.state_dict()
    check(theirs.keys() == ours.keys(), f"{directory}: {sorted(ours)}")
    for key, value in theirs.items():
        check(torch.equal(value, ours[key]), f"{directory}: {key} has other bits")
    ids = torch.arange(20).reshape(1, 20)
    with torch.no_grad():
        check(torch.equal(model(ids).logits, loaded(ids).logits), f"{directory}: other logits")


def compare_directories():
    model = model_of(n_inner=64, activation_function="gelu", layer_norm_epsilon=1e-6, tie_word_embeddings=False,
                     scale_attn_by_inverse_layer_idx=True)
    model.save_pretrained(path("theirs"))
    run("copy", path("theirs"), path("ours"))
    same_weights(model, path("ours"))
    run("copy", path("ours"), path("sharded"), 20000)
    check(os.path.exists(path("sharded/model.safetensors.index.json")), "shards were asked for")
    same_weights(model, path("sharded"))
    run("copy", path("sharded"), path("ours"), 20000)  # over a single file: it must be gone
    same_weights(model, path("ours"))
    config = json.load(open(path("ours/config.json")))
    check(GPT2Config(**config).n_inner == 64, "config.json keeps n_inner")

    tied = model_of()
    tied.save_pretrained(path("their_shards"), max_shard_size="20KB")
    run("copy", path("their_shards"), path("from_shards"))
    same_weights(tied, path("from_shards"))
    os.makedirs(path("old"))
    shutil.copy(path("their_shards/config.json"), path("old/config.json"))
    old = {own_name(key): value for key, value in tied.state_dict().items()}  # as the hub's first file
    for layer in range(3):
        old[f"h.{layer}.attn.bias"] = torch.tril(torch.ones(48, 48)).view(1, 1, 48, 48)
        old[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    torch.save(old, path("old/pytorch_model.bin"))
    run("copy", path("old"), path("from_old"))
    same_weights(tied, path("from_old"))
    half = model_of().to(torch.bfloat16)
    half.save_pretrained(path("half"))
    run("copy", path("half"), path("from_half"))
    same_weights(half.float(), path("from_half"))
    run("scratch", "tiny", path("scratch"))
    scratch = GPT2LMHeadModel.from_pretrained(path("scratch"))
    check(sum(p.numel() for p in scratch.parameters()) < 1e6, "tiny has less than a million parameters")


class Harm:
    def __reduce__(self):
        return os.system, (f"touch {path('harmed')}",)


def refuse_code():
    os.makedirs(path("harm"))
    shutil.copy(path("old/config.json"), path("harm/config.json"))
    torch.save({"wte.weight": Harm()}, path("harm/pytorch_model.bin"))
    done = subprocess.run([job, "copy", path("harm"), path("from_harm")], capture_output=True, text=True)
    check(done.returncode == 1 and path("harm/pytorch_model.bin") in done.stderr, f"harm: {done.stderr}")
    check(not os.path.exists(path("harmed")), "harm: code of the file was run")


def compare_training():
    model = model_of(n_positions=32)
    model.save_pretrained(path("start"))
    steps, batch, tokens = 200, 4, 24
    # Sequences with a rule, so that there is something to learn.
    data = torch.Generator().manual_seed(9)
    first = torch.randint(0, 211, (steps, batch, 1), generator=data)
    stride = torch.randint(1, 5, (steps, batch, 1), generator=data)
    ids = (first + stride * torch.arange(tokens + 1)) % 211
    torch.save({"ids": ids, "lr": 2e-3, "warm_up": 10}, path("in.pt"))
    run("train", path("start"), path("in.pt"), path("out.pt"))
    ours = load("out.pt")["losses"]

    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    schedule = get_cosine_schedule_with_warmup(optimizer, 10, steps)
    worst = 0
    for step in range(steps):
        labels = ids[step, :, 1:].contiguous()
        loss = model(ids[step, :, :-1], labels=labels, shift_labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        worst = max(worst, abs(ours[step].item() / loss.item() - 1))
        check(worst <= 1e-4, f"training: loss of step {step} is {ours[step].item()}, not {loss.item()}")
    check(loss.item() < 0.7 * ours[0].item(), f"training: little was learned, the loss is {loss.item()}")
    print(f"training: {steps} steps apart by at most {worst:.1e}, loss {ours[0].item():.3f} -> {loss.item():.3f}")


def compare_generation():
    model = GPT2LMHeadModel.from_pretrained(path("gelu_tanh")).eval()
    ids = torch.randint(0, 211, (2, 7), generator=torch.Generator().manual_seed(6))
    torch.save({"ids": ids, "count": 30}, path("in.pt"))
    run("generate", path("gelu_tanh"), path("in.pt"), path("out.pt"))
    with torch.no_grad():
        theirs = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=30, min_new_tokens=30,
                                do_sample=False, pad_token_id=0, eos_token_id=None)
    check(torch.equal(load("out.pt")["tokens"], theirs[:, 7:]), "generation: other tokens")


def main():
    torch.set_num_threads(1)
    compare_forward("gelu_tanh")
    compare_forward("untied", tie_word_embeddings=False, activation_function="relu", n_inner=100)
    compare_forward("unscaled", scale_attn_weights=False, activation_function="silu")
    compare_forward("by_layer", scale_attn_by_inverse_layer_idx=True, activation_function="gelu")
    compare_directories()
    refuse_code()
    compare_training()
    compare_generation()


if __name__ == "__main__":
    main()
