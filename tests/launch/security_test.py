"""Attacks on a running job: strangers are refused and named once, and the job is unharmed.

Usage: security_test.py LOCKSTEP
"""

import os
import pathlib
import re
import resource
import signal
import socket
import struct
import sys
import time
import unittest

from launcher import LIMIT, set_launcher
from network import enter_namespaces
from security_support import (PORT, SECRET, AttackTest, Middle, frame, inside, read_until_closed)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

set_launcher(sys.argv.pop(1))


class Strangers(AttackTest):
    """They reach the coordinator's port and do not have the secret."""

    def test_whoever_proves_nothing_is_refused_and_named_once(self):
        jobs = self.start_both()
        greetings = [
            b"GET / HTTP/1.1\r\nHost: node1\r\n\r\n",
            bytes(range(256)) * 8,
            struct.pack("<I", 0xFFFFFFFF) + b"x" * 100,  # announces 4 GiB
            struct.pack("<I", 4 << 20) + b"x" * 100,  # as much as a member may send
            frame(b""),
            frame(b"\x02LOCKSTEP\x01\x00\x01\x00\x01" + b"n" * 32 + b"\x00\x00"),  # without proof
            frame(b"\x02LOCKSTEP\x01\x00\x01\x00\x00" + b"n" * 32 + b"\x00\x00"),  # --insecure
            frame(b"\x03" + b"\x00" * 32),  # an answer to nothing
        ]
        for greeting in greetings:
            connection = self.connect()
            connection.sendall(greeting)
            answer = read_until_closed(connection)
            self.assertIn(b"LOCKSTEP", answer, greeting)
            self.assertIn(b"\x04the ", answer, greeting)  # a refusal, in words
        self.ends_unharmed(jobs)
        self.assertEqual(len(self.lines_about_attacker(jobs[0])), 1, jobs[0].err)

    def test_a_wrong_secret_is_refused_however_often_it_is_tried(self):
        jobs = self.start_both()
        wrong = self.file("wrong.secret", "fedcba9876543210fedcba9876543210\n")
        for _ in range(3):
            code, out, err = self.start(self.attacker, "--rdzv-conf", "join_timeout=1",
                                        secret=wrong).end()
            self.assertEqual((code, out), (1, ""), err)
            self.assertIn("the secret differs", err)
        self.ends_unharmed(jobs)
        [line] = self.lines_about_attacker(jobs[0])
        self.assertIn("the secret differs", line)

    def test_ten_thousand_idle_connections_keep_no_node_out(self):
        count = 10_000
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = count + 500
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, max(hard, needed)))
        first = self.start(1)
        first.wait_for_error("joined")
        idle = []
        self.addCleanup(lambda: [connection.close() for connection in idle])
        with inside(self.network.namespace(self.attacker)):
            for number in range(count):
                idle.append(socket.create_connection((self.network.address(1), PORT), LIMIT))
                if number == count // 2:
                    second = self.start(2)
        self.wait_until_running([first, second])
        # All that the launcher has open, half of the flood's limit at most.
        self.assertLess(len(os.listdir(f"/proc/{first.process.pid}/fd")), 400)
        self.ends_unharmed([first, second])
        self.assertEqual(len(self.lines_about_attacker(first)), 1, first.err)

    def test_slow_senders_are_cut_off(self):
        jobs = self.start_both()
        hello = frame(b"\x02LOCKSTEP\x01\x00\x01\x00\x01" + b"n" * 32 + b"\x00\x02" + b"r" * 512)
        slow = [self.connect() for _ in range(40)]
        begun = time.monotonic()
        position = 0
        while slow:
            for connection in list(slow):
                connection.setblocking(False)
                try:
                    connection.send(hello[position:position + 1])
                    while connection.recv(4096):
                        pass
                    slow.remove(connection)
                except BlockingIOError:
                    pass
                except OSError:
                    slow.remove(connection)
            position += 1
            self.assertLess(time.monotonic() - begun, 20)
            time.sleep(0.1)
        self.assertGreater(position, 10)  # not at once: a slow network is no crime
        self.ends_unharmed(jobs)
        [line] = self.lines_about_attacker(jobs[0])
        self.assertIn("did not finish the handshake in 5 s", line)


