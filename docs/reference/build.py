"""Runs Doxygen over the public headers. What it complains about is an error, with one exception: members and plain
structs may be left to their names. Classes may not.

build.py DOXYGEN DOXYFILE
"""

import re
import subprocess
import sys

# "Member x (variable) of struct lockstep::Y is not documented."
MEMBER = re.compile(r"Member .* is not documented|parameters? of member .* not documented|The following parameter")
COMPOUND = re.compile(r"^(.*):(\d+): \w+: Compound .* is not documented")


def is_left_to_its_name(complaint):
    compound = COMPOUND.match(complaint)
    if not compound:
        return MEMBER.search(complaint) is not None
    with open(compound[1], encoding="utf-8") as header:
        return re.search(r"\bstruct\b", header.read().splitlines()[int(compound[2]) - 1]) is not None


def main():
    doxygen, doxyfile = sys.argv[1:]
    done = subprocess.run([doxygen, doxyfile], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    said = [line for line in done.stdout.splitlines() if line.strip()]
    problems = [line for line in said if not is_left_to_its_name(line)]
    for line in sorted(set(problems)):
        print(line)
    if problems or (done.returncode != 0 and not said):
        sys.exit(f"doxygen: {len(set(problems))} complaints; describe what is new in its header, or in "
                 "docs/reference/types.dox")


main()
