"""Compares DDP jobs of two ranks in C++ with the same jobs in Python, bit for bit.

    ddp_parity.py reference CASES FOLDER
        runs all cases in Python and leaves their results in FOLDER
    ddp_parity.py compare CASES FOLDER CASE --cpp PATH_OF_ddp_job [--mixed] [--min-buckets N]
        runs one case in C++, or with --mixed with a rank of each language, both ways round

Each line of the file CASES is a name and the options of ddp_job. Compared are the loss of every
forward on every rank, the final parameters and buffers, and the sizes of the buckets.
"""

import argparse
import math
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from ports import free_port  # noqa: E402

WORLD_SIZE = 2
JOB_SECONDS = 240  # starting Python torch on a loaded machine takes most of it
FORMATS = {"float32": "f", "int64": "q"}


class Failed(Exception):
    pass


class Job:
    """Ranks that run together; `commands` holds one command a rank."""

    def __init__(self, name, commands, folder):
        self.name = name
        self.deadline = time.monotonic() + JOB_SECONDS
        self.logs = [os.path.join(folder, f"{name}.{rank}.log") for rank in range(WORLD_SIZE)]
        port = str(free_port())
        self.ranks = []
        for rank, command in enumerate(commands):
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(WORLD_SIZE),
                               LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(WORLD_SIZE),
                               MASTER_ADDR="127.0.0.1", MASTER_PORT=port, OMP_NUM_THREADS="1",
                               GLOO_SOCKET_IFNAME="lo")  # without it Python asks for our name
            with open(self.logs[rank], "w") as log:
                self.ranks.append(subprocess.Popen(
                    command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True))

    def wait(self):
        try:
            while any(rank.poll() is None for rank in self.ranks):
                if time.monotonic() > self.deadline:
                    raise Failed(f"{self.name} did not end in {JOB_SECONDS} s{self.last_words()}")
                if any(rank.poll() not in (None, 0) for rank in self.ranks):
                    # The others usually end by themselves and say why.
                    self.deadline = min(self.deadline, time.monotonic() + 5)
                time.sleep(0.01)
        finally:
            self.kill()
        codes = [rank.returncode for rank in self.ranks]
        if any(codes):
            raise Failed(f"{self.name} ended with exit codes {codes}{self.last_words()}")

    def kill(self):
        for rank in self.ranks:
            if rank.poll() is None:
                os.killpg(rank.pid, signal.SIGKILL)
                rank.wait()

    def last_words(self):
        words = ""
        for number, log in enumerate(self.logs):
            with open(log, errors="replace") as lines:
                tail = lines.read().strip().splitlines()[-15:]
            words += f"\n--- rank {number} said:\n" + "\n".join(tail)
        return words


def read_result(path):
    """{what: (dtype, bits)} in the order of the file."""
    result = {}
    with open(path) as lines:
        for line in lines:
            kind, *fields = line.rstrip("\n").split(" ")
            if kind == "loss":
                result["loss of step " + fields[0]] = ("float32", fields[1])
            elif kind == "buckets":
                result["bucket sizes"] = ("text", " ".join(fields))
            else:
                name, dtype, shape, bits = fields
                result[f"{kind} {name} [{shape}]"] = (dtype, bits)
    if "bucket sizes" not in result:
        raise Failed(f"{path} is not complete")
    return result


def describe(dtype, left, right):
    """The first place where two values of one dtype differ."""
    if dtype not in FORMATS:
        return f"{left!r} against {right!r}"
    size = struct.calcsize(FORMATS[dtype])
    pairs = zip(*(struct.iter_unpack(f"{size}s", bytes.fromhex(bits)) for bits in (left, right)))
    different = [(i, a[0], b[0]) for i, (a, b) in enumerate(pairs) if a != b]
    if not different:
        return f"{len(left) // 2} bytes against {len(right) // 2}"
    index, a, b = different[0]
    value = [struct.unpack(FORMATS[dtype], each)[0] for each in (a, b)]
    return (f"element {index}: {value[0]!r} (bits {a[::-1].hex()}) against {value[1]!r} "
            f"(bits {b[::-1].hex()}); {len(different)} of {len(left) // 2 // size} elements differ")


