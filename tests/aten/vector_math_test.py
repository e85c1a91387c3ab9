"""Whether settle_vector_math() calls every function that this libtorch leaves to MKL.

vector_math_test.py SOURCE HEADER
"""

import pathlib
import re
import sys


def main():
    source, header = (pathlib.Path(path) for path in sys.argv[1:])
    # "// IMPLEMENT_VML_MKL(cosh, Cosh)" is one that ATen computes itself.
    left_to_mkl = set(re.findall(r"^IMPLEMENT_VML_MKL\((\w+),", header.read_text(), re.MULTILINE))
    called = set(re.findall(r"&at::(\w+)", source.read_text()))
    if not left_to_mkl or called != left_to_mkl:
        raise SystemExit(f"{header} has {sorted(left_to_mkl - called)}, which are not called, and "
                         f"lacks {sorted(called - left_to_mkl)}, which are")
    print(f"all {len(called)} are called")


main()
