"""Builds a copy of the tree where nothing can be installed: the headers come from the bundle, and
on the PATH there is neither pip nor apt.

offline_build_test.py --python PYTHON_WITH_TORCH --work FOLDER --built BUILD_FOLDER quick|all

quick compiles a batch with JSON in it and a source on libtorch; all builds the launcher and finds where the
headers of other sources come from, which is all that can differ here and not elsewhere. Which sources have
headers that the bundle has is known from BUILD_FOLDER, where all are compiled; of those that are compiled
alike one stands for all.
The copy stays in FOLDER, always the same, so that ccache knows the files the next time.
"""

import argparse
import os
import pathlib
import shutil
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

SOURCE = pathlib.Path(__file__).resolve().parents[2]

# What a bare build machine has. The compiler finds its own parts (cc1plus) by itself.
TOOLS = """make bash sh env g++ gcc cc c++ as ld ar ranlib nm strip objdump cmake ctest ninja ccache
    cat cp mv rm mkdir ls sed awk grep sort head tail tr cut dirname basename uname id nproc printf
    ldd""".split()


def run(*command, env, cwd):
    print("+", *command, flush=True)
    done = subprocess.run([str(part) for part in command], env=env, cwd=cwd, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(done.stdout, flush=True)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode}")
    return done.stdout


def check(condition, message):
    if not condition:
        sys.exit(f"FAILED: {message}")


def tree_files():
    """The files of the source tree: what git tracks or would track."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=SOURCE,
            check=True, capture_output=True, text=True).stdout
        return [name for name in listed.split("\0") if name and (SOURCE / name).is_file()]
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive
        skip = {".venv", "build", "bundle", ".git"}
        return [str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*")
                if path.is_file() and path.relative_to(SOURCE).parts[0] not in skip]


def copy_tree(target):
    """Copies with times kept, so that a copy that is there already is only brought up to date."""
    wanted = set(tree_files())
    for path in list(target.rglob("*")) if target.exists() else []:
        relative = path.relative_to(target)
        if path.is_file() and relative.parts[0] not in ("build", "bundle"):
            if str(relative) not in wanted:
                path.unlink()
    for name in wanted:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(SOURCE / name, target / name)


def bare_path(folder, python):
    """A folder with the tools of a bare machine, as the only one on the PATH."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in TOOLS:
        found = shutil.which(name)
        if found:
            (folder / name).symlink_to(os.path.realpath(found) if name != "ccache" else found)
    # Not a link: an interpreter of a virtual environment knows its packages by its own place.
    (folder / "python3").write_text(f'#!/bin/sh\nexec "{python}" "$@"\n')
    (folder / "python3").chmod(0o755)
    for name in ("pip", "pip3", "apt-get", "apt", "sudo"):
        check(shutil.which(name, path=str(folder)) is None, f"{name} is on the bare PATH")
    return str(folder)


def is_bundled(header):
    return "nlohmann/" in header or header.endswith("/xxhash.h")


def uses_of_bundle(build):
    """{object: whether it has a header that the bundle has}, of a build folder."""
    uses, current = {}, ""
    listing = subprocess.Popen(["ninja", "-C", build, "-t", "deps"], stdout=subprocess.PIPE, text=True)
    for line in listing.stdout:
        if line.startswith(" "):
            uses[current] = uses[current] or is_bundled(line.rstrip())
        elif ": #deps" in line:
            current = line.split(": #deps")[0]
            uses[current] = False
    check(listing.wait() == 0 and len(uses) > 100, f"{build} has compiled {len(uses)} sources")
    return uses


def sources_to_look_at(build, built, env):
    """The commands of sources that are not compiled yet, may have headers of the bundle, and are compiled each in
    another way."""
    listed = run("ninja", "-C", build, "-t", "commands", env=env, cwd=build)
    commands = [shlex.split(line) for line in listed.splitlines() if re.search(r" -c \S+$", line)]
    check(len(commands) > 50, f"only {len(commands)} sources and batches are compiled")
    uses, chosen = uses_of_bundle(built), {}
    for command in commands:
        command = command[command.index(env_compiler(command)):]
        made = command[command.index("-o") + 1]
        if not (build / made).exists() and uses.get(made, True):
            ways = tuple(part for part in command if made not in part and part != command[-1])
            chosen[ways] = command
    check(len(chosen) > 5, f"only {len(chosen)} sources have headers of the bundle")
    return list(chosen.values())


def find_headers(build, built, env):
    """Preprocesses sources for the names of their headers."""

    def headers_of(command):
        output = command.index("-o")
        # -MD is for a compilation; what is left of it would make -M write into its file.
        kept = [part for part in command[:output] if part != "-MD"] + command[output + 2:]
        for option in ("-MT", "-MF"):
            if option in kept:
                at = kept.index(option)
                del kept[at:at + 2]
        done = subprocess.run([*kept, "-M"], env=env, cwd=build, capture_output=True, text=True)
        check(done.returncode == 0, f"{kept[-1]}: {done.stderr}")
        return done.stdout

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return "".join(pool.map(headers_of, sources_to_look_at(build, built, env)))


def env_compiler(command):
    """The compiler among what stands before it: env, ccache."""
    return next(part for part in command if re.search(r"(^|/)(g|c)\+\+[^/]*$", part))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True)
    parser.add_argument("--work", required=True, type=pathlib.Path)
    parser.add_argument("--built", required=True, type=pathlib.Path)
    parser.add_argument("what", choices=["quick", "all"])
    arguments = parser.parse_args()

    tree = arguments.work / "tree"
    copy_tree(tree)
    shutil.rmtree(tree / "build", ignore_errors=True)
    shutil.rmtree(tree / "bundle", ignore_errors=True)
    run(tree / "tools/bundle", env=os.environ, cwd=tree)

    env = {"PATH": bare_path(arguments.work / "bin", arguments.python),
           "HOME": os.environ.get("HOME", "/"), "LOCKSTEP_PYTHON": "python3"}
    if arguments.what == "all":
        # What is asked is whether it builds, and that takes half the time without optimization.
        env["CMAKE_ARGS"] = ("-DCMAKE_BUILD_TYPE=RelWithDebInfo "
                             "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O0")
    if "CCACHE_DIR" in os.environ:
        env["CCACHE_DIR"] = os.environ["CCACHE_DIR"]

    said = run("bash", "tools/setup", env=env, cwd=tree)
    check("installing" not in said, "setup tried to install something")
    check(not (tree / ".venv").exists(), "setup made a virtual environment")

    targets = ["src/CMakeFiles/lockstep_text_files.dir/Unity/unity_lockstep_text_files_0_cxx.cxx.o",
               "src/CMakeFiles/lockstep_computing.dir/optim/lr_schedule.cpp.o"]
    run("bash", "tools/build", *(targets if arguments.what == "quick" else ["lockstep_program"]),
        env=env, cwd=tree)
    headers = find_headers(tree / "build", arguments.built, env) if arguments.what == "all" else ""
    check(arguments.what != "all" or "bundle/include/nlohmann/" in headers, "no source has headers of the bundle")

    cache = (tree / "build/CMakeCache.txt").read_text()
    check(f"LOCKSTEP_JSON_INCLUDE:PATH={tree}/bundle/include\n" in cache,
          "the JSON headers were not taken from the bundle")
    deps = subprocess.run(["ninja", "-C", tree / "build", "-t", "deps"], check=True,
                          capture_output=True, text=True).stdout
    strangers = sorted({word for word in (deps + headers).split()
                        if is_bundled(word) and "bundle/include" not in word})
    check(not strangers, f"headers from outside the bundle were used: {strangers}")


main()
