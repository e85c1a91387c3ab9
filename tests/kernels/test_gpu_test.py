"""tools/test_gpu, with stand-ins for what only a machine with a GPU has."""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def program(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


class Machine:
    """Its torch sees a GPU; "cmake" builds tests that end with the given codes."""

    def __init__(self, folder, kernels=0, training=0, sanitizer=True, compiles_kernels=True):
        self.folder = Path(folder)
        self.commands = self.folder / "commands"
        self.commands.mkdir()
        self.python = program(self.folder / "python", f"echo {self.folder}/torch\n")
        binaries = self.folder / "build" / "cuda" / "bin"
        binaries.mkdir(parents=True)
        program(binaries / "kernels_test", f"echo '[  PASSED  ] 7 tests.'; exit {kernels}\n")
        program(
            binaries / "cuda_test",
            f"echo 'x_test.cpp:7: Failure'; echo '[  FAILED  ] 1 test'; exit {training}\n",
        )
        program(self.commands / "cmake", f'echo "$@" >> {self.folder}/asked\n')
        if compiles_kernels:
            (binaries.parent / "CMakeCache.txt").write_text("LOCKSTEP_KERNELS:BOOL=ON\n")
        else:
            (binaries.parent / "CMakeCache.txt").write_text("")
        program(self.commands / "ctest", "echo '100% tests passed, 0 tests failed out of 1'\n")
        if sanitizer:
            # Runs what it is given behind its own options.
            program(
                self.commands / "compute-sanitizer",
                f'echo "$@" >> {self.folder}/sanitized\n'
                'tool=$2; shift 6; "$@" || exit; echo "========= ERROR SUMMARY: 0 errors ($tool)"\n',
            )

    def run(self, *stages):
        environment = {
            **os.environ,
            "PATH": f"{self.commands}:/usr/bin:/bin",
            "BUILD": str(self.folder / "build"),
            "CUDA_HOME": str(self.folder / "none"),
            "LOCKSTEP_PYTHON": str(self.python),
        }
        done = subprocess.run(
            [ROOT / "tools/test_gpu", *stages],
            env=environment, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def all_stages_pass_and_say_what_they_found():
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(folder)
        status, out, _ = machine.run()
        check(status == 0, out)
        for stage in "kernels", "training", "programs", "memcheck", "racecheck":
            check(f"== {stage}: " in out, out)
        check("PASSED  ] 7 tests." in out and "0 errors (racecheck)" in out, out)
        check("5 stages, 0 failed, 0 left out" in out, out)
        asked = (machine.folder / "asked").read_text()
        check("--target kernels_test cuda_test train_llm" in asked, asked)
        check(f"-DLOCKSTEP_PYTHON={machine.python}" in asked, asked)
        memory, races = (machine.folder / "sanitized").read_text().splitlines()
        check("--tool memcheck" in memory and "FusedGpt2" in memory and "GemmOnGpu" not in memory, memory)
        check("--tool racecheck" in races and "FusedGpt2" in races and "GemmOnGpu" in races, races)


def a_stage_that_fails_is_named_and_the_others_run():
    with tempfile.TemporaryDirectory() as folder:
        status, out, _ = Machine(folder, training=1).run()
        check(status == 1, out)
        check("x_test.cpp:7: Failure" in out, out)
        check("5 stages, 1 failed (training), 0 left out" in out, out)
    with tempfile.TemporaryDirectory() as folder:
        status, out, _ = Machine(folder, kernels=139).run("kernels", "memcheck")
        check(status == 1 and "2 stages, 2 failed (kernels memcheck)" in out, out)


def what_is_left_out_is_said():
    if shutil.which("compute-sanitizer", path="/usr/bin:/bin"):
        test_script.left_out("what_is_left_out_is_said", "this machine has compute-sanitizer")
        return
    with tempfile.TemporaryDirectory() as folder:
        status, out, _ = Machine(folder, sanitizer=False).run("kernels", "racecheck")
        check(status == 0 and "1 left out (racecheck)" in out, out)


def what_cannot_be_done_is_one_line():
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(folder)
        status, _, error = machine.run("kernel")
        check(status == 2 and "there is no stage 'kernel'" in error, error)
        machine.python = program(machine.folder / "blind", "echo\n")
        status, _, error = machine.run()
        check(status == 2 and "sees no GPU" in error and error.count("\n") == 1, error)
        machine.python = program(machine.folder / "bare", "exit 1\n")
        status, _, error = machine.run()
        check(status == 2 and "has no torch" in error and error.count("\n") == 1, error)
    with tempfile.TemporaryDirectory() as folder:
        status, _, error = Machine(folder, compiles_kernels=False).run()
        check(status == 2 and "there is no nvcc 13" in error and error.count("\n") == 1, error)


all_stages_pass_and_say_what_they_found()
a_stage_that_fails_is_named_and_the_others_run()
what_is_left_out_is_said()
what_cannot_be_done_is_one_line()
print("ok")
