"""A coordinator that is killed and started again goes on where it stood.

Usage: takeover_test.py LOCKSTEP
"""

import json
import pathlib
import socket
import sys

from launcher import set_launcher, wait_until_gone
from recovery_support import RecoveryCase

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

set_launcher(sys.argv.pop(1))


class StartedAgain(RecoveryCase):
    def setUp(self):
        super().setUp()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        self.jobs = []
        self.addCleanup(lambda: [job.kill() for job in self.jobs if job.process.poll() is None])

    def node(self, number, *options, **values):
        """The first one that is started hosts the coordinator, whatever its number."""
        job = self.job("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", self.endpoint,
                       "--rdzv-id", "job1", "--insecure", "--node-rank", str(number), *options,
                       run_dir=f"node{number}", **values)
        self.jobs.append(job)
        return job

    def records(self, number):
        text = (self.folder / f"node{number}" / "coordinator.log").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def test_all_restart_and_it_counts_on(self):
        options = ["--max-restarts", "2"]
        first = self.node(0, *options, hold=5)
        first.wait_for_error("2 workers) joined")
        second = self.node(1, *options)
        self.wait_for_step(5)
        first.kill()
        wait_until_gone(self.pids(0) + self.pids(1), 20)
        self.release()
        again = self.node(0, *options)
        again.wait_for_error("goes on with epoch 1 (0 of 2 restarts are used)")
        again.wait_for_error("its launcher has ended: restart 1 of 2")
        for job in (again, second):
            code, _, err = job.end()
            self.assertEqual(code, 0, err)
        self.assertEqual({words[1] for _, _, words in self.lines() if words[0] == "met"}, {"1", "2"})
        records = self.records(0)
        self.assertEqual([record["epoch"] for record in records], sorted(r["epoch"] for r in records))
        self.assertEqual((records[-1]["phase"], records[-1]["epoch"]), ("finished", 2))
        self.assertEqual(records[-1]["restarts"], 1)

    def test_with_min_world_the_other_nodes_workers_live_on(self):
        options = ["--min-world", "2", "--rejoin-after", "1"]
        first = self.node(1, *options, hold=5)
        first.wait_for_error("2 workers) joined")
        second = self.node(0, *options)
        self.wait_for_step(5)
        first.kill()
        again = self.node(1, *options, hold=8)
        again.wait_for_error("ranks 2, 3 are left out, 2 of 4 ranks go on (--min-world 2)")
        again.wait_for_error("all ranks go on after step")
        self.release()
        for job in (again, second):
            code, _, err = job.end()
            self.assertEqual(code, 0, err)
        self.check_no_step_is_lost(ranks=4, steps=20)
        self.assertEqual([len(self.pids(slot)) for slot in range(4)], [1, 1, 2, 2])


if __name__ == "__main__":
    test_script.main(verbosity=2)
