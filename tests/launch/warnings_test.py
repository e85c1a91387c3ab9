"""Signals for workers, and a scheduler's warning that the time ends.

Usage: warnings_test.py LOCKSTEP
"""

import os
import pathlib
import re
import signal
import sys
import tempfile
import time
import unittest

from launcher import Job, set_launcher
from network import Network, enter_namespaces

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

set_launcher(sys.argv.pop(1))

# Catches SIGUSR1, speaks the protocol (unless "mute"), says what it hears, and ends with 75 a moment after all ranks
# have heard of the signal and the stop, so that what comes twice is seen twice.
WORKER = r"""
import json, os, pathlib, signal, socket, struct, sys, time

rank = os.environ["RANK"]
def say(*words):
    os.write(1, (" ".join(str(word) for word in ("rank", rank, *words)) + "\n").encode())

heard = pathlib.Path(sys.argv[0]).parent
def hear(what):
    (heard / f"{what}_{rank}").touch()
def catch(*_):
    say("caught USR1")
    hear("signal")
def wait_for_all():
    deadline = time.monotonic() + 20
    ranks = range(int(os.environ["WORLD_SIZE"]))
    while time.monotonic() < deadline and not all(
            (heard / f"{what}_{each}").exists() for what in ("signal", "stop") for each in ranks):
        time.sleep(0.005)
if "deaf" not in sys.argv:
    signal.signal(signal.SIGUSR1, catch)
if "mute" in sys.argv:
    say("ready")
    time.sleep(60)
agent = socket.socket(socket.AF_UNIX)
agent.connect(os.environ["LOCKSTEP_AGENT"])
def send(message):
    text = json.dumps(message).encode()
    agent.sendall(struct.pack("<I", len(text)) + text)
def receive():
    size, = struct.unpack("<I", agent.recv(4, socket.MSG_WAITALL))
    return json.loads(agent.recv(size, socket.MSG_WAITALL))
send({"kind": "hello", "oldest_protocol": 1, "newest_protocol": 1, "pid": os.getpid(),
      "rank": int(rank), "slot": int(os.environ["LOCKSTEP_SLOT"]),
      "epoch": int(os.environ["LOCKSTEP_EPOCH"]), "program": "test", "spare": False})
say("ready", receive()["kind"])
while True:
    message = receive()
    if message["kind"] == "stop":
        say("has", message["remaining_ms"] // 1000, "s:", message["reason"])
        hear("stop")
        wait_for_all()
        time.sleep(0.3)
        sys.exit(75)
"""


class WarningTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.worker = self.folder / "worker.py"
        self.worker.write_text(WORKER)
        self.jobs = []
        self.addCleanup(lambda: [job.kill() for job in self.jobs if job.process.poll() is None])

    def start(self, *options, words=(), **arguments):
        arguments["env"] = {"PYTHON_EXEC": sys.executable, **arguments.get("env", {})}
        job = Job([*options, str(self.worker), *words], **arguments)
        self.jobs.append(job)
        return job


class OneNode(WarningTest):
    def warned(self, env):
        job = self.start("--nproc-per-node", "2", env=env)
        job.wait_for_line("ready", 2)
        job.process.send_signal(signal.SIGUSR1)
        return job

    def test_workers_hear_how_many_seconds_are_left(self):
        code, out, err = self.warned({"SLURM_JOB_END_TIME": str(int(time.time()) + 61)}).end()
        self.assertEqual(code, 75, err)
        for rank in (0, 1):
            self.assertEqual(out.count(f"rank {rank} caught USR1"), 1, out)
            seconds = int(re.search(rf"rank {rank} has (\d+) s: the scheduler ends the job", out)[1])
            self.assertIn(seconds, range(50, 62))
        self.assertRegex(err, r"the scheduler ends the job in \d+ s")

    def test_slurms_controller_is_asked_where_no_variable_tells(self):
        end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 45))
        tool = self.folder / "scontrol"
        tool.write_text(f'#!/bin/sh\n[ "$4" = 4711 ] && echo "JobId=4711 EndTime={end} Nodes=2"\n')
        tool.chmod(0o755)
        env = {"SLURM_JOB_ID": "4711", "PATH": f"{self.folder}:{os.environ['PATH']}"}
        code, out, _ = self.warned(env).end()
        self.assertEqual(code, 75)
        self.assertRegex(out, r"rank 0 has (4\d|3[4-9]) s")

    def test_what_the_job_script_asked_for_counts_where_the_controller_does_not_answer(self):
        tool = self.folder / "scontrol"
        tool.write_text("#!/bin/sh\nexit 1\n")
        tool.chmod(0o755)
        env = {"SLURM_JOB_ID": "4711", "PATH": f"{self.folder}:{os.environ['PATH']}",
               "LOCKSTEP_WARNING_SECONDS": "33"}
        code, out, _ = self.warned(env).end()
        self.assertEqual(code, 75)
        self.assertRegex(out, r"rank 1 has (33|32) s")

    def test_with_hours_left_nobody_is_asked_to_stop(self):
        job = self.warned({"SLURM_JOB_END_TIME": str(int(time.time()) + 7300)})
        job.wait_for_line("caught USR1", 2)
        job.process.send_signal(signal.SIGTERM)
        _, out, _ = job.end()
        self.assertNotIn("the scheduler ends", out)

    def test_who_would_die_of_it_does_not_get_it_and_is_named(self):
        job = self.start("--nproc-per-node", "2", words=["mute", "deaf"])
        job.wait_for_line("ready", 2)
        job.process.send_signal(signal.SIGUSR1)
        job.wait_for_error("SIGUSR1 is not sent to ranks 0, 1")
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.end()[0], 128 + signal.SIGTERM)


class TwoNodes(WarningTest):
    @classmethod
    def setUpClass(cls):
        if missing := Network.missing():
            raise unittest.SkipTest(missing)
        cls.network = Network(2)
        cls.addClassCleanup(cls.network.close)

    def start_both(self):
        jobs = [
            self.start("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-id", "job1", "--insecure",
                       "--rdzv-endpoint", f"{self.network.address(1)}:29400",
                       prefix=self.network.command(node),
                       env={"LOCKSTEP_JOB_END_TIME": str(int(time.time()) + 60)})
            for node in (1, 2)
        ]
        for job in jobs:
            job.wait_for_line("ready")
        return jobs

    def check(self, jobs):
        for job in jobs:
            code, out, err = job.end()
            self.assertEqual(code, 75, err)
            self.assertEqual(out.count("caught USR1"), 1, out)
            self.assertEqual(out.count("the scheduler ends the job"), 1, out)

    def test_what_comes_to_one_reaches_the_workers_of_both(self):
        jobs = self.start_both()
        jobs[1].process.send_signal(signal.SIGUSR1)
        self.check(jobs)

    def test_what_comes_to_both_reaches_each_worker_once(self):
        jobs = self.start_both()
        for job in jobs:
            job.process.send_signal(signal.SIGUSR1)
        self.check(jobs)


if __name__ == "__main__":
    enter_namespaces()
    test_script.main()
