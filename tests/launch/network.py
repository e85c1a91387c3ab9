"""Several machines on one: network namespaces with an address each, joined by a switch whose cables
can be pulled. They may have a second network. Needs iproute2, and root or enter_namespaces()."""

import functools
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import textwrap
import unittest


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def enter_namespaces():
    """For whoever is not root: starts this script again, as root of namespaces of its own, where the system lends
    those. They have another /run, in which `ip netns` keeps its files, and the script its temporary ones: a launcher
    that takes itself for root's would put them where those of the real root's launchers are."""
    if os.geteuid() == 0 or shutil.which("unshare") is None:
        return
    inside = ["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c",
              'mount -t tmpfs tmpfs /run && ip link set lo up && exec env TMPDIR=/run "$@"', "sh"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode == 0:
        os.execvp(inside[0], [*inside, sys.executable, *sys.orig_argv[1:]])


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
    @functools.cache
    def missing():
        """What keeps network namespaces from being made here; None where they can be."""
        if shutil.which("ip") is None:
            return "iproute2 is not installed"
        name = f"ls{os.getpid()}probe"
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        return None if made else "no right to make network namespaces (needs root, or user namespaces)"

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
        if missing := Network.missing():
            raise unittest.SkipTest(missing)
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
