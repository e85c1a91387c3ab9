"""Where the head of a job listens, and what can be read of what it says to its nodes.

Usage: links_test.py LOCKSTEP
"""

import json
import pathlib
import re
import socket
import subprocess
import sys
import threading

from machines import SECRET, SshCase
from network import enter_namespaces
from launcher import LIMIT, job_environment, set_launcher
from security_support import inside

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

LOCKSTEP = sys.argv.pop(1)
set_launcher(LOCKSTEP)
ALL_PROTOCOLS = 3  # ETH_P_ALL


class Wiretap:
    """All that passes a machine's network from its making to text()."""

    def __init__(self, namespace):
        with inside(namespace):
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 20)
        self.socket.settimeout(0.2)
        self.packets = []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._listen)
        self.thread.start()

    def _listen(self):
        while True:
            try:
                self.packets.append(self.socket.recv(1 << 16))
            except TimeoutError:
                if self.over.is_set():
                    return

    def text(self):
        self.over.set()
        self.thread.join(LIMIT)
        self.socket.close()
        return b"".join(self.packets)


class LinksCase(SshCase):
    def doctor(self, *options):
        return subprocess.run(
            self.network.command(1, LOCKSTEP, "doctor", "--hosts", "10.77.0.2,10.77.0.3",
                                 f"--ssh-options={self.ssh.options()}", *options),
            capture_output=True, text=True, cwd=self.folder, env=job_environment(), timeout=LIMIT)


class Listening(LinksCase):
    networks = 2

    def listeners(self, node):
        """The addresses of a machine's listening sockets. None of them is of an ssh server."""
        done = subprocess.run(self.network.command(node, "ss", "-Hltn"), capture_output=True, text=True,
                              timeout=LIMIT, check=True)
        return {line.split()[3].rpartition(":")[0] for line in done.stdout.splitlines()}

    def where(self, *options, **more):
        """Where the head of a running job listens."""
        end = self.folder / "end"
        worker = self.file("waits.sh", f"echo begun; while [ ! -e {end} ]; do sleep 0.05; done")
        job = self.run_on(*options, "--no-python", "sh", worker, **more)
        job.wait_for_line("begun", 2)
        found = self.listeners(1)
        end.touch()
        self.ends_well(job)
        return found

    def test_the_head_is_at_the_addresses_that_nodes_are_told(self):
        self.assertEqual(self.where(), {"10.77.0.1", "10.78.0.1"})

    def test_an_address_that_is_chosen_is_the_only_one(self):
        self.assertEqual(self.where("--rdzv-endpoint", "10.78.0.1:0"), {"10.78.0.1"})

    def test_nodes_of_the_same_machine_come_by_loopback(self):
        self.assertEqual(self.where("--starter", "local", "--store", "local"), {"127.0.0.1"})

    def test_a_doctor_that_does_not_find_back_is_named(self):
        self.network.forbid(3, 1, network=1)
        self.addCleanup(self.network.allow, 3, 1, network=1)
        done = self.doctor("--json", "--timeout", "20", "--rdzv-endpoint", "10.78.0.1:0")
        report = json.loads(done.stdout)
        finding, = (each for each in report["findings"]
                    if (each["check"], each["level"]) == ("nodes", "error"))
        self.assertEqual(finding["node"], "10.77.0.3")
        self.assertRegex(finding["what"], r"did not come within 20 s to 10\.78\.0\.1:\d+")
        self.assertEqual(sorted(report["nodes"]), ["10.77.0.2", "10.77.0.3"])


class Encryption(LinksCase):
    def recorded(self, *options):
        """What can be read in a job."""
        tap = Wiretap(self.network.namespace(1))
        try:
            job = self.run_on("--rdzv-id", "a-name-to-be-found", *options, "--no-python", "sh",
                              self.worker, env={"LOCKSTEP_SECRET": SECRET})
            out, = self.ends_well(job)
        finally:
            text = tap.text()
        self.assertEqual(out.count("of 2 on node"), 2)
        self.assertNotIn(SECRET.encode(), text)
        return text

    def test_what_the_head_says_can_be_read_and_with_tls_cannot(self):
        self.assertIn(b"a-name-to-be-found", self.recorded())
        self.assertNotIn(b"a-name-to-be-found", self.recorded("--tls"))

    def recorded_of_doctor(self, *options):
        tap = Wiretap(self.network.namespace(1))
        try:
            done = self.doctor("--verbose", *options)
        finally:
            text = tap.text()
        self.assertRegex(done.stdout, r"10.77.0.2 +- .*bit/s", done.stderr)
        self.assertIsNone(re.search("error +(start|nodes|reach)", done.stdout), done.stdout)
        return text

    def test_what_a_doctor_says_can_be_read_and_with_tls_cannot(self):
        self.assertIn(b"\"findings\"", self.recorded_of_doctor())
        self.assertNotIn(b"\"findings\"", self.recorded_of_doctor("--tls"))

    def test_without_a_secret_there_is_no_key(self):
        self.fails(self.run_on("--tls", "--insecure", "--no-python", "true"), "contradict", code=2)


if __name__ == "__main__":
    enter_namespaces()
    test_script.main()
