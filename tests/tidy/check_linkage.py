"""Checks that libraries and programs without libtorch really need none of it.

check_linkage.py --nm NM [--needs-libtorch ARCHIVE] FILE...

Archives are searched for undefined symbols of libtorch's namespaces, programs for its shared
libraries. The archive after --needs-libtorch is one that does use it: were nothing found there, the
search would be broken.
"""

import argparse
import re
import subprocess
import sys

SYMBOL = re.compile(r"(?<![\w:])(?:at|c10|c10d|torch|caffe2)::")


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def traces_of_libtorch(nm, file):
    if file.endswith(".a"):
        lines = output(nm, "--demangle", "--undefined-only", file).splitlines()
        return [line.strip() for line in lines if SYMBOL.search(line)]
    lines = output("ldd", file).splitlines()
    return [line.strip() for line in lines if re.search(r"libtorch|libc10", line)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nm", required=True)
    parser.add_argument("--needs-libtorch")
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()

    failed = False
    if arguments.needs_libtorch and not traces_of_libtorch(arguments.nm, arguments.needs_libtorch):
        print(f"{arguments.needs_libtorch}: no trace of libtorch, although it uses it")
        failed = True
    for file in arguments.files:
        traces = traces_of_libtorch(arguments.nm, file)
        print(f"{file}: {'needs no libtorch' if not traces else 'needs libtorch:'}")
        for trace in traces[:10]:
            print(f"  {trace}")
        failed = failed or bool(traces)
    return 1 if failed else 0


sys.exit(main())
