"""train_llm as a user runs it: ranks, kills, bad files, the tutorial's files, generated text.

train_llm_test.py TRAIN_LLM LOCKSTEP [[--but] CASE...], in a Python that has torch.
"""

import json
import math
import os
import pathlib
import re
import resource
import signal
import struct
import subprocess
import sys
import unittest

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from program_case import ProgramCase  # noqa: E402
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

LOCKSTEP = os.path.abspath(sys.argv.pop(2))
TRAIN_LLM = os.path.abspath(sys.argv.pop(1))
# A model and data that are small enough for fifty steps in a second.
SMALL = ("--model", "tiny", "--n-layer", "1", "--n-embd", "32", "--n-head", "2", "--vocab-size", "300",
         "-s", "16", "-b", "2", "--dtype", "fp32", "--lr", "1e-3", "--log-freq", "10", "--no-progress",
         "--num-workers", "0")


def write_records(path, count=120):
    lines = [json.dumps({"instruction": f"Say the number {i}.", "input": "" if i % 3 else f"twice, {i}",
                         "output": f"The number is {i}."}) for i in range(count)]
    path.write_text("\n".join(lines) + "\n")


class Case(ProgramCase):
    program, lockstep = TRAIN_LLM, LOCKSTEP

    def setUp(self):
        super().setUp()
        write_records(self.folder / "data.jsonl")

    def train(self, name, *arguments, ranks=None, code=0):
        return self.run_program("-e", name, "-d", "data.jsonl", *SMALL, *arguments, ranks=ranks, code=code)

    def all_files(self, name):
        """Of a run; the lock says who came last."""
        return {path: path.read_bytes() for path in self.run_folder(name).rglob("*")
                if path.is_file() and "lock" not in path.name}

    def weights(self, name, step):
        from safetensors.torch import load_file
        return load_file(self.run_folder(name) / "snapshots" / f"step_{step}" / "model.safetensors")

    def losses(self, name):
        return [line["loss"] for line in self.metrics(name) if "loss" in line]


class Ranks(Case):
    def test_two_ranks_have_the_bits_of_one_with_two_slots(self):
        self.train("two", "--max-steps", "50", ranks=2)
        self.train("one", "--max-steps", "50", "--slots", "2")
        self.assertEqual(self.files("two", 50), self.files("one", 50))

    def test_two_ranks_are_twice_the_accumulation_up_to_rounding(self):
        self.train("two", "--max-steps", "50", ranks=2)
        self.train("accumulated", "--max-steps", "50", "--grad-accum", "2")
        two, accumulated = self.weights("two", 50), self.weights("accumulated", 50)
        for name, tensor in two.items():
            # The softmax takes no notice of a bias of the keys: its gradient is rounding alone, which
            # Adam makes as large as any other.
            counts = torch.ones_like(tensor, dtype=torch.bool)
            if name.endswith("c_attn.bias"):
                counts[32:64] = False
            torch.testing.assert_close(accumulated[name][counts], tensor[counts], rtol=1e-5, atol=1e-5,
                                       msg=lambda text: f"{name}: {text}")
        for mine, theirs in zip(self.metrics("two"), self.metrics("accumulated")):
            self.assertAlmostEqual(mine["loss"] / theirs["loss"], 1, delta=1e-5)

    def test_a_run_whose_first_rank_is_left_out_goes_on_to_the_same_bits(self):
        # Long enough that a kill at the first snapshot comes well before the end.
        options = ("--max-steps", "400", "--ckpt-freq", "20", "--flat-checkpoint")
        self.train("whole", *options, ranks=2)
        process = self.start("-e", "half", "-d", "data.jsonl", *SMALL, *options, ranks=2,
                             launch=("--min-world", "1", "--max-replacements", "0",
                                     "--run-dir", str(self.folder / "job")))
        with self.killed_where_this_fails(process):
            self.kill_rank(0, "half", 20, process)
        self.finish(process)
        events = (self.folder / "job" / "events.jsonl").read_text().splitlines()
        left_out = [event for event in map(json.loads, events) if event["kind"] == "left_out"]
        self.assertEqual([event["slot"] for event in left_out], [0])
        self.assertEqual(self.files("half", 400), self.files("whole", 400))
        self.assertEqual([line["loss"] for line in self.metrics("half")],
                         [line["loss"] for line in self.metrics("whole")])
        for file in ("model.pt", "state.json"):
            self.assertEqual((self.run_folder("half") / file).read_bytes(),
                             (self.run_folder("whole") / file).read_bytes())

    def check_killed(self, kill_at):
        options = ("--max-steps", "60", "--ckpt-freq", "20", "--eval-fraction", "0.1", "--grad-clip", "1",
                   "--dropout", "0.1")
        self.train("whole", *options, ranks=2)
        process = self.start("-e", "killed", "-d", "data.jsonl", *SMALL, *options, ranks=2)
        try:
            self.wait_for_snapshot("killed", kill_at, process)
        finally:
            self.kill(process)
        self.train("killed", *options, ranks=2)
        self.assertEqual(self.files("killed", 60), self.files("whole", 60))

    def test_a_killed_run_goes_on_to_the_same_bits(self):
        self.check_killed(40)

    def test_a_run_killed_after_its_first_snapshot_goes_on_to_the_same_bits(self):
        self.check_killed(20)

    def test_a_signal_saves_and_ends_with_75(self):
        for name, number in (("stopped", signal.SIGTERM), ("interrupted", signal.SIGINT)):
            process = self.start("-e", name, "-d", "data.jsonl", *SMALL, "--num-epochs", "1000000", ranks=2)
            for line in process.stdout:
                if line.startswith("step 20"):
                    break
            process.send_signal(number)
            self.finish(process, code=75)
            step = self.newest_snapshot(name)
            out, _ = self.train(name, "--max-steps", step + 10, ranks=2)
            self.assertIn("trained 10 steps", out)

    def test_every_precision_trains(self):
        for dtype in ("bf16", "bf16-autocast", "fp16"):
            with self.subTest(dtype):
                self.train(dtype, "--dtype", dtype, "--max-steps", "10")
                self.assertLess(self.metrics(dtype)[-1]["loss"], 6)

    def test_activation_checkpointing_has_the_same_bits(self):
        self.train("plain", "--max-steps", "20", "--dropout", "0.1")
        self.train("checkpointed", "--max-steps", "20", "--dropout", "0.1", "--activation-checkpointing")
        self.assertEqual(self.files("plain", 20), self.files("checkpointed", 20))


