"""Runs a case under a launcher and says what could be seen, with what differs from run to run
masked."""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from ports import free_port  # noqa: E402

SOURCE = pathlib.Path(__file__).resolve().parent
TIME_LIMIT = 90  # seconds; torchrun alone takes several to start
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def missing(case):
    """Why the case cannot run on this machine; empty if it can."""
    if "2 cpus" in case.needs and len(os.sched_getaffinity(0)) < 2:
        return "one CPU"
    if "no gpu" in case.needs and pathlib.Path("/dev/nvidiactl").exists():
        return "a GPU"
    return ""


class Run:
    """One case under one launcher, in a folder of its own."""

    def __init__(self, case, launcher, extra=()):
        self.case = case
        self.launcher = launcher  # words for "run" and for "launch"
        self.extra = list(extra)  # arguments that only this launcher needs
        self.out = pathlib.Path(tempfile.mkdtemp(prefix="golden_")).resolve()
        self.port = free_port()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.out, ignore_errors=True)

    def fill(self, text, node=0):
        words = {"out": self.out, "source": SOURCE, "probe": SOURCE / "probe.py",
                 "port": self.port, "python": sys.executable, "node": node}
        return re.sub(r"(?<!\$)\{(\w+)\}", lambda found: str(words[found[1]]), text)

    def environment(self, node):
        variables = {
            "PATH": f"{SOURCE}:{os.environ['PATH']}",
            "HOME": str(self.out),
            "TMPDIR": str(self.out / "tmp"),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(SOURCE),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PROBE_OUT": str(self.out / "probes"),
            "PROBE_SOURCE": str(SOURCE),
            "PROBE_PYTHON": sys.executable,
            "PROBE_KNOWN": "",
            "VIRTUAL_ENV": sys.prefix,
        }
        for name, value in self.case.environment.items():
            variables[name] = self.fill(value, node)
        variables["PROBE_KNOWN"] = ",".join(sorted(variables))
        return variables

    def start(self, node, arguments):
        words = self.launcher[self.case.command] + self.extra
        words += [self.fill(word, node) for word in arguments]
        # Two CPUs at most, so that "cpu" means the same everywhere.
        cpus = sorted(os.sched_getaffinity(0))[:2]

        def prepare():
            os.sched_setaffinity(0, cpus)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # this test may run under nohup

        streams = [open(self.out / f"{name}_{node}", "wb") for name in ("stdout", "stderr")]
        process = subprocess.Popen(
            words, cwd=self.out, env=self.environment(node), stdin=subprocess.DEVNULL,
            stdout=streams[0], stderr=streams[1], start_new_session=True,
            preexec_fn=prepare)
        for stream in streams:
            stream.close()
        return process

    def wait_for_workers(self, processes, deadline):
        probes = self.out / "probes"
        while len(list(probes.glob("*.ready"))) < self.case.workers:
            if time.monotonic() > deadline or any(p.poll() is not None for p in processes):
                raise RuntimeError("the workers did not come")
            time.sleep(0.02)

    def run(self):
        for name in ("tmp", "probes"):
            (self.out / name).mkdir()
        deadline = time.monotonic() + TIME_LIMIT
        processes = []
        try:
            for node, arguments in enumerate(self.case.nodes):
                processes.append(self.start(node, arguments))
            if self.case.signal:
                self.wait_for_workers(processes, deadline)
                processes[0].send_signal(getattr(signal, self.case.signal))
            for process in processes:
                process.wait(max(0.1, deadline - time.monotonic()))
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        return self.observe(processes)

    # What could be seen.

    def observe(self, processes):
        statuses = [process.returncode for process in processes]
        return {
            "exit": self.exit_class(statuses),
            "workers": self.workers(),
            "files": self.files(),
            "stdout": self.console("stdout"),
            "stderr": self.console("stderr"),
        }

    @staticmethod
    def exit_class(statuses):
        classes = {0: "ok", 2: "usage"}
        return [classes.get(status, "failure") for status in statuses]

    def mask(self, text):
        text = text.replace(str(self.out), "<out>").replace(str(SOURCE), "<source>")
        text = re.sub(r"\b%d\b" % self.port, "<port>", text)
        text = UUID.sub("<uuid>", text)
        text = re.sub(r"torchelastic_\w{8}", "torchelastic_<random>", text)
        text = re.sub(r"_\w{8}/attempt_", "_<random>/attempt_", text)
        for name in {socket.getfqdn(), socket.gethostname()}:
            text = re.sub(r"(?<![\w.-])%s(?![\w.-])" % re.escape(name), "<hostname>", text)
        return text

    def workers(self):
        found = {}
        for path in sorted((self.out / "probes").glob("*.json")):
            record = json.loads(path.read_text())
            environment = {k: self.mask(v) for k, v in record["environment"].items()}
            if re.fullmatch(r"\d+", environment.get("MASTER_PORT", "")):
                environment["MASTER_PORT"] = "<free port>"
            command = [self.mask(word) for word in record["command"]]
            command[0] = "<python>"
            attempt, rank = path.stem.split("_")
            found[f"attempt {attempt}, rank {rank}"] = {
                "environment": environment,
                "added": [n for n in record["added"] if n not in ("LC_CTYPE", "PWD", "SHLVL",
                                                                  "_", "OLDPWD")],
                "argv": [self.mask(word) for word in record["argv"]],
                "command": command,
                "cwd": self.mask(record["cwd"]),
                "signals": record["signals"],
            }
        return found

    def files(self):
        """The tree under --log-dir; ends of files that depend on timing are sorted away."""
        root = self.out / "logs"
        if not root.exists():
            return None
        tree = {}
        for path in sorted(root.rglob("*")):
            name = re.sub(r"_\w{8}(?=/|$)", "_<random>", UUID.sub("<uuid>", str(
                path.relative_to(root))), count=1)
            if path.is_dir():
                if not any(path.iterdir()):
                    tree[name + "/"] = None
            elif path.suffix == ".json":
                tree[name] = json.loads(path.read_text())
            else:
                tree[name] = sorted(self.mask(path.read_text()).splitlines())
        return tree

    def console(self, stream):
        """Lines that workers wrote, which arrive in any order. The launcher's own are not
        compared: they are ours to word."""
        lines = []
        for node in range(len(self.case.nodes)):
            text = (self.out / f"{stream}_{node}").read_text(errors="replace")
            lines += [line for line in text.splitlines() if "probe: " in line]
        return sorted(lines)