class InTheMiddle(AttackTest):
    """Node 2 reaches node 1 through the attacker."""

    def start_through(self):
        middle = Middle(self.network, self.attacker, self.network.address(1))
        self.addCleanup(middle.close)
        jobs = [self.start(1), self.start(2, endpoint=self.network.address(self.attacker))]
        self.wait_until_running(jobs)
        return middle, jobs

    def test_a_recorded_handshake_cannot_be_played_again(self):
        middle, jobs = self.start_through()
        recorded = bytes(middle.recorded[0])
        self.assertIn(b"LOCKSTEP", recorded)
        for _ in range(3):
            connection = self.connect()
            connection.sendall(recorded)  # the hello, its proof, and what was said after them
            self.assertIn(b"the secret differs", read_until_closed(connection))
        self.ends_unharmed(jobs)
        [line] = self.lines_about_attacker(jobs[0])
        self.assertIn("the secret differs", line)

    def test_a_flipped_bit_is_noticed_and_the_workers_go_on(self):
        middle, jobs = self.start_through()
        for times in (1, 2):
            middle.flipped.clear()
            middle.flip_next.set()
            self.assertTrue(middle.flipped.wait(LIMIT))
            # Node 2 comes again, over a connection that is not changed.
            self.wait_until(lambda: len(middle.recorded) > times, "no new connection")
            self.wait_until(lambda: len(middle.recorded[times]) > 500, "no new join")
        self.ends_unharmed(jobs)
        [line] = self.lines_about_attacker(jobs[0])
        self.assertIn("a frame was changed on its way, or forged", line)


class Encrypted(AttackTest):
    """--tls, with the attacker in the middle."""

    def test_who_listens_reads_nothing_and_who_changes_something_is_noticed(self):
        middle = Middle(self.network, self.attacker, self.network.address(1))
        self.addCleanup(middle.close)
        jobs = [self.start(1, "--tls"),
                self.start(2, "--tls", endpoint=self.network.address(self.attacker))]
        self.wait_until_running(jobs)
        recorded = bytes(middle.recorded[0])
        self.assertGreater(len(recorded), 500)
        for word in (b"join", b"address", b"job1", b"kind", self.network.address(2).encode()):
            self.assertNotIn(word, recorded)
        middle.flip_next.set()
        self.assertTrue(middle.flipped.wait(LIMIT))
        self.wait_until(lambda: len(middle.recorded) > 1, "no new connection")
        self.wait_until(lambda: len(middle.recorded[1]) > 1000, "no new join")
        self.ends_unharmed(jobs)
        [line] = self.lines_about_attacker(jobs[0])
        self.assertIn("changed on its way", line)

    def test_nodes_with_and_without_it_and_with_another_secret_hear_why(self):
        first = self.start(1, "--tls")
        first.wait_for_error("joined")
        code, _, err = self.start(self.attacker, "--rdzv-conf", "join_timeout=1").end()
        self.assertEqual(code, 1)
        self.assertIn("give --tls to all nodes or to none", err)
        wrong = self.file("wrong.secret", "fedcba9876543210fedcba9876543210\n")
        code, _, err = self.start(self.attacker, "--tls", "--rdzv-conf", "join_timeout=1",
                                  secret=wrong).end()
        self.assertEqual(code, 1)
        self.assertIn("the secret differs", err)
        second = self.start(2, "--tls")
        self.wait_until_running([first, second])
        self.ends_unharmed([first, second])

    def test_the_store_travels_encrypted_too_where_it_is_local(self):
        jobs = self.start_both("--tls", "--store", "local")
        self.ends_unharmed(jobs)


