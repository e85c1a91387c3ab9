"""Checks the rules of the source tree that a compiler does not.

check_tree.py ROOT prints "file:line: what is wrong" for each breach and exits 1 if there is one.
Which layer may include which is read from the tables in docs/architecture.md.
"""

import pathlib
import re
import subprocess
import sys

LONGEST_FILE = 600  # lines; aim for less than 500
INPUTS = "tests/fuzz/corpus/"  # of fuzzers; not written by people
HEADERS = {".h", ".hpp", ".cuh"}
CXX = HEADERS | {".c", ".cpp", ".cu"}
CODE = CXX | {".py", ".sh", ".cmake"}
TABS_ALLOWED = {"Makefile", ".mk", ".patch", ".diff", ".tsv"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# A path that exists on one person's machine only. What stands before it must not be part of a path.
PRIVATE_PATH = re.compile(r"(?<![\w./)}>-])/(?:(?:home|Users)/\w|(?:root|work)/)")

# Prefixes of libtorch's headers, and which of them a layer may include, by the last column of the
# table of layers.
LIBTORCH = ("torch/", "ATen/", "c10/", "caffe2/")
LIBTORCH_ALLOWED = {"no": (), "ATen": ("ATen/", "c10/"), "yes": LIBTORCH}
# These cost every includer ten to twenty seconds, or tie it to one version of torch.
TOO_HEAVY_FOR_PUBLIC = ("torch/torch.h", "torch/types.h", "torch/all.h", "torch/extension.h",
                        "ATen/ATen.h", "torch/csrc/distributed/", "torch/csrc/api/include/torch/all.h",
                        "torch/csrc/api/include/torch/types.h")


class Layer:
    def __init__(self, includes, libtorch):
        self.includes = includes  # names of layers; "public headers" stands for all of those
        self.libtorch = libtorch


def rows_of_table(text, first_column):
    """The cells of the Markdown table whose first column has this heading; backticks are dropped."""
    rows, inside = [], False
    for line in text.splitlines():
        cells = [cell.strip().replace("`", "") for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[0] == first_column:
            inside = True
        elif inside and not set(cells[0]) <= set("-: "):
            rows.append(cells)
    return rows


class Rules:
    """What docs/architecture.md says."""

    def __init__(self, text):
        self.layers, self.headers, self.errors = {}, {}, []
        for name, _, includes, libtorch in rows_of_table(text, "layer"):
            allowed = {part.strip() for part in includes.split(",")} - {"none", ""}
            self.layers[name] = Layer(allowed, libtorch)
            if libtorch not in LIBTORCH_ALLOWED:
                self.errors.append(f"layer {name}: libtorch is '{libtorch}', not one of "
                                   f"{', '.join(LIBTORCH_ALLOWED)}")
        for header, layer, *_ in rows_of_table(text, "header"):
            self.headers[header] = layer
            if layer not in self.layers:
                self.errors.append(f"{header} belongs to '{layer}', which is no layer")
        for name, layer in self.layers.items():
            for other in sorted(layer.includes - set(self.layers) - {"public headers"}):
                self.errors.append(f"layer {name} may include '{other}', which is no layer")
        if not self.layers or not self.headers:
            self.errors.append("the table of layers or that of public headers was not found")


def list_files(root):
    """What git tracks or would track; all files where there is no git."""
    try:
        listed = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            check=True, capture_output=True, text=True).stdout
        names = [name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        names = [str(path.relative_to(root)) for path in root.rglob("*")]
        names = [name for name in names
                 if name.split("/")[0] not in {".git", ".venv", "build", "bundle"}]
    return sorted(name for name in names if (root / name).is_file())


def check_text(name, text):
    """Rules for any text file."""
    path = pathlib.PurePosixPath(name)
    tabs_allowed = path.name in TABS_ALLOWED or path.suffix in TABS_ALLOWED
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if line != line.rstrip():
            yield number, "white space at the end of the line"
        if "\t" in line and not tabs_allowed:
            yield number, "a tab; use spaces"
        if PRIVATE_PATH.search(line):
            yield number, "a path that exists on one machine only"
    if text and not text.endswith("\n"):
        yield len(lines), "no newline at the end of the file"
    is_code = path.suffix in CODE or path.name == "CMakeLists.txt" or text.startswith("#!")
    if is_code and len(lines) - 1 > LONGEST_FILE:
        yield LONGEST_FILE, f"{len(lines) - 1} lines; split a file before it has {LONGEST_FILE}"
    if path.suffix in HEADERS and "#pragma once" not in text:
        yield 1, "a header without #pragma once"


def place_of(name, rules):
    """("public" | "private" | "example" | None, layer) of a source file."""
    parts = pathlib.PurePosixPath(name).parts
    if parts[0] == "include":
        return "public", rules.headers.get("/".join(parts[1:]))
    if parts[0] == "src" and len(parts) > 2:
        return "private", parts[1]
    if parts[0] == "examples":
        return "example", None
    return None, None


def check_include(header, quoted, place, layer_name, rules):
    """What is wrong with one #include, or None."""
    layer = rules.layers.get(layer_name)
    folder = header.split("/")[0]
    if header.endswith("c10d/c10d.h"):
        return f"{header} needs Python's headers"
    if layer and header.startswith(LIBTORCH):
        if not header.startswith(LIBTORCH_ALLOWED[layer.libtorch]):
            return f"layer {layer_name} must do without {header} (libtorch: {layer.libtorch})"
        if place == "public" and header.startswith(TOO_HEAVY_FOR_PUBLIC):
            return f"a public header must not include {header}"
    if folder == "lockstep":
        owner = rules.headers.get(header)
        if owner is None:
            return f"{header} is not in the table of public headers in docs/architecture.md"
        if layer and "public headers" in layer.includes:
            return None
    elif quoted:
        owner = folder
        if place in ("public", "example"):
            return f"{header}: only public headers (lockstep/...) can be included here"
        if place == "private" and owner not in rules.layers:
            return f"{header}: name headers of src/ from there, as in \"core/file.h\""
    else:
        return None
    if layer and owner != layer_name and owner not in layer.includes:
        return f"layer {layer_name} may not include {header} of layer {owner}"
    return None


def check_cxx(name, text, rules):
    """Rules for what C++ sources include."""
    place, layer_name = place_of(name, rules)
    if place == "public" and layer_name is None:
        yield 1, "not in the table of public headers in docs/architecture.md"
    if place == "private" and layer_name not in rules.layers:
        yield 1, f"src/{layer_name} is not in the table of layers in docs/architecture.md"
    for number, line in enumerate(text.splitlines(), 1):
        found = INCLUDE.match(line)
        if found and place:
            if found[2].startswith("../"):
                yield number, f"{found[2]}: name headers from src/, not by the way to them"
                continue
            problem = check_include(found[2], found[1] == '"', place, layer_name, rules)
            if problem:
                yield number, problem


def check_tree(root):
    """All breaches, as "file:line: text"."""
    architecture = root / "docs/architecture.md"
    rules = Rules(architecture.read_text())
    problems = [f"docs/architecture.md:1: {error}" for error in rules.errors]
    files = list_files(root)
    for header in sorted(rules.headers):
        if f"include/{header}" not in files:
            problems.append(f"docs/architecture.md:1: {header} is in the table and not in include/")
    for name in files:
        if name.startswith(INPUTS):
            continue
        try:
            text = (root / name).read_bytes().decode()
        except UnicodeDecodeError:
            continue
        if "\0" in text:
            continue
        found = list(check_text(name, text))
        if pathlib.PurePosixPath(name).suffix in CXX:
            found += check_cxx(name, text, rules)
        problems += [f"{name}:{number}: {problem}" for number, problem in found]
    return problems


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    problems = check_tree(root)
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems" if problems else "the tree keeps its rules")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
