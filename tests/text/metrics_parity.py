"""Scores of translations against sacrebleu's and torchmetrics': metrics_parity.py TRANSLATION_JOB TOOLS [short].

Thousands (short: hundreds) of small corpora of nasty sentences: entities, stops between digits, dashes, all kinds of white space, empty
texts, other alphabets. TOOLS is the folder into which tools/setup --tests installs the two.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

JOB, TOOLS = sys.argv[1:3]
COUNT = 600 if sys.argv[3:] == ["short"] else 5000
sys.path.insert(0, TOOLS)

from sacrebleu.metrics import BLEU, CHRF  # noqa: E402
from torchmetrics.functional.text.cer import _cer_update  # noqa: E402
from torchmetrics.functional.text.wer import _wer_update  # noqa: E402

WORDS = ["the", "cat", "Cat", "sat", "on", "a", "mat", "isn't", "don\u2019t", "U.S.", "e.g.", "3.14", "1,000", "1,000.50", "5-4",
         "-5", "well-known", "x-", "3-", ".5", "5.", "a.b", "a,b", "...", "..", "--", "-", "?", "?!", "!", ":", ";", "(a)", "[b]", "{c}",
         "~", "`", "^", "_", "a_b", "#1", "$5", "%", "50%", "@", "*", "+", "=", "/", "a/b", "\\", "|", "<", ">", "<b>", "'", "\"", "&",
         "&quot;", "&amp;", "&lt;", "&gt;", "&amp;lt;", "&amp;quot;", "&copy;", "<skipped>", "<skip", "caf\u00e9", "cafe\u0301", "\u00fcber",
         "\u3042\u3044", "\u6f22\u5b57", "\u3002", "\u0660.\u0661", "\u00b2", "\U0001f600", "\u200d", "\u00ab", "\u0928\u092e", "A"]
SPACES = [" "] * 20 + ["", "  ", "\t", "\n", "-\n", "\r\n", "\u00a0", "\u3000", "\u2028", "\x1c", "\x1f", "\x85", "\u200b", "\v"]
EXACT = 1e-9


def sentence(dice, most):
    text = ""
    for _ in range(dice.randint(0, most)):
        text += dice.choice(WORDS) + dice.choice(SPACES)
    return text if dice.random() < 0.5 else text.strip()


def changed(dice, text):
    """A text that shares much with another."""
    parts = text.split(" ")
    for _ in range(dice.randint(0, 3)):
        place = dice.randrange(len(parts))
        action = dice.randrange(4)
        if action == 0:
            parts[place] = dice.choice(WORDS)
        elif action == 1:
            parts.insert(place, dice.choice(WORDS))
        elif action == 2 and len(parts) > 1:
            del parts[place]
        else:
            dice.shuffle(parts)
    return " ".join(parts)


def characters(dice):
    """Any characters but surrogates, for which UTF-8 has no form."""
    codes = [dice.choice((dice.randrange(0x80), dice.randrange(0xD800), dice.randrange(0xE000, 0x110000)))
             for _ in range(dice.randint(0, 12))]
    return "".join(map(chr, codes))


def corpora():
    dice = random.Random(7)
    for _ in range(COUNT):
        references = [sentence(dice, 10) for _ in range(dice.randint(1, 4))]
        kind = dice.random()
        if kind < 0.7:
            hypotheses = [changed(dice, text) for text in references]
        elif kind < 0.9:
            hypotheses = [sentence(dice, 10) for _ in references]
        else:
            hypotheses = [characters(dice) for _ in references]
            references = [changed(dice, text) for text in hypotheses]
        yield hypotheses, references
    yield [""], [""]
    yield [""], ["a"]
    yield ["a b c d"], [""]
    yield ["a b c d e"] * 300, ["a b x d e"] * 300


def rate(update, hypotheses, references):
    """torchmetrics divides in 32 bits; its counts are exact."""
    errors, total = (int(value) for value in update(hypotheses, references))
    if total == 0:
        return 0.0 if errors == 0 else float("inf")
    return errors / total


def expected(hypotheses, references):
    return (BLEU().corpus_score(hypotheses, [references]).score, CHRF().corpus_score(hypotheses, [references]).score,
            rate(_cer_update, hypotheses, references), rate(_wer_update, hypotheses, references))


def main():
    cases = list(corpora())
    with tempfile.TemporaryDirectory() as folder:
        lines = pathlib.Path(folder) / "lines"
        lines.write_text("".join(json.dumps(case) + "\n" for case in cases))
        done = subprocess.run([JOB, "score", str(lines)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ours = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
    assert len(ours) == len(cases)
    between = 0
    for case, own in zip(cases, ours):
        theirs = expected(*case)
        for name, mine, other in zip(("bleu", "chrf", "cer", "wer"), own, theirs):
            assert mine == other or abs(mine - other) <= EXACT, (name, mine, other, case)
        between += 1 < own[0] < 99
    assert between > COUNT / 2, f"only {between} corpora say something about BLEU"
    print(f"{len(cases)} corpora have the scores of sacrebleu and torchmetrics, {between} of them with a BLEU between 1 and 99")


if __name__ == "__main__":
    main()
