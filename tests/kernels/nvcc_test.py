"""cmake/LockstepKernels.cmake, with stand-ins for nvcc: nvcc_test.py CMAKE"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MODULE = Path(__file__).resolve().parents[2] / "cmake/LockstepKernels.cmake"


def configure(cmake, nvcc):
    """Whether the kernels are compiled, and what is said."""
    done = subprocess.run(
        [cmake, "-D", "PROJECT_IS_TOP_LEVEL=ON", "-P", MODULE],
        env={**os.environ, "CUDACXX": str(nvcc)}, capture_output=True, text=True, timeout=60)
    # The one thing that cannot be done without a project comes next where they are compiled.
    return "enable_language" in done.stderr, done.stdout


def main():
    cmake = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        nvcc = Path(folder) / "nvcc"
        for says, fits in (
            ("Cuda compilation tools, release 13.0, V13.0.88", True),
            ("Cuda compilation tools, release 14.1, V14.1.1", True),
            ("Cuda compilation tools, release 12.9, V12.9.41", False),
            ("nvcc fatal", False),
        ):
            nvcc.write_text(f"#!/bin/sh\necho '{says}'\n")
            nvcc.chmod(0o755)
            compiled, said = configure(cmake, nvcc)
            line = f"-- No CUDA kernels: {nvcc} is not of release 13 or newer; CUDACXX may name another\n"
            if compiled != fits or said != ("" if fits else line):
                sys.exit(f"FAILED: with an nvcc that says '{says}': compiled {compiled}, said {said!r}")


main()
