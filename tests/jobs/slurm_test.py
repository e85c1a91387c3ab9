"""Jobs on a real Slurm cluster of two nodes (slurm_bed.py).

Usage: slurm_test.py LOCKSTEP [PYTHON-WITH-TORCH TOY_TRAINER]
"""

import os
import pathlib
import re
import sys
import tempfile
import textwrap
import unittest

from slurm_bed import LIMIT, SlurmCluster, missing_tools

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

LOCKSTEP = os.path.abspath(sys.argv.pop(1))
PYTHON, TOY_TRAINER = [
    sys.argv.pop(1) if len(sys.argv) > 1 and "/" in sys.argv[1] else None for _ in range(2)
]
TESTS = pathlib.Path(__file__).resolve().parent.parent
TUTORIAL = TESTS / "launch" / "ddp_tutorial.py"  # a script that knows nothing of lockstep


def setUpModule():
    if os.getuid() != 0:
        raise unittest.SkipTest("a cluster of one's own needs root")
    if missing := missing_tools():
        raise unittest.SkipTest(f"not installed: {', '.join(missing)}")
    SlurmTest.cluster = SlurmCluster(nodes=2)
    unittest.addModuleCleanup(SlurmTest.cluster.close)


class SlurmTest(unittest.TestCase):
    cluster = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.output = self.folder / "output.txt"

    def write(self, name, text):
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    def environment(self, **more):
        return self.cluster.environment(TMPDIR=str(self.folder), **more)

    def submit(self, *options, job, nodes=2, **environment):
        """`lockstep sbatch`; the job's number."""
        text = self.cluster.run(LOCKSTEP, "sbatch", f"--nodes={nodes}", f"--output={self.output}",
                                *options, "--", *job, cwd=self.folder,
                                env=self.environment(**environment))
        return re.search(r"Submitted batch job (\d+)", text)[1]

    def ends_well(self, job, limit=LIMIT):
        fields = self.cluster.wait_for_job(job, limit)
        self.assertEqual(fields["JobState"], "COMPLETED", self.text())
        return self.text()

    def text(self):
        return self.output.read_text() if self.output.exists() else ""

    def wait_for(self, wanted, count=1, limit=LIMIT):
        """Until the job has said it so often."""
        self.cluster.wait(lambda: self.text().count(wanted) >= count,
                          f"'{wanted}', {count} times, in:\n{self.text()}", limit)


class Fast(SlurmTest):
    def test_one_command_starts_the_workers_of_both_nodes(self):
        worker = self.write("worker.sh", 'echo "rank $RANK of $WORLD_SIZE on $SLURMD_NODENAME: $1 $GIVEN"\n')
        name = "a 'name' of $HOME \"x\""
        job = self.submit(f"--job-name={name}", "--env=GIVEN=$a 'b'",
                          job=["--nproc-per-node=2", "--no-python", "sh", worker, "it's $one"])
        self.assertEqual(self.cluster.run("squeue", "--noheader", "--format=%j", "--states=all",
                                          "--jobs", job).strip(), name)
        lines = sorted(re.findall(r"rank .*", self.ends_well(job)))
        self.assertEqual(lines, [f"rank {rank} of 4 on n{1 + rank // 2}: it's $one $a 'b'" for rank in range(4)])


class Training(SlurmTest):
    @classmethod
    def setUpClass(cls):
        if not TOY_TRAINER:
            raise unittest.SkipTest("needs Python with torch and toy_trainer")

    def weights(self, text):
        """What both ranks of the tutorial say of their weights in the end."""
        lines = re.findall(r"rank (\d+) of 2 done (\S+)", text)
        self.assertEqual(sorted(rank for rank, _ in lines), ["0", "1"], text)
        (weights,) = {weights for _, weights in lines}
        return weights

    def test_python_by_sbatch_and_by_srun(self):
        env = {"PYTHON_EXEC": PYTHON}
        job = self.submit(job=[str(TUTORIAL), "2", str(self.folder / "a.pt")], **env)
        weights = self.weights(self.ends_well(job))
        # A launcher on each node, which finds out by itself where it is. srun passes the secret on.
        text = self.cluster.run("srun", "--nodes=2", "--ntasks-per-node=1", LOCKSTEP, "run",
                                "--nnodes=auto", str(TUTORIAL), "2", str(self.folder / "b.pt"),
                                cwd=self.folder,
                                env=self.environment(LOCKSTEP_SECRET="0123456789abcdef" * 2, **env))
        self.assertEqual(self.weights(text), weights)

    def toy_trainer(self, folder, epochs):
        (self.folder / folder).mkdir()
        return [TOY_TRAINER, str(epochs), "1000000", "--snapshot_path",
                str(self.folder / folder / "snapshot.pt")]

    def test_what_is_warned_saves_comes_again_and_ends_with_the_same_bits(self):
        epochs = 300  # the signal must not come after the last
        job = self.submit("--no-requeue", job=self.toy_trainer("undisturbed", epochs))
        self.ends_well(job, 300)
        undisturbed = (self.folder / "undisturbed" / "snapshot.pt").read_bytes()
        self.output.unlink()

        job = self.submit("--time=5", job=self.toy_trainer("warned", epochs))
        self.wait_for("Epoch 10 ", 2, 120)
        # To the batch shell alone, as Slurm does by itself when the time is nearly over.
        self.cluster.run("scancel", "--signal=USR1", "--batch", job)
        self.wait_for("is queued again", 1, 120)
        text = self.ends_well(job, 300)
        self.assertRegex(text, r"the scheduler ends the job in \d+ s")
        self.assertRegex(text, r"Resuming training from snapshot at Epoch \d+")
        self.assertEqual((self.folder / "warned" / "snapshot.pt").read_bytes(), undisturbed)
        self.assertEqual(self.cluster.fields(job)["Restarts"], "1")