class RunFolder(Case):
    def test_it_holds_configuration_metrics_of_every_rank_and_a_model_that_speaks(self):
        out, _ = self.train("run", "--max-steps", "20", "--eval-fraction", "0.1", ranks=2)
        config = json.loads((self.run_folder("run") / "config.json").read_text())
        self.assertEqual(config["slots"], 2)
        self.assertEqual(config["n-embd"], 32)
        for rank in (0, 1):
            lines = [line for line in self.metrics("run", rank) if "loss" in line]
            self.assertEqual([line["step"] for line in lines], [10, 20])
            for key in ("lr", "grad_norm", "tok/s", "tok/s_rank", "time/data", "time/forward", "time/backward",
                        "time/reduce", "time/update", "time/total", "mem/host_gb", "mem/host_peak_gb"):
                self.assertGreaterEqual(lines[-1][key], 0, key)
            phases = sum(lines[-1][f"time/{key}"]
                         for key in ("data", "forward", "backward", "reduce", "update"))
            self.assertAlmostEqual(phases, lines[-1]["time/total"], 6)
            self.assertAlmostEqual(lines[-1]["tok/s"], 2 * lines[-1]["tok/s_rank"], 3)
        self.assertRegex(out, r"step 20/20 \| epoch 1 \| loss \d\.\d+ \| lr [\d.e-]+ \|.* tok/s")
        self.assertRegex(out, r"validation loss \d\.\d+ \| perplexity \d+\.\d+")
        evaluated = [line for line in self.metrics("run") if "eval/loss" in line]
        self.assertAlmostEqual(evaluated[-1]["eval/perplexity"], math.exp(evaluated[-1]["eval/loss"]), 6)

    def test_without_a_type_the_cpu_computes_in_32_bits_and_a_run_keeps_what_it_has(self):
        run = ("-d", "data.jsonl", *(word for word in SMALL if word not in ("--dtype", "fp32")))
        stored = lambda name: json.loads((self.run_folder(name) / "config.json").read_text())["dtype"]
        out, _ = self.run_program("-e", "new", *run, "--max-steps", "2")
        self.assertIn(" parameters, fp32, ", out)
        self.assertEqual(stored("new"), "fp32")
        self.run_program("-e", "old", *run, "--max-steps", "2", "--dtype", "bf16")
        out, _ = self.run_program("-e", "old", *run, "--max-steps", "4")
        self.assertIn(" parameters, bf16, ", out)
        self.assertNotIn("not as the run was begun", out)
        self.assertEqual(stored("old"), "bf16")

    def test_a_run_whose_end_cannot_be_saved_fails_and_rank_0_says_why(self):
        self.run_folder("run").mkdir(parents=True)
        (self.run_folder("run") / "snapshots").write_text("no folder")
        _, err = self.train("run", "--max-steps", "4", ranks=2, code=1)
        self.assertIn("First failure: rank 0", err)
        self.assertIn("error   Error: step 4, the last of this run, could not be saved", err)

    def test_tokens_that_nobody_uses_are_removed_beyond_a_limit(self):
        self.train("one", "--max-steps", "1")
        _, err = self.train("two", "--max-steps", "1", "-s", "32", "--cache-limit", "1KB")
        self.assertRegex(err, r"train_llm: removed \S+/tokens-\w+ \(.* of tokens of .*data.jsonl, not used for 0 h\)"
                              r", to keep --cache-limit 1KB")
        self.assertEqual(len(list((self.folder / "cache" / "lockstep").iterdir())), 1)
        self.assertIn("--cache-limit: 'much' is not a number of bytes",
                      self.one_line("-e", "three", "-d", "data.jsonl", *SMALL, "--cache-limit", "much"))

    def test_it_says_which_options_have_changed_and_refuses_on_request(self):
        self.train("run", "--max-steps", "10")
        out, _ = self.train("run", "--max-steps", "20", "--weight-decay", "0.5")
        self.assertIn("not as the run was begun: --weight-decay was 0.01 and is now 0.5", out)
        before = self.all_files("run")
        again = ("-e", "run", "-d", "data.jsonl", *SMALL, "--max-steps", "30")
        self.assertRegex(self.one_line(*again, "--n-layer", "2"), r"outputs/run has another model \(parameters: ")
        tokenizer = ("--vocab-size", "310", "--resume", "never", "--max-steps", "1", "-e", "other")
        self.train("other", *tokenizer)
        err = self.one_line(*again, "--tokenizer", "outputs/other/tokenizer")
        self.assertRegex(err, r"outputs/run has another tokenizer \(entries: 300 there, 310 here\)")
        self.assertIn("the loader is not that of the run", self.one_line(*again, "-b", "3"))
        after = self.all_files("run")
        self.assertEqual(before.keys(), after.keys())
        self.assertEqual([path for path in before if before[path] != after[path]], [])
        err = self.one_line("-e", "run", "-d", "data.jsonl", *SMALL, "--resume", "never")
        self.assertIn("--resume is never, but outputs/run has a run", err)
        err = self.one_line("-e", "new", "-d", "data.jsonl", *SMALL, "--resume", "must")
        self.assertIn("there is nothing to go on from in outputs/new", err)

    def test_generate_and_export_take_the_run_its_snapshots_and_what_was_exported(self):
        self.train("run", "--max-steps", "20", "--ckpt-freq", "10")
        prompt = ("generate", "--prompt", "Say", "--max-new-tokens", "12")
        run = "outputs/run"
        first, err = self.run_program(*prompt, "--snapshot", run, "--seed", "5")
        self.assertIn("step 20 of outputs/run", err)
        self.assertTrue(first.startswith("Say"))
        self.assertEqual(first, self.run_program(*prompt, "--snapshot", run, "--seed", "5")[0])
        others = {self.run_program(*prompt, "--snapshot", run, "--seed", seed)[0] for seed in range(6, 9)}
        self.assertTrue(others - {first})
        early, err = self.run_program(*prompt, "--snapshot", run + "/snapshots/step_10")
        self.assertIn("step 10 of outputs/run", err)
        self.run_program("export", "exported", "--snapshot", run)
        again, _ = self.run_program(*prompt, "--snapshot", "exported", "--seed", "5")
        self.assertEqual(first, again)
        asked, _ = self.run_program("generate", "--instruction", "Say the number 4.", "--snapshot", run,
                                    "--temperature", "0", "--max-new-tokens", "8")
        self.assertNotIn("Say the number", asked)
        try:
            import transformers
        except ImportError:
            self.skipTest("transformers is not installed: all but what it computes is the same")
        model = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "exported")
        self.assertTrue(torch.equal(model.transformer.wte.weight, self.weights("run", 20)["wte.weight"]))

    def test_a_configuration_file_does_what_the_command_line_does(self):
        self.train("words", "--max-steps", "10")
        config = json.loads((self.run_folder("words") / "config.json").read_text())
        config["experiment-name"] = "file"
        (self.folder / "c.json").write_text(json.dumps(config))
        self.run_program("--config", "c.json")
        self.assertEqual(self.files("words", 10), self.files("file", 10))


