"""Links of all pages lead somewhere; what docs/troubleshooting.md quotes of ours is in the sources.

pages_test.py ROOT
"""

import pathlib
import re
import sys
import unittest
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from documents import anchors_of, links_of, pages_of, read_page  # noqa: E402
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
TROUBLE = ROOT / "docs/troubleshooting.md"
SOURCES = ("src", "include", "apps")


def dead_links(root, page):
    text = (root / page).read_text()
    for number, target in links_of(text):
        if re.match(r"[a-z]+:", target):
            continue  # the Internet is not ours to look after
        path, _, anchor = target.partition("#")
        other = (root / page.parent / urllib.parse.unquote(path)).resolve() if path else root / page
        if not other.exists():
            yield f"{page}:{number}: {target} is not there"
        elif not other.is_relative_to(root):
            yield f"{page}:{number}: {target} leads out of the tree"
        elif anchor and other.suffix == ".md" and anchor not in anchors_of(other.read_text()):
            yield f"{page}:{number}: {target}: no such heading"


def literals_of(text):
    """All that stands between quotes in C++ sources, with neighbours joined, as one long string."""
    found = re.findall(r'"((?:[^"\\\n]|\\.)*)"(\s*(?="))?', text)
    pieces = [piece.replace('\\"', '"') + ("" if space and "\n" in space else "\n") for piece, space in found]
    return "".join(pieces)


def quoted_messages(text):
    """(line, message) of the first column of tables with the heading "our message"."""
    inside = False
    for number, line in read_page(text)[1]:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[0] == "our message":
            inside = True
        elif inside and not set(cells[0]) <= set("-: "):
            yield number, re.findall(r"`([^`]+)`", cells[0])


class Pages(unittest.TestCase):
    def test_links_lead_somewhere(self):
        pages = pages_of(ROOT)
        self.assertGreater(len(pages), 20)
        self.assertEqual([problem for page in pages for problem in dead_links(ROOT, page)], [])

    def test_messages_of_ours_are_in_the_sources(self):
        files = [path for folder in SOURCES for path in (ROOT / folder).rglob("*")
                 if path.suffix in {".h", ".cpp", ".cu"}]
        literals = "\n".join(literals_of(path.read_text()) for path in files)
        rows = list(quoted_messages(TROUBLE.read_text()))
        self.assertGreater(len(rows), 20)
        for number, messages in rows:
            self.assertTrue(messages, f"troubleshooting.md:{number}: no message in backticks")
            for message in messages:
                # Capital words, numbers and dots stand for values, which are between literals.
                for piece in re.split(r"\.\.\.|\b[A-Z]+\d*\b|\b\d+(?:\.\d+)*\b", message):
                    piece = piece.strip(" '\"`:()")
                    with self.subTest(line=number, piece=piece):
                        self.assertTrue(len(piece) < 4 or piece in literals,
                                        f"troubleshooting.md:{number}: no source says '{piece}'")


class Rules(unittest.TestCase):
    def test_a_dead_link_and_a_dead_anchor_are_found(self):
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder).resolve()
            (root / "a.md").write_text("# One `two`, three\n[x](a.md#one-two-three) [y](b.md)\n[z](#four)\n"
                                       "`[code](c.md)`\n```text\n[block](d.md)\n```\n![p](e.png)\n")
            found = list(dead_links(root, pathlib.PurePosixPath("a.md")))
        self.assertEqual(found, ["a.md:2: b.md is not there", "a.md:3: #four: no such heading",
                                 "a.md:8: e.png is not there"])


if __name__ == "__main__":
    test_script.main()
