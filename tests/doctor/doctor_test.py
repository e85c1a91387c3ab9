"""`lockstep doctor`, as users meet it: alone, and on several nodes in network namespaces.

Usage: doctor_test.py LOCKSTEP [PYTHON-WITH-TORCH]
"""

import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

for folder in ("launch", "cluster"):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / folder))

from machines import SshServers, ssh_missing, write_pbsdsh
from network import Network, enter_namespaces, ip
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

LOCKSTEP = sys.argv.pop(1)
TORCH_PYTHON = sys.argv.pop(1) if len(sys.argv) > 1 and "/" in sys.argv[1] else None
LIMIT = 60  # seconds; only ever reached by a failure


def clean_environment():
    return {name: value for name, value in os.environ.items()
            if not name.startswith(("PET_", "LOCKSTEP_", "NCCL_", "GLOO_", "OMP_", "FI_"))}


def doctor(*arguments, env=None):
    done = subprocess.run([LOCKSTEP, "doctor", *arguments], capture_output=True, text=True,
                          timeout=LIMIT, env={**clean_environment(), **(env or {})})
    return done.returncode, done.stdout, done.stderr


class Alone(unittest.TestCase):
    def test_a_machine_is_looked_at_and_summed_up(self):
        code, out, err = doctor()
        self.assertIn(code, (0, 1), err)
        self.assertEqual(err, "")
        self.assertIn("versions: lockstep", out)
        self.assertRegex(out.splitlines()[-1], r"^doctor: .* on 1 node \([0-9.]+ s\)$")

    def test_an_error_is_last_has_a_cure_and_decides_the_exit_code(self):
        code, out, _ = doctor("--quiet", env={"NCCL_SOCKET_IFNAME": "nowhere7"})
        self.assertEqual(code, 1)
        line = out.splitlines()[-2]
        self.assertIn("error", line)
        self.assertIn("nowhere7", line)
        self.assertIn(" -> ", line)
        self.assertNotIn("  ok ", out)

    def test_what_cannot_be_written_is_an_error_whatever_the_command(self):
        for command in (["doctor"], ["help"], ["man"], ["sbatch", "--print", "--", "./train"]):
            with open("/dev/full", "w") as full:
                done = subprocess.run([LOCKSTEP, *command], stdout=full, stderr=subprocess.PIPE, text=True,
                                      timeout=LIMIT, env=clean_environment())
            self.assertEqual(done.returncode, 1, command)
            self.assertEqual(done.stderr, "lockstep: standard output cannot be written: No space left on device\n")

    def test_a_shared_folder_is_tried_and_left_clean(self):
        with tempfile.TemporaryDirectory() as folder:
            _, out, _ = doctor("--shared-dir", folder)
            self.assertIn("rename, fsync, O_EXCL and flock work", out)
            self.assertEqual(os.listdir(folder), [])
        code, out, _ = doctor("--shared-dir", folder)
        self.assertEqual(code, 1)
        self.assertIn("shared folder", out)

    def test_json_is_one_document(self):
        _, out, err = doctor("--json")
        report = json.loads(out)
        self.assertEqual(err, "")
        self.assertEqual(len(report["nodes"]), 1)
        self.assertLessEqual({"node", "check", "level", "what", "cure"}, set(report["findings"][0]))

    def test_a_small_job_that_fails_is_an_error(self):
        code, out, _ = doctor("--smoke-program", "false")
        self.assertEqual(code, 1)
        self.assertRegex(out.splitlines()[-2], "error +smoke: .*exit code 1")

    def test_a_wrong_command_line_is_named(self):
        code, out, err = doctor("--jason")
        self.assertEqual((code, out), (2, ""))
        self.assertIn("--jason", err)


