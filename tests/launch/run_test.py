"""`lockstep run` as a user meets it: real processes, real signals. Usage: run_test.py LOCKSTEP"""

import json
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

from launcher import LIMIT, Job, is_alive, job_environment, run, set_launcher, wait_until_gone

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

LOCKSTEP = sys.argv.pop(1)
set_launcher(LOCKSTEP)


class RunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def script(self, text, name="worker.py"):
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    def shell(self, text):
        """Arguments that run a shell script as the worker. In a file, because torchrun's rules for
        arguments, which are ours, make a dollar sign of two."""
        return ["--no-python", "sh", self.script(text, "worker.sh")]


class Endings(RunTest):
    def test_success_is_zero_and_silent(self):
        code, out, err = run(["--nproc-per-node", "1", *self.shell("echo done")])
        self.assertEqual((code, out, err), (0, "done\n", ""))

    def test_the_exit_code_is_the_workers_own(self):
        code, _, err = run(["--nproc-per-node", "2", *self.shell("exit $((LOCAL_RANK * 7))")])
        self.assertEqual(code, 7)
        self.assertIn("rank 1", err)
        self.assertIn("exit code 7", err)

    def test_a_signal_is_named_and_becomes_128_plus_its_number(self):
        code, _, err = run(self.shell("kill -SEGV $$"))
        self.assertEqual(code, 128 + signal.SIGSEGV)
        self.assertIn("SIGSEGV", err)

    def test_the_report_shows_the_last_lines_of_standard_error(self):
        text = "for i in $(seq 1 30); do echo line $i >&2; done; exit 1"
        code, _, err = run(self.shell(text))
        self.assertEqual(code, 1)
        report = err[err.rindex("line 30\n", 0, err.rindex("line 30")) :]
        self.assertIn("line 11", report)
        self.assertNotIn("line 10\n", report.split("line 11")[0][-20:])

    def test_the_report_shows_the_error_file(self):
        worker = self.script(
            """
            import json, os, sys
            with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
                json.dump({"message": {"message": "ValueError: too hot",
                                       "extraInfo": {"py_callstack": "", "timestamp": "1"}}}, file)
            sys.exit(4)
            """
        )
        code, _, err = run([worker])
        self.assertEqual(code, 4)
        self.assertIn("ValueError: too hot", err)

    def test_the_launchers_own_error_file_gets_the_root_cause(self):
        mine = self.folder / "mine.json"
        code, _, _ = run(self.shell("exit 9"), env={"TORCHELASTIC_ERROR_FILE": str(mine)})
        self.assertEqual(code, 9)
        self.assertIn("message", json.loads(mine.read_text()))

    def test_an_error_file_that_cannot_be_written_does_not_change_the_code(self):
        code, _, err = run(self.shell("exit 9"), env={"TORCHELASTIC_ERROR_FILE": "/nonexistent/x"})
        self.assertEqual(code, 9)
        self.assertIn("/nonexistent/x", err)

    def test_json_events_tell_of_the_failure(self):
        code, out, _ = run(["--json", *self.shell("echo text; exit 4")])
        self.assertEqual(code, 4)
        events = {event["kind"]: event for event in map(json.loads, out.splitlines())}
        self.assertEqual(events["job_end"]["exit_code"], 4)
        self.assertEqual(events["failure"]["report"]["first"]["rank"], 0)

    def test_events_tell_of_failures_that_a_restart_mended(self):
        code, out, _ = run(["--json", "--max-restarts", "1",
                            *self.shell("echo broken >&2; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 4")])
        self.assertEqual(code, 0)
        failed = [event for event in map(json.loads, out.splitlines()) if event["kind"] == "worker_failed"]
        self.assertEqual([(event["epoch"], event["slot"]) for event in failed], [(1, 0)])
        self.assertEqual(failed[0]["failure"]["exit_code"], 4)
        self.assertEqual(failed[0]["failure"]["stderr_tail"], ["broken"])

    def test_a_reader_that_comes_late_misses_nothing(self):
        job = Job(self.shell("seq 1 50000 >&2; echo written"))
        job.process.stdout.readline()
        code, _, err = job.end()
        self.assertEqual((code, err.splitlines()), (0, [str(n) for n in range(1, 50001)]))

    def test_progress_without_newlines_is_seen_while_the_job_runs(self):
        job = Job(self.shell("trap 'exit 0' USR1; printf '50 %%' >&2; while :; do sleep 0.01; done"))
        job.wait_for_error("50 %")
        job.process.send_signal(signal.SIGUSR1)
        self.assertEqual(job.end()[0], 0)

    def test_what_was_stopped_on_purpose_is_not_a_failure(self):
        text = 'if [ $RANK = 0 ]; then exit 5; else sleep 1000; fi'
        code, _, err = run(["--nproc-per-node", "3", *self.shell(text)])
        self.assertEqual(code, 5)
        self.assertIn("1, 2", err.replace("1-2", "1, 2"))
        self.assertNotIn("SIGTERM)", err)

    def test_a_program_that_is_not_there_is_one_line_and_code_2(self):
        code, _, err = run(["--no-python", "/nonexistent/program"])
        self.assertEqual(code, 2)
        self.assertEqual(len(err.strip().splitlines()), 1, err)

    def test_a_command_that_is_not_there_is_one_line_with_what_was_meant(self):
        for word, meant in (("runn", "run"), ("snap", "snapshot")):
            done = subprocess.run([LOCKSTEP, word], capture_output=True, text=True, timeout=LIMIT)
            self.assertEqual(done.returncode, 2)
            self.assertEqual(done.stderr, f"lockstep: there is no command '{word}'; did you mean {meant}? "
                                          "`lockstep --help` lists them\n")

    def test_a_full_place_for_the_run_is_said_with_the_cure(self):
        # A limit on the size of files refuses writes as a full disk does.
        done = subprocess.run(["sh", "-c", "trap '' XFSZ; ulimit -f 0; exec \"$@\"", "sh", LOCKSTEP, "run",
                               *self.shell("true")], capture_output=True, text=True, timeout=LIMIT,
                              env={**job_environment(), "TMPDIR": str(self.folder)})
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn("choose another place with --run-dir or TMPDIR", done.stderr)

    def test_75_is_passed_on_and_not_restarted(self):
        code, out, _ = run(["--max-restarts", "3", *self.shell("echo start; exit 75")])
        self.assertEqual((code, out.count("start")), (75, 1))


