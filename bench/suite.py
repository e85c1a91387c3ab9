"""What a benchmark is, and what one repetition of it gives.

bench/NAME/NAME.py has a BENCH: its metrics, defined before any number, and a function that measures
once, ours and the peer's in turn. bench/runner.py repeats it, and makes a report of what it gave.
"""

import dataclasses
import importlib.util
import os
import pathlib
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


@dataclasses.dataclass(frozen=True)
class Metric:
    """One number of ours, and where there is a peer the same of the peer's.

    A ratio says how many times better ours is: peer / ours where lower is better, else ours / peer.
    """
    key: str
    what: str
    unit: str
    better: str = "lower"  # or "higher"
    goal: float | None = None  # for ours: at most, or at least where higher is better
    ratio_goal: float | None = None  # least ratio
    best: bool = False  # the best repetition counts, not the median: the others met other programs

    def ratio(self, ours, peer):
        over, under = (peer, ours) if self.better == "lower" else (ours, peer)
        return over / under if under else float("inf")


@dataclasses.dataclass(frozen=True)
class Pair:
    """Of one repetition; `peer` is None where there is none, or it never came to an end."""
    ours: float
    peer: float | None = None


@dataclasses.dataclass(frozen=True)
class Bench:
    name: str
    title: str
    metrics: tuple
    measure: object  # (Run) -> {key: Pair or number}; one repetition
    peer: str = ""  # who is compared with; empty: nobody
    rounds: int = 5
    options: dict = dataclasses.field(default_factory=dict)  # their usual values
    quick: dict = dataclasses.field(default_factory=dict)  # values for --quick
    programs: tuple = ()  # below the build's bin/
    tools: tuple = ()  # commands on the PATH
    modules: tuple = ()  # of Python
    needs: object = None  # (Run) -> why it cannot run here, or None
    notes: str = ""

    def missing(self, run):
        """Why it cannot run here; None: it can."""
        for program in self.programs:
            if not (run.bin / program).exists():
                return f"{run.bin / program} is not built"
        for tool in self.tools:
            if shutil.which(tool) is None:
                return f"the command {tool} is not there"
        for module in self.modules:
            if importlib.util.find_spec(module) is None:
                return f"Python's package {module} is not there"
        return self.needs(run) if self.needs else None


class Run:
    """What a repetition may know: where things are, which repetition it is, the options."""

    def __init__(self, build, options):
        self.bin = pathlib.Path(build).resolve() / "bin"
        self.python = sys.executable
        self.options = options
        self.number = 0
        self.details = []  # lines for the report, of the last repetition
        self.plots = {}  # file name: SVG, likewise
        self.kept = {}  # what a bench keeps from one repetition to the next
        self.closers = []

    def program(self, name):
        return str(self.bin / name)

    def __getattr__(self, name):
        options = self.__dict__.get("options", {})
        if name in options:
            return options[name]
        raise AttributeError(name)

    def in_turn(self, ours, peer):
        """Calls both, in the other order each time, so that neither is always the first."""
        if self.number % 2 == 0:
            mine = ours()
            return Pair(mine, peer())
        other = peer()
        return Pair(ours(), other)

    def keep(self, name, make, close=None):
        """What `make` returns, made once for all repetitions."""
        if name not in self.kept:
            self.kept[name] = make()
            if close:
                self.closers.append(lambda: close(self.kept[name]))
        return self.kept[name]

    def close(self):
        for closer in reversed(self.closers):
            closer()
        self.closers = []


def load(name, folder=None):
    """The BENCH of bench/NAME/NAME.py."""
    path = pathlib.Path(folder or ROOT / "bench") / name / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"bench_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if module.BENCH.name != name:
        raise ValueError(f"{path}: its BENCH is called {module.BENCH.name}")
    return module.BENCH


def names(folder=None):
    place = pathlib.Path(folder or ROOT / "bench")
    return sorted(path.parent.name for path in place.glob("*/*.py")
                  if path.stem == path.parent.name and "\nBENCH = " in path.read_text())


def one_thread():
    return dict(os.environ, OMP_NUM_THREADS="1")
