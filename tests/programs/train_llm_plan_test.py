"""train_llm --plan: tables, the choice for a given memory, and refusals. Give it the program."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

TRAIN_LLM = os.path.abspath(sys.argv.pop(1))
MODEL = ("--model", "gpt2", "--vocab-size", "50257", "--dtype", "fp32", "--ranks", "4")
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def plan(*words):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([TRAIN_LLM, *words], capture_output=True, text=True, timeout=120, cwd=folder)
        left = os.listdir(folder)
    return done.returncode, done.stdout, done.stderr, left


def rows(text):
    """{"stage": [parameters, gradients, optimizer, activations, buffers, peak]} in bytes."""
    found = {}
    for stage, values in re.findall(r"^stage (\d) +(\d.*)$", text, re.MULTILINE):
        found[stage] = [float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+) (\w+)", values)]
    return found


class PlanTest(unittest.TestCase):
    def test_a_table_has_every_stage_and_nothing_is_left_behind(self):
        code, output, errors, left = plan(*MODEL, "--plan")
        self.assertEqual((code, errors, left), (0, "", []), output)
        self.assertIn("124M parameters, fp32, 4 rank(s), sequences of 1024 tokens", output)
        table = rows(output)
        self.assertEqual(list(table), ["0", "1", "2", "3"])
        parameters = 124_439_808
        self.assertAlmostEqual(table["0"][0] / (4 * parameters), 1, delta=0.001)
        self.assertAlmostEqual(table["0"][2] / (8 * parameters), 1, delta=0.001)
        self.assertAlmostEqual(table["1"][2] / (2 * parameters), 1, delta=0.001)
        peaks = [row[5] for row in table.values()]
        self.assertEqual(peaks, sorted(peaks, reverse=True))

    def test_the_choice_fits_and_its_command_is_printed(self):
        code, output, errors, _ = plan(*MODEL, "--plan", "--memory", "5GiB", "--lr", "1e-4")
        self.assertEqual((code, errors), (0, ""), output)
        self.assertIn("stage 0 fits into 5GiB with", output)
        command = output.splitlines()[-1].split()
        batch = command.pop()
        self.assertEqual(command, "lockstep run --standalone --nproc-per-node 4 train_llm --model gpt2 --vocab-size 50257 "
                                  "--lr 0.0001 --dtype fp32 --batch-size".split())
        self.assertLessEqual(rows(output)["0"][5], 5 * 2**30)
        _, more, _, _ = plan(*MODEL, "--plan", "--batch-size", str(int(batch) + 1))
        self.assertGreater(rows(more)["0"][5], 5 * 2**30)

    def test_copies_at_a_neighbour_are_counted(self):
        code, output, errors, _ = plan(*MODEL, "--shard", "3", "--shard-copies", "--plan")
        self.assertEqual(code, 0, errors)
        table, without = rows(output), rows(plan(*MODEL, "--plan")[1])
        self.assertEqual(table["0"], without["0"])
        part = 124_439_808 / 4
        for stage in ("1", "2", "3"):
            self.assertAlmostEqual(table[stage][2] / without[stage][2], 2, delta=0.001)
            self.assertAlmostEqual((table[stage][0] - without[stage][0]) / (4 * part), 1, delta=0.05)
        code, _, errors, _ = plan(*MODEL[:-1], "1", "--shard", "3", "--shard-copies", "--plan")
        self.assertEqual(code, 2)
        self.assertIn("--shard-copies on one rank", errors)

    def test_float32_parts_of_bfloat16_weights_are_counted(self):
        mixed = ("--model", "gpt2", "--vocab-size", "50257", "--dtype", "bf16-mixed", "--ranks", "4", "--shard", "1")
        code, output, errors, _ = plan(*mixed, "--plan")
        self.assertEqual(code, 0, errors)
        table, full = rows(output), rows(plan(*MODEL, "--plan")[1])
        self.assertEqual(list(table), ["1", "2", "3"])
        parameters = 124_439_808
        # Whole ones in 2 bytes, a quarter in 4 beside them, and while it is sent a block's quarter in 2.
        block = 12 * 768 * 768 / 4
        self.assertAlmostEqual(table["1"][0] / (3 * parameters + 2 * block), 1, delta=0.001)
        for stage, row in table.items():
            with self.subTest(stage):
                self.assertEqual(row[1:3], full[stage][1:3])  # gradients on their way and the optimizer's state
                self.assertLess(row[3], 0.6 * full[stage][3])
                self.assertLess(row[5], full[stage][5])
        code, output, errors, _ = plan(*mixed, "--plan", "--memory", "2GiB")
        self.assertEqual(code, 0, errors)
        self.assertRegex(output, r"stage \d fits into 2GiB with")
        self.assertIn("--dtype bf16-mixed", output.splitlines()[-1])
        chosen = re.search(r"^stage (\d) fits", output, re.MULTILINE)[1]
        self.assertLessEqual(rows(output)[chosen][5], 2 * 2**30)

    def test_less_memory_takes_a_later_stage(self):
        stages, commands = [], []
        for memory in ("5GiB", "2.2GiB", "1.8GiB", "1.6GiB"):
            code, output, errors, _ = plan(*MODEL, "--plan", "--memory", memory)
            self.assertEqual(code, 0, errors)
            stages.append(re.search(r"^stage (\d) fits into", output, re.MULTILINE)[1])
            commands.append(output.splitlines()[-1].split("--batch-size ")[1].partition(" ")[2])
        self.assertEqual(stages, ["0", "1", "2", "3"])
        self.assertEqual(commands, ["", "--shard 1", "--shard 2", "--shard 3"])

    def test_a_given_stage_is_the_least_and_a_model_too_large_to_make_is_deferred(self):
        _, output, _, _ = plan(*MODEL, "--plan", "--memory", "5GiB", "--shard", "2")
        self.assertIn("stage 2 fits into 5GiB", output)
        code, output, errors, _ = plan("--model", "gpt2-xl", "--vocab-size", "50257", "--dtype", "bf16", "--ranks", "64",
                                       "--activation-checkpointing", "-s", "256", "--plan", "--memory", "2GiB")
        self.assertEqual(code, 0, errors)
        self.assertTrue(output.endswith(" --shard 3 --defer-init\n"), output)

    def test_what_does_not_fit_is_refused_with_the_least_that_would(self):
        code, output, errors, _ = plan(*MODEL, "--plan", "--memory", "100MiB")
        self.assertEqual((code, output), (2, ""))
        self.assertEqual(len(errors.splitlines()), 1, errors)
        least = re.search(r"nothing fits into it on 4 rank\(s\); the least is ([\d.]+) (\w+) a rank", errors)
        self.assertTrue(least, errors)
        enough = f"{float(least[1]) * 1.01:.2f}{least[2]}"
        code, output, errors, _ = plan(*MODEL, "--plan", "--memory", enough, "--activation-checkpointing")
        self.assertEqual(code, 0, errors)
        self.assertIn("stage 3 fits into", output)

    def test_bad_values_are_refused_in_one_line(self):
        for words, said in (((*MODEL, "--plan", "--memory", "much"), "'much' is not a number of bytes"),
                            ((*MODEL, "--memory", "3GiB"), "--memory belongs to --plan")):
            code, _, errors, _ = plan(*words)
            self.assertEqual(code, 2, errors)
            self.assertIn(said, errors)
            self.assertEqual(len(errors.splitlines()), 1, errors)


if __name__ == "__main__":
    test_script.main()
