"""Does what pages say: writes their files, runs their commands, compares what these print.

chapters_test.py ROOT BIN PYTHON PAGE...    BIN: where the programs are; PYTHON has torch

In a page
    ```console      has lines "$ command" (with "> " where it goes on), each followed by what it prints;
                    all commands of a page run in one shell, in a folder of the page's own. A command that
                    fails must be followed by "$ echo $?".
    ```cpp title=examples/03_ddp/main.cpp   is a piece of that file of the tree; a line "// ..." or "# ..."
                    stands for what is left out
    ```python title=train.py                is written to that file before the next command
    ```text         is only to be read
A page with "<!-- needs slurm -->" gets a cluster of two nodes.
"""

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent / "jobs"))

from documents import read_page  # noqa: E402
from shapes import difference  # noqa: E402
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

LIMIT = 240  # seconds for a page; only ever reached by a failure
MARK = "lockstep-docs-command"
ONLY_TO_BE_READ = {"text", "mermaid"}


class Step:
    """A command with what it prints, or a file to be written."""

    def __init__(self, block, line):
        self.block, self.line = block, line
        self.command, self.expected, self.file = None, [], None


def commands_of(block):
    steps = []
    for number, line in enumerate(block.lines, block.line + 1):
        if line.startswith("$ "):
            steps.append(Step(block, number))
            steps[-1].command = line[2:]
        elif not steps:
            raise ValueError(f"line {number}: a console block begins with '$ command'")
        elif line.startswith("> ") and not steps[-1].expected:
            steps[-1].command += "\n" + line[2:]
        else:
            steps[-1].expected.append(line)
    return steps


def pieces_of(lines):
    """Runs of lines between those that stand for what is left out."""
    piece = []
    for line in lines:
        if line.strip() in ("// ...", "# ..."):
            yield piece
            piece = []
        else:
            piece.append(line)
    yield piece


def quoted_exactly(block, source):
    """Whether each piece of the block stands in the source, one after the other, at any depth."""
    lines, at = source.splitlines(), 0
    for piece in pieces_of(block.lines):
        wanted = textwrap.dedent("\n".join(piece)).strip("\n").splitlines()
        while wanted and at <= len(lines) - len(wanted):
            here = textwrap.dedent("\n".join(lines[at:at + len(wanted)])).splitlines()
            if [line.rstrip() for line in here] == [line.rstrip() for line in wanted]:
                at += len(wanted)
                break
            at += 1
        else:
            if wanted:
                return False
    return True


def steps_of(page, text, root):
    """What a page asks for, in order. Raises ValueError for blocks that nothing checks."""
    steps = []
    for block in read_page(text)[0]:
        title = block.values.get("title")
        if block.language == "console":
            steps += commands_of(block)
        elif title and (root / title).is_file() and "/" in title:
            if not quoted_exactly(block, (root / title).read_text()):
                raise ValueError(f"{page}:{block.line}: this is not what {title} says")
        elif title:
            steps.append(Step(block, block.line))
            steps[-1].file = title
        elif block.language not in ONLY_TO_BE_READ:
            raise ValueError(f"{page}:{block.line}: a block of '{block.language}' that nothing checks: use "
                             "console, or title=FILE, or text where it cannot be run")
    return steps


def script_of(steps):
    """One shell script for all steps; a line with MARK tells where each one ends."""
    lines = ["exec 2>&1 < /dev/null", "docs_status=0"]
    for number, step in enumerate(steps):
        if step.file:
            end = f"END_OF_FILE_{number}"
            lines += [f"cat > '{step.file}' << '{end}'", step.block.text.rstrip("\n"), end, "docs_status=$?"]
        else:
            lines += ["(exit $docs_status)", step.command, "docs_status=$?"]
        lines.append(f"printf '\\n{MARK} %d %d\\n' {number} $docs_status")
    return "\n".join(lines) + "\n"


class Chapters(unittest.TestCase):
    maxDiff = None

    def environment(self, text):
        path = [str(BIN), str(BIN / "examples"), str(pathlib.Path(PYTHON).parent)]
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("LOCKSTEP_", "SLURM_", "PBS_", "PET_", "WANDB_"))}
        if "<!-- needs slurm -->" in text:
            from slurm_bed import SlurmCluster, missing_tools
            if os.getuid() != 0:
                self.skipTest("a cluster of one's own needs root")
            if missing := missing_tools():
                self.skipTest(f"not installed: {', '.join(missing)}")
            cluster = SlurmCluster(nodes=2)
            self.addCleanup(cluster.close)
            environment = cluster.environment()
        environment["PATH"] = ":".join([*path, environment["PATH"]])
        # Open MPI refuses root, and more ranks than cores, unless it is told.
        environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                           OMPI_MCA_rmaps_base_oversubscribe="1")
        environment.update(OMP_NUM_THREADS="1", COLUMNS="120", LC_ALL="C.UTF-8")
        return environment

    def run_page(self, page):
        text = (ROOT / page).read_text()
        steps = steps_of(page, text, ROOT)
        with tempfile.TemporaryDirectory(prefix="lsdocs") as folder:
            environment = self.environment(text)
            with open(os.path.join(folder, ".output"), "w+") as output:
                process = subprocess.Popen(["bash", "-c", script_of(steps)], cwd=folder, env=environment,
                                           stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                           start_new_session=True)
                try:
                    process.wait(LIMIT)
                finally:  # what the page has left running, too
                    try:
                        os.killpg(process.pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                    process.wait()
                output.seek(0)
                printed = output.read()
        printed = printed.replace(os.path.realpath(folder), "~/job").replace(folder, "~/job")
        # Scripts break long lines, and how long a line is depends on the path of the build folder.
        printed = re.sub(r" \\\n +", " ", printed.replace(str(BIN), "/opt/lockstep/bin"))
        self.compare(page, steps, printed)

    def compare(self, page, steps, printed):
        parts = re.split(rf"\n{MARK} (\d+) (\d+)\n", printed)
        self.assertEqual(len(parts) // 3, len(steps), f"{page}: the shell ended early:\n{printed}")
        host = re.compile(rf"\b{re.escape(socket.gethostname())}\b")
        for number, step in enumerate(steps):
            if step.file:
                continue
            status = int(parts[3 * number + 2])
            after = steps[number + 1].command if number + 1 < len(steps) else None
            where = f"{page}:{step.line}: $ {step.command}"
            if after != "echo $?" and status != 0:
                self.fail(f"{where}\nended with {status}:\n{parts[3 * number]}")
            flags = step.block.flags
            wrong = difference([host.sub("myhost", line) for line in step.expected],
                               host.sub("myhost", parts[3 * number]).splitlines(),
                               unordered="unordered" in flags, numbers="numbers" in flags)
            if wrong:
                self.fail(f"{where}\n{wrong}\nin\n{parts[3 * number]}")


def add_page(page):
    name = re.sub(r"\W", "_", str(page).removesuffix(".md"))
    setattr(Chapters, f"test_{name}", lambda self: self.run_page(page))


if __name__ == "__main__":
    ROOT, BIN, PYTHON = (pathlib.Path(os.path.abspath(path)) for path in sys.argv[1:4])
    for argument in sys.argv[4:]:
        add_page(argument)
    test_script.main(argv=sys.argv[:1], verbosity=2)
