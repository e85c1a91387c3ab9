"""Jobs on several nodes, in network namespaces.

Usage: nodes_test.py LOCKSTEP [PYTHON-WITH-TORCH [DDP_JOB]]
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

from launcher import Job, LIMIT, job_environment, set_launcher, stack_command
from network import NetworkCase, enter_namespaces, ip

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

set_launcher(sys.argv.pop(1))
TORCH_PYTHON, DDP_JOB = [
    sys.argv.pop(1) if len(sys.argv) > 1 and "/" in sys.argv[1] else None for _ in range(2)
]
PARITY = pathlib.Path(__file__).resolve().parent.parent / "parity"  # programs in both languages


def expand(ranks):
    """[0, 1, 2, 5] of "0-2, 5"."""
    for part in ranks.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


class NodesTest(NetworkCase):
    def setUp(self):
        super().setUp()
        self.secret = self.file("job.secret", "0123456789abcdef0123456789abcdef\n")
        self.worker = self.file("worker.sh", "echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR\n")

    def start(self, node, *options, worker=None, nnodes="2", nproc=1, secret=None, job_id="job1",
              conf="", backend="c10d", python=None, words=(), endpoint=None):
        """One node's launcher; the endpoint is node 1."""
        rendezvous = ["--nnodes", nnodes, "--nproc-per-node", str(nproc), "--rdzv-id", job_id,
                 "--rdzv-backend", backend,
                 "--rdzv-endpoint", endpoint or f"{self.network.address(1)}:29400",
                 "--secret-file", secret or self.secret]
        if conf:
            rendezvous += ["--rdzv-conf", conf]
        program = [worker] if python else ["--no-python", "sh", worker or self.worker]
        job = Job([*rendezvous, *options, *program, *words], prefix=self.network.command(node),
                  env={"PYTHON_EXEC": python} if python else None)
        self.jobs.append(job)
        return job