class Restarts(RunTest):
    def test_a_restart_starts_all_and_counts(self):
        said = self.folder / "said"  # rank 1 has; it would be stopped before
        text = (
            "echo rank $RANK count $TORCHELASTIC_RESTART_COUNT epoch $LOCKSTEP_EPOCH;"
            f"[ $RANK = 0 ] || touch {said};"
            "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0;"
            f"until [ -e {said} ]; do sleep 0.01; done;"
            "[ $RANK = 0 ] && exit 1; sleep 1000"
        )
        code, out, _ = run(["--nproc-per-node", "2", "--max-restarts", "1", *self.shell(text)])
        self.assertEqual(code, 0)
        for rank in (0, 1):
            self.assertIn(f"rank {rank} count 0 epoch 1\n", out)
            self.assertIn(f"rank {rank} count 1 epoch 2\n", out)

    def test_the_budget_is_for_the_whole_job(self):
        code, out, _ = run(["--max-restarts", "2", *self.shell("echo start; exit 3")])
        self.assertEqual((code, out.count("start")), (3, 3))

    def test_logs_of_earlier_attempts_are_kept(self):
        logs = self.folder / "logs"
        text = "echo attempt $TORCHELASTIC_RESTART_COUNT; exit $((1 - TORCHELASTIC_RESTART_COUNT))"
        code, _, _ = run(
            ["--max-restarts", "1", "--redirects", "3", "--log-dir", str(logs), *self.shell(text)]
        )
        self.assertEqual(code, 0)
        for attempt in (0, 1):
            (log,) = logs.glob(f"*/attempt_{attempt}/0/stdout.log")
            self.assertEqual(log.read_text(), f"attempt {attempt}\n")


class Signals(RunTest):
    def test_workers_get_the_signal_and_the_time_to_save(self):
        text = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.01; done"
        job = Job(["--nproc-per-node", "2", *self.shell(text)])
        job.wait_for_line("ready", 2)
        job.process.send_signal(signal.SIGTERM)
        code, out, err = job.end()
        self.assertEqual(code, 128 + signal.SIGTERM, err)
        self.assertEqual(out.count("saved"), 2)

    def test_what_a_wrapper_script_runs_has_the_time_to_save_too(self):
        saver = self.script(
            """
            trap 'sleep 0.5; echo half >&2; echo saved; exit 0' TERM
            echo ready
            while :; do sleep 0.01; done
            """,
            "saver.sh",
        )
        job = Job(self.shell(f"sh {saver}; true"))
        job.wait_for_line("ready")
        job.process.send_signal(signal.SIGTERM)
        code, out, err = job.end()
        self.assertEqual((code, out), (128 + signal.SIGTERM, "ready\nsaved\n"))
        self.assertIn("half\n", err)

    def test_saved_and_to_be_resumed_is_what_a_stopped_job_says(self):
        text = "trap 'exit 75' TERM; echo ready; while :; do sleep 0.01; done"
        job = Job(["--max-restarts", "2", "--nproc-per-node", "2", *self.shell(text)])
        job.wait_for_line("ready", 2)
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.end()[0], 75)

    def test_the_grace_period_ends_in_sigkill(self):
        text = "trap '' TERM; echo ready; while :; do sleep 0.01; done"
        job = Job(["--shutdown-timeout", "1", *self.shell(text)])
        job.wait_for_line("ready")
        began = time.monotonic()
        job.process.send_signal(signal.SIGTERM)
        code, _, _ = job.end()
        self.assertEqual(code, 128 + signal.SIGTERM)
        self.assertGreaterEqual(time.monotonic() - began, 1)

    def test_a_second_one_kills_at_once(self):
        text = "trap 'echo asked' INT; echo ready; while :; do sleep 0.01; done"
        job = Job(["--shutdown-timeout", "1000", *self.shell(text)])
        job.wait_for_line("ready")
        job.process.send_signal(signal.SIGINT)
        job.wait_for_line("asked")
        job.process.send_signal(signal.SIGINT)
        self.assertEqual(job.end()[0], 128 + signal.SIGINT)

    def test_usr1_is_passed_on_and_ends_nothing(self):
        text = "trap 'echo heard; exit 0' USR1; echo ready; while :; do sleep 0.01; done"
        job = Job(["--nproc-per-node", "2", *self.shell(text)])
        job.wait_for_line("ready", 2)
        job.process.send_signal(signal.SIGUSR1)
        code, out, _ = job.end()
        self.assertEqual((code, out.count("heard")), (0, 2))

    def test_hangup_stays_ignored_under_nohup(self):
        text = "trap 'exit 0' USR1; echo ready; while :; do sleep 0.01; done"
        job = Job(
            self.shell(text), preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
        )
        job.wait_for_line("ready")
        job.process.send_signal(signal.SIGHUP)
        job.process.send_signal(signal.SIGUSR1)
        self.assertEqual(job.end()[0], 0)

    def test_a_failing_worker_stops_one_that_hangs(self):
        text = "trap '' TERM; echo $$; [ $RANK = 0 ] && exit 6; while :; do sleep 0.01; done"
        job = Job(["--nproc-per-node", "2", "--shutdown-timeout", "1", *self.shell(text)])
        code, out, err = job.end()
        self.assertEqual(code, 6)
        self.assertIn("rank 0", err)
        wait_until_gone([int(pid) for pid in out.split()], LIMIT)