class Memory(Case):
    @unittest.skipIf(torch.version.cuda, "CUDA's libraries take all addresses")
    def test_running_out_of_it_says_what_to_lower(self):
        write_records(self.folder / "data.jsonl", 4000)
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (5 << 29, 5 << 29))
        done = subprocess.run([TRAIN_LLM, "-d", "data.jsonl", *SMALL, "--n-layer", "4", "--n-embd", "128",
                               "-s", "256", "-b", "256", "--max-steps", "1"], cwd=self.folder,
                              env=self.environment, preexec_fn=limit, capture_output=True, text=True,
                              timeout=self.limit)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn("out of memory with --batch-size 256 and --seq-length 256; try --batch-size 128 with "
                      "--grad-accum 2 (the same steps), --activation-checkpointing", done.stderr)


class BadFiles(Case):
    """Each is one line, before training starts."""

    def refused(self, content, name="bad.jsonl", *more):
        (self.folder / name).write_text(content)
        return self.one_line("-e", "bad", "-d", name, *SMALL, *more)

    def test_data(self):
        self.assertRegex(self.refused(""), r"bad\.jsonl")
        self.assertRegex(self.refused("[]", "bad.json"), r"bad\.json")
        good = json.dumps({"instruction": "a", "output": "b"})
        err = self.refused(good + "\n" + json.dumps({"instruction": "a"}) + "\n")
        self.assertRegex(err, r"bad\.jsonl.*2.*output")
        self.assertRegex(self.refused(good + "\n{\"instruction\"\n"), r"bad\.jsonl.*2")
        err = self.refused(good + "\n", "short.jsonl", "-s", "200", "--template", "brief")
        self.assertRegex(err, r"short\.jsonl has fewer tokens than one block|makes \d blocks")
        self.assertIn("there is no such file", self.one_line("-d", "./none.jsonl", *SMALL))
        err = self.one_line("-d", "tatsu-lab/alpaca", *SMALL)
        self.assertIn("huggingface-cli download --repo-type dataset tatsu-lab/alpaca", err)

    def test_too_few_blocks_for_a_step(self):
        err = self.one_line("-e", "few", "-d", "data.jsonl", *SMALL, "-b", "100000")
        self.assertRegex(err, r"the data makes \d+ blocks of 16 tokens; a step needs 100000")

    @unittest.skipIf(torch.cuda.is_available(), "there is a GPU")
    def test_a_graph_without_a_gpu(self):
        err = self.one_line("-e", "graph", "-d", "data.jsonl", *SMALL, "--cuda-graph")
        self.assertIn("--cuda-graph needs a GPU", err)

    def test_models(self):
        self.train("run", "--max-steps", "2")
        self.run_program("export", "model", "--snapshot", "outputs/run")
        tune = ("-e", "tuned", "-d", "data.jsonl", "-m", "model", "-s", "16", "--max-steps", "2", "--no-progress",
                "--dtype", "fp32", "--cache-dir", "cache2")
        self.run_program(*tune)
        path = self.folder / "model" / "model.safetensors"
        whole = path.read_bytes()
        path.write_bytes(whole[:-100])
        self.assertIn("model.safetensors", self.one_line(*tune))
        header = json.loads(whole[8:8 + struct.unpack("<Q", whole[:8])[0]])
        header["transformer.wte.weight"]["shape"].reverse()
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + struct.unpack("<Q", whole[:8])[0]:])
        self.assertRegex(self.one_line(*tune), "wte.weight")
        path.rename(path.with_name("model-00001-of-00002.safetensors"))
        index = {"metadata": {}, "weight_map": {name: "model-00002-of-00002.safetensors" for name in header}}
        (self.folder / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
        self.assertIn("model-00002-of-00002.safetensors", self.one_line(*tune))
        (self.folder / "model" / "model.safetensors.index.json").unlink()
        path.write_bytes(whole)
        config = json.loads((self.folder / "model" / "config.json").read_text())
        err = self.one_line("-m", "openai-community/gpt2", "-d", "data.jsonl")
        self.assertIn("huggingface-cli download openai-community/gpt2", err)
        (self.folder / "model" / "config.json").write_text(json.dumps(config | {"n_head": 5}))
        self.assertIn("n_head", self.one_line(*tune))

    def test_a_larger_tokenizer_makes_the_model_grow(self):
        self.train("small", "--max-steps", "2")
        self.run_program("export", "model", "--snapshot", "outputs/small")
        self.train("large", "--max-steps", "2", "--vocab-size", "320")
        self.run_program("-e", "grown", "-d", "data.jsonl", "-m", "model", "--tokenizer", "outputs/large/tokenizer",
                         "-s", "16", "--max-steps", "2", "--no-progress", "--dtype", "fp32")
        self.assertEqual(self.weights("grown", 2)["wte.weight"].shape[0],
                         json.loads((self.run_folder("large") / "model/config.json").read_text())["vocab_size"])

    def test_snapshots(self):
        self.assertIn("no such directory", self.one_line("generate", "--prompt", "x", "--snapshot", "none"))
        err = self.one_line("generate", "--prompt", "x", "--snapshot", ".")
        self.assertIn("neither a run directory", err)


class FlatFiles(Case):
    FLAT = ("--flat-checkpoint", "--max-steps", "30", "--ckpt-freq", "15", "--schedule-steps", "40",
            "--weight-decay", "0.1")

    def python_objects(self, name):
        """A model of the same shapes, in the order of transformers', with the tutorial's optimizer."""
        state = torch.load(self.run_folder(name) / "model.pt", weights_only=True)
        model = torch.nn.Module()
        order = ["wte.weight", "wpe.weight"]
        for part in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"):
            order += [f"h.0.{part}.weight", f"h.0.{part}.bias"]
        order += ["ln_f.weight", "ln_f.bias"]
        parameters = [torch.nn.Parameter(state[f"module.transformer.{name}"].clone()) for name in order]
        optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1, fused=True)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40, eta_min=1e-5)
        return state, parameters, optimizer, scheduler

    def load(self, name, file):
        return torch.load(self.run_folder(name) / file, weights_only=True)

    def test_python_loads_them_into_its_own_objects(self):
        self.train("run", *self.FLAT)
        state, parameters, optimizer, scheduler = self.python_objects("run")
        self.assertEqual(len(state), len(parameters) + 1)
        self.assertTrue(torch.equal(state["module.lm_head.weight"], state["module.transformer.wte.weight"]))
        optimizer.load_state_dict(self.load("run", "optimizer.pt"))
        scheduler.load_state_dict(self.load("run", "lr_scheduler.pt"))
        self.assertEqual(scheduler.last_epoch, 30)
        self.assertEqual(optimizer.state[parameters[0]]["step"].item(), 30)
        self.assertEqual(optimizer.state[parameters[3]]["exp_avg"].shape, parameters[3].shape)
        self.assertAlmostEqual(optimizer.param_groups[0]["lr"], scheduler._get_closed_form_lr()[0], 12)
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        scheduler.step()
        self.assertAlmostEqual(scheduler.get_last_lr()[0], scheduler._get_closed_form_lr()[0], 12)
        place = json.loads((self.run_folder("run") / "state.json").read_text())
        self.assertEqual((place["global_step"], place["epoch"] >= 0), (30, True))
        self.assertLessEqual({"epoch", "global_step", "epoch_step", "running_loss"}, set(place))

    def test_a_run_goes_on_from_them_to_the_same_bits(self):
        self.train("run", *self.FLAT)
        self.train("whole", *self.FLAT, "--max-steps", "45")
        self.rewrite_with_python("run")
        # As if Python had made them: there is no snapshot.
        for path in (self.run_folder("run") / "snapshots").iterdir():
            path.rename(self.folder / path.name)
        out, err = self.train("run", *self.FLAT, "--max-steps", "45")
        self.assertIn("begins with step 30", err)
        for name, tensor in self.weights("whole", 45).items():
            self.assertTrue(torch.equal(self.weights("run", 45)[name], tensor), name)

    def rewrite_with_python(self, name):
        """Loads all files into torch's objects, and saves those as the tutorial does."""
        state, parameters, optimizer, scheduler = self.python_objects(name)
        optimizer.load_state_dict(self.load(name, "optimizer.pt"))
        scheduler.load_state_dict(self.load(name, "lr_scheduler.pt"))
        folder = self.run_folder(name)
        torch.save(optimizer.state_dict(), folder / "optimizer.pt")
        torch.save(scheduler.state_dict(), folder / "lr_scheduler.pt")
        torch.save(state, folder / "model.pt")

    def test_what_does_not_belong_together_is_refused(self):
        self.train("run", *self.FLAT)
        for path in (self.run_folder("run") / "snapshots").iterdir():
            path.rename(self.folder / path.name)
        again = ("-e", "run", "-d", "data.jsonl", *SMALL, *self.FLAT, "--max-steps", "45")
        self.assertIn("--schedule-steps 40", self.one_line(*again, "--schedule-steps", "50"))
        state = self.run_folder("run") / "state.json"
        place = json.loads(state.read_text())
        state.write_text(json.dumps(place | {"global_step": 31}))
        self.assertRegex(self.one_line(*again), r"optimizer\.pt: it is of step 30, state\.json of step 31")
        state.write_text("{}")
        self.assertRegex(self.one_line(*again), r"state\.json has no number 'epoch'")
        state.write_text(json.dumps(place))
        (self.run_folder("run") / "model.pt").write_bytes(b"no zip")
        self.assertRegex(self.one_line(*again), r"model\.pt")