class Meeting(NodesTest):
    def test_two_nodes_share_one_world(self):
        one, two = self.ends_well(self.start(1, nproc=2), self.start(2, nproc=2))
        lines = sorted((one + two).splitlines())
        self.assertEqual(lines, [f"rank {rank} of 4 at 10.77.0.1" for rank in range(4)])
        self.assertIn("rank 0 of", one)

    def test_nodes_may_have_different_numbers_of_workers(self):
        outputs = self.ends_well(
            self.start(1, nproc=4, nnodes="3"),
            self.start(2, nproc=2, nnodes="3"),
            self.start(3, nproc=1, nnodes="3"),
        )
        ranks = [sorted(int(rank) for rank in re.findall(r"rank (\d+) of 7", out)) for out in outputs]
        self.assertEqual(ranks, [[0, 1, 2, 3], [4, 5], [6]])

    def test_while_one_is_late_the_others_say_who_is_there(self):
        first = self.start(1)
        first.wait_for_error("1 of 2 nodes joined")
        self.ends_well(self.start(2), first)

    def test_given_node_ranks_decide_the_order(self):
        one = self.start(1, "--node-rank", "1")
        two = self.start(2, "--node-rank", "0")
        out_one, out_two = self.ends_well(one, two)
        self.assertIn("rank 1 of 2 at 10.77.0.2", out_one)
        self.assertIn("rank 0 of 2 at 10.77.0.2", out_two)

    def test_a_missing_node_is_named(self):
        first = self.start(1, "--node-rank", "0", conf="join_timeout=2", backend="static")
        code, _, err = first.end()
        self.assertEqual(code, 1)
        self.assertIn("1 missing: node rank 1", err)
        self.assertIn("10.77.0.1", err)

    def test_nobody_at_the_endpoint_is_said(self):
        code, _, err = self.start(2, conf="join_timeout=2").end()
        self.assertEqual(code, 1)
        self.assertIn("10.77.0.1:29400", err)

    def test_different_ids_are_named_as_such(self):
        first = self.start(1, job_id="4711")
        code, _, err = self.start(2, job_id="4712").end()
        self.assertEqual(code, 1)
        self.assertIn("4711", err)
        self.assertIn("$RANDOM", err)
        self.ends_well(self.start(2, job_id="4711"), first)

    def test_a_wrong_secret_is_refused_and_the_job_unharmed(self):
        first = self.start(1)
        first.wait_for_error("1 of 2 nodes joined")
        wrong = self.file("wrong.secret", "fedcba9876543210fedcba9876543210\n")
        stranger = self.start(3, secret=wrong, conf="join_timeout=2")
        code, _, err = stranger.end()
        self.assertEqual(code, 1)
        self.assertIn("secret", err)
        self.ends_well(self.start(2), first)

    def test_without_a_secret_nothing_starts(self):
        job = Job(["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "10.77.0.1:29400",
                   "--no-python", "true"], prefix=self.network.command(1))
        code, _, err = job.end()
        self.assertEqual(code, 2)
        self.assertIn("--secret-file", err)


    def test_a_node_that_comes_from_another_address_than_it_gives_reaches_the_store(self):
        second = "10.77.0.102"
        ip("-n", self.network.namespace(2), "address", "add", f"{second}/24", "dev", "eth0")
        self.addCleanup(ip, "-n", self.network.namespace(2), "address", "delete", f"{second}/24",
                        "dev", "eth0")
        # A ping, which the store answers with the number it holds.
        worker = self.file("ping.py", """
            import os, socket, struct
            address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
            store = socket.create_connection(address, timeout=30)
            store.sendall(struct.pack("<BI", 0, 0x3C85F7CE) + struct.pack("<BI", 13, 4711))
            print("answer", struct.unpack("<I", store.recv(4))[0], store.getsockname()[0], flush=True)
            """)
        one = self.start(1, worker=worker, python=sys.executable)
        two = self.start(2, "--local-addr", second, worker=worker, python=sys.executable)
        outputs = self.ends_well(one, two)
        self.assertIn("answer 4711 10.77.0.2", outputs[1])
        self.assertIn(f"gives its address as {second} and comes from 10.77.0.2", one.err)

    def test_different_keep_alive_values_are_named(self):
        first = self.start(1, conf="keep_alive_interval=2")
        code, _, err = self.start(2).end()
        self.assertEqual(code, 1)
        self.assertIn("keep_alive_interval", err)
        self.ends_well(self.start(2, conf="keep_alive_interval=2"), first)