class Nodes(unittest.TestCase):
    """Three nodes with names of their own: node1 (10.77.0.1) to node3."""

    count = 3
    endpoint = "10.77.0.1:29400"

    @classmethod
    def setUpClass(cls):
        if missing := Network.missing():
            raise unittest.SkipTest(missing)
        if shutil.which("unshare") is None:
            raise unittest.SkipTest("unshare is not installed")

    def setUp(self):
        self.network = Network(self.count)
        self.addCleanup(self.network.close)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = clean_environment()
        self.secret = self.secret_file("job.secret", "0123456789abcdef0123456789abcdef")

    def secret_file(self, name, text):
        path = self.folder / name
        path.write_text(text + "\n")
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
        return str(path)

    def start(self, node, *options, secret=None, count=None):
        """One node's doctor; the endpoint is node 1."""
        words = [LOCKSTEP, "doctor", "--nnodes", str(count or self.count), "--rdzv-endpoint", self.endpoint,
                 "--secret-file", secret or self.secret, *options]
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', f"node{node}", *words]
        process = subprocess.Popen(self.network.command(node, *named), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=self.environment)
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stdout.close(),
                                 process.stderr.close()))
        return process

    def examine(self, *options):
        """All nodes' doctors: the report of the first, and its exit code."""
        others = [self.start(node, *options) for node in range(2, self.count + 1)]
        out, err = self.start(1, "--json", *options).communicate(timeout=LIMIT)
        self.assertTrue(out, err)
        report = json.loads(out)
        for other in others:
            _, other_err = other.communicate(timeout=LIMIT)
            self.assertEqual(other.returncode, min(report["errors"], 1), other_err)
            self.assertIn("on 3 nodes", other_err)
        return report

    def findings(self, report, check, level=None):
        return [each for each in report["findings"]
                if each["check"] == check and (level is None or each["level"] == level)]

    def the_finding(self, report, check, level):
        found = self.findings(report, check, level)
        self.assertEqual(len(found), 1, report["findings"])
        self.assertTrue(found[0]["cure"])
        return found[0]


class Meeting(Nodes):
    def test_healthy_nodes_are_measured_in_pairs(self):
        program = pathlib.Path(tempfile.mkdtemp(), "smoke.sh")
        self.addCleanup(lambda: shutil.rmtree(program.parent))
        program.write_text('#!/bin/sh\n[ "$RANK" != 0 ] || echo "smoke: $WORLD_SIZE at $MASTER_ADDR"\n')
        program.chmod(0o755)
        report = self.examine("--shared-dir", str(self.folder), "--smoke-program", str(program))
        self.assertEqual([each["what"] for each in self.findings(report, "smoke")], ["3 at 10.77.0.1"])
        self.assertEqual(sorted(report["nodes"]), ["node1", "node2", "node3"])
        self.assertEqual(report["nodes"][0], "node1")
        self.assertEqual(report["errors"], 0, report["findings"])
        main = {(pair["from"], pair["to"]): pair for pair in report["pairs"] if pair["main"]}
        self.assertEqual(len(main), 6)
        for pair in main.values():
            self.assertTrue(pair["reached"], pair)
            self.assertGreater(pair["latency_us"], 0)
            self.assertGreater(pair["bytes_per_second"], 1e6)
            self.assertEqual(pair["path_mtu"], 1500)
        self.assertEqual(len(self.findings(report, "equal versions", "ok")), 1)
        self.assertEqual(len(self.findings(report, "clocks", "ok")), 1)
        # Nobody has told these machines each other's names.
        self.assertIn("cannot be resolved", self.findings(report, "names", "note")[0]["what"])
        seen = [each for each in self.findings(report, "shared folder") if "others see" in each["what"]]
        self.assertEqual(len(seen), 1, report["findings"])
        self.assertEqual([path.name for path in self.folder.iterdir()], ["job.secret"])


