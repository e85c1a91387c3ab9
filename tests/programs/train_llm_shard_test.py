"""train_llm --shard: the bits of a run that is not sharded, snapshots in parts, kills, other programs.

train_llm_shard_test.py TRAIN_LLM LOCKSTEP LOGITS_JOB [[--but] CASE...], in a Python that has torch.
"""

import contextlib
import os
import signal
import subprocess
import sys

import torch

LOGITS_JOB = os.path.abspath(sys.argv.pop(3))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import train_llm_test as programs  # noqa: E402  (takes the arguments)
import test_script  # noqa: E402

try:
    import transformers
except ImportError:
    transformers = None
try:
    from safetensors.torch import load_file
except ImportError:
    load_file = None

DATA = ("-d", "data.jsonl", *programs.SMALL)
RUN = ("--ckpt-freq", "10", "--dropout", "0.1")
SHORT = ("--max-steps", "40", *RUN)


class Sharded(programs.Case):
    def snapshot(self, *arguments):
        """Of `lockstep snapshot`: its exit code and what it said."""
        result = subprocess.run([programs.LOCKSTEP, "snapshot", *map(str, arguments)], cwd=self.folder,
                                text=True, capture_output=True, timeout=self.limit)
        return result.returncode, result.stdout + result.stderr

    def converted(self, name, part):
        """The bytes of one file with the whole tensors of a run's last snapshot."""
        target = self.folder / f"{name}_{part}.safetensors"
        code, said = self.snapshot("convert", f"--part={part}", self.run_folder(name) / "snapshots", target)
        self.assertEqual(code, 0, said)
        return target.read_bytes()

    def test_its_snapshots_hold_the_bits_of_a_plain_run(self):
        self.train("plain", *SHORT, ranks=2)
        for stage in (1, 2, 3):
            with self.subTest(stage):
                name = f"stage_{stage}"
                self.train(name, *SHORT, "--shard", stage, ranks=2)
                folder = self.run_folder(name) / "snapshots" / "step_40"
                self.assertEqual(sorted(path.name for path in folder.glob("*.safetensors")),
                                 [f"{part}.rank_{rank}.safetensors" for part in ("model", "optimizer")
                                  for rank in (0, 1)])
                for part in ("model", "optimizer"):
                    self.assertEqual(self.converted(name, part), self.converted("plain", part), part)
        # A plain run goes on from parts, and a sharded one from whole files, to the same bits.
        longer = ("--max-steps", "60")
        self.train("plain", *RUN, *longer, "--shard", "3", ranks=2)
        self.train("stage_3", *RUN, *longer, ranks=2)
        for part in ("model", "optimizer"):
            self.assertEqual(self.converted("stage_3", part), self.converted("plain", part), part)

    def test_a_killed_run_goes_on_to_the_same_bits(self):
        options = (*SHORT, "--shard", "3", "--eval-fraction", "0.1", "--grad-clip", "1")
        self.train("whole", *options, ranks=2)
        expected = self.files("whole", 40)
        process = self.start("-e", "killed", *DATA, *options, ranks=2)
        try:
            self.wait_for_snapshot("killed", 20, process)
        finally:
            self.kill(process)
        self.train("killed", *options, ranks=2)
        self.assertEqual(self.files("killed", 40), expected)

        said = self.kill_rank_1(options, expected, ranks=2, launch=("--max-restarts", "1"))
        self.assertIn("a rank that dies cannot be replaced in place: its part of the model is nowhere else; "
                      "all ranks go on from the newest snapshot instead", said)

    def test_a_rank_that_dies_is_replaced_where_another_holds_its_part(self):
        options = (*SHORT, "--shard", "3", "--shard-replicas", "2", "--eval-fraction", "0.1", "--grad-clip", "1")
        self.train("whole", *options, ranks=4)
        # A death after the last step is not replaced but costs a restart.
        said = self.kill_rank_1(options, self.files("whole", 40), ranks=4, launch=("--max-restarts", "1"),
                                sign="rank 3 gave rank 1 part 1 (")
        self.assertIn("a rank that dies is replaced in place: its part is also on 1 other rank(s)", said)

    def test_a_rank_that_dies_is_replaced_from_the_copy_at_its_neighbour(self):
        options = (*SHORT, "--shard", "3", "--eval-fraction", "0.1", "--grad-clip", "1")
        self.train("whole", *options, ranks=3)  # copies do not change what is computed
        said = self.kill_rank_1((*options, "--shard-copies"), self.files("whole", 40), ranks=3,
                                launch=("--max-restarts", "1"), sign="rank 0 gave rank 1 part 1 (")
        self.assertIn("a rank that dies is replaced in place: a copy of its part is on another rank, as rank 0's is on "
                      "rank 2", said)
        self.assertIn("rank 2 gave rank 1 a copy of part 2 (", said)

    def kill_rank_1(self, options, expected, ranks, launch, sign="SIGKILL"):
        """What a run said that went on, to the files that are expected, after it had lost a rank. `sign` is what
        the run says or notes when the kill came in time."""
        for attempt in range(5):  # the run may be quicker than the kill
            name, job = f"one_died_{attempt}", self.folder / f"job_{attempt}"
            process = self.start("-e", name, *DATA, *options, ranks=ranks,
                                 launch=(*launch, "--run-dir", str(job)))
            with self.killed_where_this_fails(process):
                self.wait_for_snapshot(name, 10, process)
                rank = self.process_of(1)
                with contextlib.suppress(ProcessLookupError):
                    if rank is not None:
                        os.kill(rank, signal.SIGKILL)
            out, err = self.finish(process)
            self.assertEqual(self.files(name, 40), expected)
            if sign in err + out + (job / "events.jsonl").read_text():
                return err + out
        self.fail("no rank was killed in time")

    def test_what_does_not_fit_or_is_damaged_is_said_in_one_line(self):
        self.train("run", *SHORT, "--shard", "2", ranks=2)
        refused = self.one_line("-e", "run", *DATA, *RUN, "--max-steps", "60", "--shard", "2", "--ranks", "1")
        self.assertIn("a sharded run needs a process for each of its 2 slots", refused)
        self.assertIn("compression and shard", self.one_line("-e", "other", *DATA, *SHORT, "--shard", "2",
                                                             "--compress", "int8"))
        self.assertIn("--shard-replicas is 2 without --shard", self.one_line(*DATA, "--shard-replicas", "2"))
        self.assertIn("--shard-copies without --shard", self.one_line(*DATA, "--shard-copies"))
        self.assertIn("--shard-copies with --shard-replicas 2, which has each part on several ranks already", self.one_line(
            *DATA, "--shard", "2", "--shard-copies", "--shard-replicas", "2"))
        self.assertIn("--shard-copies on one rank", self.one_line(
            "-e", "other", *DATA, *SHORT, "--shard", "2", "--shard-copies", "--ranks", "1"))
        self.assertIn("--shard-replicas is 3; the number of ranks, 1, must be a multiple of it", self.one_line(
            "-e", "other", *DATA, *SHORT, "--shard", "2", "--shard-replicas", "3", "--ranks", "1"))
        snapshots = self.run_folder("run") / "snapshots"
        self.assertEqual(self.snapshot("verify", snapshots)[0], 0)
        (snapshots / "step_40" / "model.rank_1.safetensors").unlink()
        damaged = snapshots / "step_30" / "optimizer.rank_0.safetensors"
        content = bytearray(damaged.read_bytes())
        content[-1] ^= 1
        damaged.write_bytes(content)
        code, said = self.snapshot("verify", snapshots)
        self.assertEqual(code, 1)
        self.assertRegex(said, r"step_40: .*model.rank_1.safetensors")
        self.assertRegex(said, r"step_30: optimizer.rank_0.safetensors is damaged")
        code, said = self.snapshot("convert", snapshots / "step_40", "hub")
        self.assertNotEqual(code, 0)
        self.assertIn("model.rank_1.safetensors", said)
        out, err = self.train("run", *RUN, "--max-steps", "45", "--shard", "2", ranks=2)
        self.assertIn("model.rank_1.safetensors is missing", err)
        self.assertIn("optimizer.rank_0.safetensors is damaged", err)
        self.assertIn("goes on from step 20", err)

    def test_a_deferred_model_has_the_same_bits(self):
        self.train("made_whole", *SHORT, "--shard", "3", ranks=2)
        self.train("deferred", *SHORT, "--shard", "3", "--defer-init", ranks=2)
        self.assertEqual(self.files("deferred", 40), self.files("made_whole", 40))
        self.assertIn("--defer-init needs --shard 3", self.one_line(*DATA, "--shard", "2", "--defer-init"))

    def test_float32_parts_are_computed_with_in_bfloat16(self):
        options = (*RUN, "--shard", "3", "--dtype", "bf16-mixed", "--grad-clip", "1", "--schedule", "constant")
        self.train("whole", *options, "--max-steps", "40", ranks=2)
        losses = self.losses("whole")
        self.assertLess(losses[-1], losses[0] - 0.5, losses)
        # One that was ended in the middle goes on to the same bits.
        self.train("halves", *options, "--max-steps", "20", ranks=2)
        self.train("halves", *options, "--max-steps", "40", ranks=2)
        found, expected = self.files("halves", 40), self.files("whole", 40)
        self.assertEqual(list(found), list(expected))
        for name, content in expected.items():
            self.assertTrue(found[name] == content, name)
        self.train("evaluated", *options, "--max-steps", "10", "--eval-fraction", "0.1", ranks=2)
        self.assertTrue(any("eval/loss" in line for line in self.metrics("evaluated")))
        # Parts are float32, and not what bfloat16 or float32 would have given.
        self.train("full", *options, "--dtype", "fp32", "--max-steps", "40", ranks=2)
        self.assertNotEqual(self.converted("whole", "model"), self.converted("full", "model"))
        self.assertAlmostEqual(losses[-1], self.losses("full")[-1], delta=0.02 * losses[-1])
        if load_file is None:
            self.skipTest("safetensors is not installed: the types of what is saved are not looked at")
        rough = load_file(self.folder / "whole_model.safetensors")
        for name, tensor in load_file(self.folder / "full_model.safetensors").items():
            self.assertEqual(rough[name].dtype, torch.float32, name)
            self.assertFalse(torch.equal(rough[name], rough[name].bfloat16().float()), name)
            # Adam's steps have one size: an element with little gradient goes either way. Not so most of them.
            self.assertLess((rough[name] - tensor).norm(), 0.75 * tensor.norm(), name)

    def test_other_programs_take_it(self):
        self.train("run", *SHORT, "--shard", "3", ranks=4)
        self.run_program("export", "exported", "--snapshot", "outputs/run")
        out, _ = self.run_program("generate", "--snapshot", "outputs/run", "--prompt", "The", "--max-new-tokens",
                                  "3")
        self.assertTrue(out.startswith("The"))
        code, said = self.snapshot("convert", "outputs/run/snapshots", "hub")
        self.assertEqual(code, 0, said)
        if load_file is None:
            self.skipTest("safetensors is not installed: what is exported is not compared")
        exported = load_file(self.folder / "exported" / "model.safetensors")
        converted = load_file(self.folder / "hub" / "model.safetensors")
        self.assertEqual(len(exported), len(converted))
        for name, tensor in converted.items():
            self.assertTrue(torch.equal(tensor, exported["transformer." + name]), name)

    def logits(self, name, stage, ranks):
        """What the model of a run's last snapshot says about the ids of ids.pt, on each of some ranks."""
        target = self.folder / f"logits_{stage}_{ranks}"
        job = [LOGITS_JOB, self.run_folder(name) / "model" / "config.json", self.run_folder(name) / "snapshots",
               stage, self.folder / "ids.pt", target]
        launcher = [programs.LOCKSTEP, "run", "--quiet", "--standalone", "--nproc-per-node", ranks]
        result = subprocess.run([str(word) for word in (*launcher, *job)], cwd=self.folder, text=True,
                                env=self.environment, capture_output=True, timeout=self.limit)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return [torch.load(f"{target}.rank_{rank}.pt", weights_only=True) for rank in range(ranks)]

    def test_its_logits_are_the_same_wherever_it_is_loaded(self):
        self.train("run", *SHORT, "--shard", "3", ranks=4)
        ids = torch.randint(300, (3, 16), generator=torch.Generator().manual_seed(5))
        torch.save(ids, self.folder / "ids.pt")
        plain, = self.logits("run", stage=0, ranks=1)
        self.assertEqual((plain.shape, plain.dtype), ((3, 16, 300), torch.float32))
        self.assertGreater(plain.std(), 0.01)
        for stage, ranks in ((1, 2), (3, 1), (3, 4)):
            for rank, found in enumerate(self.logits("run", stage, ranks)):
                self.assertTrue(torch.equal(found, plain), f"stage {stage}, rank {rank} of {ranks}")
        self.run_program("export", "exported", "--snapshot", "outputs/run")
        if transformers is None:
            self.skipTest("transformers is not installed: what it computes is not compared")
        model = transformers.GPT2LMHeadModel.from_pretrained(self.folder / "exported").eval()
        with torch.no_grad():
            theirs = model(ids).logits
        self.assertEqual(theirs.dtype, torch.float32)
        # To a part of the largest value: single values near zero have no digits to compare.
        self.assertLess((theirs - plain).abs().max() / theirs.abs().max(), 1e-5)
        self.assertTrue(torch.equal(theirs.argmax(-1), plain.argmax(-1)))


if __name__ == "__main__":
    test_script.main()
