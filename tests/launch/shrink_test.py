"""Workers that cannot be replaced are left out, and come back: real processes, without torch.
Usage: shrink_test.py LOCKSTEP"""

import pathlib
import socket
import sys

from launcher import run, set_launcher
from recovery_support import WORKER, RecoveryCase

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

set_launcher(sys.argv.pop(1))


class Shrinking(RecoveryCase):
    def meetings(self):
        """By epoch, what each slot is there: {epoch: {slot: (rank, world_size, local_world_size)}}."""
        found = {}
        for slot, _, words in self.lines():
            if words[0] == "met":
                found.setdefault(int(words[1]), {})[slot] = tuple(int(words[i]) for i in (5, 7, 9))
        return found

    def slots_of(self, kind):
        return [event["slot"] for event in self.events(kind)]

    def wait_for_meeting(self, slots, epoch=2):
        """All of these have met, in this epoch or later."""
        def has_come():
            return any(each >= epoch and sorted(met) == slots for each, met in self.meetings().items())
        self.wait_for(f"a world of {slots}", has_come)

    def end_well(self, job, slots, steps=20):
        self.release()
        code, _, err = job.end()
        self.assertEqual(code, 0, err)
        self.check_no_step_is_lost(slots, steps)
        return err

    def test_a_rank_that_is_not_replaced_is_left_out(self):
        for lost in (0, 1, 2):
            with self.subTest(lost=lost):
                self.folder = self.new_folder()
                job = self.job("--max-replacements", "0", "--min-world", "2", ranks=3, hold=10)
                self.wait_for_step(5)
                self.kill(lost)
                stay = [slot for slot in range(3) if slot != lost]
                err = self.end_well(job, stay)
                self.assertEqual([len(self.pids(slot)) for slot in range(3)], [1, 1, 1])
                self.assertEqual(self.meetings()[2], {stay[0]: (0, 2, 2), stay[1]: (1, 2, 2)})
                self.assertIn(f"rank {lost} on ", err)
                self.assertIn("none is replaced (--max-replacements 0): it is left out, "
                              "2 of 3 ranks go on (--min-world 2)", err)
                self.assertRegex(err, r"2 of 3 ranks go on after step \d+ \(\d+\.\d\d s after the loss\)")
                self.assertEqual(self.slots_of("left_out"), [lost])
                self.assertEqual([event["lost"] for event in self.events("revoked")], [str(lost)])
                self.assertEqual([event["world_size"] for event in self.events("epoch_start")], [3, 2])
                self.assertEqual(self.events("rejoins"), [])
                self.assertIn(["replaces"], [words for _, _, words in self.lines()])

    def test_with_too_few_left_the_job_ends_as_ever(self):
        job = self.job("--max-replacements", "0", "--min-world", "2", ranks=3, hold=10)
        self.wait_for_step(5)
        self.kill(1)
        self.wait_for_meeting([0, 2])
        self.kill(2)
        code, _, err = job.end()
        self.assertEqual(code, 137)
        self.assertIn("cannot go on in place: none is replaced (--max-replacements 0), and fewer than 2 "
                      "ranks would be left (--min-world)", err)

    def test_ranks_that_workers_name_are_those_of_their_world(self):
        job = self.job("--max-replacements", "1", "--min-world", "2", ranks=4, hold=10)
        self.wait_for_step(5)
        self.kill(1)  # the one replacement
        self.wait_for("a recovery", lambda: self.events("recovered"))
        self.kill(0)
        self.wait_for_meeting([1, 2, 3])
        self.kill(2)  # rank 1 of three
        err = self.end_well(job, [1, 3])
        revoked = [words[1:] for slot, _, words in self.lines() if slot == 3 and words[0] == "revoked"]
        self.assertEqual(revoked, [["2", "1"], ["3", "0"], ["4", "1"]])
        self.assertIn("1 of 1 replacements are used (--max-replacements): it is left out, "
                      "3 of 4 ranks go on (--min-world 2)", err)
        self.assertEqual(self.slots_of("left_out"), [0, 2])

    def test_a_rank_that_dies_while_it_joins_is_left_out_and_comes_back(self):
        (self.folder / "deadly").write_text("4")  # three replacements die
        job = self.job("--min-world", "1", "--rejoin-after", "1", ranks=3, hold=10)
        self.wait_for_step(5)
        self.kill(1)
        self.wait_for_meeting([0, 2])
        self.wait_for_meeting([0, 1, 2])
        err = self.end_well(job, 3)
        self.assertIn("rank 1 died 4 times before all could go on: it is left out, "
                      "2 of 3 ranks go on (--min-world 1)", err)
        self.assertIn("rank 1 is tried again: a new process takes its place (4 of 100)", err)
        self.assertRegex(err, r"all ranks go on after step \d+ \(they stood still for \d+\.\d\d s\)")
        self.assertEqual(self.meetings()[max(self.meetings())],
                         {0: (0, 3, 3), 1: (1, 3, 3), 2: (2, 3, 3)})
        self.assertEqual([len(self.pids(slot)) for slot in range(3)], [1, 5, 1])
        self.assertEqual(self.slots_of("left_out"), [1])
        self.assertEqual(self.slots_of("rejoins"), [1])
        self.assertEqual(self.events("revoked")[-1]["reason"], "rank 1 joins again")
        self.assertEqual([words for slot, _, words in self.lines()
                          if slot == 0 and words[0] == "revoked"][-1][2:], [])

    def test_who_fails_again_waits_twice_as_long(self):
        (self.folder / "deadly").write_text("6")  # three replacements die, and one that comes back
        job = self.job("--min-world", "1", "--rejoin-after", "1", "--max-replacements", "6", hold=10)
        self.wait_for_step(5)
        self.kill(1)
        self.wait_for("a return that fails", lambda: len(self.events("left_out")) == 2)
        self.wait_for_meeting([0, 1])
        err = self.end_well(job, 2)
        self.assertIn("rank 1 had been left out before: it is left out, 1 of 2 ranks go on", err)
        # From the death that led to it: the decision comes after that, and its own event later still.
        deaths = [event["mono_ns"] for event in self.events("worker_exit")]
        out = [max(death for death in deaths if death < event["mono_ns"]) for event in self.events("left_out")]
        back = [event["mono_ns"] for event in self.events("rejoins")]
        pauses = [(after - before) * 1e-9 for before, after in zip(out, back)]
        self.assertEqual((len(out), len(back)), (2, 2))
        for pause, least in zip(pauses, (1, 2)):
            self.assertGreaterEqual(pause, least - 0.01)

    def test_a_spare_takes_the_place_of_one_that_was_left_out(self):
        (self.folder / "deadly").write_text("4")  # as above
        # A spare is started when the others go on; where it came later than the return, a new process would.
        job = self.job("--min-world", "1", "--rejoin-after", "10", "--spares", "1", hold=10)
        self.wait_for_step(5)
        self.kill(1)
        self.wait_for_meeting([0])
        self.wait_for_meeting([0, 1])
        self.end_well(job, 2)
        waits = [pid for slot, pid, words in self.lines() if slot == -1 and words[0] == "waits"]
        self.assertIn(self.pids(1)[-1], waits)

    def test_a_death_while_another_is_left_out_is_replaced(self):
        (self.folder / "deadly").touch()
        job = self.job("--min-world", "2", "--rejoin-after", "60", ranks=3, hold=10)
        self.wait_for_step(5)
        self.kill(1)
        self.wait_for_meeting([0, 2])
        (self.folder / "deadly").unlink()
        newest = max(self.meetings())
        self.kill(0)
        self.wait_for_meeting([0, 2], epoch=newest + 1)
        self.end_well(job, [0, 2])
        self.assertEqual(self.meetings()[max(self.meetings())], {0: (0, 2, 2), 2: (1, 2, 2)})

    def test_a_rank_that_cannot_be_started_is_left_out(self):
        program = self.folder / "program"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {WORKER} "$@"\n')
        program.chmod(0o755)
        job = self.job("--no-python", "--min-world", "1", "--rejoin-after", "1", hold=10,
                       program=str(program))
        self.wait_for_step(5)
        program.chmod(0o644)
        self.kill(1)
        self.wait_for_meeting([0])
        program.chmod(0o755)
        self.wait_for_meeting([0, 1])
        err = self.end_well(job, 2)
        self.assertRegex(err, r"rank 1 on \S+ could not be started.*: it is left out, 1 of 2 ranks go on")

    def node(self, number, *options, **values):
        return self.job("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", self.endpoint,
                        "--rdzv-id", "job1", "--insecure", "--node-rank", str(number),
                        "--rdzv-conf", f"is_host={int(number == 0)}", *options,
                        run_dir=f"node{number}", **values)

    def test_a_node_that_is_lost_is_left_out_and_another_takes_its_place(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
        options = ["--min-world", "2"]
        first, second = [self.node(number, *options, hold=10) for number in (0, 1)]
        self.wait_for_step(5)
        second.process.kill()
        second.end()
        self.wait_for_meeting([0, 1])
        again = self.node(1, *options)
        self.wait_for_meeting([0, 1, 2, 3])
        err = self.end_well(first, 4)
        code, _, text = again.end()
        self.assertEqual(code, 0, text)
        self.assertRegex(err, r"node \S+ was lost: .*: ranks 2, 3 are left out, 2 of 4 ranks go on "
                              r"\(--min-world 2\)")
        self.assertIn("2 of 4 ranks go on after step", err)
        self.assertIn("ranks 2, 3 are tried again: 2 processes start (2 of 100)", err)
        self.assertIn("all ranks go on after step", err)
        self.assertEqual([len(self.pids(slot)) for slot in range(4)], [1, 1, 2, 2])
        self.assertEqual(self.meetings()[max(self.meetings())],
                         {0: (0, 4, 2), 1: (1, 4, 2), 2: (2, 4, 2), 3: (3, 4, 2)})
        self.assertEqual([event["slot"] for event in self.events("left_out", "node0")], [2, 3])
        self.assertEqual([event["slot"] for event in self.events("rejoins", "node0")], [2, 3])

    def test_what_makes_no_sense_is_refused(self):
        for options, reason in (
                (["--min-world", "3"], "--min-world is 3, but the job has only 2 workers"),
                (["--min-world", "0"], "--min-world is '0'; it must be an integer of at least 1"),
                (["--min-world", "1", "--recovery", "restart"],
                 "--min-world is 1, but with --recovery restart no worker goes on without the others"),
                (["--rejoin-after", "5"],
                 "--rejoin-after is 5, but no worker is left out unless --min-world is given"),
                (["--min-world", "1", "--rejoin-after", "5", "--max-replacements", "0"],
                 "--rejoin-after is 5, but with --max-replacements 0 no worker is started again"),
        ):
            code, _, err = run(["--nproc-per-node", "2", *options, WORKER])
            self.assertEqual(code, 2)
            self.assertIn(reason, err)
            self.assertEqual(err.count("\n"), 1)


if __name__ == "__main__":
    test_script.main(verbosity=2)
