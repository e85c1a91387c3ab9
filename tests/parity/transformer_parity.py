"""The Transformer here against the tutorials' in Python.

transformer_parity.py JOB: the program transformer_job. Compared are names, the initial weights' spread, logits,
loss, every gradient, that padding makes no difference, 100 steps of training, and what searches find.
"""

import itertools
import math
import os
import subprocess
import sys
import tempfile

import torch

from transformer_model import EOS, PAD, SOS, Transformer, beam_search

job = sys.argv[1]
folder = tempfile.TemporaryDirectory()
CONFIG = dict(src_vocab_size=61, tgt_vocab_size=47, src_seq_len=20, tgt_seq_len=18, d_model=32, N=2, h=4, d_ff=48)


def path(name):
    return os.path.join(folder.name, name)


def run(command, content):
    """What the job writes for a file with this content."""
    torch.save(content, path("in.pt"))
    done = subprocess.run([job, command, path("in.pt"), path("out.pt")], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"transformer_job {command}: {done.returncode}\n{done.stdout}{done.stderr}")
    return torch.load(path("out.pt"), weights_only=True)


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def close(ours, theirs, what, tolerance=1e-5):
    """To a part of the largest value: single values near zero have no digits to compare."""
    check(ours.shape == theirs.shape and ours.dtype == theirs.dtype, f"{what}: {ours.shape}, {ours.dtype}")
    apart = (ours - theirs).abs().max().item() / max(theirs.abs().max().item(), 1e-30)
    check(apart <= tolerance, f"{what}: apart by {apart:.2e}")
    return apart


def model_of(**options):
    torch.manual_seed(3)
    model = Transformer(**CONFIG | options)
    with torch.no_grad():  # new ones have norms of 1 and 0, where mistakes hide
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def sentences(generator, count, longest, vocabulary):
    """Rows of tokens of different lengths, filled up."""
    rows = torch.full((count, longest), PAD)
    for row in rows:
        length = torch.randint(1, longest - 1, (), generator=generator)
        row[:length] = torch.randint(4, vocabulary, (length,), generator=generator)
    return rows


def batch_of(generator, count=5, source_tokens=13, target_tokens=11):
    source = sentences(generator, count, source_tokens, CONFIG["src_vocab_size"])
    plain = sentences(generator, count, target_tokens, CONFIG["tgt_vocab_size"])
    target = torch.cat([torch.full((count, 1), SOS), plain[:, :-1]], 1)
    labels = plain.clone()
    labels[torch.arange(count), (plain != PAD).sum(1)] = EOS
    return source, target, labels


def compare_names_and_initial_weights():
    model = Transformer(**CONFIG)
    ours = run("scratch", {"config": CONFIG})
    check(set(ours) == set(model.state_dict()), f"names: {sorted(set(ours) ^ set(model.state_dict()))}")
    model.load_state_dict(ours)
    for name, tensor in model.state_dict().items():
        if name.endswith(".pe"):
            check(torch.equal(tensor, PYTHON_POSITIONS[name]), f"{name} has other bits")
        elif tensor.dim() > 1:
            bound = math.sqrt(6 / sum(tensor.shape))
            check(0.9 * bound < tensor.abs().max() <= bound and abs(tensor.std() * math.sqrt(3) / bound - 1) < 0.1,
                  f"{name} is not Xavier's: up to {tensor.abs().max()}, not {bound}")
        elif name.endswith("norm.alpha"):
            check(tensor.eq(1).all(), f"{name} is not 1")


PYTHON_POSITIONS = {name: tensor for name, tensor in Transformer(**CONFIG).state_dict().items()
                    if name.endswith(".pe")}


def compare_forward():
    model = model_of()
    source, target, labels = batch_of(torch.Generator().manual_seed(5))
    content = {"config": CONFIG, "weights": model.state_dict()}
    ours = run("forward", content | {"source": source, "target": target, "labels": labels})
    loss = model.loss(source, target, labels)
    loss.backward()
    counts = labels != PAD
    check(ours["count"] == counts.sum(), f"{ours['count']} labels count, not {counts.sum()}")
    apart = [close(ours["logits"][counts], model(source, target).detach()[counts], "logits"),
             close(ours["loss"], loss.detach(), "loss")]
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    check(list(gradients) == ours["names"], f"parameters {ours['names']}")  # also their order
    for name, gradient in gradients.items():
        apart.append(close(ours["gradients"][name], gradient, f"gradient of {name}"))
    print(f"forward and backward: apart by at most {max(apart):.1e}")

    # Filled up further, nothing changes.
    def wider(tokens, count):
        return torch.cat([tokens, torch.full((tokens.shape[0], count), PAD)], 1)

    padded = run("forward", content | {"source": wider(source, 7), "target": wider(target, 6),
                                       "labels": wider(labels, 6)})
    close(padded["loss"], ours["loss"], "loss with more padding", 1e-6)
    for name, gradient in padded["gradients"].items():
        close(gradient, ours["gradients"][name], f"gradient of {name} with more padding")


