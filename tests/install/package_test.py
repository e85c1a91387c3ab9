"""Installs lockstep into a temporary prefix and uses it from separate projects.

package_test.py --cmake CMAKE --build BUILD_FOLDER --cxx COMPILER core|lockstep
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def run(*command, env=None, expect=0):
    """Runs a command, prints it and what it says, and returns the output."""
    print("+", *command, flush=True)
    done = subprocess.run([str(part) for part in command], env=env, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(done.stdout, flush=True)
    if (done.returncode == 0) != (expect == 0):
        sys.exit(f"exit code {done.returncode}, expected {'success' if expect == 0 else 'failure'}")
    return done.stdout


def check(condition, message):
    if not condition:
        sys.exit(f"FAILED: {message}")


class Package:
    """One installed copy and the folders of the projects that use it."""

    def __init__(self, arguments, folder):
        self.arguments = arguments
        self.folder = pathlib.Path(folder)
        self.prefix = self.folder / "prefix"

    def install(self, component):
        run(self.arguments.cmake, "--install", self.arguments.build, "--prefix", self.prefix,
            "--component", component)

    def configure(self, project, *options, env=None, expect=0):
        return run(self.arguments.cmake, "-S", HERE / project, "-B", self.folder / project,
                   "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={self.arguments.cxx}",
                   f"-DCMAKE_PREFIX_PATH={self.prefix}", *options, env=env, expect=expect)

    def build_and_run(self, project, env=None):
        run(self.arguments.cmake, "--build", self.folder / project, env=env)
        program = self.folder / project / project
        return run(program, env=env), run("ldd", program)


def path_without_python(folder):
    """A PATH on which the tools of a build are found and no Python, so that no torch is either."""
    tools = pathlib.Path(folder) / "tools"
    tools.mkdir()
    for name in ("ninja", "as", "ld", "ar", "ranlib", "nm", "sh", "uname"):
        found = shutil.which(name)
        if found:
            (tools / name).symlink_to(found)
    return str(tools)


def torch_of_another_version(folder):
    """As much of a torch package as it takes to be found."""
    torch = folder / "torch"
    version = "".join(f"#define TORCH_VERSION_{part}\n" for part in ("MAJOR 99", "MINOR 0", "PATCH 0"))
    for name, text in (("lib/libtorch_cpu.so", ""), ("lib/libc10.so", ""),
                       ("include/torch/csrc/distributed/c10d/reducer.hpp", ""),
                       ("include/torch/headeronly/version.h", version)):
        (torch / name).parent.mkdir(parents=True, exist_ok=True)
        (torch / name).write_text(text)
    return torch


def core_alone(package):
    """lockstep::core is installed, found and linked where there is no libtorch."""
    package.install("core")
    env = {name: value for name, value in os.environ.items() if "TORCH" not in name}
    env["PATH"] = path_without_python(package.folder)

    package.configure("consumer_core", env=env)
    output, libraries = package.build_and_run("consumer_core", env=env)
    check("WORLD_SIZE is -1" in output and "core works" in output, "the program said the wrong thing")
    check("libtorch" not in libraries and "libc10" not in libraries, "core pulls in libtorch")

    headers = sorted(path.name for path in (package.prefix / "include/lockstep").iterdir())
    check("error.h" in headers and "distributed_sampler.h" not in headers,
          f"the core component installed {headers}")

    refusal = package.configure("consumer", env=env, expect=1)
    check("installed without the layers on libtorch" in " ".join(refusal.split()),
          "asking for all of lockstep where only core is installed gives no clear message")


def everything(package):
    """lockstep::lockstep is found, with the torch it was built with, and works."""
    package.install("core")
    package.install("library")

    package.configure("consumer")
    output, libraries = package.build_and_run("consumer")
    check("lockstep works" in output, "the program said the wrong thing")
    check("libtorch_cpu" in libraries and "not found" not in libraries, "libtorch is not linked")

    shutil.rmtree(package.folder / "consumer")
    other = torch_of_another_version(package.folder)
    refusal = package.configure("consumer", f"-DLOCKSTEP_TORCH_DIR={other}", expect=1)
    check("/torch; pass -DLOCKSTEP_TORCH_DIR" in " ".join(refusal.split()),
          "a torch that lockstep was not built with is not refused")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cmake", required=True)
    parser.add_argument("--build", required=True)
    parser.add_argument("--cxx", required=True)
    parser.add_argument("what", choices=["core", "lockstep"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lockstep_package_") as folder:
        package = Package(arguments, folder)
        core_alone(package) if arguments.what == "core" else everything(package)


main()