class Failing(NodesTest):
    def sleeper(self):
        return self.file("sleeper.sh", """
            echo rank $RANK of $WORLD_SIZE count $TORCHELASTIC_RESTART_COUNT
            exec sleep 1000
            """)

    def test_a_failure_on_one_node_stops_all_and_is_reported_on_all(self):
        worker = self.file("fails.sh", """
            [ $RANK = 1 ] || exec sleep 1000
            echo about to fail >&2
            exit 3
            """)
        for job in [self.start(1, worker=worker), self.start(2, worker=worker)]:
            code, _, err = job.end()
            self.assertEqual(code, 3)
            self.assertIn("rank 1", err)
            self.assertIn("about to fail", err)

    def test_restarts_are_counted_for_the_whole_job(self):
        # Not before the other one has said its line.
        worker = self.file("fails.sh", f"""
            echo count $TORCHELASTIC_RESTART_COUNT
            said={self.folder}/said.$TORCHELASTIC_RESTART_COUNT
            [ $RANK = 1 ] || {{ touch $said; exec sleep 1000; }}
            until [ -e $said ]; do sleep 0.02; done
            exit 3
            """)
        jobs = [self.start(node, "--max-restarts", "1", worker=worker) for node in (1, 2)]
        for job in jobs:
            code, out, _ = job.end()
            self.assertEqual((code, out), (3, "count 0\ncount 1\n"))

    def test_a_node_that_is_cut_off_stops_and_comes_back(self):
        conf = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2"
        one = self.start(1, worker=self.sleeper(), nnodes="1:2", conf=conf)
        two = self.start(2, worker=self.sleeper(), nnodes="1:2", conf=conf)
        one.wait_for_line("rank 0 of 2")
        two.wait_for_line("rank 1 of 2")
        self.network.cut(2)
        try:
            one.wait_for_line("rank 0 of 1")
            two.wait_for_error("stopping this node's workers")
        finally:
            self.network.mend(2)
        one.wait_for_line("rank 0 of 2", 2)
        two.wait_for_line("rank 1 of 2", 2)
        one.process.send_signal(signal.SIGTERM)
        self.assertEqual(one.end()[0], 128 + signal.SIGTERM)
        self.assertEqual(two.end()[0], 128 + signal.SIGTERM)

    def test_a_killed_launcher_is_noticed_and_replaced(self):
        one = self.start(1, "--max-restarts", "1", worker=self.sleeper())
        two = self.start(2, "--max-restarts", "1", worker=self.sleeper())
        one.wait_for_line("rank 0 of 2 count 0")
        two.wait_for_line("rank 1 of 2 count 0")
        two.process.kill()
        one.wait_for_error("was lost")
        again = self.start(2, "--max-restarts", "1", worker=self.sleeper())
        one.wait_for_line("rank 0 of 2 count 1")
        again.wait_for_line("rank 1 of 2 count 1")
        one.process.send_signal(signal.SIGINT)
        self.assertEqual(one.end()[0], 128 + signal.SIGINT)
        again.end()

    def test_a_lost_node_of_a_fixed_job_is_named_also_in_the_events(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        one = self.start(1, "--run-dir", folder.name, worker=self.sleeper())
        two = self.start(2, worker=self.sleeper())
        one.wait_for_line("rank 0 of 2")
        two.wait_for_line("rank 1 of 2")
        two.process.kill()
        code, _, err = one.end()
        self.assertEqual(code, 1)
        self.assertIn("was lost", err)
        with open(os.path.join(folder.name, "events.jsonl")) as lines:
            events = [json.loads(line) for line in lines]
        joined = [event for event in events if event["kind"] == "node_joined"]
        lost = [event for event in events if event["kind"] == "node_lost"]
        self.assertEqual(sorted((event["address"], event["workers"]) for event in joined),
                         [(self.network.address(1), 1), (self.network.address(2), 1)])
        self.assertEqual([event["address"] for event in lost], [self.network.address(2)])
        self.assertTrue(lost[0]["reason"])


class Stacks(NodesTest):
    """`lockstep stack`, which asks all nodes."""

    def sleepers(self):
        worker = self.file("sleeper.sh", """
            echo rank $RANK of $WORLD_SIZE
            exec sleep 1000
            """)
        # The first is asked, where several launchers of one job run on one machine.
        jobs = [self.start(1, worker=worker, nproc=2, nnodes="3")]
        jobs[0].wait_for_error("joined")
        jobs += [self.start(node, worker=worker, nnodes="3") for node in (2, 3)]
        for job in jobs:
            job.wait_for_line("of 4")
        jobs[0].wait_for_line("of 4", 2)
        return jobs

    def stack(self, node, *words):
        done = subprocess.run(self.network.command(node, *stack_command(*words)), env=job_environment(),
                              capture_output=True, text=True, timeout=2 * LIMIT)
        return done.returncode, done.stdout, done.stderr

    def wait_until_known(self, node):
        """A launcher may take a moment to write down what it has started."""
        deadline = time.monotonic() + LIMIT
        while self.stack(node, "job1")[0] != 0:
            self.assertLess(time.monotonic(), deadline)

    def test_every_rank_of_every_node_is_shown_in_order(self):
        self.sleepers()
        self.wait_until_known(1)
        for node in (1, 2):
            code, out, err = self.stack(node, "job1")
            self.assertEqual(code, 0, out + err)
            ranks = [int(rank) for line in out.splitlines() if line.startswith("rank")
                     for rank in expand(re.match(r"ranks? ([-0-9, ]+) \(", line).group(1))]
            self.assertEqual(sorted(ranks), [0, 1, 2, 3], out)
            self.assertEqual(ranks[0], 0, out)
            self.assertIn("sleep", out)

    def test_a_node_that_does_not_answer_is_named(self):
        jobs = self.sleepers()
        self.wait_until_known(1)
        jobs[2].process.send_signal(signal.SIGSTOP)
        try:
            code, out, err = self.stack(1, "--limit", "10", "job1")
        finally:
            jobs[2].process.send_signal(signal.SIGCONT)
        self.assertEqual(code, 1, out + err)
        self.assertIn("No answer from", out)
        self.assertIn("Nothing is known of rank 3", out)
        self.assertRegex(out, r"ranks? [-0-9, ]*2 \(")


class LocalStore(NodesTest):
    """--store local: the store is reached through each node's own agent."""

    def waiter(self):
        return self.file("waiter.sh", """
            echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR port $MASTER_PORT
            exec sleep 1000
            """)

    def start_local(self, node, *options, **more):
        return self.start(node, "--store", "local", *options, **more)

    def port_of(self, job, line):
        return int(re.search(line + r" at 127\.0\.0\.1 port (\d+)", job.wait_for_line(line)).group(1))

    def answers(self, node, address, port):
        """Whether something on `address` takes connections from the node."""
        code = f"""
            import socket, sys
            try:
                socket.create_connection(("{address}", {port}), timeout=5)
            except ConnectionRefusedError:
                sys.exit(1)
            """
        done = subprocess.run(
            self.network.command(node, sys.executable, "-c", textwrap.dedent(code)), timeout=LIMIT)
        return done.returncode == 0

    def listening(self, node):
        """Addresses and ports that something of the node listens at."""
        lines = subprocess.run(self.network.command(node, "ss", "-Hltn"), capture_output=True,
                               text=True, check=True).stdout.splitlines()
        return {line.split()[3] for line in lines}

    def test_nothing_but_the_link_listens_outside_loopback(self):
        waiter = self.waiter()
        jobs = [self.start_local(node, worker=waiter, nnodes="3") for node in (1, 2, 3)]
        for rank, job in enumerate(jobs):
            node = rank + 1
            port = self.port_of(job, f"rank {rank} of 3")
            self.assertTrue(self.answers(node, "127.0.0.1", port))
            self.assertFalse(self.answers(node % 3 + 1, self.network.address(node), port))
            self.assertFalse(self.answers(node, self.network.address(node), port))
            outside = {at for at in self.listening(node) if not at.startswith("127.0.0.1:")}
            self.assertEqual(outside, {"10.77.0.1:29400"} if node == 1 else set())
        jobs[0].process.send_signal(signal.SIGTERM)
        for job in jobs:
            self.assertEqual(job.end()[0], 128 + signal.SIGTERM)

    def test_every_attempt_has_ports_of_its_own(self):
        worker = self.file("once.sh", f"""
            echo attempt $TORCHELASTIC_RESTART_COUNT port $MASTER_PORT
            [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit
            [ $RANK = 0 ] || {{ touch {self.folder}/said; exec sleep 1000; }}
            until [ -e {self.folder}/said ]; do sleep 0.02; done
            exit 3
            """)
        for out in self.ends_well(*[self.start_local(node, "--max-restarts", "1", worker=worker)
                                    for node in (1, 2)]):
            ports = dict(re.findall(r"attempt (\d) port (\d+)", out))
            self.assertEqual(len(set(ports.values())), 2, out)

    def test_nodes_must_agree_on_where_the_store_is(self):
        first = self.start_local(1)
        code, _, err = self.start(2).end()
        self.assertEqual(code, 1)
        self.assertIn("--store is local here, shared on your node", err)
        self.ends_well(self.start_local(2), first)

    def test_a_wrong_secret_reaches_no_store(self):
        first = self.start_local(1)
        wrong = self.file("wrong.secret", "fedcba9876543210fedcba9876543210\n")
        code, _, err = self.start_local(3, secret=wrong, conf="join_timeout=2").end()
        self.assertEqual(code, 1)
        self.assertIn("secret", err)
        self.ends_well(self.start_local(2), first)


@unittest.skipUnless(TORCH_PYTHON, "no Python with torch was given")
class Training(NodesTest):
    nodes = 2

    def test_unmodified_torch_ranks_meet_across_nodes(self):
        worker = self.file("train.py", """
            import sys
            import torch
            import torch.distributed as dist
            dist.init_process_group("gloo")
            total = torch.tensor([float(dist.get_rank() + 1)])
            dist.all_reduce(total)
            sys.stdout.write(f"sum {total.item()}\\n")
            dist.destroy_process_group()
            """)
        outputs = self.ends_well(
            *[self.start(node, worker=worker, nproc=2, python=TORCH_PYTHON) for node in (1, 2)]
        )
        self.assertEqual("".join(outputs).count("sum 10.0"), 4)

    def test_they_meet_where_there_is_ipv6_alone(self):
        for node in (1, 2):
            namespace = self.network.namespace(node)
            ip("-n", namespace, "address", "add", f"fd00:77::{node}/64", "dev", "eth0", "nodad")
            self.addCleanup(ip, "-n", namespace, "address", "delete", f"fd00:77::{node}/64", "dev",
                            "eth0")
            v4 = [f"{self.network.address(node)}/24", "dev", "eth0"]
            ip("-n", namespace, "address", "delete", *v4)
            self.addCleanup(ip, "-n", namespace, "address", "add", *v4)
        worker = self.file("train.py", """
            import os, sys
            import torch
            import torch.distributed as dist
            assert os.environ["MASTER_ADDR"] == "fd00:77::1"
            dist.init_process_group("gloo")
            total = torch.tensor([float(dist.get_rank() + 1)])
            dist.all_reduce(total)
            sys.stdout.write(f"sum {total.item()}\\n")
            dist.destroy_process_group()
            """)
        outputs = self.ends_well(*[self.start(node, worker=worker, python=TORCH_PYTHON,
                                              endpoint="[fd00:77::1]:29400") for node in (1, 2)])
        self.assertEqual("".join(outputs).count("sum 3.0"), 2)

    def test_they_meet_over_a_local_store_too(self):
        worker = self.file("train.py", """
            import os, sys
            import torch
            import torch.distributed as dist
            assert os.environ["MASTER_ADDR"] == "127.0.0.1"
            dist.init_process_group("gloo")
            total = torch.tensor([float(dist.get_rank() + 1)])
            dist.all_reduce(total)
            # More than one window of the link, to a rank that begins late to read it.
            store = dist.distributed_c10d._get_default_store()
            value = bytes(range(256)) * (20 << 10)
            if dist.get_rank() == dist.get_world_size() - 1:
                store.set("large", value)
            assert store.get("large") == value
            dist.barrier()
            sys.stdout.write(f"sum {total.item()}\\n")
            dist.destroy_process_group()
            """)
        # The store is with the coordinator on node 1, rank 0 on node 2.
        outputs = self.ends_well(*[
            self.start(node, "--store", "local", "--node-rank", str(2 - node), worker=worker, nproc=2,
                       python=TORCH_PYTHON)
            for node in (1, 2)
        ])
        self.assertEqual("".join(outputs).count("sum 10.0"), 4)

    @unittest.skipUnless(DDP_JOB, "no C++ job was given")
    def test_python_and_cpp_ranks_of_different_nodes_train_together_over_a_local_store(self):
        subprocess.run([TORCH_PYTHON, "-c", f"import ddp_job; ddp_job.write_init('{self.folder}')"],
                       cwd=PARITY, check=True)
        outs = [self.folder / "python.out", self.folder / "cpp.out"]
        options = ["--model", "mlp", "--steps", "5", "--init", str(self.folder / "mlp.pt"), "--out"]
        python = self.start(1, "--store", "local", "--no-python", python=TORCH_PYTHON,
                            worker=TORCH_PYTHON, words=[str(PARITY / "ddp_job.py"), *options, str(outs[0])])
        cpp = self.start(2, "--store", "local", "--no-python", python=TORCH_PYTHON, worker=DDP_JOB,
                         words=[*options, str(outs[1])])
        self.ends_well(python, cpp)
        sys.path.insert(0, str(PARITY))
        from ddp_parity import read_result
        one, other = [read_result(out) for out in outs]
        weights = [name for name in one if name.startswith("parameter")]
        self.assertTrue(weights, list(one))
        self.assertEqual([one[name] for name in weights], [other[name] for name in weights])


if __name__ == "__main__":
    enter_namespaces()
    test_script.main(verbosity=2)