def compare_training():
    model = model_of()
    steps, generator = 100, torch.Generator().manual_seed(9)
    batches = []
    for _ in range(steps):  # the source, two tokens on and backwards: there is something to learn
        source, _, _ = batch_of(generator, count=4)
        target = torch.full((4, 14), PAD)
        for row, tokens in zip(target, source):
            words = tokens[tokens != PAD].flip(0) % (CONFIG["tgt_vocab_size"] - 4) + 4
            row[:len(words) + 2] = torch.tensor([SOS, *words, EOS])
        labels = target[:, 1:].contiguous()
        target = torch.where(target == EOS, PAD, target)[:, :-1].contiguous()
        batches.append((source, target, labels))
    sources, targets, labels = (torch.stack(part) for part in zip(*batches))
    ours = run("train", {"config": CONFIG, "weights": model.state_dict(), "sources": sources, "targets": targets,
                         "labels": labels, "lr": 1e-3})["losses"]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-9)
    worst = 0
    for step, batch in enumerate(batches):
        loss = model.loss(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        worst = max(worst, abs(ours[step].item() / loss.item() - 1))
        check(worst <= 1e-4, f"training: loss of step {step} is {ours[step].item()}, not {loss.item()}")
    check(loss.item() < 0.95 * ours[0].item(), f"training: little was learned, the loss is {loss.item()}")
    print(f"training: {steps} steps apart by at most {worst:.1e}, loss {ours[0].item():.3f} -> {loss.item():.3f}")


def compare_searches():
    """Against a search in Python, and, for a beam that holds everything, against all there is."""
    for name, vocabulary, max_tokens, penalty in (("small", 6, 4, 0.6), ("plain", 6, 4, 0.0), ("long", 47, 12, 0.6)):
        model = model_of(tgt_vocab_size=vocabulary).eval()
        with torch.no_grad():
            model.projection_layer.proj.bias[EOS] += 0.7  # some ends before the last place
        source = sentences(torch.Generator().manual_seed(6), 4, 13, CONFIG["src_vocab_size"])
        results = run("search", {"config": CONFIG | {"tgt_vocab_size": vocabulary}, "weights": model.state_dict(),
                                 "source": source, "max_tokens": max_tokens, "length_penalty": penalty,
                                 "largest_beam": 4})["results"]
        ends, theirs = 0, {}
        for result in results:
            for i, found in enumerate(result["found"]):
                what = f"{name}: beam {result['beam']}, cache {result['use_cache']}, source {i}"
                if (result["beam"], i) not in theirs:
                    with torch.no_grad():
                        theirs[result["beam"], i] = beam_search(model, source[i][source[i] != PAD], result["beam"],
                                                                max_tokens, penalty)
                tokens, score, ended = theirs[result["beam"], i]
                check(found["tokens"] == tokens and found["ended"] == ended,
                      f"{what}: {found} instead of {tokens}, {ended}, {score}")
                check(abs(found["log_probability"] - score) < 1e-4, f"{what}: {found} has {score}")
                ends += ended and len(tokens) < max_tokens - 1
        check(ends > 0, f"{name}: nothing ends early")
    model = model_of(tgt_vocab_size=6).eval()
    source = sentences(torch.Generator().manual_seed(7), 3, 13, CONFIG["src_vocab_size"])
    results = run("search", {"config": CONFIG | {"tgt_vocab_size": 6}, "weights": model.state_dict(),
                             "source": source, "max_tokens": 3, "length_penalty": 0.6, "largest_beam": 100})["results"]
    found = next(result["found"] for result in results if result["beam"] == 100)
    for i, row in enumerate(source):
        best = max(every_sentence(model, row[row != PAD], 6, 3), key=lambda sentence: sentence[0])
        check(found[i]["tokens"] == best[1], f"all sentences: {found[i]} instead of {best}")


def every_sentence(model, source, vocabulary, max_tokens):
    """Score and tokens of all that end."""
    words = [token for token in range(vocabulary) if token not in (PAD, EOS)]
    for length in range(max_tokens):
        for tokens in itertools.product(words, repeat=length):
            target = torch.tensor([[SOS, *tokens]])
            with torch.no_grad():
                scores = model(source[None], target)[0].log_softmax(-1)
            score = sum(scores[place, token].item() for place, token in enumerate((*tokens, EOS)))
            yield score / ((5 + length + 1) / 6) ** 0.6, list(tokens)


def main():
    torch.set_num_threads(1)
    compare_names_and_initial_weights()
    compare_forward()
    compare_training()
    compare_searches()


if __name__ == "__main__":
    main()