class Hosts(Nodes):
    """Doctors that are started on machines 2 and 3 by one on machine 1."""

    def setUp(self):
        if missing := ssh_missing():
            self.skipTest(missing)
        super().setUp()
        self.keys = self.folder / "keys"
        self.keys.mkdir()
        self.ssh = SshServers(self.network, (2, 3), self.keys)
        self.addCleanup(self.ssh.close)

    def call(self, *options, env=None):
        words = [LOCKSTEP, "doctor", "--json", "--ssh-options", self.ssh.options(), *options]
        done = subprocess.run(self.network.command(1, *words), stdin=subprocess.DEVNULL, timeout=LIMIT,
                              capture_output=True, text=True, cwd=self.folder,
                              env={**self.environment, **(env or {})})
        self.assertTrue(done.stdout, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(done.returncode, min(report["errors"], 1))
        return report, done.stderr

    def test_doctors_are_started_on_all_hosts(self):
        report, err = self.call("--hosts", "10.77.0.2,10.77.0.3", "--shared-dir", str(self.folder))
        self.assertIn("2 nodes (--hosts), started with ssh", err)
        self.assertEqual(report["nodes"], ["10.77.0.2", "10.77.0.3"])
        self.assertEqual(report["errors"], 0, report["findings"])
        pairs = {(pair["from"], pair["to"]) for pair in report["pairs"] if pair["main"] and pair["reached"]}
        self.assertEqual(pairs, {("10.77.0.2", "10.77.0.3"), ("10.77.0.3", "10.77.0.2")})
        self.assertEqual([path.name for path in self.folder.iterdir() if "doctor" in path.name], [])

    def test_a_host_that_cannot_be_started_is_named_and_the_others_are_looked_at(self):
        hostfile = self.folder / "hosts"
        hostfile.write_text("10.77.0.1\n10.77.0.2\n10.77.0.9\n")  # the first is where the head is
        report, _ = self.call("--hostfile", str(hostfile), env={"NCCL_SOCKET_IFNAME": "nowhere7"})
        self.assertEqual(sorted(report["nodes"]), ["10.77.0.1", "10.77.0.2", "10.77.0.9"])
        self.assertEqual(self.the_finding(report, "start", "error")["node"], "10.77.0.9")
        self.assertEqual(self.findings(report, "nodes", "error"), [])
        pairs = {(pair["from"], pair["to"]) for pair in report["pairs"] if pair["main"] and pair["reached"]}
        self.assertEqual(pairs, {("10.77.0.1", "10.77.0.2"), ("10.77.0.2", "10.77.0.1")})
        named = self.findings(report, "nccl variables", "error")  # the variable goes along
        self.assertEqual({each["node"] for each in named}, {"10.77.0.1", "10.77.0.2"})


class Schedulers(Nodes):
    count = 2

    def test_hosts_of_a_pbs_job_are_started_by_pbsdsh(self):
        nodefile = self.folder / "nodefile"
        nodefile.write_text("one\ntwo\n")
        place = write_pbsdsh(self.folder, [("one", self.network.namespace(1)),
                                           ("two", self.network.namespace(2))])
        self.environment |= {"PBS_JOBID": "7.server", "PBS_NODEFILE": str(nodefile), "PBS_NODENUM": "0",
                             "PBS_ENVIRONMENT": "PBS_BATCH", "TMPDIR": str(self.folder),
                             "PATH": f"{place}:{os.environ['PATH']}"}
        done = subprocess.run(self.network.command(1, LOCKSTEP, "doctor", "--nnodes", "auto", "--json"),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT,
                              cwd=self.folder, env=self.environment)
        self.assertIn("started with pbsdsh", done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(report["nodes"], ["one", "two"])
        self.assertEqual(report["errors"], 0, report["findings"])
        self.assertEqual([path.name for path in self.folder.iterdir() if path.name.startswith(".")], [])

    def test_doctors_that_mpirun_has_started_find_each_other(self):
        def start(rank):
            prologue = ["--prologue", f"export NCCL_SOCKET_IFNAME=nowhere{rank}", "--ssh-options=-p 1"]
            environment = {**self.environment, "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": str(rank),
                           "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
            process = subprocess.Popen(
                self.network.command(rank + 1, LOCKSTEP, "doctor", "--nnodes", "auto", "--secret-file",
                                     self.secret, "--rdzv-endpoint", "10.77.0.1:29400", "--json",
                                     *prologue),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=environment)
            self.addCleanup(lambda: (process.kill(), process.wait(), process.stdout.close(),
                                     process.stderr.close()))
            return process

        second, first = start(1), start(0)
        out, err = first.communicate(timeout=LIMIT)
        self.assertTrue(out, err)
        report = json.loads(out)
        self.assertEqual(len(report["nodes"]), 2)
        named = " ".join(each["what"] for each in self.findings(report, "nccl variables", "error"))
        self.assertIn("nowhere0", named)
        self.assertIn("nowhere1", named)
        self.assertIn("--ssh-options has no effect", err)
        second.communicate(timeout=LIMIT)
        self.assertEqual(second.returncode, first.returncode)


@unittest.skipIf(TORCH_PYTHON is None, "no Python with torch")
class Smoke(Nodes):
    def test_ranks_of_all_nodes_add_up_numbers(self):
        self.environment["PYTHON_EXEC"] = TORCH_PYTHON
        report = self.examine("--smoke")
        smoke = self.findings(report, "smoke")
        self.assertEqual([each["level"] for each in smoke], ["ok"], smoke)
        self.assertIn("over 3 ranks (gloo)", smoke[0]["what"])


class Broken(Nodes):
    def test_nodes_meet_over_ipv6(self):
        for node in range(1, self.count + 1):
            ip("-n", self.network.namespace(node), "-6", "address", "add", f"fd77::{node}/64", "dev", "eth0",
               "nodad")
        self.endpoint = "[fd77::1]:29400"
        report = self.examine()
        self.assertEqual({pair["address"] for pair in report["pairs"] if pair["main"] and pair["reached"]},
                         {"fd77::1", "fd77::2", "fd77::3"})

    def test_nobody_at_the_endpoint_is_said_with_what_to_look_at(self):
        process = self.start(2, "--timeout", "1")
        _, err = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 1)
        self.assertIn("waiting for the head: cannot connect to 10.77.0.1:29400", err)
        self.assertIn("is lockstep doctor running there", err)

    def drop(self, node, source):
        """Packets of one node to another are lost there without a word, as by a firewall."""
        namespace = self.network.namespace(node)
        ip("-n", namespace, "route", "add", "blackhole", f"{self.network.address(source)}/32")

    def test_a_wrong_secret_is_refused_and_a_missing_node_named(self):
        wrong = self.secret_file("wrong.secret", "fedcba9876543210fedcba9876543210")
        first = self.start(1, "--timeout", "15")
        second = self.start(2)
        stranger = self.start(3, secret=wrong)
        _, err = stranger.communicate(timeout=LIMIT)
        self.assertEqual(stranger.returncode, 1)
        self.assertIn("secret", err)
        out, err = first.communicate(timeout=LIMIT)
        self.assertEqual(first.returncode, 1)
        self.assertIn("1 of 3 nodes did not come; here: node1, node2", out)
        self.assertIn("refused", err)
        second.communicate(timeout=LIMIT)
        self.assertEqual(second.returncode, 1)

    def test_a_pair_that_is_kept_apart_is_named(self):
        self.drop(2, 3)
        report = self.examine()
        unreached = {(pair["from"], pair["to"]) for pair in report["pairs"]
                     if pair["main"] and not pair["reached"]}
        self.assertEqual(unreached, {("node2", "node3"), ("node3", "node2")})
        found = self.findings(report, "reach", "error")
        self.assertEqual(sorted(each["node"] for each in found), ["node2", "node3"])

    def believe_in_large_packets(self, node):
        """Packets beyond what the switch takes; without the offload that would cut them later."""
        ip("-n", self.network.namespace(node), "link", "set", "eth0", "mtu", "9000")
        ip("-n", self.network.namespace(node), "link", "set", "eth0", "gso_max_segs", "1")

    def test_large_packets_that_a_switch_drops_are_found_between_nodes(self):
        for node in (2, 3):
            self.believe_in_large_packets(node)
            ip("-n", self.network.namespace(node), "route", "add", f"{self.network.address(1)}/32",
               "dev", "eth0", "mtu", "1400")
        report = self.examine()
        found = self.findings(report, "mtu", "error")
        self.assertEqual(sorted(each["node"] for each in found), ["node2", "node3"], report["findings"])
        self.assertIn("node3", found[0]["what"] + found[1]["what"])

    def test_a_node_whose_first_message_is_dropped_is_named(self):
        self.believe_in_large_packets(1)
        self.believe_in_large_packets(3)
        others = [self.start(node) for node in (2, 3)]
        out, _ = self.start(1, "--json").communicate(timeout=LIMIT)
        found = self.the_finding(json.loads(out), "mtu", "error")
        self.assertIn(self.network.address(3), found["what"])
        for other in others:
            other.communicate(timeout=LIMIT)
            self.assertEqual(other.returncode, 1)

    def test_smaller_packets_on_one_node_are_a_warning(self):
        ip("-n", self.network.namespace(2), "link", "set", "eth0", "mtu", "1400")
        found = self.findings(self.examine(), "mtu", "warning")
        self.assertTrue(found)
        self.assertEqual({each["node"] for each in found}, {"node2"})

    def test_a_slow_node_is_named(self):
        shaped = subprocess.run(
            self.network.command(3, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "20mbit",
                                 "burst", "64kbit", "latency", "400ms"), capture_output=True, text=True)
        if shaped.returncode != 0:
            self.skipTest(f"this kernel cannot make a network slow: {shaped.stderr}")
        report = self.examine()
        self.assertIn("node3", {each["node"] for each in self.findings(report, "bandwidth", "warning")})
        slow = [pair for pair in report["pairs"] if pair["main"] and pair["from"] == "node3"]
        self.assertTrue(all(pair["bytes_per_second"] < 5e6 for pair in slow), slow)

    def test_a_folder_that_is_not_shared_is_found(self):
        others = [self.start(node, "--shared-dir", str(self.folder)) for node in (2,)]
        apart = self.folder / "apart"
        apart.mkdir()
        third = self.start(3, "--shared-dir", str(apart))
        out, _ = self.start(1, "--json", "--shared-dir", str(self.folder)).communicate(timeout=LIMIT)
        found = self.the_finding(json.loads(out), "shared folder", "error")
        self.assertEqual(found["node"], "node3")
        for process in (*others, third):
            process.communicate(timeout=LIMIT)


if __name__ == "__main__":
    enter_namespaces()
    test_script.main()
