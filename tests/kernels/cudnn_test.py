"""cmake/LockstepCudnn.cmake, with stand-ins for cuDNN's headers: cudnn_test.py CMAKE COMPILER"""
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MODULE = Path(__file__).resolve().parents[2] / "cmake/LockstepCudnn.cmake"
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(cudnn LANGUAGES CXX)
set(LOCKSTEP_TORCH_FOLDER "${CMAKE_SOURCE_DIR}/torch")
include(cmake/LockstepCudnn.cmake)
message(STATUS "calls cuDNN: ${LOCKSTEP_CALLS_CUDNN}")
"""


class Tree:
    """A project that asks, with the module and a source that stands for what calls cuDNN."""

    def __init__(self, folder, cmake, compiler):
        self.folder, self.cmake, self.compiler = folder, cmake, compiler
        for name in ("cmake", "src/kernels", "torch", "cudnn", "fits", "lacks", "wants_more"):
            (folder / name).mkdir(parents=True)
        shutil.copy(MODULE, folder / "cmake")
        (folder / "CMakeLists.txt").write_text(PROJECT)
        (folder / "src/kernels/attention.cpp").write_text("#include <cudnn_frontend.h>\nint value = sdpa();\n")
        (folder / "cudnn/cudnn_version.h").touch()
        for name, header in (("fits", "int sdpa();"), ("lacks", ""), ("wants_more", "#include <nvrtc.h>")):
            (folder / name / "cudnn_frontend.h").write_text(header + "\n")

    def configure(self, front_end):
        done = subprocess.run(
            [self.cmake, "-S", self.folder, "-B", self.folder / "build", f"-DCMAKE_CXX_COMPILER={self.compiler}",
             f"-DLOCKSTEP_CUDNN_FRONTEND_INCLUDE={front_end}",
             f"-DLOCKSTEP_CUDNN_INCLUDE={self.folder / 'cudnn'}"],
            capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            sys.exit(f"FAILED: {done.stdout}{done.stderr}")
        lines = done.stdout.splitlines()
        return ("-- calls cuDNN: ON" in lines,
                [line for line in lines if line.startswith("-- ATen calls cuDNN's attention: ")])


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree = Tree(folder, *sys.argv[1:])
        # All in one build folder: who has installed another front end configures again.
        for front_end, calls, word in (
            (folder / "lacks", False, "sdpa"),
            (folder / "lacks", False, "sdpa"),
            (folder / "fits", True, None),
            (folder / "fits", True, None),
            (folder / "wants_more", False, "nvrtc.h"),
            (folder / "fits", True, None),
        ):
            called, said = tree.configure(front_end)
            told = len(said) == 1 and str(front_end) in said[0] and word in said[0] if word else not said
            if called != calls or not told:
                sys.exit(f"FAILED: with {front_end.name}: called {called}, said {said}")
        # The same one, after what it wants was installed beside it.
        tree.configure(folder / "wants_more")
        (folder / "cudnn/nvrtc.h").write_text("int sdpa();\n")
        if tree.configure(folder / "wants_more") != (True, []):
            sys.exit("FAILED: a header that came later is not found")
        # Where pip puts what a wheel has in include/: beside torch.
        (folder / "include").mkdir()
        shutil.copy(folder / "fits/cudnn_frontend.h", folder / "include")
        if tree.configure("LOCKSTEP_CUDNN_FRONTEND_INCLUDE-NOTFOUND") != (True, []):
            sys.exit("FAILED: a front end beside torch is not found")


main()
