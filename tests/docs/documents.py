"""Reads Markdown pages: fenced blocks, headings, links."""

import pathlib
import re
import subprocess

FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*(.*?)\s*$")
LINK = re.compile(r"(?<!\\)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)(?:\s+\"[^\"]*\")?\)")
IMAGE_TAG = re.compile(r"<(?:img|a|source)\b[^>]*?\b(?:src|srcset|href)=\"([^\"]+)\"")


class Block:
    """What stands between two fences. `flags` are the words after the language; name=value ones are
    in `values`."""

    def __init__(self, line, language, flags, values, lines):
        self.line, self.language, self.flags, self.values, self.lines = line, language, flags, values, lines

    @property
    def text(self):
        return "\n".join(self.lines) + "\n"


def read_page(text):
    """(blocks, lines outside of blocks with their numbers)"""
    blocks, outside, fence = [], [], None
    for number, line in enumerate(text.splitlines(), 1):
        found = FENCE.match(line)
        if fence is None and found:
            words = found[3].split()
            values = dict(word.split("=", 1) for word in words[1:] if "=" in word)
            flags = {word for word in words[1:] if "=" not in word}
            fence = found[2]
            blocks.append(Block(number, words[0] if words else "", flags, values, []))
        elif fence is not None and found and found[2].startswith(fence) and not found[3]:
            fence = None
        elif fence is not None:
            blocks[-1].lines.append(line)
        else:
            outside.append((number, line))
    if fence is not None:
        raise ValueError(f"the block of line {blocks[-1].line} does not end")
    return blocks, outside


def anchors_of(text):
    """The names by which GitHub leads to a page's headings."""
    anchors, seen = set(), {}
    for _, line in read_page(text)[1]:
        found = re.match(r"^#{1,6}\s+(.*?)\s*#*$", line)
        if found:
            title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", found[1])
            name = re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).replace(" ", "-")
            count = seen[name] = seen.get(name, -1) + 1
            anchors.add(f"{name}-{count}" if count else name)
        anchors.update(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", line))
    return anchors


def links_of(text):
    """(line, target) of links and pictures outside of blocks and of code in a line."""
    for number, line in read_page(text)[1]:
        plain = re.sub(r"`[^`]*`", "``", line)
        for target in LINK.findall(plain) + IMAGE_TAG.findall(plain):
            yield number, target


def pages_of(root):
    """All Markdown files that git tracks or would track; all where there is no git."""
    try:
        listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "--cached", "--others",
                                 "--exclude-standard", "*.md"], check=True, capture_output=True, text=True)
        names = [name for name in listed.stdout.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        names = [str(path.relative_to(root)) for path in root.rglob("*.md")]
        names = [name for name in names if name.split("/")[0] not in {".venv", "build", "bundle"}]
    return sorted(pathlib.PurePosixPath(name) for name in set(names) if (root / name).is_file())
