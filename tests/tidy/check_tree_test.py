"""Shows that each rule of check_tree.py fires, on small trees made for it."""

import pathlib
import sys
import tempfile
import unittest

from check_tree import check_tree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

ARCHITECTURE = """\
| layer | holds | may include | libtorch |
|---|---|---|---|
| `core` | errors | none | no |
| `data` | samplers | `core` | ATen |
| `ddp` | wrapper | `core` | yes |
| `capi` | C | public headers, `core` | yes |

| header | layer |
|---|---|
| `lockstep/error.h` | `core` |
| `lockstep/ddp.h` | `ddp` |
"""


class CheckTree(unittest.TestCase):
    def problems(self, **files):
        """Checks a tree of a good skeleton and these files, whose names have __ for / and _dot_."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            tree = {"docs/architecture.md": ARCHITECTURE,
                    "include/lockstep/error.h": "#pragma once\n",
                    "include/lockstep/ddp.h": "#pragma once\n"}
            tree.update((name.replace("__", "/").replace("_dot_", "."), text)
                        for name, text in files.items())
            for name, text in tree.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return check_tree(root)

    def assert_one(self, expected, **files):
        problems = self.problems(**files)
        self.assertEqual(len(problems), 1, problems)
        self.assertIn(expected, problems[0])

    def test_a_good_tree_has_no_problems(self):
        self.assertEqual(self.problems(
            src__data__a_dot_cpp='#include <vector>\n#include <ATen/x.h>\n#include "lockstep/error.h"\n'
                                 '#include "core/b.h"\n#include "data/a.h"\n',
            src__capi__c_dot_cpp='#include "lockstep/ddp.h"\n',
            examples__x__main_dot_cpp="#include <torch/torch.h>\n#include <lockstep/ddp.h>\n",
            Makefile="all:\n\ttrue\n"), [])

    def test_inputs_of_fuzzers_may_be_anything(self):
        self.assertEqual(self.problems(tests__fuzz__corpus__options__a="--flag \t"), [])
        self.assertNotEqual(self.problems(tests__fuzz__options="--flag \t"), [])

    def test_a_layer_below_may_not_include_one_above(self):
        self.assert_one("layer core may not include data/a.h",
                        src__core__a_dot_cpp='#include "data/a.h"\n')
        self.assert_one("layer data may not include lockstep/ddp.h of layer ddp",
                        src__data__a_dot_cpp='#include "lockstep/ddp.h"\n')
        self.assert_one("layer core may not include lockstep/ddp.h",
                        include__lockstep__error_dot_h='#pragma once\n#include "lockstep/ddp.h"\n')
        self.assert_one("layer capi may not include ddp/a.h",
                        src__capi__a_dot_cpp='#include "ddp/a.h"\n')

    def test_layers_without_libtorch_include_none_of_it(self):
        self.assert_one("must do without c10/x.h", src__core__a_dot_cpp="#include <c10/x.h>\n")
        self.assert_one("must do without torch/x.h", src__data__a_dot_cpp="#include <torch/x.h>\n")

    def test_public_headers_stay_light(self):
        for heavy in ("torch/torch.h", "torch/types.h", "ATen/ATen.h",
                      "torch/csrc/distributed/c10d/Store.hpp"):
            self.assert_one(f"must not include {heavy}",
                            include__lockstep__ddp_dot_h=f"#pragma once\n#include <{heavy}>\n")
        self.assert_one("only public headers",
                        include__lockstep__ddp_dot_h='#pragma once\n#include "ddp/a.h"\n')

    def test_examples_use_public_headers_only(self):
        self.assert_one("only public headers", examples__x__main_dot_cpp='#include "core/a.h"\n')

    def test_the_tables_are_complete(self):
        self.assert_one("not in the table of public headers",
                        include__lockstep__new_dot_h="#pragma once\n")
        self.assert_one("src/new is not in the table of layers", src__new__a_dot_cpp="\n")
        self.assert_one("is in the table and not in include/",
                        docs__architecture_dot_md=ARCHITECTURE + "| `lockstep/gone.h` | `core` |\n")

    def test_includes_are_written_from_src(self):
        self.assert_one("name headers", src__core__a_dot_cpp='#include "a.h"\n')
        self.assert_one("not by the way to them", src__core__a_dot_cpp='#include "../core/a.h"\n')

    def test_text_is_clean(self):
        self.assert_one("white space at the end", a_dot_md="line \n")
        self.assert_one("a tab", a_dot_py="\tx\n")
        self.assert_one("no newline at the end", a_dot_md="line")
        self.assert_one("601 lines", a_dot_py="\n" * 601)
        self.assert_one("without #pragma once", src__core__a_dot_h="int a;\n")

    def test_no_path_of_one_machine(self):
        for folder in ("home/someone", "Users/someone", "root/x", "work/x"):
            self.assert_one("on one machine only", a_dot_md=f"see /{folder}\n")
        self.assertEqual(self.problems(a_dot_md="see build/home/x and ${tmp}/home/x\n"), [])


if __name__ == "__main__":
    test_script.main()
