"""Line charts as SVG, for the results of benchmarks; readable on light and on dark pages."""

import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 380, 70, 20, 44, 82
COLOURS = ("#2f7ed8", "#d9822b", "#3a9d5d", "#b5457c", "#7a6fd0", "#6b7785")


def steps(low, high, count=6):
    """Round numbers from low to high."""
    rough = (high - low) / count or 1
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]


def short(number):
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:g}{letter}"
    return f"{number:g}"


def line_chart(title, x_label, y_label, series):
    """series: {label: [(x, y), ...]}; a label that begins with "ideal" is dashed. x is shown by its
    logarithm: 1, 2, 4 and 8 ranks are equally far apart."""
    places = sorted({x for points in series.values() for x, _ in points})
    high = 1.08 * max(y for points in series.values() for _, y in points)
    first, last = math.log2(places[0]), math.log2(places[-1])

    def x_of(x):
        return LEFT + (math.log2(x) - first) / (last - first or 1) * (WIDTH - LEFT - RIGHT)

    def y_of(y):
        return HEIGHT - BOTTOM - y / high * (HEIGHT - TOP - BOTTOM)

    def text(x, y, content, more=""):
        return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(content)}</text>'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
             'font-family="system-ui, sans-serif" font-size="12" fill="#6b7785">',
             text(LEFT, 22, title, 'font-size="15" font-weight="600"')]
    for y in steps(0, high):
        parts += [f'<path d="M{LEFT} {y_of(y):.1f}H{WIDTH - RIGHT}" stroke="#8884" fill="none"/>',
                  text(LEFT - 8, y_of(y) + 4, short(y), 'text-anchor="end"')]
    parts += [text(x_of(x), HEIGHT - BOTTOM + 18, f"{x:g}", 'text-anchor="middle"') for x in places]
    parts += [text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 36, x_label, 'text-anchor="middle"'),
              text(16, (TOP + HEIGHT - BOTTOM) / 2, y_label,
                   f'text-anchor="middle" transform="rotate(-90 16 {(TOP + HEIGHT - BOTTOM) / 2:.0f})"')]
    at = LEFT
    for (label, points), colour in zip(series.items(), COLOURS):
        dashed = ' stroke-dasharray="5 5"' if label.startswith("ideal") else ""
        line = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in sorted(points))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dashed}/>')
        if not dashed:
            parts += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3" fill="{colour}"/>' for x, y in points]
        parts += [f'<path d="M{at} {HEIGHT - 18}h22" stroke="{colour}" stroke-width="2"{dashed}/>', text(at + 28, HEIGHT - 14, label)]
        at += 48 + 7 * len(label)
    return "\n".join(parts) + "\n</svg>\n"
