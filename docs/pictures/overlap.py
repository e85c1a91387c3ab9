#!/usr/bin/env python3
"""Draws a step of a trace of lockstep's step profiler as SVG: what the two threads of a rank do, and when.

    lockstep run --nproc-per-node 2 07_pieces inside && overlap.py trace_rank_0.json > overlap.svg
"""

import json
import sys
from xml.sax.saxutils import escape

WIDTH, LEFT, ROW, TOP = 960, 130, 34, 30
COLOURS = {"forward": "#4f83cc", "backward": "#e0803a", "all_reduce": "#3f9b63", "step": "#8a63b8"}
KINDS = (("forward", "aten::addmm"), ("backward", "AddmmBackward0"), ("step", "aten::add_"),
         ("all_reduce", "lockstep::all_reduce"))


def spans_of(trace):
    """(kind, thread, begin, duration) in microseconds, from the first one on."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    spans = [(kind, event["tid"], event["ts"], event["dur"])
             for event in events for kind, name in KINDS if event["name"] == name]
    backward = [begin for kind, _, begin, _ in spans if kind == "backward"]
    last = max(begin + took for kind, _, begin, took in spans if kind == "backward")
    # In backward the optimizer's operation adds, too: only what comes after it is the step.
    spans = [span for span in spans if span[0] != "step" or span[2] > last]
    first = min(begin for _, _, begin, _ in spans)
    main = next(thread for kind, thread, begin, _ in spans if begin == min(backward))
    return sorted((kind, thread == main, begin - first, took) for kind, thread, begin, took in spans)


def svg_of(spans):
    end = max(begin + took for _, _, begin, took in spans)
    scale = (WIDTH - LEFT - 20) / end
    height = TOP + 2 * ROW + 60
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
           'font-size="13">', f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>']
    for row, label in enumerate(("the program", "reductions")):
        y = TOP + row * (ROW + 8)
        out.append(f'<text x="12" y="{y + 22}" fill="#333333">{escape(label)}</text>')
        out.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - 20}" height="{ROW}" fill="#f2f2f2"/>')
    for kind, on_main, begin, took in spans:
        y = TOP + (0 if on_main else 1) * (ROW + 8)
        out.append(f'<rect x="{LEFT + begin * scale:.1f}" y="{y + 3}" width="{max(took * scale - 0.7, 1.5):.1f}" '
                   f'height="{ROW - 6}" fill="{COLOURS[kind]}"><title>{kind}: {took / 1000:.2f} ms</title></rect>')
    x = LEFT
    for kind, colour in COLOURS.items():
        out.append(f'<rect x="{x}" y="{height - 36}" width="14" height="14" fill="{colour}"/>')
        out.append(f'<text x="{x + 20}" y="{height - 24}" fill="#333333">{kind}</text>')
        x += 130
    out.append(f'<text x="{WIDTH - 20}" y="{height - 24}" text-anchor="end" fill="#333333">'
               f'{end / 1000:.1f} ms in all</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        sys.stdout.write(svg_of(spans_of(json.load(file))))
