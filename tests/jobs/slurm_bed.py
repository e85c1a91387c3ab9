"""A real Slurm cluster of several nodes on this machine, for tests.

Every node is a slurmd with a name and a port of its own; all share the machine's name and address, so
it is SLURMD_NODENAME that tells them apart. Nothing is installed, and nothing is left behind.
"""

import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from ports import free_port  # noqa: E402

LIMIT = 60  # seconds for what takes a few; only ever reached by a failure

TOOLS = ("slurmctld", "slurmd", "slurmstepd", "sbatch", "srun", "scontrol", "sinfo", "squeue")

CONFIGURATION = """\
ClusterName=bed
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
# A requeued job waits as long as its old credentials are valid.
AuthInfo=cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=100000,batch_sched_delay=0
SlurmctldDebug=info
KillWait=2
MpiDefault=none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
JobAcctGatherType=jobacct_gather/none
"""


def missing_tools():
    """What has to be installed before a cluster can be started."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return [tool for tool in TOOLS if shutil.which(tool, path=path) is None]


class SlurmCluster:
    """Starts at once, and ends when it is closed, with all that runs in it."""

    def __init__(self, nodes=2):
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="slurm"))
        self.daemons = []
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def environment(self, **more):
        """Of a shell on the login node."""
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM", "SBATCH", "PET_", "LOCKSTEP_", "TORCHELASTIC_"))
        }
        clean["PATH"] = clean.get("PATH", "") + ":/usr/sbin:/sbin"
        return {**clean, "SLURM_CONF": str(self.folder / "slurm.conf"), **more}

    def run(self, *command, check=True, **options):
        """What a command of Slurm's, or one that uses them, prints."""
        options["env"] = options.get("env") or self.environment()
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=LIMIT, **options)
        if check and done.returncode != 0:
            raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout if check else done

    def state(self, job):
        """Of a job that is not forgotten yet: PENDING, RUNNING, COMPLETED, TIMEOUT, ..."""
        return self.fields(job)["JobState"]

    def fields(self, job):
        text = self.run("scontrol", "--oneliner", "show", "job", str(job))
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def wait_for_job(self, job, limit=LIMIT):
        """Until it has ended; its fields."""
        active = ("PENDING", "CONFIGURING", "RUNNING", "SIGNALING", "COMPLETING", "SUSPENDED", "REQUEUED")
        return self.wait(lambda: (fields := self.fields(job))["JobState"] not in active and fields,
                         f"the end of job {job}", limit)

    def wait(self, condition, what, limit=LIMIT):
        """Until the condition holds; what it gave."""
        deadline = time.monotonic() + limit
        while True:
            if value := condition():
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {limit} s in vain for {what}\n{self.describe()}")
            time.sleep(0.1)

    def describe(self):
        """For who has to find out what went wrong."""
        parts = [self.run(*command, check=False).stdout
                 for command in (["sinfo", "-N", "-l"], ["scontrol", "show", "jobs"])]
        for log in sorted((self.folder / "log").glob("*")):
            parts.append(f"--- {log.name}\n" + "\n".join(log.read_text().splitlines()[-30:]))
        return "\n".join(parts)

    def _start(self):
        (self.folder / "log").mkdir()
        (self.folder / "state").mkdir()
        host, user = socket.gethostname().split(".")[0], pwd.getpwuid(os.getuid()).pw_name
        controller, *ports = [free_port() for _ in range(1 + len(self.nodes))]
        text = CONFIGURATION.format(host=host, port=controller, user=user, folder=self.folder)
        processors = os.cpu_count()
        for node, port in zip(self.nodes, ports):
            (self.folder / f"spool-{node}").mkdir()
            text += (f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
                     f"CPUs={processors} RealMemory=1000\n")
        text += f"PartitionName=all Nodes={','.join(self.nodes)} Default=YES State=UP OverSubscribe=NO\n"
        (self.folder / "slurm.conf").write_text(text)
        self._daemon("slurmctld", "-D", "-i")
        for node in self.nodes:
            self._daemon("slurmd", "-D", "-N", node)
        self.wait(self._all_idle, "the nodes of the cluster")

    def _daemon(self, *command):
        log = (self.folder / "log" / f"{'-'.join(command)}.out").open("w")
        self.daemons.append(subprocess.Popen(command, env=self.environment(), stdin=subprocess.DEVNULL,
                                             stdout=log, stderr=log))
        log.close()

    def _all_idle(self):
        ended = [each.args for each in self.daemons if each.poll() is not None]
        if ended:
            raise AssertionError(f"{ended} ended\n{self.describe()}")
        done = self.run("sinfo", "--noheader", "--states=idle", "--format=%D", check=False)
        return sum(int(count) for count in done.stdout.split()) == len(self.nodes)

    def close(self):
        """Ends jobs, then daemons, then what may be left of jobs."""
        if (self.folder / "slurm.conf").exists():
            self.run("scancel", "--user", pwd.getpwuid(os.getuid()).pw_name, check=False)
            deadline = time.monotonic() + 15
            while self._processes("slurmstepd") and time.monotonic() < deadline:
                time.sleep(0.1)
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in self._processes(""):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _processes(self, name):
        """Processes of this cluster: those that have its configuration in their environment."""
        mark = f"SLURM_CONF={self.folder}/slurm.conf".encode()
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if name not in (entry / "comm").read_text():
                    continue
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:  # it has ended
                continue
        return found
