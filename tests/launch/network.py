"""Several machines on one: network namespaces with an address each, joined by a switch whose cables
can be pulled. They may have a second network. Needs root and iproute2."""

import os
import pathlib
import shutil
import stat
import subprocess
import tempfile
import textwrap
import unittest


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Network:
    def __init__(self, nodes, networks=1):
        self.name = f"ls{os.getpid()}"
        self.nodes = nodes
        self.networks = networks
        self.switch = f"{self.name}s"
        self.namespaces = []
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def possible():
        return os.geteuid() == 0 and shutil.which("ip") is not None

    def _build(self):
        self._add(self.switch)
        for node in range(1, self.nodes + 1):
            self._add(self.namespace(node))
            ip("-n", self.namespace(node), "link", "set", "lo", "up")
        for network in range(self.networks):
            ip("-n", self.switch, "link", "add", f"br{network}", "type", "bridge")
            ip("-n", self.switch, "link", "set", f"br{network}", "up")
            for node in range(1, self.nodes + 1):
                self._plug_in(node, network)

    def _plug_in(self, node, network):
        namespace, port = self.namespace(node), self._port(node, network)
        ip("-n", namespace, "link", "add", f"eth{network}", "type", "veth", "peer", "name", port,
           "netns", self.switch)
        ip("-n", self.switch, "link", "set", port, "master", f"br{network}")
        ip("-n", self.switch, "link", "set", port, "up")
        ip("-n", namespace, "address", "add", f"{self.address(node, network)}/24", "dev",
           f"eth{network}")
        ip("-n", namespace, "link", "set", f"eth{network}", "up")

    @staticmethod
    def _port(node, network):
        return f"port{node}" if network == 0 else f"port{node}n{network}"

    def _add(self, namespace):
        ip("netns", "add", namespace)
        self.namespaces.append(namespace)

    def namespace(self, node):
        return f"{self.name}n{node}"

    @staticmethod
    def address(node, network=0):
        return f"10.{77 + network}.0.{node}"

    def forbid(self, node, other, network=0):
        """The node has no way to the other in that network."""
        ip("-n", self.namespace(node), "route", "add", "unreachable", self.address(other, network))

    def allow(self, node, other, network=0):
        ip("-n", self.namespace(node), "route", "delete", "unreachable", self.address(other, network))

    def command(self, node, *words):
        return ["ip", "netns", "exec", self.namespace(node), *words]

    def cut(self, node):
        ip("-n", self.switch, "link", "set", f"port{node}", "down")

    def mend(self, node):
        ip("-n", self.switch, "link", "set", f"port{node}", "up")

    def close(self):
        for namespace in self.namespaces:
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)
        self.namespaces = []


class NetworkCase(unittest.TestCase):
    """Tests of jobs on such machines, with a folder that all of them see."""

    nodes = 3
    networks = 1

    @classmethod
    def setUpClass(cls):
        if not Network.possible():
            raise unittest.SkipTest("network namespaces need root and iproute2")
        cls.network = Network(cls.nodes, cls.networks)
        cls.addClassCleanup(cls.network.close)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.jobs = []
        self.addCleanup(lambda: [job.kill() for job in self.jobs])

    def file(self, name, text, mode=stat.S_IRUSR | stat.S_IWUSR):
        path = self.folder / name
        # Not again: a launcher that is starting may be reading it, to compare programs.
        if path.exists() and path.read_text() == textwrap.dedent(text):
            return str(path)
        path.write_text(textwrap.dedent(text))
        path.chmod(mode)
        return str(path)

    def ends_well(self, *jobs):
        """What each of them has printed."""
        outputs = []
        for job in jobs:
            code, out, err = job.end()
            self.assertEqual(code, 0, err)
            outputs.append(out)
        return outputs