class Embedded(Case):
    def test_it_trains_on_its_own_instructions_and_is_asked_before_and_after(self):
        out, _ = self.run_program("--max-steps", "60", "--no-progress", "--log-freq", "20", ranks=2)
        self.assertRegex(out, r"answered exactly before training: \d+ % of \d+ \(add \d+ %")
        self.assertRegex(out, r"answered exactly after training: \d+ % of \d+ \(add \d+ %")
        self.assertGreaterEqual(len(re.findall(r"^  \w+.* -> ", out, re.M)), 6)
        answers = json.loads((self.run_folder("train_llm") / "answers.json").read_text())
        self.assertEqual(answers["before"]["all"]["asked"], answers["after"]["all"]["asked"])
        records = (self.run_folder("train_llm") / "records" / "rank_0.jsonl").read_text().splitlines()
        texts = [record for record in map(json.loads, records) if record["kind"] == "text"]
        self.assertTrue(texts, "no answers were tracked")
        self.assertEqual(texts[-1]["name"], "answers")
        self.assertIn(" -> ", texts[-1]["text"])
        out, _ = self.run_program("--max-steps", "60", "--no-progress", "--log-freq", "20", ranks=2)
        self.assertIn("trained 0 steps", out)  # a run that is done is not repeated, but asked again
        self.assertEqual(json.loads((self.run_folder("train_llm") / "answers.json").read_text()), answers)
        losses = [line["loss"] for line in self.metrics("train_llm") if "loss" in line]
        self.assertLess(losses[-1], losses[0])

    def test_it_learns_to_answer_held_out_instructions(self):
        self.run_program("--no-progress", ranks=2)
        answers = json.loads((self.run_folder("train_llm") / "answers.json").read_text())
        share = {task: count["right"] / count["asked"] for task, count in answers["after"]["tasks"].items()}
        count = answers["after"]["all"]
        self.assertGreater(count["right"] / count["asked"], 0.5, share)
        self.assertGreaterEqual(sum(value > 0.9 for value in share.values()), 2, share)