def compare(names, left, right):
    """Raises Failed at the first difference between two results of one rank."""
    if list(left) != list(right):
        only = [sorted(set(a) - set(b)) for a, b in ((left, right), (right, left))]
        raise Failed(f"{names[0]} and {names[1]} did not write the same things: only {names[0]} has "
                     f"{only[0]}, only {names[1]} has {only[1]}")
    for what, (dtype, bits) in left.items():
        if (dtype, bits) != right[what]:
            raise Failed(f"{what}, {names[0]} against {names[1]}: "
                         + describe(dtype, bits, right[what][1]))


def check_sense(name, results, minimum_buckets):
    """What must hold within one job for the comparison to mean anything."""
    losses = [struct.unpack("f", bytes.fromhex(bits))[0] for what, (_, bits) in results[0].items()
              if what.startswith("loss")]
    if not all(map(math.isfinite, losses)) or len(set(losses)) < len(losses) // 2:
        raise Failed(f"{name}: these losses prove nothing: {losses}")
    for what, value in results[0].items():
        if what.startswith("parameter") and results[1][what] != value:
            raise Failed(f"{name}: {what} differs between rank 0 and rank 1: "
                         + describe(value[0], value[1], results[1][what][1]))
    buckets = [size for size in results[0]["bucket sizes"][1].split(",") if size.strip()]
    if len(buckets) < minimum_buckets:
        raise Failed(f"{name}: gradients travelled in {len(buckets)} buckets ({buckets}), "
                     f"at least {minimum_buckets} are wanted")


def python_command():
    return [sys.executable, os.path.join(HERE, "ddp_job.py")]


def run_reference(args):
    os.makedirs(args.folder, exist_ok=True)
    try:
        python_alone(args)
    except Failed as failure:
        # Nothing of lockstep has run: whatever Python stumbled over, it says nothing about us.
        print(f"parity: {failure}\nparity: Python gets a second chance")
        python_alone(args)


def python_alone(args):
    # Ranks of Python alone can meet in a file: no port that somebody else may have taken meanwhile.
    meeting = os.path.join(args.folder, "meeting")
    if os.path.exists(meeting):
        os.remove(meeting)
    command = python_command() + ["--cases", args.cases, "--folder", args.folder,
                                  "--meet", "file://" + os.path.abspath(meeting)]
    Job("Python", [command] * WORLD_SIZE, args.folder).wait()


def job_options(args):
    with open(args.cases) as lines:
        cases = dict(line.rstrip("\n").split(" ", 1) for line in lines)
    if args.case not in cases:
        raise Failed(f"{args.cases} has no case {args.case!r}")
    options = cases[args.case].split()
    model = options[options.index("--model") + 1]
    return options + ["--init", os.path.join(args.folder, "init", model + ".pt")]


def compare_case(args):
    options = job_options(args)
    expected = [read_result(os.path.join(args.folder, f"{args.case}.{rank}"))
                for rank in range(WORLD_SIZE)]
    check_sense("Python", expected, args.min_buckets)
    languages = {"C++": [args.cpp], "Python": python_command()}
    jobs = [("Python", "C++"), ("C++", "Python")] if args.mixed else [("C++", "C++")]
    with tempfile.TemporaryDirectory(prefix="parity.") as folder:
        for job in jobs:
            outs = [os.path.join(folder, str(rank)) for rank in range(WORLD_SIZE)]
            commands = [languages[language] + options + ["--out", out]
                        for language, out in zip(job, outs)]
            Job(" and ".join(job), commands, folder).wait()
            for rank, language in enumerate(job):
                name = f"{language} rank {rank}" + (" of a mixed job" if args.mixed else "")
                compare((name, f"Python rank {rank}"), read_result(outs[rank]), expected[rank])
            print(f"{' and '.join(job)}: {sum(map(len, expected))} values equal Python's to the bit; "
                  f"buckets: {expected[0]['bucket sizes'][1] or 'not rebuilt'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    reference = commands.add_parser("reference")
    reference.set_defaults(run=run_reference)
    case = commands.add_parser("compare")
    case.set_defaults(run=compare_case)
    for command in (reference, case):
        command.add_argument("cases")
        command.add_argument("folder")
    case.add_argument("case")
    case.add_argument("--cpp", required=True)
    case.add_argument("--mixed", action="store_true")
    case.add_argument("--min-buckets", type=int, default=0)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(f"parity: {failure}")
