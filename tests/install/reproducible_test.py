"""Builds the launcher twice, in folders that differ in name, with one SOURCE_DATE_EPOCH: program, Debian package and
wheel have the same bytes.

reproducible_test.py --source SOURCE --build BUILD_FOLDER --cmake CMAKE --cxx COMPILER [--without-ccache] [--work FOLDER]

ccache may give both the objects of the build that is there already, so some of them are compiled in earnest in the
second folder: those of a target whose messages name sources, and the program's own. With --without-ccache all are,
in both.
"""

import argparse
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

COMPILED_IN_EARNEST = ("src/CMakeFiles/lockstep_etcd.dir", "src/CMakeFiles/lockstep_jobs.dir",
                       "src/CMakeFiles/lockstep_archive.dir/Unity", "apps/CMakeFiles/lockstep_program.dir")


def run(*command, env=None, cwd=None):
    print("+", *command, flush=True)
    done = subprocess.run([str(part) for part in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env=env, cwd=cwd)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode}:\n{done.stdout}")
    return done.stdout


def copy_sources(source, target):
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                           cwd=source, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in names:
        if name and (source / name).is_file() and not name.startswith(("tests/", "bench/")):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name)


def build(arguments, tree, env):
    run(arguments.cmake, "-S", tree, "-B", tree / "build", "-G", "Ninja", "-DLOCKSTEP_TORCH=OFF",
        "-DLOCKSTEP_KERNELS=OFF", "-DLOCKSTEP_TESTS=OFF", "-DLOCKSTEP_BENCH=OFF", "-DLOCKSTEP_BATCHES=ON",
        "-DLOCKSTEP_REPRODUCIBLE=ON", f"-DCMAKE_CXX_COMPILER={arguments.cxx}", env=env)
    run(arguments.cmake, "--build", tree / "build", "--target", "lockstep_program", "lockstep_manuals", env=env)


def compile_some_again(arguments, tree, env):
    count = 0
    for folder in COMPILED_IN_EARNEST:
        for path in (tree / "build" / folder).rglob("*.o"):
            path.unlink()
            count += 1
    if count < 4:
        sys.exit(f"only {count} objects in {COMPILED_IN_EARNEST}: these folders have other names now")
    run(arguments.cmake, "--build", tree / "build", "--target", "lockstep_program", "lockstep_manuals",
        env={**env, "CCACHE_DISABLE": "1"})


def package(arguments, tree, env):
    """Digests of everything, by name."""
    kinds = []
    if shutil.which("dpkg-shlibdeps"):
        kinds.append("deb")
    else:
        test_script.left_out("deb", "dpkg-shlibdeps is not installed (tools/setup --tests)")
    if (arguments.build / "package_tools/auditwheel").is_dir():
        (tree / "build/package_tools").symlink_to(arguments.build / "package_tools")
        kinds += ["wheel", "sdist"]
    else:
        test_script.left_out("wheel", "auditwheel is not installed (tools/setup --tests)")
    shutil.copy(arguments.build / "setup.env", tree / "build")
    for kind in kinds:
        run("bash", tree / "tools/package", "--built", kind, env={**env, "BUILD": str(tree / "build")})
    files = [tree / "build/bin/lockstep", tree / "build/bin/lockstep-board",
             *sorted((tree / "build/packages").glob("lockstep*"))]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.exists()}


def main():
    parser = argparse.ArgumentParser()
    for option in ("--source", "--build", "--cmake", "--cxx"):
        parser.add_argument(option, required=True, type=pathlib.Path)
    parser.add_argument("--without-ccache", action="store_true")
    parser.add_argument("--work", help="a folder that stays, to look at what differs")
    arguments = parser.parse_args()
    env = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    if arguments.without_ccache:
        env["CCACHE_DISABLE"] = "1"
    with tempfile.TemporaryDirectory(prefix="lockstep_same_") as folder:
        work = pathlib.Path(arguments.work or folder)
        found = []
        trees = [work / name for name in ("one", "a_folder_with_a_longer_name/two")]
        for tree in trees:
            tree.mkdir(parents=True)
            copy_sources(arguments.source, tree)
        for tree in trees:
            build(arguments, tree, env)
            if found and not arguments.without_ccache:
                compile_some_again(arguments, tree, env)
            found.append(package(arguments, tree, env))
            text = (tree / "build/bin/lockstep").read_bytes()
            if str(work).encode() in text:
                sys.exit(f"the launcher names the folder {work}, in which it was built")
        print(found[0])
        different = [name for name in found[0] if found[0][name] != found[1].get(name)]
        if different or found[0].keys() != found[1].keys():
            sys.exit(f"built twice, these differ: {different}; {sorted(found[0])} and {sorted(found[1])}")


main()
