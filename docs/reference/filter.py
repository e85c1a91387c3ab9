"""Doxygen's view of a header: comments beside and above a member describe it, as readers take them anyway.

filter.py FILE
"""

import re
import sys

# A declaration, then two blanks and a comment; not one that says which namespace ends here.
TRAILING = re.compile(r"^(\s*[^/\s}#][^\"]*?[;,{}\w)]|.*\".*\"[^\"]*;)  // (?!clang-format|namespace)(.*)$")
TRAILING_C = re.compile(r"^(\s+[^/\s*][^;]*;) +/\* (.*) \*/$")
CONTINUED = re.compile(r"^(\s{20,})// (.*)$")
ABOVE = re.compile(r"^(\s+)// ?(?!clang-format)(.*)$")
COMMENT = re.compile(r"^(\s*///<?)( .*)$")


def words(text):
    """Signs that are commands for Doxygen, and a full stop inside code, at which it would end a sentence."""
    text = text.replace("@", "\\@").replace("W&B", "W&amp;B")
    return re.sub(r"`([^`]*)\.`", r"`\1`&#46;", text)


def is_declaration(lines, at):
    while at < len(lines) and lines[at].strip().startswith("//"):
        at += 1
    return at < len(lines) and re.match(r"^\s+[^\s/}#].*[;{,(=]$", lines[at]) is not None


def filtered(lines):
    described = False  # the line before ends in a comment on a member
    for number, line in enumerate(lines):
        trailing, trailing_c = TRAILING.match(line), TRAILING_C.match(line)
        more = CONTINUED.match(line) if described else None
        above = ABOVE.match(line)
        if trailing:
            line = f"{trailing[1]}  ///< {trailing[2]}"
        elif trailing_c:
            line = f"{trailing_c[1]} /**< {trailing_c[2]} */"
        elif more:
            line = f"{more[1]}///< {more[2]}"
        elif above and not line.strip().startswith("///") and is_declaration(lines, number):
            line = f"{above[1]}/// {above[2]}"
        described = bool(trailing or more)
        comment = COMMENT.match(line)
        if comment:
            line = comment[1] + words(comment[2])
        elif trailing or more:
            before, mark, text = line.partition("///<")
            line = before + mark + words(text)
        yield line


with open(sys.argv[1], encoding="utf-8") as file:
    sys.stdout.write("\n".join(filtered(file.read().splitlines())) + "\n")
