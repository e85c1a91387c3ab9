"""What keeps nodes from coming together: each cause ends in one line that names the node and the cure,
long before the time-out.

Usage: join_test.py LOCKSTEP FAKE_CLOCK
"""

import pathlib
import stat
import subprocess
import sys
import textwrap

from launcher import Job, set_launcher
from network import NetworkCase, enter_namespaces, ip

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

LOCKSTEP, FAKE_CLOCK = sys.argv.pop(1), sys.argv.pop(1)
set_launcher(LOCKSTEP)


def listening(network, node):
    """Addresses and ports outside loopback that something of the node listens at."""
    found = set()
    for name, size in (("tcp", 8), ("tcp6", 32)):
        table = subprocess.run(network.command(node, "cat", f"/proc/net/{name}"), check=True,
                               capture_output=True, text=True).stdout
        for line in table.splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == "0A":
                address, port = local.split(":")
                if size == 8:
                    address = ".".join(str(byte) for byte in reversed(bytes.fromhex(address)))
                found.add((address, int(port, 16)))
    return {each for each in found if not each[0].startswith("127.")}


class JoinTest(NetworkCase):
    nodes = 2

    def setUp(self):
        super().setUp()
        self.secret = self.file("job.secret", "0123456789abcdef0123456789abcdef\n")
        self.worker = self.file("worker.sh", "echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR\n")

    def file(self, name, text):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
        return str(path)

    def start(self, node, *options, endpoint=None, worker=None, nnodes="2", env=None, words=(),
              program=("--no-python", "sh")):
        job = Job(["--nnodes", nnodes, "--rdzv-backend", "c10d", "--rdzv-id", "job1",
                   "--rdzv-endpoint", endpoint or f"{self.network.address(1)}:29400",
                   "--secret-file", self.secret, *options, *program, worker or self.worker, *words],
                  prefix=self.on(node), env=env)
        self.jobs.append(job)
        return job

    def on(self, node, *words):
        """A command on a node, which has a name of its own."""
        return self.network.command(node, "unshare", "--uts", "sh", "-c",
                                    f'hostname node{node} && exec "$@"', "sh", *words)

    def ends_well(self, *jobs):
        outputs = []
        for job in jobs:
            code, out, err = job.end()
            self.assertEqual(code, 0, err)
            outputs.append(out)
        return outputs

    def line(self, job, wanted):
        """The line of standard error with these words."""
        text = job.wait_for_error(wanted)
        while True:
            for line in text.splitlines(keepends=True):
                if wanted in line and line.endswith("\n"):
                    return line
            text = job.wait_for_error("\n", text.count("\n") + 1)


