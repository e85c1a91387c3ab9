"""A Trainer on two nodes, in network namespaces: what its network, its launchers and its ranks lose is
made up for, and every byte that it leaves behind is that of a run on one node that nothing happened to.

nodes_test.py LOCKSTEP RESUME_JOB [--some CASE... | --but CASE...]
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "launch"))
sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "support"))

from network import Network, enter_namespaces  # noqa: E402
from recovery_test import Run, compare  # noqa: E402
import test_script  # noqa: E402

STEPS = 60
LIMIT = 120  # seconds for what takes a few
FIRST, OTHER = 1, 2  # nodes; the first has the coordinator and the store


class NodesRun(Run):
    """One rank, or so many, on each of two nodes, which share a disk."""

    def __init__(self, arguments, folder, network, per_node=1, **settings):
        # The namespaces are on one machine: without this, gradients would not go by the cables.
        apart = {"LOCKSTEP_SHM": 0} if per_node == 1 else {}
        super().__init__(arguments, folder, 2 * per_node, STEPS,
                         **({"SLOW_MS": 40} | apart | settings))
        self.per_node = per_node
        self.network = network
        self.launchers = {}
        self.secret = self.folder / "secret"
        self.secret.write_text("0123456789abcdef0123456789abcdef\n")
        self.secret.chmod(0o600)

    def start(self):
        for node in (FIRST, OTHER):
            self.start_node(node)
        return self

    def start_node(self, node):
        command = self.network.command(
            node, self.arguments.lockstep, "run", "--nnodes", "2", "--nproc-per-node",
            str(self.per_node),
            "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{self.network.address(FIRST)}:29400",
            "--rdzv-id", "job", "--secret-file", str(self.secret), "--max-restarts", "3",
            "--run-dir", str(self.folder / f"run_{node}"), *self.options, self.arguments.job)
        with open(self.folder / "output", "a") as output:
            self.launchers[node] = subprocess.Popen(
                command, env=self.environment() | {"LOCKSTEP_MACHINE": f"node{node}"},
                cwd=self.folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)

    def wait_for_lines(self, count):
        """Of the curves, of which there is one for each step."""
        self.wait_until(f"{count} steps", lambda: self.lines() >= count)

    def wait_for_text(self, text):
        self.wait_until(f"'{text}'", lambda: text in self.text())

    def wait_until(self, what, is_so):
        deadline = time.monotonic() + LIMIT
        while not is_so():
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.folder.name}: no {what} in {LIMIT} s\n{self.text()}")
            time.sleep(0.01)

    def end_node(self, node):
        """Waits for the launcher; returns its exit code."""
        try:
            return self.launchers.pop(node).wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"{self.folder.name}: not finished after {LIMIT} s\n{self.text()}")

    def end(self):
        codes = [self.end_node(node) for node in list(self.launchers)]
        if any(codes):
            raise SystemExit(f"{self.folder.name}: exit codes {codes}\n{self.text()}")

    def kill_launcher(self, node):
        """As the kernel would, and as `ip netns exec` passes nothing on: by its own process id."""
        launcher = self.launchers.pop(node)
        launcher.kill()
        launcher.wait(timeout=LIMIT)

    def close(self):
        for launcher in self.launchers.values():
            os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait(timeout=LIMIT)


def a_rank_of_the_other_node(run):
    run.wait_for_lines(15)
    os.kill(run.process_id(1), signal.SIGKILL)
    run.wait_for_text("all ranks go on")
    run.end()
    return "replaced in place"


def one_of_two_ranks_on_each_node(run):
    """Gradients go through memory on each node, and from one to the other by their first ranks."""
    run.wait_for_text("4 ranks, hybrid, reduction ordered")
    for rank in (3, 2):  # a leader, too
        run.wait_for_lines(run.lines() + 8)
        before = run.text().count("all ranks go on")
        os.kill(run.process_id(rank), signal.SIGKILL)
        run.wait_until("recovery", lambda: run.text().count("all ranks go on") > before)
    run.end()
    return "replaced in place, twice"


def all_ranks_of_a_node(run):
    """Of a model in parts, whose copies are on the other node: each is lost once."""
    run.wait_for_text("a copy of its part is on another machine, as rank 0's is on rank 2")
    for ranks in ((2, 3), (0, 1)):
        run.wait_for_lines(run.lines() + 8)
        before = run.text().count("all ranks go on")
        for rank in ranks:
            os.kill(run.process_id(rank), signal.SIGKILL)
        run.wait_until("recovery", lambda: run.text().count("all ranks go on") > before)
    run.end()
    if "from the newest snapshot" in run.text() or "restart" in run.text():
        raise SystemExit(f"{run.folder.name}: it was restarted\n{run.text()}")
    return "replaced in place, twice"


def a_cable_for_a_moment(run):
    run.wait_for_lines(15)
    run.network.cut(OTHER)
    time.sleep(0.5)  # less than the limit for a node that is not heard of
    run.network.mend(OTHER)
    run.end()
    if "was lost" in run.text() or "restart" in run.text():
        raise SystemExit(f"{run.folder.name}: more than a moment was lost\n{run.text()}")
    return "went on"


def a_cable_for_long(run):
    run.wait_for_lines(15)
    run.network.cut(OTHER)
    run.wait_for_text("was lost")
    run.network.mend(OTHER)
    run.end()
    return "restarted from a snapshot when the node was back"


def the_launcher_of_the_other_node(run):
    run.wait_for_lines(15)
    run.kill_launcher(OTHER)
    run.wait_for_text("was lost")
    run.start_node(OTHER)
    run.end()
    return "restarted from a snapshot with a new launcher"


def the_launcher_with_the_coordinator(run):
    run.wait_for_lines(15)
    run.kill_launcher(FIRST)
    run.wait_for_text("lost the coordinator")
    run.start_node(FIRST)
    run.end()
    return "restarted from a snapshot with a new coordinator"


def the_rank_of_a_node_for_good(rank):
    def lose(run):
        run.wait_for_lines(15)
        os.kill(run.process_id(rank), signal.SIGKILL)
        run.wait_for_text("1 of 2 ranks go on after")
        run.end()
        return "went on without it"
    return lose


def grows_back(run, bring_back):
    """The first node goes on by itself until the other one is there again, without a restart."""
    run.wait_for_text("1 of 2 ranks go on after")
    run.wait_for_lines(run.lines() + 3)
    bring_back()
    run.wait_for_text("all ranks go on after")
    run.end()
    if "restart" in run.text():
        raise SystemExit(f"{run.folder.name}: it was restarted\n{run.text()}")
    return "went on without the node, and with it when it was back"


def a_cable_while_the_others_go_on(run):
    run.wait_for_lines(15)
    run.network.cut(OTHER)
    return grows_back(run, lambda: run.network.mend(OTHER))


def a_launcher_while_the_others_go_on(run):
    run.wait_for_lines(15)
    run.kill_launcher(OTHER)
    return grows_back(run, lambda: run.start_node(OTHER))


CASES = {
    "a rank of the other node": a_rank_of_the_other_node,
    "one of two ranks on each node": one_of_two_ranks_on_each_node,
    "all ranks of a node": all_ranks_of_a_node,
    "a cable for a moment": a_cable_for_a_moment,
    "a cable for long": a_cable_for_long,
    "the launcher of the other node": the_launcher_of_the_other_node,
    "the launcher with the coordinator": the_launcher_with_the_coordinator,
    "a rank of the first node for good": the_rank_of_a_node_for_good(0),
    "a rank of the other node for good": the_rank_of_a_node_for_good(1),
    "a cable while the others go on": a_cable_while_the_others_go_on,
    "a launcher while the others go on": a_launcher_while_the_others_go_on,
}
# Of the run. With PER_NODE each node has one that saves; where they share a disk, one of both.
SHRINKS = {"options": ["--max-replacements", "0", "--min-world", "1"]}
SETTINGS = {
    "one of two ranks on each node": {"per_node": 2},
    "all ranks of a node": {"per_node": 2, "copies": True},
    "a rank of the first node for good": dict(SHRINKS, PER_NODE=1),
    "a rank of the other node for good": SHRINKS,
    "a cable while the others go on": {"options": ["--min-world", "1"], "SLOW_MS": 100},
    "a launcher while the others go on": {"options": ["--min-world", "1"], "SLOW_MS": 100},
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lockstep", type=os.path.abspath)
    parser.add_argument("job", type=os.path.abspath)
    test_script.add_choice(parser)
    arguments = parser.parse_args()
    cases = test_script.chosen(CASES, arguments)
    arguments.spares, arguments.shard = 0, 0
    sharded = argparse.Namespace(**vars(arguments) | {"shard": 3, "copies": True, "machines": 1, "model": "gpt"})
    if missing := Network.missing():
        test_script.skip(missing)
    with tempfile.TemporaryDirectory(prefix="lockstep_nodes_") as folder:
        undisturbed = {}  # by ranks, which are on one node, and whether they have parts
        for name, lose in cases.items():
            network = Network(2)
            settings = dict(SETTINGS.get(name, {}))
            job = sharded if settings.pop("copies", False) else arguments
            run = NodesRun(job, pathlib.Path(folder) / name.replace(" ", "_"), network, **settings)
            kind = (run.ranks, job.shard)
            if kind not in undisturbed:
                undisturbed[kind] = Run(job, pathlib.Path(folder) / f"all_{run.ranks}_{job.shard}", run.ranks,
                                        STEPS).finish()
            try:
                result = lose(run.start())
                compare(name, run, undisturbed[kind])
            finally:
                run.close()
                network.close()
            print(f"lost {name}: {result}; equal", flush=True)


if __name__ == "__main__":
    enter_namespaces()
    sys.exit(main())
