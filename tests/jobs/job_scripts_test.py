"""Job scripts and manifests, read by who reads them: bash and a parser of YAML.

Stand-ins record what scripts call: the launcher, scontrol, qrerun and qsub.

Usage: job_scripts_test.py LOCKSTEP
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

LOCKSTEP = os.path.abspath(sys.argv.pop(1))
LIMIT = 60

AWKWARD = ["a b", "it's", '"quoted"', "$HOME", "`id`", "back\\slash", "two\nlines", "*", "", "#x", "~", "!"]

# Records its words and environment, waits for signals if asked to, and ends as it is told.
LAUNCHER = """#!{python}
import json, os, signal, sys, time
heard = []
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda number, _: heard.append(signal.Signals(number).name))
with open(os.environ["RECORD"], "w") as file:
    json.dump({{"words": sys.argv[1:], "environment": dict(os.environ)}}, file)
if os.environ.get("AWAITS"):
    open(os.environ["RECORD"] + ".ready", "w").close()
    while not heard:
        time.sleep(0.01)
    print("launcher heard", *heard, flush=True)
    time.sleep(0.2)  # the script's wait was interrupted; it must wait on
sys.exit(int(os.environ.get("CODE", "0")))
"""


class Scripts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.launcher = self.tool("launcher with blanks", LAUNCHER.format(python=sys.executable))
        self.tool("squeue", "#!/bin/sh\necho ${STATE:-RUNNING}\n")
        for name in ("scontrol", "qrerun", "qsub", "sbatch"):
            self.tool(name, f'#!/bin/sh\necho "$0 $*" >> {self.folder}/calls\n')

    def tool(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def environment(self, **more):
        return {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}",
                "RECORD": str(self.folder / "record"), "PBS_O_WORKDIR": str(self.folder),
                "PBS_JOBID": "7.server", "SLURM_JOB_ID": "7", **more}

    def lockstep(self, *words, code=0, **options):
        done = subprocess.run([LOCKSTEP, *words], capture_output=True, text=True, timeout=LIMIT,
                              cwd=self.folder, env=self.environment(), **options)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def script(self, command, *options, job=("train.py",)):
        return self.lockstep(command, "--print", "--lockstep", self.launcher, *options, "--", *job)

    def start(self, script, **environment):
        process = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, cwd=self.folder,
                                   env=self.environment(**environment))
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.addCleanup(process.stdout.close)
        return process

    def run_script(self, script, code=0, **environment):
        process = self.start(script, **environment)
        output, _ = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, code, output)
        return output

    def record(self):
        return json.loads((self.folder / "record").read_text())

    def calls(self):
        path = self.folder / "calls"
        return path.read_text().replace(f"{self.folder}/", "") if path.exists() else ""

    def wait_for_launcher(self):
        deadline = time.monotonic() + LIMIT
        while not (self.folder / "record.ready").exists():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)


class Both(Scripts):
    """What holds for Slurm and PBS alike."""

    def test_all_words_reach_the_launcher_as_they_were_given(self):
        for command in ("sbatch", "qsub"):
            self.run_script(self.script(command, job=["--nproc-per-node=2", "a b.py", *AWKWARD]))
            words = self.record()["words"]
            self.assertEqual(words[:2], ["run", "--nnodes=auto"])
            self.assertEqual(words[words.index("--nproc-per-node=2"):],
                             ["--nproc-per-node=2", "a b.py", *AWKWARD])

    def test_variables_keep_their_values(self):
        for command in ("sbatch", "qsub"):
            values = {f"AWKWARD_{number}": text for number, text in enumerate(AWKWARD)}
            options = [f"--env={name}={value}" for name, value in values.items()]
            self.run_script(self.script(command, *options))
            found = self.record()["environment"]
            self.assertEqual({name: found[name] for name in values}, values)

    def test_modules_and_environments_come_first_and_must_work(self):
        (self.folder / "my env" / "bin").mkdir(parents=True)
        (self.folder / "my env" / "bin" / "activate").write_text("export ACTIVE=yes\n")
        module = "module() { echo module \"$@\"; export LOADED=\"$LOADED $2\"; [ $2 != bad ]; }\n"
        for command in ("sbatch", "qsub"):
            options = ["--module=cuda/12", "--module=gcc", f"--venv={self.folder}/my env",
                       "--setup=export LINE='of shell'"]
            self.run_script(module + self.script(command, *options))
            found = self.record()["environment"]
            self.assertEqual((found["LOADED"], found["ACTIVE"], found["LINE"]),
                             (" cuda/12 gcc", "yes", "of shell"))
            (self.folder / "record").unlink()
            self.run_script(module + self.script(command, "--module=bad"), code=1)
            self.assertFalse((self.folder / "record").exists())

    def test_signals_are_passed_on_and_the_launcher_is_waited_for(self):
        for command in ("sbatch", "qsub"):
            for name in ("SIGUSR1", "SIGTERM"):
                process = self.start(self.script(command), AWAITS="1", CODE="75")
                self.wait_for_launcher()
                process.send_signal(signal.Signals[name])
                output, _ = process.communicate(timeout=LIMIT)
                self.assertEqual(process.returncode, 75, output)
                self.assertIn(f"launcher heard {name}", output)
                (self.folder / "record.ready").unlink()

    def test_a_job_that_is_stopped_before_it_begins_does_not(self):
        for command in ("sbatch", "qsub"):
            self.run_script(self.script(command, "--setup=kill -TERM $$"), code=143)
            self.assertFalse((self.folder / "record").exists())
        self.assertEqual(self.calls(), "")

    def test_a_job_that_just_fails_is_not_queued_again(self):
        for command in ("sbatch", "qsub"):
            self.run_script(self.script(command), code=3, CODE="3")
            self.run_script(self.script(command, "--no-requeue"), code=75, CODE="75")
        self.assertEqual(self.calls(), "")


class Slurm(Scripts):
    def test_a_job_that_has_saved_is_queued_again(self):
        self.run_script(self.script("sbatch"), code=75, CODE="75")
        self.assertEqual(self.calls(), "scontrol requeue 7\n")
        self.run_script(self.script("sbatch"), code=75, CODE="75", STATE="SIGNALING")
        self.assertEqual(self.calls(), "scontrol requeue 7\n" * 2)

    def test_of_an_array_only_the_task_is(self):
        self.run_script(self.script("sbatch"), code=75, CODE="75", SLURM_ARRAY_JOB_ID="5",
                        SLURM_ARRAY_TASK_ID="3")
        self.assertEqual(self.calls(), "scontrol requeue 5_3\n")

    def test_not_for_ever(self):
        script = self.script("sbatch", "--max-requeues", "2")
        output = self.run_script(script, code=75, CODE="75", SLURM_RESTART_COUNT="2")
        self.assertIn("has come again 2 times", output)
        self.assertEqual(self.calls(), "")

    def test_one_that_was_cancelled_is_not(self):
        output = self.run_script(self.script("sbatch"), code=75, CODE="75", STATE="COMPLETING")
        self.assertIn("job 7 is COMPLETING, and not queued again", output)
        self.assertEqual(self.calls(), "")

    def test_the_shell_alone_is_warned(self):
        script = self.script("sbatch", "--warn=90", "--nodes=3", "--gpus-per-node=8")
        for line in ("--signal=B:USR1@90", "--nodes=3", "--gpus-per-node=8", "--ntasks-per-node=1",
                     "--open-mode=append", "--requeue"):
            self.assertIn(f"#SBATCH {line}\n", script)
        self.run_script(script)
        self.assertEqual(self.record()["environment"]["LOCKSTEP_WARNING_SECONDS"], "90")

    def test_it_is_submitted_and_leaves_no_file(self):
        before = set(self.folder.iterdir())
        self.lockstep("sbatch", "--job-name=x/y", "--", "train.py")
        self.assertRegex(self.calls(), r"^sbatch /\S+/lockstep_job_\w+/x_y\n$")
        self.assertEqual(set(self.folder.iterdir()) - before, {self.folder / "calls"})

    def test_without_slurm_one_line_says_so(self):
        (self.folder / "sbatch").unlink()
        place = self.folder / "temporary"
        place.mkdir()
        done = subprocess.run([LOCKSTEP, "sbatch", "--", "train.py"], capture_output=True, text=True,
                              env={**self.environment(), "PATH": "/nowhere", "TMPDIR": str(place)},
                              timeout=LIMIT)
        self.assertEqual(list(place.iterdir()), [])
        self.assertEqual(done.returncode, 1)
        self.assertIn("--print", done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)


class Pbs(Scripts):
    def test_nodes_are_asked_for_in_either_dialect(self):
        options = ["--nodes=2", "--cpus-per-node=8", "--gpus-per-node=4", "--time=1:00:00"]
        pbs = self.script("qsub", *options)
        self.assertIn("#PBS -l select=2:ncpus=8:ngpus=4\n#PBS -l place=scatter\n", pbs)
        self.assertIn("#PBS -l walltime=1:00:00\n", pbs)
        self.assertIn("#PBS -l nodes=2:ppn=8:gpus=4\n",
                      self.script("qsub", "--dialect=torque", *options))

    def test_the_launcher_is_warned_by_the_script_and_knows_the_end(self):
        # On a busy machine the launcher may take longer to start than the script waits.
        self.tool("sleep", f"""#!/bin/sh
