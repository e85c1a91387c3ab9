"""Jobs that are started on other machines, or find out where they are.

Usage: start_test.py LOCKSTEP [PYTHON-WITH-TORCH]
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

from machines import ClusterCase, SECRET, SshCase, write_pbsdsh
from network import enter_namespaces
from launcher import LIMIT, Job, job_environment, set_launcher, stack_command, wait_until_gone
from recovery_support import WORKER, RecoveryCase

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from ports import free_port  # noqa: E402
import test_script  # noqa: E402

LOCKSTEP = sys.argv.pop(1)
set_launcher(LOCKSTEP)
TORCH_PYTHON = sys.argv.pop(1) if len(sys.argv) > 1 and "/" in sys.argv[1] else None
DDP_SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "launch" / "ddp_tutorial.py"


def parent_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def launcher_of(worker):
    """Between the two is the keeper."""
    return parent_of(parent_of(worker))


class Ssh(SshCase):
    """The head is on machine 1, the nodes are machines 2 and 3."""

    def endless(self):
        """A worker that says its pid and waits, and takes signals."""
        return self.file("endless.sh", """
            trap 'echo rank $RANK got USR1' USR1
            trap 'echo rank $RANK got TERM; exit 0' TERM
            echo rank $RANK is $$
            while :; do sleep 0.05; done
            """)

    def pids(self, job, count):
        text = job.wait_for_line(" is ", count)
        return [int(pid) for pid in re.findall(r"rank \d+ is (\d+)", text)]

    def test_a_hostfile_with_slots(self):
        hostfile = self.file("hosts", """
            # two machines
            10.77.0.2 slots=2
            10.77.0.3
            """)
        worker = self.file("show.sh", """
            echo rank $RANK of $WORLD_SIZE on node $GROUP_RANK at $MASTER_ADDR in $PWD with $NCCL_TEST $MORE
            tr '\\0' '\\n' < /proc/$$/environ | grep -c -e SECRET -e BRIEF
            if [ $RANK = 0 ]; then for each in /proc/[0-9]*/cmdline; do cat $each; done 2>/dev/null |
              grep -c '5[e]cret'; fi; true
            """)
        job = self.start(1, "--hostfile", hostfile, f"--ssh-options={self.ssh.options()}",
                         "--export", "TMPDIR,MORE=more", "--no-python", "sh", worker,
                         env={"NCCL_TEST": "usual", "LOCKSTEP_SECRET": SECRET})
        out, = self.ends_well(job)
        lines = out.splitlines()
        for rank, node in ((0, 0), (1, 0), (2, 1)):
            self.assertIn(f"rank {rank} of 3 on node {node} at 10.77.0.2 in {self.folder} with usual "
                          "more", lines)
        self.assertEqual(lines.count("0"), 4, out)  # nobody has seen the secret
        self.assertIn("2 nodes: 10.77.0.2 and 10.77.0.3", job.err)
        self.assertIn("with ssh", job.err)

    def test_a_program_that_is_not_there_is_named_with_the_machine(self):
        start = time.monotonic()
        self.fails(self.run_on("--remote-lockstep", "/nowhere/lockstep", "--no-python", "true"),
                   "node 10.77.0.", "'/nowhere/lockstep' is not there", "--remote-lockstep")
        self.assertLess(time.monotonic() - start, LIMIT / 2)

    def test_a_program_for_another_kind_of_machine_is_named(self):
        alien = self.folder / "alien"
        header = bytearray(pathlib.Path(LOCKSTEP).read_bytes()[:4096])
        header[18] = 0xF7  # EM_BPF, which no machine is
        header[19] = 0
        alien.write_bytes(header)
        alien.chmod(0o755)
        self.fails(self.run_on("--remote-lockstep", str(alien), "--no-python", "true"),
                   "another kind of machine")

    def test_what_keeps_ssh_out_is_named_with_the_cure(self):
        self.fails(self.run_on("--no-python", "true", ssh=self.ssh.options(key="stranger")),
                   "node 10.77.0.", "ssh may not log in", "ssh-copy-id")
        self.fails(self.run_on("--no-python", "true", ssh=self.ssh.options(port=free_port())),
                   "no ssh server listens there")
        self.fails(self.run_on("--no-python", "true", hosts="10.77.0.2,nobody.invalid"),
                   "node nobody.invalid", "its name is not known")

    def test_a_missing_script_is_said_by_the_machine_that_misses_it(self):
        self.fails(self.run_on("missing.py"), "node 10.77.0.", "missing.py")

    def test_a_prologue_makes_the_environment_and_its_failure_is_named(self):
        out, = self.ends_well(self.run_on(
            "--prologue", "export SITE=$(hostname)-site", "--no-python", "sh", "-c", "echo at $SITE"))
        self.assertEqual(out.count("-site"), 2)
        self.fails(self.run_on("--prologue", "false", "--no-python", "true"),
                   "node 10.77.0.", "--prologue failed at 'false'")

    def test_a_failure_is_reported_once_and_its_code_is_the_jobs(self):
        worker = self.file("fails.sh", """
            if [ $RANK = 1 ]; then echo I give up >&2; exit 7; fi
            sleep 60
            """)
        job = self.run_on("--no-python", "sh", worker)
        code, _, err = job.end()
        self.assertEqual(code, 7, err)
        self.assertEqual(err.count("First failure: rank 1 on 10.77.0.3: exit code 7"), 1, err)
        self.assertIn("I give up", err)

    def test_signals_to_the_head_reach_all_workers(self):
        job = self.run_on("--no-python", "sh", self.endless())
        pids = self.pids(job, 2)
        job.process.send_signal(signal.SIGUSR1)
        job.wait_for_line("got USR1", 2)
        job.process.send_signal(signal.SIGTERM)
        code, out, err = job.end()
        self.assertEqual(code, 143, err)
        self.assertEqual(out.count("got TERM"), 2)
        wait_until_gone(pids, LIMIT)

    def test_workers_end_with_their_head(self):
        job = self.run_on("--shutdown-timeout", "1", "--no-python", "sh", self.endless())
        pids = self.pids(job, 2)
        job.kill()
        self.jobs.remove(job)
        wait_until_gone(pids, LIMIT)

    def test_a_launcher_that_dies_is_started_again(self):
        worker = self.file("again.sh", """
            echo rank $RANK attempt $TORCHELASTIC_RESTART_COUNT
            if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then exit 0; fi
            echo rank $RANK is $$
            sleep 60
            """)
        job = self.run_on("--max-restarts", "1", "--no-python", "sh", worker)
        os.kill(launcher_of(self.pids(job, 2)[0]), signal.SIGKILL)
        out, = self.ends_well(job)
        self.assertEqual(out.count("attempt 1"), 2)
        self.assertIn("starting it again", job.err)

    def test_gpus_of_a_hostfile_are_made_visible(self):
        hostfile = self.file("hosts", "10.77.0.2 gpus=1,3\n10.77.0.3\n")
        job = self.start(1, "--hostfile", hostfile, f"--ssh-options={self.ssh.options()}",
                         "--exclude", "10.77.0.3", "--no-python", "sh", "-c",
                         "echo rank $RANK of $WORLD_SIZE sees $CUDA_VISIBLE_DEVICES")
        out, = self.ends_well(job)
        self.assertEqual(sorted(out.splitlines()), [f"rank {rank} of 2 sees 1,3" for rank in (0, 1)])

    def test_stack_works_where_the_head_is(self):
        job = self.run_on("--no-python", "sh", self.endless())
        self.pids(job, 2)
        done = subprocess.run(self.network.command(1, *stack_command()), capture_output=True,
                              text=True, env=job_environment(), timeout=LIMIT)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for rank in (0, 1):
            self.assertRegex(done.stdout, rf"[Rr]anks? .*{rank}")
        self.assertIn("10.77.0.3", done.stdout)

    def test_a_local_store_is_at_the_head(self):
        job = self.run_on("--store", "local", "--no-python", "sh", self.worker)
        out, = self.ends_well(job)
        self.assertEqual(out.count("at 127.0.0.1"), 2)

    def test_the_heads_own_machine_may_take_part(self):
        job = self.run_on("--no-python", "sh", self.worker, hosts="10.77.0.1,10.77.0.2")
        out, = self.ends_well(job)
        for rank in (0, 1):
            self.assertIn(f"rank {rank} of 2 on node {rank} at 10.77.0.1", out)

    def test_an_address_that_does_not_reach_the_head_is_not_the_only_one(self):
        job = self.run_on("--rdzv-endpoint", "10.99.0.1:0", "--no-python", "sh", self.worker)
        self.ends_well(job)

    def test_dry_run_shows_commands_and_no_secret(self):
        job = self.run_on("--dry-run", "--no-python", "true", env={"LOCKSTEP_SECRET": SECRET})
        out, = self.ends_well(job)
        self.assertIn("10.77.0.3", out)
        self.assertIn("ssh -T", out)
        self.assertNotIn(SECRET, out)

    @unittest.skipUnless(TORCH_PYTHON, "needs torch")
    def test_a_python_script_trains_on_both(self):
        snapshot = self.folder / "snapshot.pt"
        self.ends_well(self.run_on(str(DDP_SCRIPT), "2", str(snapshot),
                                   env={"PYTHON_EXEC": TORCH_PYTHON}))
        self.assertTrue(snapshot.exists())


class Local(RecoveryCase):
    """All nodes are on this machine, each with its launcher."""

    def head_events(self):
        lines = (self.folder / "run" / "head.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def test_the_head_leaves_its_events_in_the_run_directory(self):
        job = Job(["--starter", "local", "--hosts", "a,b", "--run-dir", str(self.folder / "run"), "--json",
                   "--no-python", "true"])
        self.addCleanup(job.kill)
        code, out, err = job.end()
        self.assertEqual(code, 0, err)
        events = self.head_events()
        self.assertEqual([events[0]["kind"], events[0]["nodes"]], ["job_start", 2])
        self.assertEqual(sorted(each["node"] for each in events if each["kind"] == "node_joined"), ["a", "b"])
        self.assertEqual([events[-1]["kind"], events[-1]["exit_code"]], ["job_end", 0])
        self.assertEqual(out.count('"node_joined"'), 2)

    def test_a_folder_that_the_head_may_not_write_to_stops_nothing(self):
        (self.folder / "file").write_text("")
        job = Job(["--starter", "local", "--hosts", "a", "--run-dir", str(self.folder / "file" / "run"),
                   "--no-python", "true"])
        self.addCleanup(job.kill)
        _, _, err = job.end()  # the node may not either, and says so
        self.assertIn("--run-dir", err)
        self.assertIn("head.jsonl", err)

    def test_a_node_that_is_lost_is_left_out_and_taken_in_again(self):
        self.hold(10)
        job = Job(["--starter", "local", "--hosts", "a,b", "--min-world", "1", "--rejoin-after", "1",
                   "--run-dir", str(self.folder / "run"), WORKER, str(self.folder), "20", "0.005"])
        self.addCleanup(job.kill)
        self.wait_for_step(5)
        os.kill(launcher_of(self.pids(1)[-1]), signal.SIGKILL)

        def has_met_again():
            met = [words for slot, _, words in self.lines() if slot == 1 and words[0] == "met"]
            return len(met) > 1
        self.wait_for("the lost node", has_met_again)
        self.release()
        code, _, err = job.end()
        self.assertEqual(code, 0, err)
        self.check_no_step_is_lost(2, 20)
        self.assertIn("1 of 2 ranks go on (--min-world 1)", err)
        self.assertIn("the launcher on b ended (signal 9 (SIGKILL)); starting it again in 1 s", err)
        events = [(each["kind"], each.get("node")) for each in self.head_events()
                  if each["kind"].startswith("node_")]
        self.assertEqual(sorted(events[:2]), [("node_joined", "a"), ("node_joined", "b")])
        # The new launcher may come before the old one is given up.
        self.assertEqual(sorted(events[2:]), [("node_joined", "b"), ("node_lost", "b")])
        self.assertEqual([each["node"] for each in self.head_events() if each["kind"] == "node_lost" and
                          each["reason"] and each["workers"] == 1], ["b"])


class Agent(unittest.TestCase):
    """What a launcher on another machine makes of what it is told."""

    def told(self, text):
        done = subprocess.run([LOCKSTEP, "agent"], input=text, capture_output=True, text=True,
                              timeout=LIMIT)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        return done.returncode, done.stderr

    def brief(self, **changes):
        brief = {"format": 1, "version": "0.0.0", "host": "n1", "node_rank": 0, "min_nodes": 1,
                 "max_nodes": 1, "endpoints": ["127.0.0.1:9"], "secret": SECRET, "run_id": "job",
                 "command": "run", "arguments": ["--hosts=n1", "--no-python", "true"],
                 "option_variables": {}, "environment": {}, "working_directory": "/", "gpus": []}
        return json.dumps({**brief, **changes}) + "\n"

    def test_junk_is_refused(self):
        for text, words in (("", "standard input ended"), ("hello\n", "the brief is no JSON"),
                            ("{}\n", "'format' is missing"),
                            (self.brief(format=2), "install the same version"),
                            (self.brief(node_rank=7), "node_rank")):
            code, err = self.told(text)
            self.assertNotEqual(code, 0)
            self.assertIn(words, err)
            self.assertNotIn(SECRET, err)

    def test_another_version_is_named_with_both(self):
        _, err = self.told(self.brief())
        self.assertIn("and 0.0.0 where the job was started", err)


class Pbs(ClusterCase):
    def setUp(self):
        super().setUp()
        self.nodefile = self.file("nodefile", "n1\nn1\nn2\n")
        place = write_pbsdsh(self.folder, [("n1", self.network.namespace(1)),
                                           ("n2", self.network.namespace(2))])
        self.environment = {"PBS_JOBID": "12.server", "PBS_NODEFILE": self.nodefile,
                            "PBS_ENVIRONMENT": "PBS_BATCH",
                            "PATH": f"{place}:{os.environ['PATH']}"}

    def test_every_node_of_a_nodefile_takes_part(self):
        job = self.start(1, "--nnodes", "auto", "--no-python", "sh", self.worker,
                         env=self.environment)
        out, = self.ends_well(job)
        for rank, node in ((0, 0), (1, 0), (2, 1)):
            self.assertIn(f"rank {rank} of 3 on node {node} at 10.77.0.1", out)
        self.assertIn("PBS_JOBID=12.server", job.err)
        self.assertIn("pbsdsh", job.err)
        self.assertEqual([path.name for path in self.folder.glob(".lockstep*")], [])

    def test_nodes_may_be_left_out(self):
        job = self.start(1, "--nnodes", "auto", "--exclude", "n1", "--no-python", "sh", self.worker,
                         env=self.environment)
        out, = self.ends_well(job)
        self.assertEqual(out, "rank 0 of 1 on node 0 at 10.77.0.2\n")

    def test_workers_end_with_their_head(self):
        worker = self.file("endless.sh", "echo rank $RANK is $$\nexec sleep 600\n")
        job = self.start(1, "--nnodes", "auto", "--shutdown-timeout", "1", "--no-python", "sh", worker,
                         env=self.environment)
        text = job.wait_for_line(" is ", 3)
        job.kill()
        self.jobs.remove(job)
        wait_until_gone([int(pid) for pid in re.findall(r" is (\d+)", text)], LIMIT)


class Mpi(ClusterCase):
    nodes = 1

    def setUp(self):
        super().setUp()
        if shutil.which("mpirun") is None:
            self.skipTest("needs Open MPI's mpirun")
        self.secret = self.file("secret", SECRET)

    def mpirun(self, *command):
        done = subprocess.run(
            self.network.command(1, "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2",
                                 *command),
            capture_output=True, text=True, timeout=LIMIT, cwd=self.folder, stdin=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(self.folder), "OMPI_MCA_plm": "isolated"})
        return done.returncode, done.stdout, done.stderr

    def test_one_launcher_per_node_finds_the_others(self):
        # Both are on one machine, which MPI does not hide.
        code, out, err = self.mpirun(
            "env", "OMPI_COMM_WORLD_LOCAL_SIZE=1", LOCKSTEP, "run", "--nnodes", "auto",
            "--secret-file", self.secret, "--no-python", "sh", self.worker)
        self.assertEqual(code, 0, err)
        self.assertIn("rank 0 of 2 on node 0", out)
        self.assertIn("rank 1 of 2 on node 1", out)
        self.assertIn("OMPI_COMM_WORLD_SIZE=2", err)

    def test_several_launchers_on_a_node_are_refused(self):
        code, _, err = self.mpirun(LOCKSTEP, "run", "--nnodes", "auto", "--no-python", "true")
        self.assertNotEqual(code, 0)
        self.assertIn("--map-by ppr:1:node", err)


class Kubernetes(ClusterCase):
    nodes = 2

    def pods(self, *variables):
        """Both with their variables and a name service that knows the first."""
        hosts = self.file("etc_hosts", "127.0.0.1 localhost\n10.77.0.1 train-workers-0-0.train\n")
        mount = ["unshare", "--mount", "--propagation", "private", "sh", "-c",
                 'mount --bind "$0" /etc/hosts && exec "$@"', hosts]
        return [self.start(node + 1, "--nnodes", "auto", "--no-python", "sh", self.worker,
                           env={**each, "LOCKSTEP_SECRET": SECRET}, prefix=mount)
                for node, each in enumerate(variables)]

    def check(self, jobs):
        outputs = self.ends_well(*jobs)
        for node, out in enumerate(outputs):
            self.assertIn(f"rank {node} of 2 on node {node} at 10.77.0.1", out)

    def test_pods_of_a_jobset(self):
        self.check(self.pods(*(
            {"JOBSET_NAME": "train", "REPLICATED_JOB_NAME": "workers", "NNODES": "2",
             "JOB_COMPLETION_INDEX": str(index)} for index in (0, 1))))

    def test_pods_of_kubeflow(self):
        self.check(self.pods(*(
            {"PET_NNODES": "2", "PET_NODE_RANK": str(index), "PET_NPROC_PER_NODE": "1",
             "PET_MASTER_ADDR": "train-workers-0-0.train", "PET_MASTER_PORT": "29400"}
            for index in (0, 1))))

    def test_pods_of_a_pytorchjob(self):
        self.check(self.pods(*(
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "MASTER_ADDR": "train-workers-0-0.train",
             "MASTER_PORT": "23456", "WORLD_SIZE": "2", "RANK": str(index)} for index in (0, 1))))


class Nowhere(ClusterCase):
    nodes = 1

    def test_outside_of_an_allocation_nothing_starts(self):
        err = self.fails(self.start(1, "--nnodes", "auto", "--no-python", "sh", self.worker),
                         "--nnodes is auto, but this is not inside a job", code=2)
        self.assertEqual(len(err.splitlines()), 1)


if __name__ == "__main__":
    enter_namespaces()
    test_script.main()
