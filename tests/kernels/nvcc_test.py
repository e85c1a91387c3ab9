"""cmake/LockstepKernels.cmake, with stand-ins for nvcc: nvcc_test.py CMAKE"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MODULE = Path(__file__).resolve().parents[2] / "cmake/LockstepKernels.cmake"
PROJECT = f"""
cmake_minimum_required(VERSION 3.25)
project(kernels LANGUAGES NONE)
include({MODULE})
message(STATUS "without kernels: ${{CMAKE_CUDA_COMPILER}}")
"""


def compiles(cmake, project, build, nvcc):
    """Whether the kernels are compiled, and the line that says why not."""
    done = subprocess.run(
        [cmake, "-S", project, "-B", build],
        env={**os.environ, "CUDACXX": str(nvcc)}, capture_output=True, text=True, timeout=60)
    # No stand-in compiles what cmake tries first.
    if done.returncode != 0 and "CUDA compiler" in done.stderr + done.stdout:
        return True, ""
    lines = [line for line in done.stdout.splitlines() if line.startswith("-- No CUDA kernels")]
    if done.returncode != 0 or "-- without kernels: \n" not in done.stdout or len(lines) != 1:
        sys.exit(f"FAILED: {done.stdout}{done.stderr}")
    return False, lines[0]


def main():
    cmake = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "CMakeLists.txt").write_text(PROJECT)

        def nvcc_that_says(words):
            nvcc = folder / f"nvcc_{len(list(folder.iterdir()))}"
            nvcc.write_text(f"#!/bin/sh\necho '{words}'\n")
            nvcc.chmod(0o755)
            return nvcc

        # All in one build folder: who has installed another nvcc configures again.
        for says, fits in (
            ("Cuda compilation tools, release 12.9, V12.9.41", False),
            ("nvcc fatal", False),
            ("Cuda compilation tools, release 13.0, V13.0.88", True),
        ):
            nvcc = nvcc_that_says(says)
            compiled, said = compiles(cmake, folder, folder / "build", nvcc)
            line = f"-- No CUDA kernels: {nvcc} is not of release 13 or newer; CUDACXX may name another"
            if compiled != fits or said != ("" if fits else line):
                sys.exit(f"FAILED: with an nvcc that says '{says}': compiled {compiled}, said {said!r}")
        newer = nvcc_that_says("Cuda compilation tools, release 14.1, V14.1.1")
        if not compiles(cmake, folder, folder / "another", newer)[0]:
            sys.exit("FAILED: an nvcc of release 14 is not taken")


main()
