"""The rules by which pages are compared with what happens, on made-up pages."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import chapters_test  # noqa: E402
from documents import read_page  # noqa: E402
from shapes import difference  # noqa: E402
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402


class Shapes(unittest.TestCase):
    def test_decimals_are_any_number_and_whole_numbers_are_themselves(self):
        self.assertIsNone(difference(["Epoch 3 | Loss: 0.5"], ["Epoch 3 | Loss: 1e-05"]))
        self.assertIn("Epoch 3", difference(["Epoch 3 | Loss: 0.5"], ["Epoch 4 | Loss: 0.5"]))
        self.assertIsNone(difference(["921 steps/s"], ["7 steps/s"], numbers=True))

    def test_dots_stand_for_lines_and_for_text(self):
        self.assertIsNone(difference(["a", "...", "d"], ["a", "b", "c", "d"]))
        self.assertIsNone(difference(["pid ... ended"], ["pid 17 ended"]))
        self.assertIn("the end", difference(["a"], ["a", "b"]))
        self.assertIn("'d'", difference(["a", "...", "d"], ["a", "b"]))

    def test_lines_of_ranks_come_in_any_order(self):
        self.assertIsNone(difference(["[rank0] x", "[rank1] x"], ["[rank1] x", "[rank0] x"], unordered=True))
        self.assertIsNotNone(difference(["[rank0] x", "[rank0] x"], ["[rank0] x", "[rank1] x"], unordered=True))
        self.assertIsNotNone(difference(["[rank0] x"], ["[rank0] x", "[rank1] x"], unordered=True))


class Quotes(unittest.TestCase):
    SOURCE = "int main() {\n  first();\n  second();\n  third();\n}\n"

    def quoted(self, text):
        block = read_page(f"```cpp title=x.cpp\n{text}\n```\n")[0][0]
        return chapters_test.quoted_exactly(block, self.SOURCE)

    def test_a_quote_is_in_the_file_at_any_depth_and_may_leave_out_lines(self):
        self.assertTrue(self.quoted("first();\nsecond();"))
        self.assertTrue(self.quoted("first();\n// ...\nthird();"))

    def test_a_quote_that_is_not_in_the_file_or_in_another_order_is_refused(self):
        self.assertFalse(self.quoted("first();\nthird();"))
        self.assertFalse(self.quoted("third();\n// ...\nfirst();"))


class Commands(unittest.TestCase):
    def run_page(self, text):
        with tempfile.TemporaryDirectory() as folder:
            chapters_test.ROOT = chapters_test.BIN = pathlib.Path(folder)
            chapters_test.PYTHON = sys.executable
            (pathlib.Path(folder) / "page.md").write_text(text)
            chapters_test.Chapters().run_page("page.md")

    def test_commands_share_a_shell_a_folder_and_files(self):
        self.run_page("```python title=a.py\nprint('he' + 'llo')\n```\n"
                      "```console\n$ x=1\n$ python3 a.py && echo $x \\\n>   more\nhello\n1 more\n```\n")

    def test_what_is_printed_and_how_it_ends_count(self):
        with self.assertRaisesRegex(AssertionError, "expected 'b'"):
            self.run_page("```console\n$ echo a\nb\n```\n")
        with self.assertRaisesRegex(AssertionError, "ended with 3"):
            self.run_page("```console\n$ (exit 3)\n```\n")
        self.run_page("```console\n$ (exit 3)\n$ echo $?\n3\n```\n")

    def test_a_block_that_nothing_checks_is_refused(self):
        with self.assertRaisesRegex(ValueError, "that nothing checks"):
            self.run_page("```cpp\nint x;\n```\n")


if __name__ == "__main__":
    test_script.main()
