"""Runs the benchmarks of the project, each beside its peer: bench/run [NAME...]

Every repetition measures lockstep and the peer in turn, so that both meet the same load. Medians and
spread go into bench/results as Markdown and JSON, beside how they differ from the last stored result.
docs/benchmarks.md says what is measured. A benchmark whose needs are not met is skipped, with the reason.
"""

import argparse
import datetime
import os
import pathlib
import sys
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import reporting  # noqa: E402
import suite  # noqa: E402


def parse(arguments):
    parser = argparse.ArgumentParser(prog="bench/run", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; none: all")
    parser.add_argument("--list", action="store_true", help="say what there is, and what is missing here")
    parser.add_argument("--quick", action="store_true", help="small sizes, one repetition; nothing is stored")
    parser.add_argument("--rounds", type=int, help="repetitions, instead of each benchmark's own number")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", dest="settings",
                        help="an option of the benchmark that is named (--list shows them)")
    parser.add_argument("--save", metavar="FOLDER", help="where results are stored (bench/results)")
    parser.add_argument("--no-save", action="store_true", help="store nothing")
    parser.add_argument("--check", action="store_true", help="end with 1 if a goal is missed")
    parser.add_argument("--build", default=os.environ.get("BUILD", "build"), help=argparse.SUPPRESS)
    parser.add_argument("--benches", help=argparse.SUPPRESS)  # another folder of them, for tests
    options = parser.parse_args(arguments)
    known = suite.names(options.benches)
    for name in options.names:
        if name not in known:
            parser.error(f"there is no benchmark '{name}'; there are {', '.join(known)}")
    if options.rounds is not None and options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}; it must be at least 1")
    if options.settings and len(options.names) != 1:
        parser.error("--set needs the name of one benchmark")
    options.names = options.names or known
    return options, parser


def options_of(bench, options, parser):
    values = {**bench.options, **(bench.quick if options.quick else {})}
    for setting in options.settings:
        name, equals, text = setting.partition("=")
        if name not in values or not equals:
            parser.error(f"--set {setting}: {bench.name} has the options {', '.join(values) or '(none)'}")
        try:
            values[name] = type(values[name])(text)
        except ValueError:
            parser.error(f"--set {setting}: {name} is like {values[name]!r}")
    return values


def show_list(options, parser):
    for name in options.names:
        bench = suite.load(name, options.benches)
        missing = bench.missing(suite.Run(options.build, options_of(bench, options, parser)))
        print(f"{name:14} {bench.title}" + (f" [skipped here: {missing}]" if missing else ""))
        for metric in bench.metrics:
            print(f"{'':14}   {metric.what}, {metric.unit}, {metric.better} is better")
        if bench.options:
            print(f"{'':14}   options: " + ", ".join(f"{key}={value}" for key, value in bench.options.items()))


def repeat(bench, run, rounds):
    """{key: ([ours], [peer])}, a value for each repetition."""
    values = {metric.key: ([], []) for metric in bench.metrics}
    seen = set()  # what is not measured under these options is left out
    for run.number in range(rounds):
        run.details, run.plots = [], {}
        began = time.monotonic()
        found = bench.measure(run)
        unknown = set(found) - set(values)
        if unknown:
            raise ValueError(f"{bench.name} gave what is no metric of it: {', '.join(sorted(unknown))}")
        seen |= set(found)
        for key, columns in values.items():
            pair = found.get(key)
            pair = pair if isinstance(pair, suite.Pair) or pair is None else suite.Pair(pair)
            columns[0].append(pair.ours if pair else None)
            columns[1].append(pair.peer if pair else None)
        reporting.warn(f"{bench.name}: repetition {run.number + 1} of {rounds}, {time.monotonic() - began:.1f} s")
    return {key: columns for key, columns in values.items() if key in seen}


def run_one(bench, options, parser, command):
    """(report or None, why it is missing)"""
    run = suite.Run(options.build, options_of(bench, options, parser))
    missing = bench.missing(run)
    if missing:
        return None, missing
    before = os.getloadavg()[0]
    try:
        values = repeat(bench, run, options.rounds or (1 if options.quick else bench.rounds))
    finally:
        run.close()
    today = datetime.date.today().isoformat()
    run.plots = {f"{today}-{bench.name}-{name}.svg": picture for name, picture in run.plots.items()}
    loads = before, os.getloadavg()[0]
    made = reporting.make(bench, run, values, loads, command, options.quick)
    folder = pathlib.Path(options.save) if options.save else suite.ROOT / "bench" / "results"
    text = reporting.markdown(made, reporting.last_result(folder, bench.name))
    print(text, flush=True)
    if not options.no_save and (options.save or not options.quick):
        print(f"written to {reporting.save(made, text, run.plots, folder)}\n", flush=True)
    return made, None


def main(arguments):
    options, parser = parse(arguments)
    if options.list:
        show_list(options, parser)
        return 0
    failed, skipped, missed = [], [], []
    for name in options.names:
        words = [word for word in arguments if word not in options.names]
        command = " ".join(["bench/run", name, *words])
        try:
            made, missing = run_one(suite.load(name, options.benches), options, parser, command)
        except (Exception, SystemExit) as error:  # the others can still be measured
            if isinstance(error, SystemExit) and error.code == 2:
                raise
            if not isinstance(error, SystemExit):
                traceback.print_exc()
            failed.append(f"{name}: {error}")
            continue
        if missing:
            skipped.append(f"{name}: {missing}")
        else:
            missed += [miss for row in made["metrics"] for miss in row["missed"]]
    for title, lines in (("skipped", skipped), ("goal missed", missed), ("failed", failed)):
        for line in lines:
            print(f"{title}: {line}")
    return 1 if failed or (options.check and missed) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
