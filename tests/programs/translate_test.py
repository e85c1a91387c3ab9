"""translate as a user runs it: ranks, kills, epochs' files, bad input, sentences translated.

translate_test.py TRANSLATE LOCKSTEP [[--but] CASE...], in a Python that has torch.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "parity")]
from program_case import ProgramCase  # noqa: E402
from transformer_model import EOS, SOS, Transformer, beam_search  # noqa: E402
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

LOCKSTEP = os.path.abspath(sys.argv.pop(2))
TRANSLATE = os.path.abspath(sys.argv.pop(1))
PAIRS = 120
# A model and data that are small enough for an epoch of 6 steps and its validation in a fraction of a second.
SMALL = ("--d-model", "16", "--layers", "1", "--heads", "2", "--d-ff", "32", "--dropout", "0.1", "-s", "24", "-b", "10",
         "--lr", "3e-3", "--validation-fraction", "0.1", "--min-frequency", "1", "--no-progress", "--num-workers", "0",
         "--log-freq", "2")
NUMBERS = "zero one two three four five six seven eight nine".split()
NUMERI = "zero uno due tre quattro cinque sei sette otto nove".split()


def pair(i):
    digits = [int(digit) for digit in str(i)]
    return " ".join(NUMBERS[digit] for digit in digits), " ".join(NUMERI[digit] for digit in reversed(digits))


class Case(ProgramCase):
    program, lockstep = TRANSLATE, LOCKSTEP

    def setUp(self):
        super().setUp()
        lines = ["\t".join(pair(100 + 7 * i)) for i in range(PAIRS)]
        (self.folder / "data.tsv").write_text("\n".join(lines) + "\n")

    def train(self, name, *arguments, ranks=None, code=0):
        return self.run_program("-e", name, "-d", "data.tsv", *SMALL, *arguments, ranks=ranks, code=code)

    def trained(self, name, step):
        """Of that what a file of an epoch holds, too."""
        return {file: content for file, content in self.files(name, step).items()
                if file.startswith(("model", "optimizer"))}

    def weights(self, name, epoch):
        return torch.load(self.run_folder(name) / "weights" / f"tmodel_{epoch:02d}.pt", weights_only=True)

    def values(self, name, key):
        return [line[key] for line in self.metrics(name) if key in line]


class Ranks(Case):
    def test_two_ranks_have_the_bits_of_one_with_two_slots(self):
        out, _ = self.train("two", "--epochs", "2", ranks=2)
        self.train("one", "--epochs", "2", "--slots", "2")
        self.assertEqual(self.files("two", 12), self.files("one", 12))
        for key in ("eval/bleu", "eval/chrf", "eval/cer", "eval/wer", "eval/loss"):
            self.assertEqual(self.values("two", key), self.values("one", key), key)
        self.assertEqual(len(self.values("two", "eval/bleu")), 2)
        self.assertRegex(out, r"SOURCE: .*\n +TARGET: .*\n PREDICTED: ")
        self.assertRegex(out, r"epoch 2 \| step 12 \| validation loss \d\.\d+ \| BLEU [\d.]+ \| chrF [\d.]+ \| CER ")

    def test_two_ranks_are_twice_the_accumulation_up_to_rounding(self):
        plain = ("--max-steps", "20", "--dropout", "0", "--epochs", "9")
        self.train("two", *plain, ranks=2)
        self.train("accumulated", *plain, "--grad-accum", "2")
        for mine, theirs in zip(self.values("two", "loss"), self.values("accumulated", "loss")):
            self.assertAlmostEqual(mine / theirs, 1, delta=1e-4)

    def test_a_killed_rank_is_replaced_and_the_bits_are_the_same(self):
        options = ("--epochs", "12", "--beam", "2")
        self.train("whole", *options, ranks=2)
        for rank in (0, 1):
            name = f"killed_{rank}"
            process = self.start("-e", name, "-d", "data.tsv", *SMALL, *options, ranks=2,
                                 launch=("--run-dir", str(self.folder / f"job_{rank}")))
            with self.killed_where_this_fails(process):
                self.kill_rank(rank, name, 18, process)
            self.finish(process)
            events = (self.folder / f"job_{rank}" / "events.jsonl").read_text()
            self.assertIn("SIGKILL", events)
            self.assertEqual(self.files(name, 72), self.files("whole", 72))
            for key in ("loss", "eval/bleu", "eval/wer"):
                self.assertEqual(self.values(name, key), self.values("whole", key), key)
            self.assertEqual(sorted(path.name for path in (self.run_folder(name) / "weights").iterdir()),
                             [f"tmodel_{epoch:02d}.pt" for epoch in range(12)])

    def test_a_run_that_was_killed_goes_on_to_the_same_bits(self):
        options = ("--epochs", "8", "--ckpt-freq", "4", "--schedule", "noam", "--warmup", "10")
        self.train("whole", *options, ranks=2)
        for kill_at in (8, 24, 36):
            name = f"killed_{kill_at}"
            process = self.start("-e", name, "-d", "data.tsv", *SMALL, *options, ranks=2)
            try:
                self.wait_for_snapshot(name, kill_at, process)
            finally:
                self.kill(process)
            self.train(name, *options, ranks=2)
            self.assertEqual(self.files(name, 48), self.files("whole", 48))


class EpochFiles(Case):
    KEYS = {"epoch", "model_state_dict", "optimizer_state_dict", "global_step", "wandb_run_id"}

    def python_model(self, name):
        state = self.weights(name, 1)["model_state_dict"]
        shape = dict(src_vocab_size=state["src_embed.embedding.weight"].shape[0],
                     tgt_vocab_size=state["tgt_embed.embedding.weight"].shape[0], src_seq_len=24, tgt_seq_len=24,
                     d_model=16, N=1, h=2, d_ff=32)
        model = Transformer(**shape).eval()
        model.load_state_dict(state)
        return model

    def test_python_loads_them_and_a_run_goes_on_from_them(self):
        out, _ = self.train("run", "--epochs", "2")
        self.assertIn("none found, starting from scratch", out)
        file = self.weights("run", 1)
        self.assertEqual(set(file), self.KEYS)
        self.assertEqual((file["epoch"], file["global_step"], file["wandb_run_id"]), (1, 22, "run"))
        model = self.python_model("run")
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-9, fused=True)
        optimizer.load_state_dict(file["optimizer_state_dict"])
        first = next(model.parameters())
        self.assertEqual(optimizer.state[first]["step"].item(), 22)
        self.assertEqual(optimizer.state[first]["exp_avg"].shape, first.shape)

        # Its greedy search and that of the program find the same.
        words = {side: json.loads((self.run_folder("run") / f"tokenizer_{side}.json").read_text())["model"]["vocab"]
                 for side in ("en", "it")}
        source = pair(123)[0]
        ids = torch.tensor([SOS, *(words["en"][word] for word in source.split()), EOS])
        by_id = {number: word for word, number in words["it"].items()}
        for beam in (1, 3):
            with torch.no_grad():
                tokens, _, _ = beam_search(model, ids, beam, 24, 0.6)
            expected = " ".join(by_id[token] for token in tokens if token > 3)
            ours, err = self.run_program("infer", "--run", "outputs/run", "--weights", "1", "--beam", beam, source)
            self.assertEqual(ours, expected + "\n")
            self.assertIn("tmodel_01.pt", err)
        latest, _ = self.run_program("infer", "--run", "outputs/run", "--beam", "3", source)
        self.assertEqual(latest, ours)

        # Without snapshots it goes on from the newest file, to the same bits.
        self.train("whole", "--epochs", "4")
        shutil.rmtree(self.run_folder("run") / "snapshots")
        torch.save(file | {"wandb_run_id": "x7"}, self.run_folder("run") / "weights" / "tmodel_01.pt")
        (self.run_folder("run") / "config.json").unlink()  # as if Python had left it
        out, _ = self.train("run", "--epochs", "4")
        self.assertIn("goes on from outputs/run/weights/tmodel_01.pt", out)
        self.assertEqual(self.trained("run", 44), self.trained("whole", 44))
        self.assertEqual(self.weights("run", 3)["wandb_run_id"], "x7")

        # From a named epoch it goes again; what came after is kept aside.
        out, _ = self.train("run", "--epochs", "4", "--preload", "2")
        self.assertIn("what came after epoch 2 is in outputs/run/set_aside_1", out)
        self.assertTrue((self.run_folder("run") / "set_aside_1" / "weights" / "tmodel_03.pt").exists())
        self.assertEqual(self.trained("run", 44), self.trained("whole", 44))
        again = ("-e", "run", "-d", "data.tsv", *SMALL)
        self.assertIn("there is no outputs/run/weights/tmodel_09.pt; the last one is of epoch 3",
                      self.one_line(*again, "--preload", "9"))
        self.assertIn("--preload is none, but outputs/run has a run", self.one_line(*again, "--preload", "none"))
        self.assertIn("outputs/run has another model: --layers was 1 and is now 2",
                      self.one_line(*again, "--layers", "2"))

    def test_byte_pairs_and_lines_of_standard_input(self):
        self.train("bytes", "--epochs", "2", "--tokenizer", "bpe", "--vocab-size", "280", "-s", "40", ranks=2)
        process = self.start("infer", "--run", "outputs/bytes", stdin=subprocess.PIPE)
        lines = "one two\n\nthree \u00e9\n"
        out, _ = self.finish(process, text=lines)
        self.assertEqual(out.count("\n"), 3)
        whole, _ = self.run_program("infer", "--run", "outputs/bytes", "--", "one two", "", "three \u00e9")
        self.assertEqual(out, whole)


class BadInput(Case):
    def test_each_is_one_line_that_says_what_to_do(self):
        long = self.folder / "long.tsv"
        long.write_text("a b\tc d\n" * 9 + " ".join(["word"] * 30) + "\tx\n")
        small = ("-s", "12", "--validation-fraction", "0", "--d-model", "16", "--heads", "2", "--layers", "1",
                 "--d-ff", "16", "-b", "4", "--no-progress", "--min-frequency", "1", "--epochs", "1")
        err = self.one_line("-d", "long.tsv", *small, "--ranks", "2")
        self.assertIn('pair 10: the source "word word word word word word word word ..." has 32 tokens with its marks, '
                      "and --seq-len is 12; raise it, or leave such pairs out with --long-pairs skip", err)
        out, _ = self.run_program("-d", "long.tsv", *small, "--long-pairs", "skip")
        self.assertIn("1 are longer than --seq-len 12 and were left out", out)
        err = self.one_line("-d", "none.tsv", *small)
        self.assertIn("none.tsv", err)
        (self.folder / "bad.tsv").write_text("one\tuno\ntwo due\n")
        err = self.one_line("-d", "bad.tsv", *small)
        self.assertRegex(err, "bad.tsv.*2")
        self.assertIn("there is no option --d-modle", self.one_line("--d-modle", "4"))
        self.assertIn("no run of translate", self.one_line("infer", "--run", "nowhere", "one"))
        err = self.one_line("infer", "--run", "outputs/translate", " ".join(["a"] * 11))
        self.assertIn("sentence 1: the source", err)
        self.assertIn("has no outputs/translate/weights/tmodel_05.pt",
                      self.one_line("infer", "--run", "outputs/translate", "--weights", "5", "a"))


class Embedded(Case):
    def test_a_little_of_it_already_helps(self):
        self.run_program("--pairs", "3000", "--epochs", "2", "--warmup", "10", "--no-progress", ranks=2)
        bleu = self.values("translate", "eval/bleu")
        self.assertGreater(bleu[-1], bleu[0])
        self.assertGreater(bleu[-1], 5)


if __name__ == "__main__":
    test_script.main()
