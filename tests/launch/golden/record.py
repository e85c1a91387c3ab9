#!/usr/bin/env python3
"""Records what torchrun does with every case of cases.py into *.json beside this file.

Run by hand with the Python that has torch, when cases are added or torch is updated:
    .venv/bin/python tests/launch/golden/record.py [case ...]

torch is imported once, and torchrun's main() is run in a fork of this process for each case: that is
what torchrun does after its own import, which would take most of the time.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import torch.distributed.launch
import torch.distributed.run

import cases
from runner import SOURCE, Run, missing


class Forked:
    """A fork of this process, with as much of Popen as the runner uses."""

    def __init__(self, work):
        self.returncode = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.setsid()
                work()
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid == self.pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, limit=10):
        deadline = time.monotonic() + limit
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("torchrun", limit)
            time.sleep(0.02)

    def send_signal(self, number):
        os.kill(self.pid, number)


class TorchrunRun(Run):
    def start(self, node, arguments):
        main = {"run": torch.distributed.run.main, "launch": torch.distributed.launch.main}
        words = [self.fill(word, node) for word in arguments]
        environment = self.environment(node)

        def work():
            for number, name in enumerate(("stdin", "stdout", "stderr")):
                path = os.devnull if number == 0 else self.out / f"{name}_{node}"
                fd = os.open(path, os.O_RDWR | os.O_CREAT)
                os.dup2(fd, number)
                os.close(fd)
            os.chdir(self.out)
            os.environ.clear()
            os.environ.update(environment)
            tempfile.tempdir = None  # it was chosen by another environment
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
            sys.argv = ["torchrun"] + words
            main[self.case.command](words)

        return Forked(work)


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    wanted = set(sys.argv[1:])
    records = {}
    for case in cases.CASES:
        path = SOURCE / f"{case.group}.json"
        if case.group not in records:
            records[case.group] = json.loads(path.read_text()) if path.exists() and wanted else {}
        if wanted and case.name not in wanted:
            continue
        if why := missing(case):
            sys.exit(f"{case.name} cannot be recorded here: {why}")
        with TorchrunRun(case, None) as run:
            result = run.run()
        print(case.group, case.name, result["exit"], flush=True)
        records[case.group][case.name] = {
            "arguments": case.nodes if len(case.nodes) > 1 else case.nodes[0],
            "environment": case.environment,
            **result,
        }
        path.write_text(json.dumps(records[case.group], indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