class Orphans(RunTest):
    def test_no_process_outlives_a_killed_launcher(self):
        worker = self.script(
            """
            import os, signal, subprocess, sys, time
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.setsid()
                    os.write(1, f"pid {os.getpid()} end\\n".encode())
                    signal.pause()
                os.write(1, f"pid {os.getpid()} end\\n".encode())
                signal.pause()
            os.write(1, f"pid {os.getpid()} end\\n".encode())
            signal.pause()
            """
        )
        job = Job(["--nproc-per-node", "2", worker])
        out = job.wait_for_line(" end\n", 6)
        pids = [int(line.split()[1]) for line in out.splitlines() if line.startswith("pid")]
        self.assertTrue(all(is_alive(pid) for pid in pids))
        job.kill()
        wait_until_gone(pids, LIMIT)

    def test_what_workers_leave_behind_ends_with_the_job(self):
        said = self.folder / "said"
        text = (f"setsid sh -c 'echo $$; touch {said}; exec sleep 1000' &"
                f" until [ -e {said} ]; do sleep 0.01; done")
        code, out, _ = run(self.shell(text))
        self.assertEqual(code, 0)
        self.assertEqual([is_alive(int(pid)) for pid in out.split()], [False])


class Store(RunTest):
    def test_the_store_answers_before_the_first_worker_starts(self):
        worker = self.script(
            """
            import os, socket
            socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
            print(os.environ["MASTER_ADDR"], os.environ["TORCHELASTIC_USE_AGENT_STORE"])
            """
        )
        code, out, err = run([worker])
        self.assertEqual((code, out), (0, "127.0.0.1 True\n"), err)

    def test_a_port_in_use_names_its_owner(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            code, _, err = run(
                ["--master-addr", "127.0.0.1", "--master-port", str(port), *self.shell("true")]
            )
        self.assertNotEqual(code, 0)
        self.assertIn(str(port), err)
        self.assertIn(str(os.getpid()), err)


class DryRun(RunTest):
    def test_it_prints_ranks_and_commands_and_starts_nothing(self):
        flag = self.folder / "started"
        code, out, _ = run(["--dry-run", "--nproc-per-node", "2", *self.shell(f"touch {flag}")])
        self.assertEqual(code, 0)
        self.assertIn("rank 1 (local rank 1)", out)
        self.assertIn("WORLD_SIZE=2", out)
        self.assertFalse(flag.exists())

    def test_what_is_not_known_yet_is_named_and_nothing_that_workers_get_is_left_out(self):
        command = ["--nproc-per-node", "1", "--run-dir", str(self.folder / "run"), *self.shell("env")]
        code, out, _ = run(["--dry-run", *command])
        self.assertEqual(code, 0)
        told = dict(word.split("=", 1) for word in shlex.split(out.split("environment:")[1]))
        self.assertEqual(told["MASTER_PORT"], "<chosen at start>")
        self.assertEqual(told["LOCKSTEP_RUN_DIR"], str(self.folder / "run"))
        code, out, _ = run(command)
        self.assertEqual(code, 0)
        found = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
        for name, value in told.items():
            if "<" not in value and name != "TORCHELASTIC_RUN_ID":  # a new one each time
                self.assertEqual(found.get(name), value, name)
        own = {name for name, value in found.items() if job_environment().get(name) != value}
        self.assertEqual(own - set(told) - {"_", "SHLVL", "PWD", "OLDPWD"}, set())


if __name__ == "__main__":
    test_script.main(verbosity=2)
