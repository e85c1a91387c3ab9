#!/usr/bin/env python3
"""Runs every case of cases.py under lockstep and compares with what torchrun did (*.json).

    compare.py LOCKSTEP [case ...]

Differences are allowed only by the rules below. Each has an entry with its reason in
docs/torchrun_compatibility.md, and the two lists must be the same.
"""
import ipaddress
import json
import pathlib
import re
import subprocess
import sys

import cases
from runner import SOURCE, Run, missing
import test_script  # beside ports.py, which runner has found

DOCUMENT = SOURCE.parents[2] / "docs" / "torchrun_compatibility.md"


class Difference:
    """One value that is not as recorded. `path` says where it is, from the outside in."""

    def __init__(self, case, record, path, expected, actual):
        self.case, self.record = case, record
        self.path, self.expected, self.actual = path, expected, actual

    def __str__(self):
        return (f"{self.case.group}/{self.case.name}: {' > '.join(self.path)}: "
                f"torchrun {self.expected!r}, lockstep {self.actual!r}")

    def is_variable(self, name):
        return self.path[-2:] == ["environment", name]

    def has_option(self, start):
        words = [word for node in self.case.nodes for word in node]
        return any(word.startswith(start) for word in words)


def mistake_ends_with_2(d):
    return (d.path[0] == "exit" and d.expected == "failure" and d.actual == "usage"
            and not d.record["workers"])


def address_is_numeric(d):
    return (d.is_variable("MASTER_ADDR") and d.expected in ("<hostname>", "localhost")
            and is_address(d.actual))


def is_address(text):
    try:
        ipaddress.ip_address(text)
        return True
    except ValueError:
        return False


def error_file_in_run_dir(d):
    return (d.is_variable("TORCHELASTIC_ERROR_FILE") and "torchelastic_<random>" in d.expected
            and isinstance(d.actual, str) and d.actual.endswith("/error.json"))


def own_variables(d):
    return (d.path[-1] == "added" and d.expected == []
            and all(name.startswith("LOCKSTEP_") for name in d.actual))


def run_path_is_a_program(d):
    return "command" in d.path and (d.has_option("--run-path")
                                    or "PET_RUN_PATH" in d.case.environment)


def filtered_files_come_with_lines(d):
    return d.path[-1].endswith(("/filtered_stdout.log",
                                "/filtered_stderr.log")) and d.expected == [] and d.actual is None


def tee_keeps_its_prefix(d):
    return (d.path[0] in ("stdout", "stderr") and d.has_option("--log-dir=/dev/null")
            and [re.sub(r"^\[default\d\]:", "", line) for line in d.actual] == d.expected)


def report_shows_last_lines(d):
    return (d.path == ["stderr"] and d.record["exit"] != "success"
            and [line for line in d.actual if not line.startswith("    | ")] == d.expected)


def static_store_has_its_own_port(d):
    return (d.is_variable("MASTER_PORT") and d.expected == "<port>" and d.actual == "<free port>"
            and len(d.case.nodes) > 1)


def one_node_needs_no_etcd(d):
    return (len(d.case.nodes) == 1 and d.has_option("--rdzv-backend=etcd")
            and d.record["exit"] == ["failure"])


RULES = {
    "mistake-ends-with-2": mistake_ends_with_2,
    "address-is-numeric": address_is_numeric,
    "error-file-in-run-dir": error_file_in_run_dir,
    "own-variables": own_variables,
    "run-path-is-a-program": run_path_is_a_program,
    "filtered-files-come-with-lines": filtered_files_come_with_lines,
    "tee-keeps-its-prefix": tee_keeps_its_prefix,
    "report-shows-last-lines": report_shows_last_lines,
    "static-store-has-its-own-port": static_store_has_its_own_port,
    "one-node-needs-no-etcd": one_node_needs_no_etcd,
}


def differences(case, record, path, expected, actual):
    """Goes down both values together and yields where they part."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted(set(expected) | set(actual)):
            yield from differences(case, record, path + [key], expected.get(key), actual.get(key))
    elif (isinstance(expected, list) and isinstance(actual, list)
          and len(expected) == len(actual) and path[-1:] == ["exit"]):
        for node, pair in enumerate(zip(expected, actual)):
            yield from differences(case, record, path + [f"node {node}"], *pair)
    elif expected != actual:
        yield Difference(case, record, path, expected, actual)


def compare(case, record, launcher, used):
    """Failures, as text."""
    # Several nodes want a secret, or to be told that there is none (see the document).
    extra = ["--insecure"] if len(case.nodes) > 1 else []
    with Run(case, launcher, extra) as run:
        try:
            result = run.run()
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            return [f"{case.group}/{case.name}: {error}"]
    failures = []
    for key in ("exit", "workers", "files", "stdout", "stderr"):
        for difference in differences(case, record, [key], record[key], result[key]):
            name = next((n for n, rule in RULES.items() if rule(difference)), None)
            if name is None:
                failures.append(str(difference))
            else:
                used.add(name)
    return failures


def documented_rules():
    text = DOCUMENT.read_text()
    section = text.split("\n## Differences that the comparison allows\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `([a-z0-9-]+)` \|", section, re.MULTILINE))


def main():
    binary = pathlib.Path(sys.argv[1]).resolve()
    launcher = {"run": [str(binary), "run"], "launch": [str(binary), "launch"]}
    wanted = set(sys.argv[2:])
    failures = []
    if documented_rules() != set(RULES):
        failures.append(f"{DOCUMENT.name} and the rules differ in "
                        f"{sorted(documented_rules() ^ set(RULES))}")
    records, used, count = {}, set(), 0
    for case in cases.CASES:
        if case.group not in records:
            records[case.group] = json.loads((SOURCE / f"{case.group}.json").read_text())
        record = records[case.group].get(case.name)
        if record is None:
            failures.append(f"{case.group}/{case.name} has no record; run record.py")
        elif wanted and case.name not in wanted:
            continue
        elif why := missing(case):
            test_script.left_out(f"{case.group}/{case.name}", f"this machine has {why}")
        else:
            failures += compare(case, record, launcher, used)
            count += 1
    if not wanted and not failures and used != set(RULES):
        failures.append(f"not needed any more: {sorted(set(RULES) - used)}")
    print(*failures, sep="\n")
    print(f"{count} command lines, {len(failures)} differences that are not allowed")
    return 1 if failures or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
