"""Builds the wheel and the source archive from the build folder, and uses them in a fresh environment.

wheel_test.py --source SOURCE --build BUILD_FOLDER --cmake CMAKE --python PYTHON_WITH_TORCH
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

SOURCE = BUILD = CMAKE = PYTHON = None


def run(*command, **options):
    print("+", *command, flush=True)
    done = subprocess.run([str(part) for part in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, **options)
    if done.returncode != 0:
        raise AssertionError(f"exit code {done.returncode}:\n{done.stdout}")
    return done.stdout


def package(kind, ending):
    run("bash", SOURCE / "tools/package", "--built", kind,
        env={**os.environ, "BUILD": str(BUILD), "SOURCE_DATE_EPOCH": "1700000000"})
    return next((BUILD / "packages").glob(ending))


def newest_libc(program):
    """The newest version of glibc that a program asks for, as (2, 34)."""
    found = re.findall(r"GLIBC_2\.(\d+)", run("objdump", "-T", program))
    return (2, max(map(int, found)))


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.wheel = package("wheel", "lockstep_train-*.whl")
        cls.folder = tempfile.TemporaryDirectory(prefix="lockstep_wheel_")
        cls.work = pathlib.Path(cls.folder.name)
        cls.venv = cls.work / "venv"
        run(PYTHON, "-m", "venv", cls.venv)
        run(cls.venv / "bin/python", "-m", "pip", "install", "--no-index", "--disable-pip-version-check", cls.wheel)
        # The torch of the tests is the one that a user would have in this environment.
        site = next(cls.venv.glob("lib/python3*/site-packages"))
        torch = run(PYTHON, "-c", "import torch, os; print(os.path.dirname(os.path.dirname(torch.__file__)))")
        (site / "torch_of_the_tests.pth").write_text(torch)
        cls.env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        cls.env.update(PATH=f"{cls.venv}/bin:{os.environ['PATH']}", HOME=str(cls.work))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_a_python_job_runs_with_two_ranks(self):
        said = run("lockstep", "run", "--standalone", "--nproc-per-node", "2",
                   SOURCE / "tests/launch/ddp_tutorial.py", "2", self.work / "snapshot.pt",
                   env=self.env, cwd=self.work, timeout=180)
        ends = re.findall(r"rank (\d) of 2 done (\S+)", said)
        self.assertEqual({rank for rank, _ in ends}, {"0", "1"}, said)
        self.assertEqual(len({weights for _, weights in ends}), 1, said)

    def test_the_command_is_a_program_and_needs_no_torch(self):
        self.assertEqual((self.venv / "bin/lockstep").read_bytes()[:4], b"\x7fELF")
        version = json.loads(run("lockstep", "version", "--json", env=self.env))
        self.assertIn(f"-{version['version']}-", self.wheel.name)
        with zipfile.ZipFile(self.wheel) as archive:
            metadata = next(name for name in archive.namelist() if name.endswith("/METADATA"))
            self.assertNotIn("Requires-Dist", archive.read(metadata).decode())
        if version["launcher"]["board"]:
            self.assertIn("--token-file", run("lockstep", "board", "--help", env=self.env))
        self.assertTrue((self.venv / "share/man/man1/lockstep-run.1.gz").exists())

    def test_the_tag_is_true(self):
        tag = re.search(r"-py3-none-manylinux_(\d+)_(\d+)_\w+\.whl$", self.wheel.name)
        self.assertTrue(tag, self.wheel.name)
        promised = tuple(map(int, tag.groups()))
        for program in (self.venv / "bin/lockstep", *self.venv.glob("lib/python3*/site-packages/*.scripts/*"),
                        *self.venv.glob("lib/python3*/site-packages/*.libs/*")):
            self.assertLessEqual(newest_libc(program), promised, program)

    def test_the_source_archive_is_complete(self):
        """Configuring looks for every source that is compiled; compiling them again is not the question."""
        archive = package("sdist", "lockstep_train-*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(self.work / "sdist")
        tree = next((self.work / "sdist").iterdir())
        self.assertTrue((tree / "PKG-INFO").exists())
        self.assertFalse((tree / "build").exists() or (tree / ".venv").exists())
        run(CMAKE, "-S", tree, "-B", self.work / "configured", "-G", "Ninja", "-DLOCKSTEP_TORCH=OFF",
            "-DLOCKSTEP_KERNELS=OFF", "-DLOCKSTEP_TESTS=OFF", "-DLOCKSTEP_BENCH=OFF")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for option in ("--source", "--build", "--cmake", "--python"):
        parser.add_argument(option, required=True, type=pathlib.Path)
    arguments, rest = parser.parse_known_args()
    SOURCE, BUILD, CMAKE, PYTHON = arguments.source, arguments.build, arguments.cmake, arguments.python
    test_script.main(argv=[sys.argv[0], *rest])