class CommandLine(Case):
    def test_help_and_mistakes(self):
        out, _ = self.run_program("--help")
        self.assertIn("--experiment-name NAME", out)
        self.assertIn("there is no option --lrr; did you mean --lr?", self.one_line("--lrr", "1"))

    def test_it_starts_its_own_ranks(self):
        self.train("spawned", "--max-steps", "10", "--ranks", "2")
        self.train("launched", "--max-steps", "10", ranks=2)
        self.assertEqual(self.files("spawned", 10), self.files("launched", 10))
        err = self.one_line("-e", "x", "-d", "./none", *SMALL, "--ranks", "2")
        self.assertIn("there is no such file", err)

    def test_a_place_where_no_run_can_be_is_refused_at_once(self):
        (self.folder / "file").write_text("")
        err = self.one_line("-e", "x", "-d", "data.jsonl", *SMALL, "--save-dir", "file", "--ranks", "2")
        self.assertRegex(err, "--save-dir and --experiment-name, cannot be: cannot make file/x: Not a directory")
        self.assertIn("--memory: 'much' is not", self.one_line("--plan", "--memory", "much"))
        self.assertIn("--model: cannot read 'none.json'", self.one_line("--model", "none.json"))


if __name__ == "__main__":
    test_script.main(verbosity=2)
