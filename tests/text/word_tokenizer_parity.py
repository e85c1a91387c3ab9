"""The word tokenizer against Hugging Face's: word_tokenizer_parity.py TRANSLATION_JOB [short].

Vocabularies learnt from mixed texts, ids of code points of all planes, and files in both directions. short: fewer.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

try:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
except ImportError:
    test_script.skip("tokenizers is not installed")

import mixed_text

JOB = sys.argv[1]
SHORT = sys.argv[2:] == ["short"]
SPECIALS = ["[UNK]", "[PAD]", "[SOS]", "[EOS]"]


def run(*arguments):
    done = subprocess.run([JOB, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_lines(path, texts):
    path.write_text("".join(json.dumps(text) + "\n" for text in texts))


def trained_by_them(texts, min_frequency, vocab_size):
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(
        special_tokens=SPECIALS, min_frequency=min_frequency, vocab_size=vocab_size, show_progress=False))
    return tokenizer


def many_characters():
    """Code points beside a letter and beside a mark: what they are joined to tells their class.

    All of planes 0 and 1, where nearly all scripts are, the selectors of plane 14, and some of the rest; or a tenth.
    """
    codes = [*range(0x20000), *range(0xE0000, 0xE0200), *range(0x20000, 0x110000, 97)]
    if SHORT:
        codes = [*range(0x700), *range(0x700, 0x20000, 13), *range(0x20000, 0x110000, 997)]
    codes = [code for code in codes if not 0xD800 <= code < 0xE000]
    for start in range(0, len(codes), 500):
        yield " ".join(f"a{chr(code)}a ?{chr(code)}?" for code in codes[start:start + 500])


def texts_of(dice):
    words = ["one", "two", "three", "il", "libro", "\u00e9t\u00e9", "\u6f22\u5b57", "[SOS]", "[EOS]", "[UNK]", "[", "]", "...", "?!", "don't",
             "a_b", "x\u200dy", "\u00bd", "\u2460", "\u24b6", "3.14", "\u0928\u092e\u0938\u094d\u0924\u0947", "\U0001f600", "Zebra", "zebra"]
    for _ in range(400):
        yield dice.choice(["", " ", "\n"]).join(dice.choices(words, k=dice.randint(0, 12)))
        yield " ".join(dice.choices(words, k=dice.randint(0, 12)))


def compare(name, file, reference, texts, folder):
    write_lines(folder / "texts", texts)
    lines = run("encode", file, folder / "texts").splitlines()
    assert len(lines) == len(texts)
    for text, line, encoding in zip(texts, lines, reference.encode_batch(texts)):
        ids, plain, whole = json.loads(line)
        assert ids == encoding.ids, (name, text[:60], ids[:20], encoding.ids[:20])
        assert plain == reference.decode(encoding.ids), (name, text[:60])
        assert whole == reference.decode(encoding.ids, skip_special_tokens=False), (name, text[:60])


def main():
    dice = random.Random(3)
    texts = list(texts_of(dice)) + mixed_text.source_code(100_000 if SHORT else 300_000)
    everything = texts + list(many_characters())
    cases = ((everything, 0, 1000000), (texts, 2, 30000), (texts, 5, 40), (texts, 1, 4))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for training, min_frequency, vocab_size in cases:
            write_lines(folder / "training", training)
            run("train", folder / "training", folder / "ours.json", min_frequency, vocab_size)
            theirs = trained_by_them(training, min_frequency, vocab_size)
            theirs.save(str(folder / "theirs.json"))
            ours = Tokenizer.from_file(str(folder / "ours.json"))
            assert ours.get_vocab() == theirs.get_vocab(), (min_frequency, vocab_size)
            assert json.loads(ours.to_str()) == json.loads(theirs.to_str())
            compare("our file", folder / "ours.json", ours, training, folder)
            compare("their file", folder / "theirs.json", theirs, texts, folder)
        print(f"{len(everything)} texts: vocabularies, ids and decoded texts are equal")


if __name__ == "__main__":
    main()
