"""Makes C++ of a CUDA source, for the folder's emulator: translate.py FROM.cu TO.cpp

What only nvcc parses is rewritten, launches and shared memory; all else stays on its line as it is.
"""

import re
import sys

HERE = "lockstep::kernels::on_cpu"
KERNEL = re.compile(r"[A-Za-z_]\w*(?:<[^<>;]*>)?\Z")
DYNAMIC = re.compile(r"\bextern\s+__shared__\s+([\w:]+)\s+(\w+)\[\];")
STATIC = re.compile(r"\b__shared__\s+([\w:]+)\s+(\w+)((?:\[[^;]*\])?);")


def end_of_parentheses(text, begin):
    depth = 0
    for at in range(begin, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at + 1
    raise SyntaxError("a parenthesis that is not closed")


def launches(text):
    """kernel<<<grid, ...>>>(arguments) becomes start(grid, ..., [&] { kernel(arguments); })."""
    while (opens := text.find("<<<")) >= 0:
        kernel = KERNEL.search(text, 0, opens)
        closes = text.find(">>>(", opens)
        if kernel is None or closes < 0:
            raise SyntaxError("a launch that is not kernel<<<...>>>(...)")
        end = end_of_parentheses(text, closes + 3)
        text = (f"{text[:kernel.start()]}{HERE}::start({text[opens + 3:closes]}, "
                f"[&] {{ {kernel.group()}{text[closes + 3:end]}; }}){text[end:]}")
    return text


def shared_memory(text):
    text = DYNAMIC.sub(rf"\1* const \2 = {HERE}::dynamic_shared<\1>();", text)
    text = STATIC.sub(rf"auto& \2 = {HERE}::shared<\1\3>([] {{}});", text)
    if "__shared__" in text:
        raise SyntaxError("shared memory that is not an array or a variable of a simple type")
    return text


def main():
    source, target = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        text = shared_memory(launches(file.read()))
    with open(target, "w", encoding="utf-8") as file:
        file.write(f'#include "tests/kernels/on_cpu/host_words.h"\n#line 1 "{source}"\n{text}')


if __name__ == "__main__":
    main()