class Warnings(SlurmTest):
    def test_before_the_time_is_over_all_ranks_are_told_how_long_they_have(self):
        # Catches the signal as a script would, and asks the launcher's socket for the seconds.
        worker = self.write("worker.py", """
            import json, os, signal, socket, struct, sys
            rank = os.environ["RANK"]
            def say(text):
                os.write(1, f"rank {rank} {text}\\n".encode())
            signal.signal(signal.SIGUSR1, lambda *_: say("caught USR1"))
            agent = socket.socket(socket.AF_UNIX)
            agent.connect(os.environ["LOCKSTEP_AGENT"])
            hello = json.dumps({"kind": "hello", "oldest_protocol": 1, "newest_protocol": 1,
                                "pid": os.getpid(), "rank": int(rank), "spare": False,
                                "slot": int(os.environ["LOCKSTEP_SLOT"]), "program": "test",
                                "epoch": int(os.environ["LOCKSTEP_EPOCH"])}).encode()
            agent.sendall(struct.pack("<I", len(hello)) + hello)
            say("runs")
            while True:
                size, = struct.unpack("<I", agent.recv(4, socket.MSG_WAITALL))
                message = json.loads(agent.recv(size, socket.MSG_WAITALL))
                if message["kind"] == "stop":
                    say(f"has {message['remaining_ms'] // 1000} s")
                    signal.sigtimedwait([], 1)
                    sys.exit(0)
            """)
        # The shortest time that Slurm knows. It looks twice a minute who is to be warned.
        job = self.submit("--time=1", "--warn=50", job=["--nproc-per-node=2", worker],
                          PYTHON_EXEC=sys.executable)
        text = self.ends_well(job, 120)
        for rank in range(4):
            self.assertEqual(text.count(f"rank {rank} caught USR1"), 1, text)
            self.assertIn(int(re.search(rf"rank {rank} has (\d+) s", text)[1]), range(1, 61), text)


class Cancelling(SlurmTest):
    def test_a_job_that_is_cancelled_does_not_come_again_though_it_has_saved(self):
        worker = self.write("worker.sh", """
            trap 'echo rank $RANK saves; exit 75' TERM
            echo rank $RANK runs
            while :; do sleep 0.05; done
            """)
        job = self.submit(job=["--no-python", "sh", worker])
        self.wait_for("runs", 2)
        self.cluster.run("scancel", job)
        fields = self.cluster.wait_for_job(job)
        self.assertEqual((fields["JobState"], fields["Restarts"]), ("CANCELLED", "0"), self.text())


class Draining(SlurmTest):
    def test_a_job_goes_on_when_a_node_is_drained_and_the_next_one_does_without_it(self):
        go_on = self.folder / "go_on"
        worker = self.write("worker.sh", f"""
            echo "rank $RANK runs on $SLURMD_NODENAME"
            while [ ! -e {go_on} ]; do sleep 0.05; done
            echo "rank $RANK ends"
            """)
        job = self.submit(job=["--no-python", "sh", worker])
        self.wait_for("runs on", 2)
        self.cluster.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test")
        self.addCleanup(self.cluster.run, "scontrol", "update", "NodeName=n2", "State=RESUME")
        self.cluster.wait(
            lambda: "DRAIN" in self.cluster.run("scontrol", "--oneliner", "show", "node", "n2"),
            "the draining of n2")
        go_on.touch()
        self.assertEqual(self.ends_well(job).count("ends"), 2)
        self.output.unlink()
        text = self.ends_well(self.submit(nodes=1, job=["--no-python", "sh", worker]))
        self.assertIn("runs on n1", text)
        waiting = self.submit(job=["--no-python", "sh", worker])
        self.cluster.wait(lambda: self.cluster.fields(waiting)["Reason"] not in ("None", "Priority"),
                          "Slurm to say why the job waits")
        self.assertEqual(self.cluster.state(waiting), "PENDING")
        self.cluster.run("scancel", waiting)


if __name__ == "__main__":
    test_script.main(verbosity=2)
