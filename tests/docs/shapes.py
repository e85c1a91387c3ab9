"""Compares what a command has printed with what a page says that it prints.

In the page's text a line of three dots stands for any lines, three dots within a line for any text there. A number with
a decimal point stands for any number: losses and times differ between machines. With the word `numbers` after
```console whole numbers do, too; with `unordered` lines may come in any order, as those of several
ranks do.
"""

import re

DECIMAL = r"(?:(?<=\s)-)?\d+\.\d+(?:e[+-]?\d+)?"
ANY_NUMBER = r"[-+]?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|nan|inf)"


def pattern_of(line, numbers=False):
    """The regular expression for one line of a page."""
    number = rf"{DECIMAL}|(?<![\w.])\d+" if numbers else DECIMAL
    parts = []
    for text in line.rstrip().split("..."):
        at, piece = 0, ""
        for found in re.finditer(number, text):
            piece += re.escape(text[at:found.start()]) + ANY_NUMBER
            at = found.end()
        parts.append(piece + re.escape(text[at:]))
    # How wide a column is depends on what is in it.
    return re.compile(re.sub(r"(?:\\ ){2,}", r"\\s+", ".*".join(parts)) + r"\s*$")


def difference(expected, actual, unordered=False, numbers=False):
    """What is wrong, or None. Both are lists of lines."""
    actual = [line.rstrip() for line in actual if line.strip()]
    expected = [line.rstrip() for line in expected if line.strip()]
    if unordered:
        return _difference_unordered(expected, actual, numbers)
    at, may_skip = 0, False
    for line in expected:
        if line == "...":
            may_skip = True
            continue
        pattern, first = pattern_of(line, numbers), at
        while may_skip and at < len(actual) and not pattern.match(actual[at]):
            at += 1
        if at >= len(actual) or not pattern.match(actual[at]):
            came = actual[first] if first < len(actual) else "the end"
            return f"expected '{line}'\nfound    '{came}'"
        at, may_skip = at + 1, False
    if at < len(actual) and not may_skip:
        return f"expected the end\nfound    '{actual[at]}'"
    return None


def _difference_unordered(expected, actual, numbers):
    left = list(actual)
    for line in expected:
        if line == "...":
            continue
        pattern = pattern_of(line, numbers)
        match = next((other for other in left if pattern.match(other)), None)
        if match is None:
            return f"expected '{line}'\nfound no such line"
        left.remove(match)
    if left and "..." not in expected:
        return f"found '{left[0]}', which is not expected"
    return None