class NoCoordinator(JoinTest):
    def last_line(self, job):
        """Of a job that ends because it finds no coordinator."""
        code, _, err = job.end()
        self.assertEqual(code, 1, err)
        lines = [line for line in err.splitlines() if "found no coordinator at" in line]
        self.assertEqual(len(lines), 1, err)
        self.assertIn("node2 found no coordinator", lines[0])
        return lines[0]

    def test_a_name_that_is_not_known(self):
        line = self.last_line(self.start(2, "--start-timeout", "2",
                                         endpoint="no-such-host.invalid:29400"))
        self.assertIn("'no-such-host.invalid' cannot be resolved", line)
        self.assertIn("/etc/hosts", line)

    def test_in_kubernetes_names_may_come_late(self):
        job = self.start(2, "--rdzv-conf", "join_timeout=100", endpoint="no-such-host.invalid:29400",
                         env={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
        self.assertIn("giving up in 9", self.line(job, "cannot be resolved"))

    def test_a_port_where_nothing_listens(self):
        endpoint = f"{self.network.address(1)}:29401"
        # By hand: the other may be about to start.
        line = self.line(self.start(2, "--start-timeout", "1", endpoint=endpoint), "giving up in 59")
        self.assertIn("cannot connect to 10.77.0.1:29401 (10.77.0.1: Connection refused)", line)
        self.assertIn("start lockstep run there", line)
        # A scheduler has started all that it will.
        line = self.last_line(self.start(2, "--start-timeout", "2", endpoint=endpoint,
                                         env={"SLURM_JOB_NODELIST": "node[1-2]"}))
        self.assertIn("start lockstep run there", line)

    def test_a_port_that_is_blocked(self):
        # What node 1 answers is dropped on its way out, as by a firewall.
        ip("-n", self.network.namespace(1), "route", "add", "blackhole", "10.77.0.2/32")
        self.addCleanup(ip, "-n", self.network.namespace(1), "route", "delete", "blackhole",
                        "10.77.0.2/32")
        line = self.last_line(self.start(2, "--start-timeout", "2"))
        self.assertIn("10.77.0.1:29400 (10.77.0.1: no answer)", line)
        self.assertIn("firewall", line)

    def test_a_network_without_a_way_there(self):
        line = self.last_line(self.start(2, "--local-addr", "10.77.0.2", "--start-timeout", "2",
                                         endpoint="192.0.2.1:29400"))
        self.assertIn("no way to 192.0.2.1", line)

    def test_a_port_that_another_program_holds_is_an_end_with_its_name(self):
        code = "import socket, time; s = socket.create_server(('', 29400)); print('up', flush=True); " \
               "time.sleep(1000)"
        # Its command speaks of the launcher, as all do that lie in a folder of that name.
        holder = subprocess.Popen(self.network.command(1, sys.executable, "-c", code, "lockstep"),
                                  stdout=subprocess.PIPE, text=True)
        self.addCleanup(holder.stdout.close)
        self.addCleanup(holder.wait)
        self.addCleanup(holder.kill)
        self.assertEqual(holder.stdout.readline(), "up\n")
        code, _, err = self.start(1).end()
        self.assertNotEqual(code, 0)
        self.assertIn(f"the port is taken by process {holder.pid} (", err)
        self.assertIn("29400", err)


class Unequal(JoinTest):
    def refused(self, other):
        code, _, err = other.end()
        self.assertEqual(code, 1, err)
        return next(line for line in err.splitlines() if "refused by the coordinator" in line)

    def test_a_stale_copy_of_the_program(self):
        new = self.file("new/train.sh", "echo new rank $RANK\n")
        old = self.file("old/train.sh", "echo old\n")
        first = self.start(1, worker=new)
        first.wait_for_error("joined")
        line = self.refused(self.start(2, worker=old))
        self.assertRegex(line, r"train\.sh on node2 \(\w+ 9 bytes\) is not the one on node1 "
                               r"\(\w+ 20 bytes\): copy")
        self.assertIn("train.sh", first.wait_for_error("refused "))
        self.ends_well(self.start(2, worker=new), first)

    def test_other_arguments_are_said_and_no_reason_to_end(self):
        first = self.start(1, words=["--lr", "1"])
        first.wait_for_error("joined")
        self.ends_well(self.start(2, words=["--lr", "2"]), first)
        self.assertIn("the arguments of worker.sh on ", first.err)

    def test_another_version_of_lockstep(self):
        program = pathlib.Path(LOCKSTEP).read_bytes()
        at = program.index(b"lockstep version ") + len(b"lockstep version ")
        version = program[at:program.index(b"\0", at)].decode()
        other = version[:-1] + ("8" if version[-1] == "9" else "9")
        copy = self.folder / "lockstep"
        copy.write_bytes(program.replace(b"lockstep version " + version.encode(),
                                         b"lockstep version " + other.encode()))
        copy.chmod(0o700)
        first = self.start(1)
        first.wait_for_error("joined")
        set_launcher(str(copy))
        self.addCleanup(set_launcher, LOCKSTEP)
        line = self.refused(self.start(2))
        set_launcher(LOCKSTEP)
        self.assertIn(f"the coordinator is lockstep {version}, ", line)
        self.assertIn(f"node2 has lockstep {other}: install the same", line)
        self.assertIn(other, first.wait_for_error("refused "))
        self.ends_well(self.start(2), first)

    def test_a_clock_that_is_wrong(self):
        first = self.start(1)
        second = self.start(2, env={"LD_PRELOAD": FAKE_CLOCK, "FAKE_CLOCK_AHEAD": "-90"})
        self.ends_well(first, second)
        line = self.line(first, "the clock of node ") if "clock" not in first.err else first.err
        self.assertRegex(line, r"the clock of node node2 is (89|90) s behind the coordinator's: set it")


class Allocation(JoinTest):
    def alone(self, environment):
        code, _, err = self.start(1, "--start-timeout", "2", env=environment).end()
        self.assertEqual(code, 1, err)
        lines = [line for line in err.splitlines() if "lockstep run was started on" in line]
        self.assertEqual(len(lines), 1, err)
        self.assertIn("on node1 only: nobody else of this allocation has come to 10.77.0.1", lines[0])
        self.assertIn("(other-node)", lines[0])
        return lines[0]

    def test_a_command_that_runs_on_one_node_only(self):
        self.assertIn("srun", self.alone({"SLURM_JOB_NODELIST": "node1,other-node"}))

    def test_the_same_under_pbs(self):
        nodes = self.file("nodes", "node1\nnode1\nother-node\nother-node\n")
        self.assertIn("--nnodes auto", self.alone({"PBS_NODEFILE": nodes}))


class Listening(JoinTest):
    """Where the coordinator listens if its endpoint is a name."""
    networks = 2

    def start_with_hosts(self, node, hosts, *options, **more):
        """With an /etc/hosts of its own."""
        path = self.file(f"hosts{node}", hosts)
        words = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', path]
        plain = self.on
        self.on = lambda number, *rest: [*plain(number, *words), *rest]
        try:
            return self.start(node, *options, **more)
        finally:
            self.on = plain

    def test_at_the_addresses_of_the_name_that_are_this_nodes(self):
        hosts = "127.0.0.1 localhost\n10.78.0.1 head\n10.99.0.9 head\n"
        first = self.start_with_hosts(1, hosts, endpoint="head:29400")
        first.wait_for_error("joined")
        self.assertEqual(listening(self.network, 1), {("10.78.0.1", 29400)})
        self.ends_well(self.start_with_hosts(2, hosts, endpoint="head:29400"), first)

    def test_everywhere_where_the_name_is_loopback_here_alone(self):
        first = self.start_with_hosts(1, "127.0.0.1 localhost\n127.0.1.1 node1\n",
                                      endpoint="node1:29400")
        first.wait_for_error("joined")
        self.assertEqual({port for _, port in listening(self.network, 1)}, {29400})
        self.ends_well(self.start_with_hosts(2, "10.77.0.1 node1\n", endpoint="node1:29400"), first)


class Survey(JoinTest):
    """Over which network the nodes reach each other."""
    nodes = 3
    networks = 2

    def start_all(self, *options, env=None, **more):
        return [self.start(node, *options, nnodes="3", env=(env or {}).get(node), **more)
                for node in (1, 2, 3)]

    def waiter(self):
        return self.file("waiter.sh", """
            echo rank $RANK at $MASTER_ADDR port $MASTER_PORT over $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME
            exec sleep 1000
            """)

    def forbid(self, node, other, network=0):
        self.network.forbid(node, other, network)
        self.addCleanup(self.network.allow, node, other, network)

    def test_the_coordinators_network_is_taken_where_it_joins_all(self):
        jobs = self.start_all(worker=self.waiter())
        lines = [job.wait_for_line("over") for job in jobs]
        for rank, line in enumerate(lines):
            self.assertRegex(line, rf"rank {rank} at 10\.77\.0\.1 port \d+ over eth0 =eth0")
        jobs[0].wait_for_error("network: 10.77.0.0/24 (eth0) on all 3 nodes\n")
        port = int(lines[0].split(" port ")[1].split()[0])
        self.assertEqual(listening(self.network, 1), {("10.77.0.1", 29400), ("10.77.0.1", port)})
        for node in (2, 3):
            self.assertEqual(listening(self.network, node), set())

    def test_another_one_is_taken_where_a_pair_does_not_reach_each_other(self):
        self.forbid(2, 3)
        jobs = self.start_all(worker=self.waiter())
        lines = [job.wait_for_line("over") for job in jobs]
        for rank, line in enumerate(lines):
            self.assertRegex(line, rf"rank {rank} at 10\.78\.0\.1 port \d+ over eth1 =eth1")
        jobs[0].wait_for_error("network: 10.78.0.0/24 (eth1) on all 3 nodes; node2 does not reach "
                               "node3 at 10.77.0.3 (eth0): ")
        port = int(lines[0].split(" port ")[1].split()[0])
        self.assertEqual(listening(self.network, 1), {("10.77.0.1", 29400), ("10.78.0.1", port)})

    def test_where_no_network_joins_all_the_job_ends_with_the_pair(self):
        self.forbid(2, 3, network=0)
        self.forbid(2, 3, network=1)
        for job in self.start_all():
            code, out, err = job.end()
            self.assertEqual((code, out), (1, ""), err)
            self.assertIn("no network joins all nodes", err)
            self.assertIn("node2 does not reach node3 at 10.77.0.3 (eth0): ", err)
            self.assertIn("--network-check off", err)

    def test_with_tls_probes_are_encrypted_and_decide_alike(self):
        self.forbid(2, 3)
        jobs = self.start_all("--tls", worker=self.waiter())
        for rank, job in enumerate(jobs):
            self.assertIn(f"rank {rank} at 10.78.0.1 port", job.wait_for_line("over eth1 =eth1"))
        jobs[0].wait_for_error("network: 10.78.0.0/24 (eth1) on all 3 nodes; node2 does not reach "
                               "node3 at 10.77.0.3 (eth0): ")

    def test_without_the_check_it_starts_all_the_same(self):
        self.forbid(2, 3, network=0)
        self.forbid(2, 3, network=1)
        self.ends_well(*self.start_all("--network-check", "off"))

    def test_an_interface_that_reaches_nobody_is_named_and_the_one_that_does(self):
        for node in (1, 3):
            self.forbid(node, 2, network=1)
        for job in self.start_all(env={2: {"GLOO_SOCKET_IFNAME": "eth1"}}):
            code, _, err = job.end()
            self.assertEqual(code, 1, err)
            self.assertIn("does not reach node2 at 10.78.0.2 (eth1): ", err)
            self.assertIn("over 10.77.0.0/24 (eth0) all nodes reach each other: correct or leave out "
                          "GLOO_SOCKET_IFNAME=eth1 on node2", err)

    def test_a_new_node_that_does_not_reach_those_of_an_elastic_job_is_refused(self):
        options = ["--rdzv-conf", "last_call_timeout=1"]
        jobs = [self.start(node, *options, nnodes="2:3", worker=self.waiter()) for node in (1, 2)]
        for job in jobs:
            job.wait_for_line("over eth0")
        jobs[0].wait_for_error("network: 10.77.0.0/24 (eth0) on all 2 nodes")
        for network in (0, 1):
            self.forbid(3, 2, network)
        code, _, err = self.start(3, *options, nnodes="2:3", worker=self.waiter()).end()
        self.assertEqual(code, 1, err)
        self.assertIn("refused by the coordinator", err)
        self.assertIn("node3 does not reach node2 at 10.77.0.2 (eth0): ", err)
        for job in jobs:
            job.wait_for_line("over eth0", 2)  # begins again

    def test_a_pinned_address_counts(self):
        jobs = [self.start(node, "--local-addr", self.network.address(node, 1), nnodes="3")
                for node in (1, 2, 3)]
        for out in self.ends_well(*jobs):
            self.assertIn("at 10.78.0.1", out)
        self.assertIn("network: 10.78.0.0/24 (eth1) on all 3 nodes", jobs[0].err)

    def test_a_port_between_nodes_that_is_blocked(self):
        # What node 3 answers to node 2 is dropped, in both networks, as by a firewall.
        for network in (0, 1):
            route = ["blackhole", self.network.address(2, network)]
            ip("-n", self.network.namespace(3), "route", "add", *route)
            self.addCleanup(ip, "-n", self.network.namespace(3), "route", "delete", *route)
        for job in self.start_all():
            code, _, err = job.end()
            self.assertEqual(code, 1, err)
            self.assertIn("no network joins all nodes", err)
            self.assertIn("node2 does not reach node3 at 10.77.0.3 (eth0): no answer", err)
            self.assertIn("firewall", err)

    def test_nodes_with_ipv6_alone(self):
        for node in (1, 2, 3):
            namespace = self.network.namespace(node)
            for network in (0, 1):
                ip("-n", namespace, "address", "delete", f"{self.network.address(node, network)}/24",
                   "dev", f"eth{network}")
                self.addCleanup(ip, "-n", namespace, "address", "add",
                                f"{self.network.address(node, network)}/24", "dev", f"eth{network}")
            ip("-n", namespace, "address", "add", f"fd00:77::{node}/64", "dev", "eth0", "nodad")
            self.addCleanup(ip, "-n", namespace, "address", "delete", f"fd00:77::{node}/64", "dev",
                            "eth0")
        jobs = self.start_all(endpoint="[fd00:77::1]:29400", worker=self.waiter())
        for rank, job in enumerate(jobs):
            self.assertIn(f"rank {rank} at fd00:77::1 port", job.wait_for_line("over eth0 =eth0"))
        jobs[0].wait_for_error("network: fd00:77::/64 (eth0) on all 3 nodes")


if __name__ == "__main__":
    enter_namespaces()
    test_script.main(verbosity=2)
