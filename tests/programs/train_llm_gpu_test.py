"""train_llm on a GPU, on GPT-2's fused path: attention by each library, ranks that die, recorded steps.

train_llm_gpu_test.py TRAIN_LLM LOCKSTEP [unittest's arguments], in a Python that has torch.
"""

import json
import os
import sys
import tempfile

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import train_llm_test as programs  # noqa: E402  (takes the arguments)
import test_script  # noqa: E402

# Heads of 64 columns and blocks of 128 tokens, which our own attention takes on a Hopper. All of its sums have an
# order, as those of the other kernels have; elsewhere attention is cuDNN's, whose backward has none.
HAS_ORDER = torch.cuda.get_device_capability()[0] == 9
MODEL = ("-d", "data.jsonl", *programs.SMALL, "--dtype", "bf16-autocast", "--dropout", "0", "--n-embd", "128", "-s",
         "128", "--max-steps", "240", "--ckpt-freq", "60")
ON_GLOO = ("--device", "cuda:0", "--backend", "gloo")  # the GPU is shared


class FusedPath(programs.Case):
    limit = 150  # seconds; a run that hangs is told of before the time of all is over

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="lockstep_llm_")
        cls.addClassCleanup(folder.cleanup)
        cls.cache = folder.name

    def setUp(self):
        super().setUp()
        del self.environment["CUDA_VISIBLE_DEVICES"]
        self.environment["XDG_CACHE_HOME"] = self.cache
        programs.write_records(self.folder / "data.jsonl", 1200)
        # Which of cublasLt's algorithms is the fastest is found by timing, once; all later runs take the same.
        self.train_by("tiles", "first", "--max-steps", "3")
        self.assertTrue(os.path.exists(self.cache + "/lockstep/matrix_products"))

    def train_by(self, attention, name, *arguments, ranks=None):
        self.environment["LOCKSTEP_ATTENTION"] = attention
        out, err = self.run_program("-e", name, *MODEL, *arguments, ranks=ranks)
        self.assertNotIn("ATen's operators", out + err)
        return out + err

    def start_two(self, name):
        """Two ranks, and their run directory."""
        self.environment["LOCKSTEP_ATTENTION"] = "tiles"
        job = self.folder / f"job_{name}"
        return self.start("-e", name, *MODEL, *ON_GLOO, ranks=2, launch=("--run-dir", str(job))), job

    def assert_near(self, name, expected):
        for mine, theirs in zip(self.losses(name), self.losses(expected), strict=True):
            self.assertAlmostEqual(mine / theirs, 1, delta=1e-2)

    def assert_same_training(self, name, expected):
        if not HAS_ORDER:
            return self.assert_near(name, expected)
        self.assertEqual(self.losses(name), self.losses(expected))
        self.assertEqual(self.files(name, 240), self.files(expected, 240))

    def test_a_rank_that_dies_is_replaced_and_a_killed_run_goes_on(self):
        self.train_by("tiles", "whole", *ON_GLOO, ranks=2)

        process, job = self.start_two("replaced")
        with self.killed_where_this_fails(process):
            self.kill_rank(1, "replaced", 60, process)
        self.finish(process)
        events = map(json.loads, (job / "events.jsonl").read_text().splitlines())
        self.assertEqual([event["slot"] for event in events if event["kind"] == "replaced"], [1])
        self.assert_same_training("replaced", "whole")

        process, _ = self.start_two("resumed")
        try:
            self.wait_for_snapshot("resumed", 60, process)
        finally:
            self.kill(process)
        self.assertLess(self.newest_snapshot("resumed"), 240)
        self.assertRegex(self.train_by("tiles", "resumed", *ON_GLOO, ranks=2), "goes on from step (60|120|180)")
        self.assert_same_training("resumed", "whole")

    def test_recorded_steps_are_as_others(self):
        self.train_by("tiles", "plain")
        said = self.train_by("tiles", "recorded", "--cuda-graph")
        self.assertNotIn("none is recorded", said)
        self.assert_same_training("recorded", "plain")

    def test_attention_may_be_anybodys(self):
        """Rounding differs, and grows from step to step."""
        short = ("--max-steps", "50", "--lr", "3e-4")
        self.train_by("tiles", "tiles", *short)
        for attention in ("cudnn", "aten"):
            self.train_by(attention, attention, *short)
            self.assert_near(attention, "tiles")
            if HAS_ORDER:  # those of tiles are ours
                self.assertNotEqual(self.losses(attention), self.losses("tiles"))


if __name__ == "__main__":
    test_script.main(verbosity=2)