class Store(AttackTest):
    PING = struct.pack("<BI", 0, 0x3C85F7CE) + struct.pack("<BI", 13, 4711)

    def answers(self, node, port):
        with inside(self.network.namespace(node)):
            connection = socket.create_connection((self.network.address(1), port), LIMIT)
        with connection:
            try:
                connection.sendall(self.PING)
                return connection.recv(4) == struct.pack("<I", 4711)
            except (ConnectionResetError, BrokenPipeError):
                return False

    def test_the_store_answers_members_only(self):
        jobs = self.start_both()
        port = int(re.search(r"store \S+ (\d+)", jobs[0].out).group(1))
        self.assertTrue(self.answers(2, port))
        for _ in range(50):
            self.assertFalse(self.answers(self.attacker, port))
        self.assertTrue(self.answers(2, port))
        self.ends_unharmed(jobs)
        lines = [line for line in jobs[0].err.splitlines() if "not part of the job" in line]
        self.assertTrue(1 <= len(lines) <= 6, jobs[0].err)  # the 1st, 2nd, 4th, ... time


class Secrets(AttackTest):
    def descendants(self, pid):
        found = [pid]
        for process in found:
            try:
                for children in pathlib.Path(f"/proc/{process}/task").glob("*/children"):
                    found += [int(child) for child in children.read_text().split()]
            except (FileNotFoundError, ProcessLookupError):
                pass  # a sleep that has ended
        return found

    def test_the_secret_shows_nowhere(self):
        directories = [self.folder / "run1", self.folder / "run2"]
        jobs = [self.start(node, "--run-dir", str(directory), env={"LOCKSTEP_SECRET": SECRET})
                for node, directory in zip((1, 2), directories)]
        self.wait_until_running(jobs)
        for job in jobs:
            processes = self.descendants(job.process.pid)
            self.assertGreaterEqual(len(processes), 3)  # launcher, keeper, worker, its sleep
            for process in processes:
                try:
                    command = pathlib.Path(f"/proc/{process}/cmdline").read_bytes()
                    environment = pathlib.Path(f"/proc/{process}/environ").read_bytes()
                except (FileNotFoundError, ProcessLookupError):
                    continue  # a sleep that has ended
                self.assertNotIn(SECRET.encode(), command)
                if b"worker.sh" in command and b"LOCKSTEP_SLOT=" in environment:
                    self.assertNotIn(SECRET.encode(), environment)
        self.ends_unharmed(jobs)
        for job, directory in zip(jobs, directories):
            self.assertNotIn(SECRET, job.out + job.err)
            files = [path for path in directory.rglob("*") if path.is_file()]
            self.assertTrue(files)
            for path in files:
                self.assertNotIn(SECRET.encode(), path.read_bytes(), path)

    @unittest.skipIf(pathlib.Path("/proc/sys/kernel/core_pattern").read_text().startswith(("|", "/")),
                     "this machine's core dumps go elsewhere than to the working directory")
    def test_workers_leave_core_dumps_and_launchers_with_a_secret_do_not(self):
        folders = [self.folder / "cores1", self.folder / "cores2"]
        worker = self.file("aborts.sh", """
            echo rank $RANK begins as $$
            until [ -e abort ]; do sleep 0.05; done
            kill -ABRT $$
            """)
        jobs = []
        for node, folder in zip((1, 2), folders):
            folder.mkdir()
            jobs.append(self.start(node, worker=worker, cwd=folder,
                                   prefix=["prlimit", "--core=unlimited"]))
        self.wait_until_running(jobs)
        (folders[1] / "abort").touch()  # rank 1
        self.wait_until(lambda: list(folders[1].glob("core*")), "no core dump of the worker")
        for job in jobs:
            self.assertEqual(job.end()[0], 128 + signal.SIGABRT)
        [core] = folders[1].glob("core*")
        self.assertNotIn(SECRET.encode(), core.read_bytes())

        for folder in folders:
            for path in folder.iterdir():
                path.unlink()
        jobs = [self.start(node, worker=worker, cwd=folder, prefix=["prlimit", "--core=unlimited"])
                for node, folder in zip((1, 2), folders)]
        self.wait_until_running(jobs)
        jobs[0].process.send_signal(signal.SIGABRT)
        self.assertEqual(jobs[0].end()[0], -signal.SIGABRT)
        self.assertEqual(list(folders[0].glob("core*")), [])
        jobs[1].kill()


if __name__ == "__main__":
    enter_namespaces()
    test_script.main(verbosity=2)
