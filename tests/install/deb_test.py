"""Builds the Debian packages from the build folder, and uses them where nothing else is installed.

deb_test.py --source SOURCE --build BUILD_FOLDER --cmake CMAKE --cxx COMPILER --torch TORCH_FOLDER

The clean root has the files of the packages that `lockstep` depends on, by dpkg's own lists, and nothing else: a
dependency that is not declared is missing there. It is made from this machine, so no mirror is needed.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

SOURCE = BUILD = CMAKE = CXX = TORCH = None
HERE = pathlib.Path(__file__).resolve().parent


def run(*command, **options):
    print("+", *command, flush=True)
    done = subprocess.run([str(part) for part in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, **options)
    if done.returncode != 0:
        raise AssertionError(f"exit code {done.returncode}:\n{done.stdout}")
    return done.stdout


def names_in(depends):
    """Package names of a Depends field; of alternatives the first that is installed."""
    for group in filter(None, (part.strip() for part in depends.split(","))):
        names = [re.sub(r"[\s(:].*", "", choice.strip()) for choice in group.split("|")]
        yield next((name for name in names if shutil.which("dpkg-query") and subprocess.run(
            ["dpkg-query", "-W", name], capture_output=True).returncode == 0), names[0])


def dependencies_of(package_file):
    """All packages that this one needs, directly or not."""
    wanted = list(names_in(run("dpkg-deb", "-f", package_file, "Depends")))
    found = set()
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            wanted += names_in(run("dpkg-query", "-W", "-f", "${Pre-Depends},${Depends}", name))
    return found


def make_root(root, packages):
    """An empty root with the files of these packages."""
    for name in ("proc", "dev", "tmp", "var/lib/dpkg/updates", "var/lib/dpkg/info", "usr/lib", "usr/bin"):
        (root / name).mkdir(parents=True)
    for name in ("lib", "bin", "lib64"):
        (root / "usr" / name).mkdir(exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    (root / "var/lib/dpkg/status").touch()
    for package in packages:
        for line in run("dpkg-query", "-L", package).splitlines():
            path = pathlib.Path(line)
            if line.startswith("/") and (path.is_file() or path.is_symlink()) and not path.is_dir():
                target = root / line.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                if not target.exists():
                    shutil.copy2(path, target, follow_symlinks=False)


def inside(root, *command):
    """Runs a command with this root; its own mounts vanish with it."""
    rights = [] if os.getuid() == 0 else ["--map-root-user"]
    script = ('mount --rbind /proc "$0/proc" && mount --rbind /dev "$0/dev" && root=$0 && '
              'exec chroot "$root" "$@"')
    return run("unshare", "--mount", *rights, "sh", "-c", script, root, *command,
               env={"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", "HOME": "/tmp"}, timeout=120)


class Debs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        run("bash", SOURCE / "tools/package", "--built", "deb",
            env={**os.environ, "BUILD": str(BUILD), "SOURCE_DATE_EPOCH": "1700000000"})
        cls.launcher = next((BUILD / "packages").glob("lockstep_*.deb"))
        cls.library = next((BUILD / "packages").glob("liblockstep-dev_*.deb"))
        cls.folder = tempfile.TemporaryDirectory(prefix="lockstep_deb_")
        cls.work = pathlib.Path(cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_the_launcher_runs_in_a_clean_root(self):
        root = self.work / "root"
        needed = dependencies_of(self.launcher)
        self.assertIn("libc6", needed)
        self.assertFalse([name for name in needed if "torch" in name or "python" in name])
        make_root(root, needed)
        # The dependencies are there as files, not in the database of this root.
        run("dpkg", f"--root={root}", "--force-depends", "--force-not-root",
            f"--log={self.work}/dpkg.log", "-i", self.launcher)
        version = json.loads(inside(root, "/usr/bin/lockstep", "version", "--json"))
        self.assertEqual(version["version"], run("dpkg-deb", "-f", self.launcher, "Version").split("-")[0])
        said = inside(root, "/usr/bin/lockstep", "run", "--standalone", "--nproc-per-node", "2", "--no-python",
                      "/usr/bin/lockstep", "version", "--json")
        self.assertEqual(said.count('"version"'), 2, said)
        if version["launcher"]["board"]:
            self.assertIn("--token-file", inside(root, "/usr/bin/lockstep", "board", "--help"))
        run("dpkg", f"--root={root}", "--force-not-root", f"--log={self.work}/dpkg.log", "-r", "lockstep")
        self.assertFalse((root / "usr/bin/lockstep").exists())

    def test_packages_have_what_debian_asks_for(self):
        for package, name in ((self.launcher, "lockstep"), (self.library, "liblockstep-dev")):
            listing = run("dpkg-deb", "-c", package).splitlines()
            paths = [line.split(maxsplit=5)[5] for line in listing]
            for wanted in (f"./usr/share/doc/{name}/copyright", f"./usr/share/doc/{name}/changelog.gz"):
                self.assertIn(wanted, paths)
            for line in listing:
                mode, owner, path = line.split()[0], line.split()[1], line.split(maxsplit=5)[5]
                self.assertEqual(owner, "root/root", line)
                kind = {"d": "drwxr-xr-x", "l": "lrwxrwxrwx"}.get(
                    mode[0], "-rwxr-xr-x" if "/bin/" in path else "-rw-r--r--")
                self.assertEqual(mode, kind, line)
            description = run("dpkg-deb", "-f", package, "Description").splitlines()
            self.assertLessEqual(max(map(len, description)), 85)
        pages = [path for path in run("dpkg-deb", "-c", self.launcher).split() if "/man1/" in path]
        self.assertGreaterEqual(len([path for path in pages if path.endswith(".1.gz")]), 9)
        self.assertNotIn("torch", run("dpkg-deb", "-f", self.launcher, "Depends"))

    def test_a_project_builds_against_the_library(self):
        root = self.work / "library"
        run("dpkg-deb", "-x", self.library, root)
        for path in root.rglob("*.cmake"):
            for folder in (str(SOURCE) + "/", str(BUILD) + "/", str(TORCH)):
                self.assertNotIn(folder, path.read_text(), f"{path} names a folder of this machine")
        for path in root.rglob("*.so*"):
            self.assertNotRegex(run("readelf", "-d", path), "R(UN)?PATH", path)
        build = self.work / "consumer"
        run(CMAKE, "-S", HERE / "consumer", "-B", build, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={CXX}",
            f"-DCMAKE_PREFIX_PATH={root}/usr", env={**os.environ, "TORCH_INSTALL_PREFIX": str(TORCH)})
        run(CMAKE, "--build", build)
        self.assertIn("lockstep works", run(build / "consumer"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for option in ("--source", "--build", "--cmake", "--cxx", "--torch"):
        parser.add_argument(option, required=True, type=pathlib.Path)
    arguments, rest = parser.parse_known_args()
    SOURCE, BUILD, CMAKE, CXX, TORCH = (arguments.source, arguments.build, arguments.cmake, arguments.cxx,
                                        arguments.torch)
    test_script.main(argv=[sys.argv[0], *rest])
