"""Workers that die and are replaced while the others live on: real processes, without torch.
Usage: recovery_test.py LOCKSTEP"""

import pathlib
import signal
import socket
import sys

from launcher import LIMIT, run, set_launcher, wait_until_gone
from recovery_support import WORKER, RecoveryCase

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

set_launcher(sys.argv.pop(1))


class Recovery(RecoveryCase):
    def test_a_killed_rank_is_replaced_and_the_other_lives_on(self):
        for lost in (1, 0):
            with self.subTest(lost=lost):
                self.folder = self.new_folder()
                job = self.job(hold=10)
                self.wait_for_step(5)
                self.kill(lost)
                self.wait_for_event("recovered")
                self.release()
                code, _, err = job.end()
                self.assertEqual(code, 0, err)
                self.check_no_step_is_lost(2, 20)
                self.assertEqual(len(self.pids(1 - lost)), 1)
                self.assertEqual(len(self.pids(lost)), 2)
                self.assertIn(["start", "joins", "2"], [words for _, _, words in self.lines()])
                self.assertIn(f"rank {lost} on ", err)
                self.assertIn("was ended by SIGKILL (last heard of at step", err)
                self.assertIn("a replacement takes its place (1 of 100)", err)
                self.assertRegex(err, r"all ranks go on after step \d+ \(\d+\.\d\d s after the loss\)")
                self.assertEqual([event["lost"] for event in self.events("revoked")], [str(lost)])
                self.assertEqual([event["slot"] for event in self.events("replaced")], [lost])
                recovered = self.events("recovered")
                self.assertEqual([event["epoch"] for event in recovered], [2])
                self.assertGreater(recovered[0]["ms_since_loss"], 0)

    def test_two_of_four_die_at_once(self):
        job = self.job(ranks=4, hold=10)
        self.wait_for_step(5)
        self.kill(1, 2)
        self.wait_for_event("recovered")
        self.release()
        code, _, err = job.end()
        self.assertEqual(code, 0, err)
        self.check_no_step_is_lost(4, 20)
        self.assertEqual([len(self.pids(rank)) for rank in (0, 3)], [1, 1])

    def test_many_deaths_one_after_the_other(self):
        job = self.job(ranks=3, steps=80, hold=10)
        for step, rank in ((5, 0), (25, 1), (45, 2), (65, 0)):
            self.hold(step + 10)
            self.wait_for_step(step)
            self.kill(rank)
        self.release()
        code, _, err = job.end()
        self.assertEqual(code, 0, err)
        self.check_no_step_is_lost(3, 80)
        self.assertIn("(4 of 100)", err)
        self.assertEqual(err.count("all ranks go on"), 4)

    def test_a_replacement_that_dies_while_it_joins_is_replaced(self):
        job = self.job(trick="slow_join", hold=10)
        self.wait_for_step(5)
        self.kill(1)
        self.wait_for("the replacement", lambda: len(self.pids(1)) == 2)
        self.kill(1)
        self.release()
        code, _, err = job.end()
        self.assertEqual(code, 0, err)
        self.check_no_step_is_lost(2, 20)
        self.assertEqual((len(self.pids(0)), len(self.pids(1))), (1, 3))

    def test_a_replacement_without_state_begins_again_when_another_dies(self):
        job = self.job(ranks=3, trick="slow_join", hold=10)
        self.wait_for_step(5)
        self.kill(1)
        self.wait_for("the replacement", lambda: len(self.pids(1)) == 2)
        self.kill(2)
        self.release()
        code, _, err = job.end()
        self.assertEqual(code, 0, err)
        self.check_no_step_is_lost(3, 20)
        self.assertEqual([len(self.pids(rank)) for rank in range(3)], [1, 3, 2])

    def kill_all_of_two(self):
        """Stopped first, so that the one that is killed later cannot help the other back."""
        self.wait_for_step(5)
        self.kill(0, 1, number=signal.SIGSTOP)
        self.kill(0, 1)

    def test_when_all_are_lost_the_job_fails(self):
        job = self.job(hold=10)
        self.kill_all_of_two()
        code, _, err = job.end()
        self.assertEqual(code, 128 + signal.SIGKILL)
        self.assertIn("cannot go on in place: no rank with the job's state is left", err)

    def test_when_all_are_lost_and_restarts_are_left_the_job_begins_again(self):
        job = self.job("--max-restarts", "1", hold=10)
        self.kill_all_of_two()
        self.release()
        code, _, err = job.end()
        self.assertEqual(code, 0, err)
        self.assertIn("restart 1 of 1", err)

    def test_an_exit_is_the_programs_own_word(self):
        code, _, err = self.job(trick="exit:1:5").end()
        self.assertEqual(code, 3)
        self.assertIn("rank 1 ended by itself, with exit code 3", err)
        self.assertEqual(len(self.pids(1)), 1)

    def test_recovery_restart_is_what_torchrun_does(self):
        for options in (["--recovery", "restart"], ["--max-replacements", "0"]):
            with self.subTest(options=options):
                self.folder = self.new_folder()
                job = self.job(*options, hold=10)
                self.wait_for_step(5)
                self.kill(1)
                code, _, err = job.end()
                self.assertEqual(code, 128 + signal.SIGKILL)
                self.assertNotIn("in place", err)
                self.assertIn(["restarts"], [words for _, _, words in self.lines()])

    def test_replacements_are_counted(self):
        job = self.job("--max-replacements", "1", hold=10)
        self.wait_for_step(5)
        self.kill(1)
        job.wait_for_error("all ranks go on")
        self.kill(0)
        code, _, err = job.end()
        self.assertEqual(code, 128 + signal.SIGKILL)
        self.assertIn("1 of 1 replacements are used (--max-replacements)", err)

    def test_a_rank_that_dies_twice_at_one_step_ends_the_job(self):
        code, _, err = self.job(trick="segv:1:7").end()
        self.assertEqual(code, 128 + signal.SIGSEGV)
        self.assertIn("it was the second time at step 7", err)
        self.assertEqual(len(self.pids(1)), 3)

    def test_a_rank_whose_state_differs_is_replaced(self):
        job = self.job(trick="reject:0:6", hold=10)
        job.wait_for_error("rank 1 must be replaced: its state differs")
        self.release()
        code, _, err = job.end()
        self.assertEqual(code, 0, err)
        self.assertEqual((len(self.pids(0)), len(self.pids(1))), (1, 2))
        self.check_no_step_is_lost(2, 20)

    def test_a_rank_in_an_endless_loop_is_found_while_the_others_wait_for_it(self):
        job = self.job("--hang-timeout", "4", ranks=3, trick="loop:1:10")
        code, _, err = job.end()
        self.assertEqual(code, 0, err)
        self.check_no_step_is_lost(3, 20)
        looped = [pid for _, pid, words in self.lines() if words[0] == "stands"]
        self.assertEqual(looped, self.pids(1)[:1])
        self.assertEqual([len(self.pids(rank)) for rank in range(3)], [1, 2, 1])
        self.assertRegex(err, rf"rank 1 \(process {looped[0]}\) has been in 'train' of step 10 for "
                              r"\d+ s and waits for nobody \(limit \d+ s\): it is killed")
        (hang,) = self.events("worker_hang")
        self.assertEqual([hang["slot"], hang["phase"], hang["step"]], [1, "train", 10])
        self.assertGreater(hang["ms"], 4000)

    def test_a_long_evaluation_and_a_slow_disk_are_no_hangs(self):
        for what in ("evaluate", "save"):  # for longer than the timeout
            with self.subTest(what=what):
                self.folder = self.new_folder()
                job = self.job("--hang-timeout", "4", trick=f"{what}:1:10")
                code, _, err = job.end()
                self.assertEqual(code, 0, err)
                self.assertIn("stands", [words[0] for _, _, words in self.lines()])
                self.assertEqual(self.events("worker_hang"), [])
                self.assertEqual([len(self.pids(rank)) for rank in range(2)], [1, 1])

    def test_a_slow_rank_is_named_once_with_what_takes_it_so_long(self):
        job = self.job("--straggler-time", "3", ranks=3, steps=80, step_seconds=0.02,
                       trick="slow_data:2:0")
        code, _, err = job.end()
        self.assertEqual(code, 0, err)
        lines = [line for line in err.splitlines() if "is slow" in line]
        self.assertEqual(len(lines), 1, err)
        self.assertRegex(lines[0], r"rank 2 is slow: 4\.0 x the others, in data loading "
                                   r"\(\d+ ms of \d+ ms per step\)")
        (event,) = self.events("straggler")
        self.assertEqual([event["slot"], event["phase"]], [2, "data"])
        self.assertAlmostEqual(event["ratio"], 4, 2)

    def test_ranks_that_are_alike_are_not_called_slow(self):
        job = self.job("--straggler-time", "3", ranks=2, steps=150, step_seconds=0.03)
        code, _, err = job.end()
        self.assertEqual(code, 0, err)
        self.assertEqual(self.events("straggler"), [])

    def test_a_stopped_rank_is_found_named_and_replaced(self):
        job = self.job("--hang-timeout", "4", hold=10)
        self.wait_for_step(5)
        stopped = self.pids(1)[-1]
        self.kill(1, number=signal.SIGSTOP)
        self.release()
        code, _, err = job.end()
        self.assertEqual(code, 0, err)
        self.assertRegex(err, rf"rank 1 \(process {stopped}\) gave no sign of life for \d+ s")
        self.check_no_step_is_lost(2, 20)
        hangs = self.events("worker_hang")
        self.assertEqual([event["slot"] for event in hangs], [1])
        self.assertIn("stack", hangs[0])

    def spares(self, word):
        """Pids of those that have logged it."""
        return [pid for rank, pid, words in self.lines() if rank == -1 and words[0] == word]

    def test_a_spare_takes_the_place_of_a_killed_rank(self):
        job = self.job("--spares", "1", "--redirects", "3", hold=10)
        self.wait_for("a spare", lambda: self.spares("waits"))
        self.wait_for_step(5)
        self.kill(1)
        self.wait_for("another spare", lambda: len(self.spares("waits")) == 2)
        first, second = self.spares("waits")
        self.assertEqual(self.pids(1)[1:], [first])
        self.kill(0)
        self.wait_for("a third spare", lambda: len(self.spares("waits")) == 3)
        self.assertEqual(self.pids(0)[1:], [second])
        self.release()
        code, _, err = job.end()
        self.assertEqual(code, 0, err)
        self.check_no_step_is_lost(2, 20)
        wait_until_gone(self.spares("loads"), LIMIT)
        self.assertEqual(len(self.spares("loads")), 3)
        starts = [(event["slot"], event["pid"]) for event in self.events("worker_start")
                  if event["spare"]]
        self.assertEqual(starts, [(1, first), (0, second)])
        log = self.folder / "run" / "logs" / "attempt_1" / "1" / "stdout.log"
        self.assertEqual(log.read_text(), f"process {self.pids(1)[0]}\nprocess {first}\n")

    def test_where_no_spare_is_ready_a_fresh_process_is_started(self):
        for trick in ("slow_spare", "bad_spare"):
            with self.subTest(trick=trick):
                self.folder = self.new_folder()
                job = self.job("--spares", "1", trick=trick, hold=10)
                self.wait_for("a spare", lambda: self.spares("loads"))
                self.wait_for_step(5)
                self.kill(1)
                self.release()
                code, _, err = job.end()
                self.assertEqual(code, 0, err)
                self.check_no_step_is_lost(2, 20)
                self.assertNotIn(self.pids(1)[-1], self.spares("loads"))
                wait_until_gone(self.spares("loads"), LIMIT)
                self.assertNotIn("spare", err)

    def test_spares_do_not_keep_a_job_from_ending_or_failing(self):
        job = self.job("--spares", "2", hold=10)
        self.wait_for("two spares", lambda: len(self.spares("waits")) == 2)
        self.wait_for_step(5)
        self.kill_all_of_two()
        code, _, err = job.end()
        self.assertEqual(code, 128 + signal.SIGKILL)
        wait_until_gone(self.spares("loads"), LIMIT)

    def test_spares_without_recovery_are_refused(self):
        for options, reason in ((["--recovery", "restart"], "--recovery restart"),
                                (["--max-replacements", "0"], "--max-replacements 0"),
                                (["--virtual-local-rank"], "--virtual-local-rank")):
            code, _, err = run(["--spares", "1", *options, WORKER])
            self.assertEqual(code, 2)
            self.assertIn("--spares is 1, but with " + reason, err)
            self.assertEqual(err.count("\n"), 1)

    def test_a_death_on_another_node_is_survived(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
        meeting = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint,
                   "--rdzv-id", "job1", "--insecure"]
        jobs = [self.job(*meeting, "--node-rank", str(node), run_dir=f"node{node}", hold=10)
                for node in (0, 1)]
        self.wait_for_step(5)
        self.kill(2)
        for node in (0, 1):
            self.wait_for_event("recovered", f"node{node}")
        self.release()
        for job in jobs:
            code, _, err = job.end()
            self.assertEqual(code, 0, err)
        self.check_no_step_is_lost(4, 20)
        self.assertEqual([len(self.pids(rank)) for rank in range(4)], [1, 1, 2, 1])
        for node in (0, 1):
            self.assertEqual(len(self.events("recovered", f"node{node}")), 1)


if __name__ == "__main__":
    test_script.main(verbosity=2)