until [ -e {self.folder}/record.ready ]; do /bin/sleep 0.01; done
exec /bin/sleep "$@"
""")
        script = self.script("qsub", "--time=3", "--warn=2")
        before = int(time.time())
        output = self.run_script(script, code=0, AWAITS="1")
        self.assertIn("launcher heard SIGUSR1", output)
        end = int(self.record()["environment"]["LOCKSTEP_JOB_END_TIME"])
        self.assertIn(end - before, range(3, 20))

    def test_a_job_that_has_saved_is_run_again(self):
        self.run_script(self.script("qsub"), code=75, CODE="75")
        self.assertEqual(self.calls(), "qrerun 7.server\n")

    def test_where_that_is_refused_it_is_submitted_again_but_not_for_ever(self):
        self.tool("qrerun", "#!/bin/sh\nexit 1\n")
        script = self.script("qsub", "--max-requeues=2", "--script=my job.pbs")
        for job in ("7.server", "8.server", "9.server"):
            output = self.run_script(script, code=75, CODE="75", PBS_JOBID=job,
                                     LOCKSTEP_FIRST_JOB="7.server")
        self.assertEqual(self.calls(), "qsub -v LOCKSTEP_FIRST_JOB=7.server my job.pbs\n" * 2)
        self.assertIn("has come again 2 times", output)
        self.assertEqual(list(self.folder.glob(".lockstep-restarts*")), [])

    def test_one_that_was_deleted_is_not(self):
        process = self.start(self.script("qsub"), AWAITS="1", CODE="75")
        self.wait_for_launcher()
        process.terminate()
        self.assertEqual(process.wait(LIMIT), 75)
        self.assertEqual(self.calls(), "")

    def test_submitting_leaves_the_script_for_later(self):
        self.lockstep("qsub", "--", "train.py")
        self.assertEqual(self.calls(), "qsub train.pbs\n")
        self.assertTrue((self.folder / "train.pbs").read_text().startswith("#!/bin/bash"))

    def test_what_qsub_may_misread_is_refused(self):
        error = self.lockstep("qsub", "--print", "--job-name=a b", "--", "x", code=2)
        self.assertIn("--job-name is 'a b'", error)
        self.assertIn("--warn", self.lockstep("qsub", "--print", "--time=30", "--", "x", code=2))


class Kubernetes(Scripts):
    def manifest(self, *options, job=("train.py",)):
        try:
            import yaml
        except ImportError:
            self.skipTest("PyYAML is not installed")
        text = self.lockstep("manifest", "--image=registry/train:1", *options, "--", *job)
        return yaml.safe_load(text)

    def container(self, manifest):
        pod = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        return pod["containers"][0]

    def test_all_words_and_variables_are_in_it_as_they_were_given(self):
        options = [f"--env=AWKWARD_{number}={text}" for number, text in enumerate(AWKWARD)]
        container = self.container(self.manifest(*options, job=["a b.py", *AWKWARD]))
        self.assertEqual(container["command"],
                         ["lockstep", "run", "--shutdown-timeout=55", "a b.py", *AWKWARD])
        found = {each["name"]: each.get("value") for each in container["env"]}
        self.assertEqual([found[f"AWKWARD_{number}"] for number in range(len(AWKWARD))], AWKWARD)

    def test_the_variables_start_a_node_of_the_job(self):
        manifest = self.manifest("--nodes=2", "--job-name=Big_Job", "--port=1234", "--gpus-per-node=8",
                                 "--volume=claim:/data", "--mem=64Gi", "--shm-size=8Gi")
        self.assertEqual(manifest["kind"], "JobSet")
        self.assertEqual(manifest["spec"]["network"]["subdomain"], "big-job")
        job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
        self.assertEqual((job["parallelism"], job["completions"], job["completionMode"]),
                         (2, 2, "Indexed"))
        container = self.container(manifest)
        self.assertEqual(container["resources"]["limits"], {"nvidia.com/gpu": "8", "memory": "64Gi"})
        self.assertEqual([mount["mountPath"] for mount in container["volumeMounts"]],
                         ["/dev/shm", "/data"])
        found = {each["name"]: each for each in container["env"]}
        self.assertEqual(found["PET_RDZV_ENDPOINT"]["value"], "big-job-workers-0-0.big-job:1234")
        self.assertEqual(found["LOCKSTEP_SECRET"]["valueFrom"]["secretKeyRef"],
                         {"name": "big-job-secret", "key": "secret"})
        self.assertIn("job-completion-index", found["PET_NODE_RANK"]["valueFrom"]["fieldRef"]["fieldPath"])
        # The launcher takes them: this is what the first pod would start.
        values = {name: each["value"] for name, each in found.items() if "value" in each}
        values["PET_RDZV_ENDPOINT"] = "127.0.0.1:1234"  # the service's name is not known here
        plan = subprocess.run([LOCKSTEP, "run", "--dry-run", "--no-python", "true"], capture_output=True,
                              text=True, timeout=LIMIT,
                              env={**os.environ, **values, "PET_NODE_RANK": "0", "LOCKSTEP_SECRET": "s" * 32})
        self.assertEqual(plan.returncode, 0, plan.stderr)

    def test_only_who_has_saved_is_started_again(self):
        spec = self.manifest("--max-requeues=4")["spec"]
        self.assertEqual(spec["failurePolicy"]["maxRestarts"], 4)
        rules = spec["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
        self.assertEqual(rules[1]["onExitCodes"]["values"], [75])
        self.assertEqual(self.manifest("--no-requeue")["spec"]["failurePolicy"]["maxRestarts"], 0)


if __name__ == "__main__":
    test_script.main()
