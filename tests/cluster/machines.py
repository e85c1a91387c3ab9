"""Machines for tests of clusters, on one: network namespaces, each with an ssh server of its own.
Needs root, iproute2 and OpenSSH."""

import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "launch"))
from launcher import LIMIT, Job  # noqa: E402
from network import Network, NetworkCase  # noqa: E402

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
SSH_PORT = 2222
SECRET = "5ecret0f7he7est5ecret0f7he7est00"


def ssh_missing():
    """What keeps ssh servers from being started here; None where they can be."""
    if SSHD is None or shutil.which("ssh") is None:
        return "OpenSSH's client and server are not installed"
    # A server changes its user. In a namespace of whoever is not root there is no other.
    users = pathlib.Path("/proc/self/uid_map").read_text().split()
    return Network.missing() if users == ["0", "0", "4294967295"] else "ssh servers need root"


def _key(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


class SshServers:
    """An ssh server in each of a network's namespaces, a key that may log in and one that may not."""

    def __init__(self, network, nodes, folder):
        self.network = network
        self.folder = pathlib.Path(folder)
        self.servers = []
        pathlib.Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd locks itself in
        for name in ("host", "user", "stranger"):
            _key(self.folder / name)
        authorized = self.folder / "authorized_keys"
        shutil.copy(self.folder / "user.pub", authorized)
        authorized.chmod(stat.S_IRUSR | stat.S_IWUSR)
        try:
            for node in nodes:
                self._start(node)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _use_pam():
        """Without PAM an account whose password is locked may not log in, key or not."""
        lines = pathlib.Path("/etc/shadow").read_text().splitlines()
        return "yes" if any(line.startswith("root:!") for line in lines) else "no"

    def _start(self, node):
        config = self.folder / f"sshd{node}"
        config.write_text(textwrap.dedent(f"""\
            ListenAddress {self.network.address(node)}
            Port {SSH_PORT}
            HostKey {self.folder / 'host'}
            AuthorizedKeysFile {self.folder / 'authorized_keys'}
            PidFile none
            StrictModes no
            UsePAM {self._use_pam()}
            PasswordAuthentication no
            PermitRootLogin yes
            MaxStartups 100
            """))
        with open(self.folder / f"sshd{node}.log", "w") as log:
            self.servers.append(subprocess.Popen(
                self.network.command(node, SSHD, "-D", "-e", "-f", str(config)),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log))
        self._await(node)

    def _await(self, node):
        deadline = time.monotonic() + 30
        probe = self.network.command(
            node, sys.executable, "-c",
            f"import socket; socket.create_connection(('{self.network.address(node)}', {SSH_PORT}), 5)")
        while subprocess.run(probe, capture_output=True).returncode != 0:
            if time.monotonic() > deadline or self.servers[-1].poll() is not None:
                log = (self.folder / f"sshd{node}.log").read_text()
                raise AssertionError(f"sshd did not start: {log}")
            time.sleep(0.05)

    def options(self, key="user", port=SSH_PORT):
        """For --ssh-options."""
        return (f"-F none -p {port} -i {self.folder / key} -o IdentitiesOnly=yes -o IdentityAgent=none "
                "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR")

    def close(self):
        for server in self.servers:
            server.terminate()
        for server in self.servers:
            server.wait(30)
        self.servers = []


PBSDSH = """\
#!{python}
# Stands for pbsdsh: starts a command on the machine of a line of the nodefile, as the daemon there
# would, with no input and an environment of its own, and waits for it.
import os, subprocess, sys
assert sys.argv[1] == "-n" and sys.argv[3] == "--", sys.argv
lines = open(os.environ["PBS_NODEFILE"]).read().split()
namespace = dict({namespaces!r})[lines[int(sys.argv[2])]]
environment = {{"PATH": "/usr/bin:/bin", "PBS_JOBID": os.environ["PBS_JOBID"],
               "PBS_NODEFILE": os.environ["PBS_NODEFILE"], "PBS_NODENUM": sys.argv[2],
               "TMPDIR": os.environ["TMPDIR"]}}
sys.exit(subprocess.call(["ip", "netns", "exec", namespace, *sys.argv[4:]],
                         stdin=subprocess.DEVNULL, env=environment))
"""


def write_pbsdsh(folder, namespaces):
    """A folder for PATH; `namespaces` are pairs of a machine's name and where it is."""
    place = pathlib.Path(folder) / "pbs"
    place.mkdir()
    program = place / "pbsdsh"
    program.write_text(PBSDSH.format(python=sys.executable, namespaces=list(namespaces)))
    program.chmod(0o755)
    return str(place)


class ClusterCase(NetworkCase):
    def setUp(self):
        super().setUp()
        self.worker = self.file(
            "worker.sh", "echo rank $RANK of $WORLD_SIZE on node $GROUP_RANK at $MASTER_ADDR\n")

    def start(self, node, *arguments, env=None, prefix=()):
        job = Job([*arguments], prefix=[*self.network.command(node), *prefix], env=env,
                  cwd=self.folder)
        self.jobs.append(job)
        return job

    def fails(self, job, *words, code=1):
        found, _, err = job.end()
        self.assertEqual(found, code, err)
        self.assertNotIn(SECRET, err)
        for word in words:
            self.assertIn(word, err)
        return err

    def waits_for(self, condition, what):
        deadline = time.monotonic() + LIMIT
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.02)


class SshCase(ClusterCase):
    """The head is on machine 1, the nodes are machines 2 and 3."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if missing := ssh_missing():
            raise unittest.SkipTest(missing)
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.ssh = SshServers(cls.network, [2, 3], folder.name)
        cls.addClassCleanup(cls.ssh.close)

    def run_on(self, *arguments, hosts="10.77.0.2,10.77.0.3", ssh=None, env=None):
        return self.start(1, "--hosts", hosts, f"--ssh-options={ssh or self.ssh.options()}",
                          "--export", "TMPDIR", *arguments, env=env)
