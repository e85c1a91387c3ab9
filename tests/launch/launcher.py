"""Runs `lockstep run` for tests and watches it."""

import os
import pathlib
import selectors
import subprocess
import tempfile
import time

LIMIT = 150  # seconds for what takes a few; only ever reached by a failure

_launcher = None
_temporary = tempfile.TemporaryDirectory(prefix="ls")  # run directories of failed jobs


def set_launcher(path):
    global _launcher
    _launcher = path


def clean_environment():
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PET_", "LOCKSTEP_", "TORCHELASTIC_")) and name != "OMP_NUM_THREADS"
    }


def job_environment():
    return {**clean_environment(), "TMPDIR": _temporary.name}


def stack_command(*words):
    return [_launcher, "stack", *words]


class Job:
    """A running `lockstep run`."""

    def __init__(self, arguments, env=None, prefix=(), **options):
        self.process = subprocess.Popen(
            [*prefix, _launcher, "run", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**job_environment(), **(env or {})},
            **options,
        )
        self._text = {self.process.stdout: "", self.process.stderr: ""}
        self._selector = selectors.DefaultSelector()
        for stream in self._text:
            self._selector.register(stream, selectors.EVENT_READ)

    @property
    def out(self):
        return self._text[self.process.stdout]

    @property
    def err(self):
        return self._text[self.process.stderr]

    def _read(self, deadline):
        """Reads what comes next; False when both streams have ended."""
        if not self._selector.get_map():
            return False
        for key, _ in self._selector.select(max(0, deadline - time.monotonic())):
            data = os.read(key.fd, 65536)
            if not data:
                self._selector.unregister(key.fileobj)
            self._text[key.fileobj] += data.decode(errors="replace")
        if time.monotonic() > deadline:
            self.kill()
            raise AssertionError(f"time is over; output:\n{self.out}\nerrors:\n{self.err}")
        return True

    def _wait_for(self, stream, wanted, count):
        deadline = time.monotonic() + LIMIT
        while self._text[stream].count(wanted) < count:
            if not self._read(deadline):
                raise AssertionError(f"'{wanted}' did not come:\n{self.out}\n{self.err}")
        return self._text[stream]

    def wait_for_line(self, wanted, count=1):
        """Until `wanted` has come `count` times on standard output, which is returned."""
        return self._wait_for(self.process.stdout, wanted, count)

    def wait_for_error(self, wanted, count=1):
        return self._wait_for(self.process.stderr, wanted, count)

    def end(self):
        """Exit code, standard output, standard error."""
        deadline = time.monotonic() + LIMIT
        while self._read(deadline):
            pass
        self.process.wait(LIMIT)
        self._close()
        return self.process.returncode, self.out, self.err

    def kill(self):
        self.process.kill()
        self.process.wait(LIMIT)
        self._close()

    def _close(self):
        self._selector.close()
        self.process.stdout.close()
        self.process.stderr.close()


def run(arguments, **options):
    return Job(arguments, **options).end()


def is_alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_until_gone(pids, limit):
    deadline = time.monotonic() + limit
    while any(is_alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            raise AssertionError(f"still alive: {[pid for pid in pids if is_alive(pid)]}")
        time.sleep(0.005)
