"""Reports: what was measured, where, under which load, and how it differs from the last one. Each is
written as Markdown for people and as JSON for the next comparison."""

import datetime
import json
import math
import os
import pathlib
import platform
import re
import subprocess
import sys

import figures
from suite import ROOT


def machine():
    memory = re.search(r"MemTotal:\s+(\d+)", read("/proc/meminfo"))
    names = sorted(set(re.findall(r"model name\s*: (.*)", read("/proc/cpuinfo"))))
    return {"cores": os.cpu_count(), "cpu": " ".join([platform.machine(), *names]),
            "memory_gb": round(int(memory[1]) / 1e6, 1) if memory else None,
            "system": f"{platform.system()} {platform.release()}"}


def read(path):
    try:
        return pathlib.Path(path).read_text()
    except OSError:
        return ""


def said(*command):
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def versions(run):
    from importlib import metadata
    found = {"python": platform.python_version(), "compiler": said("c++", "--version").split("\n")[0],
             "lockstep": said(run.program("lockstep"), "version").split("\n")[0].removeprefix("lockstep ")}
    for package in ("torch", "numpy", "tokenizers", "transformers"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            pass
    return {name: value for name, value in found.items() if value}


def commit():
    changed = "" if not said("git", "status", "--porcelain", "--untracked-files=no") else " with changes"
    return (said("git", "rev-parse", "--short=12", "HEAD") or "unknown") + changed


def last_result(folder, name):
    """The newest stored one, and its date."""
    for path in sorted(pathlib.Path(folder).glob(f"*-{name}.json"), reverse=True):
        try:
            return json.loads(path.read_text())
        except ValueError:
            continue
    return None


def make(bench, run, values, loads, command, quick):
    """The report as JSON has it. values: {key: ([ours], [peer])}"""
    rows = [figures.judge(metric, *values[metric.key]) for metric in bench.metrics if metric.key in values]
    return {"name": bench.name, "title": bench.title, "peer": bench.peer,
            "date": datetime.date.today().isoformat(), "command": command, "quick": quick,
            "options": run.options, "commit": commit(), "machine": machine(), "versions": versions(run),
            "load": {"before": loads[0], "after": loads[1]}, "rounds": run.number + 1, "metrics": rows,
            "details": run.details, "plots": sorted(run.plots), "notes": bench.notes}


def text_of(number):
    if number is None or not math.isfinite(number):
        return "-"
    size = abs(number)
    if size >= 1000:
        return f"{number:,.0f}"
    return f"{number:.{0 if size >= 100 else 1 if size >= 10 else 2}f}" if size >= 1 else f"{number:.3g}"


def spread(summary):
    if summary is None:
        return ""
    middle = text_of(summary["median"])
    if summary["least"] == summary["most"]:
        return middle
    return f"{middle} ({text_of(summary['least'])} to {text_of(summary['most'])})"


def goals(row):
    sign = "<=" if row["better"] == "lower" else ">="
    parts = [f">= {row['ratio_goal']:g} x"] if row["ratio_goal"] is not None else []
    if row["goal"] is not None:
        parts.append(f"{sign} {row['goal']:g} {row['unit']}")
    return ", ".join(parts) + (" (missed)" if row["missed"] and parts else "")


def table(report, before):
    head = ["what", "unit", "lockstep"]
    if report["peer"]:
        head += [report["peer"], "ratio"]
    head.append("goal")
    if before:
        head.append(f"since {before['date']}")
    old = {row["key"]: row for row in before["metrics"]} if before else {}
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in report["metrics"]:
        cells = [row["what"], row["unit"], spread(row["ours_summary"])]
        if report["peer"]:
            cells += [spread(row["peer_summary"]), spread(row.get("ratio"))]
        cells.append(goals(row))
        if before:
            found = figures.change(row, old[row["key"]]) if row["key"] in old else None
            verdict = f", {found[1]}" if found and found[1] != "same" else ""
            cells.append("" if found is None else f"{found[0]:+.0f} %{verdict}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def comparable(report, before):
    """A stored result counts where it was measured in the same way."""
    alike = before and all(before[key] == report[key] for key in ("quick", "options"))
    return before if alike else None


def how(rounds, peer):
    text = f"{rounds} repetition{'s' if rounds > 1 else ''}"
    if rounds > 1:
        text += (", in which the two take turns" if peer else "") + "; medians, in brackets the least and the most"
    return text + "." + (" A ratio says how many times better lockstep is." if peer else "")


def markdown(report, before):
    before = comparable(report, before)
    here = report["machine"]
    lines = [f"# {report['title']}, {report['date']}", "", f"`{report['command']}`", "",
             *table(report, before), ""]
    lines += [line for line in report["details"]] + ([""] if report["details"] else [])
    lines += [f"![{name}]({name})" for name in report["plots"]] + ([""] if report["plots"] else [])
    rounds = report["rounds"]
    lines.append(f"Machine: {here['cores']} cores, {here['cpu']}, {here['memory_gb']} GB, {here['system']}; load average "
                 f"before {report['load']['before']:.2f}, after {report['load']['after']:.2f}.")
    lines.append("Versions: " + ", ".join(f"{name} {value}" for name, value in report["versions"].items())
                 + f"; commit {report['commit']}.")
    lines.append(how(rounds, report["peer"]))
    if before and before["machine"] != here:
        lines.append(f"The result of {before['date']} is of another machine: {before['machine']['cores']} cores, {before['machine']['cpu']}.")
    if report["notes"]:
        lines.append(report["notes"])
    return "\n".join(lines) + "\n"


def save(report, text, plots, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{report['date']}-{report['name']}"
    for name, picture in plots.items():
        (folder / name).write_text(picture)
    stem.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    stem.with_suffix(".md").write_text(text)
    return stem.with_suffix(".md")


def warn(text):
    print(text, file=sys.stderr, flush=True)
