"""Remote calls between machines: network namespaces, joined by cables that can be pulled.

machines_test.py MACHINE_JOB [unittest's arguments]
"""

import contextlib
import pathlib
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "launch"))
import launcher  # noqa: E402
from network import NetworkCase, enter_namespaces  # noqa: E402
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

JOB = sys.argv.pop(1)
LIMIT = 60  # seconds for what takes one; only ever reached by a failure
SECRET = "one that all agents of this test share"


class Agent:
    """A process on a machine; see machine_job.cpp."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**launcher.clean_environment(), "OMP_NUM_THREADS": "1"})

    def begin(self, what, peer, seconds):
        self.process.stdin.write(f"{what} {peer} {seconds}\n")
        self.process.stdin.flush()

    def line(self):
        """The next one; empty where none comes in time."""
        timer = threading.Timer(2 * LIMIT, self.process.kill)
        timer.start()
        try:
            return self.process.stdout.readline().rstrip("\n")
        finally:
            timer.cancel()

    def result(self):
        """What came of it, and after how many seconds."""
        came, _, took = self.line().rpartition(" ")
        return came, float(took or "nan")

    def call(self, what, peer, seconds=LIMIT):
        self.begin(what, peer, seconds)
        return self.result()

    def end(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        code = self.process.wait(LIMIT)
        self.process.stdout.close()
        return code

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


class Machines(NetworkCase):
    nodes = 2

    def agent(self, node, name, secret=SECRET, protection="sealed"):
        agent = Agent(self.network.command(node, JOB, str(self.folder), name, self.network.address(node), secret,
                                           protection))
        self.addCleanup(agent.kill)
        self.assertEqual(agent.line(), "ready")
        return agent

    def cut(self, node):
        self.network.cut(node)
        self.addCleanup(self.network.mend, node)

    def connections(self, node):
        """Of a machine, those that are established: (address, address of the other end)."""
        done = subprocess.run(self.network.command(node, "ss", "-Htn", "state", "established"), capture_output=True,
                              text=True, timeout=LIMIT, check=True)
        return {tuple(word.rpartition(":")[0] for word in line.split()[2:4]) for line in done.stdout.splitlines()}

    def exchange(self, protection):
        one, two = self.agent(1, "one", protection=protection), self.agent(2, "two", protection=protection)
        for caller, peer in ((one, "two"), (two, "one")):
            for what in ("add", "back"):
                self.assertEqual(caller.call(what, peer)[0], "sum", (what, peer))
        self.assertIn((self.network.address(1), self.network.address(2)), self.connections(1))
        self.assertEqual((one.end(), two.end()), (0, 0))

    def test_tensors_go_both_ways(self):
        self.exchange("sealed")

    def test_tensors_go_both_ways_encrypted(self):
        self.exchange("encrypted")

    def test_tensors_go_both_ways_after_a_handshake(self):
        self.exchange("handshake")

    def test_a_wrong_secret_is_refused(self):
        one = self.agent(1, "one")
        two = self.agent(2, "two")
        stranger = self.agent(2, "stranger", secret="another one, as long as the other was")
        for what in ("add", "stay"):
            came, took = stranger.call(what, "one", 5)
            self.assertIn(came.partition("(")[0], ("PeerDied", "CallError", "CallTimeout"))
            self.assertLess(took, 15)
        self.assertNotIn(one.call("add", "stranger", 5)[0], ("sum", "other"))
        # Those who know it are not disturbed.
        self.assertEqual(two.call("add", "one")[0], "sum")

    def test_a_cut_cable_fails_calls_in_their_time(self):
        one, two = self.agent(1, "one"), self.agent(2, "two")
        self.assertEqual(two.call("add", "one")[0], "sum")
        late = self.agent(2, "late")  # has no connection yet
        two.begin("stay", "one", 3)  # under way when it happens
        self.cut(1)
        for caller, call in ((two, None), (two, ("add", "one", 2)), (late, ("add", "one", 2))):
            came, took = caller.call(*call) if call else caller.result()
            self.assertEqual(came, "CallTimeout", call)
            self.assertLess(took, 8)
            self.assertGreater(took, 1.9)
        self.network.mend(1)
        self.assertEqual(two.call("add", "one")[0], "sum")
        self.assertEqual(late.call("add", "one")[0], "sum")
        self.assertEqual(one.call("back", "two")[0], "sum")

    def test_a_cable_that_stays_cut_ends_the_connection(self):
        one, two = self.agent(1, "one"), self.agent(2, "two")
        self.assertEqual(two.call("add", "one")[0], "sum")
        two.begin("stay", "one", 120)
        self.cut(1)
        came, took = two.result()
        self.assertEqual(came, "PeerDied")
        self.assertLess(took, 60)
        self.assertGreater(took, 10)
        self.network.mend(1)
        self.assertEqual(two.call("add", "one")[0], "sum")
        self.assertIsNone(one.process.poll())


if __name__ == "__main__":
    enter_namespaces()
    test_script.main()
