"""What the tests of attacks on a job share: jobs in network namespaces, sockets that live in one of
them, and somebody in the middle of a link."""

import contextlib
import ctypes
import os
import pathlib
import select
import socket
import stat
import struct
import tempfile
import textwrap
import threading
import time
import unittest

from launcher import Job, LIMIT
from network import Network

CLONE_NEWNET = 0x40000000
PORT = 29400
SECRET = "0123456789abcdef0123456789abcdef"


@contextlib.contextmanager
def inside(namespace):
    """This thread's new sockets belong to the namespace."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(fd):
        if libc.setns(fd, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        enter(there)
        try:
            yield
        finally:
            enter(before)
    finally:
        os.close(there)
        os.close(before)


def frame(payload):
    return struct.pack("<I", len(payload)) + payload


def read_until_closed(connection, limit=LIMIT):
    """What comes until the other side closes; fails when it does not."""
    connection.settimeout(limit)
    data = b""
    try:
        while part := connection.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


class Middle:
    """Passes a link's bytes on, keeps them, and may change one of them."""

    def __init__(self, network, node, target):
        self._network, self._node, self._target = network, node, target
        with inside(network.namespace(node)):
            self._listener = socket.create_server((network.address(node), PORT))
        self.recorded = []  # by connection, what the client has sent
        self.flip_next = threading.Event()
        self.flipped = threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                with inside(self._network.namespace(self._node)):
                    server = socket.create_connection((self._target, PORT), timeout=LIMIT)
            except OSError:  # it does not listen yet: whoever asked will ask again
                client.close()
                continue
            server.settimeout(None)
            thread = threading.Thread(target=self._pass_on, args=(client, server), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _pass_on(self, client, server):
        sent = bytearray()
        self.recorded.append(sent)
        with client, server:
            while True:
                ready, _, _ = select.select([client, server], [], [])
                for source in ready:
                    try:
                        data = source.recv(65536)
                        if not data:
                            return
                        if source is client:
                            sent += data
                            data = self._maybe_flip(data)
                        (server if source is client else client).sendall(data)
                    except OSError:
                        return

    def _maybe_flip(self, data):
        if not self.flip_next.is_set():
            return data
        self.flip_next.clear()
        self.flipped.set()
        changed = bytearray(data)
        changed[-2] ^= 0x10  # in the message, not in a length
        return bytes(changed)

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class AttackTest(unittest.TestCase):
    """Nodes 1 and 2 have a job; whoever attacks it is on node 3."""

    attacker = 3

    @classmethod
    def setUpClass(cls):
        if missing := Network.missing():
            raise unittest.SkipTest(missing)
        cls.network = Network(3)
        cls.addClassCleanup(cls.network.close)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.secret = self.file("job.secret", SECRET + "\n")
        self.end = self.folder / "end"
        # It would say so if it were started again.
        self.worker = self.file("worker.sh", f"""
            echo rank $RANK begins, store $MASTER_ADDR $MASTER_PORT
            until [ -e {self.end} ]; do sleep 0.05; done
            echo rank $RANK ends
            """)
        self.jobs = []
        self.addCleanup(lambda: [job.kill() for job in self.jobs])

    def file(self, name, text):
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
        return str(path)

    def start(self, node, *options, endpoint=None, secret=None, worker=None, env=None, prefix=(),
              **more):
        given = ["--secret-file", secret or self.secret] if not env else []
        job = Job(["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-id", "job1", "--rdzv-backend",
                   "c10d", "--rdzv-endpoint", f"{endpoint or self.network.address(1)}:{PORT}",
                   *given, *options, "--no-python", "sh", worker or self.worker],
                  prefix=[*self.network.command(node), *prefix], env=env, **more)
        self.jobs.append(job)
        return job

    def start_both(self, *options, **more):
        jobs = [self.start(node, *options, **more) for node in (1, 2)]
        self.wait_until_running(jobs)
        return jobs

    def wait_until_running(self, jobs):
        for rank, job in enumerate(jobs):
            job.wait_for_line(f"rank {rank} begins")

    def ends_unharmed(self, jobs):
        """The workers that were started first are those that end, well."""
        self.end.touch()
        for rank, job in enumerate(jobs):
            code, out, err = job.end()
            self.assertEqual(code, 0, err)
            self.assertEqual((out.count("begins"), out.count("ends")), (1, 1), out + err)

    def connect(self, port=PORT, address=None):
        with inside(self.network.namespace(self.attacker)):
            connection = socket.create_connection((address or self.network.address(1), port),
                                                  timeout=LIMIT)
        self.addCleanup(connection.close)
        return connection

    def lines_about_attacker(self, job):
        return [line for line in job.err.splitlines()
                if "turned away" in line and self.network.address(self.attacker) in line]

    def wait_until(self, holds, what):
        deadline = time.monotonic() + LIMIT
        while not holds():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.02)
