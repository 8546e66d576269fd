"""The figure: latency and bandwidth over size as an SVG that suits light and dark pages.

Four panels, both axes logarithmic. A line's label stands at its right end, so that no legend has
to be looked up; labels that would overlap are pushed apart.
"""

import math
import textwrap
from xml.sax.saxutils import escape

from bench import series
from bench.table import bytes_text, number

PLOT_WIDTH, PLOT_HEIGHT = 330, 290
LEFT, LABELS, TOP, BOTTOM, GAP = 52, 168, 46, 40, 24
PANEL_WIDTH = LEFT + PLOT_WIDTH + LABELS
PANEL_HEIGHT = TOP + PLOT_HEIGHT + BOTTOM
FOOT, FOOT_LINE, FOOT_COLUMNS = 44, 16, 150
LABEL_HEIGHT = 14
LABEL_GAP = 14

# Colours, each for light pages and for dark ones. Spelled out for both, as not every viewer of SVG
# knows variables.
COLOURS = {
    "paper": ("#ffffff", "#0d1117"), "ink": ("#1f2328", "#e6edf3"), "soft": ("#59636e", "#9da7b1"),
    "grid": ("#d8dee4", "#2d343c"), "write": ("#0a58ca", "#5aa2ff"), "read": ("#0f7b4f", "#3fc98a"),
    "send": ("#8a2fc0", "#c78bf2"), "limit": ("#1f2328", "#e6edf3"), "ucx": ("#b35900", "#f0944a"),
    "fabric": ("#94731a", "#d8b84a"), "tcp": ("#6e7781", "#8b949e"),
}
FILLED = ("paper", "ink", "soft")
OWN = ("write", "read", "send")
SHAPES = """
text { font-family: system-ui, sans-serif; font-size: 11px }
text.title { font-size: 14px; font-weight: 600 }
path { fill: none; stroke-width: 1.3 }
path.grid { stroke-width: 1 }
path.own { stroke-width: 2.6 }
path.dash { stroke-dasharray: 5 3 }
path.lead { stroke-width: 0.7; stroke-dasharray: 1 2 }
"""


def colours(scheme):
    """The rules of one colour scheme: 0 for light, 1 for dark."""
    rules = []
    for name, pair in COLOURS.items():
        if name not in FILLED:
            rules.append(f"path.{name} {{ stroke: {pair[scheme]} }}")
        rules.append(f"text.{name}, circle.{name}, rect.{name} {{ fill: {pair[scheme]} }}")
    return "\n".join(rules)


def style_sheet():
    """Shapes, light colours, and dark ones for readers who prefer them."""
    return (f"{SHAPES}{colours(0)}\n@media (prefers-color-scheme: dark) {{\n{colours(1)}\n}}\n")


class Axes:
    """Where a size and a value stand in a panel, in pixels."""

    def __init__(self, sizes, values):
        self.sizes = list(sizes)
        # To half a decade, so that little of the panel stays empty.
        low, high = 2 * math.log10(min(values)), 2 * math.log10(max(values))
        self.low, self.high = math.floor(low) / 2, max(math.ceil(high), math.floor(low) + 1) / 2

    def x(self, size):
        """Sizes stand by their logarithm."""
        first, last = math.log2(self.sizes[0]), math.log2(self.sizes[-1])
        return LEFT + PLOT_WIDTH * (math.log2(size) - first) / ((last - first) or 1)

    def y(self, value):
        """Values stand by theirs, upwards."""
        part = (math.log10(value) - self.low) / (self.high - self.low)
        return TOP + PLOT_HEIGHT * (1 - part)

    def decades(self):
        """The values of the horizontal lines."""
        return [10.0 ** power for power in range(math.ceil(self.low), math.floor(self.high) + 1)]


def spread(wanted, low, high):
    """Positions as near to the wanted ones as they can be without overlapping, in their order."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = [0.0] * len(wanted)
    above = low - LABEL_HEIGHT
    for i in order:
        placed[i] = above = max(wanted[i], above + LABEL_HEIGHT)
    below = high + LABEL_HEIGHT
    for i in reversed(order):
        placed[i] = below = min(placed[i], below - LABEL_HEIGHT)
    return placed


def size_text(size):
    """A size with its unit."""
    return f"{bytes_text(size)}{'B' if size >= 1024 else ' B'}"


def grid(axes):
    """The axes' lines and their words."""
    right = LEFT + PLOT_WIDTH
    yield f'<path class="grid" d="M{LEFT} {TOP}H{right}M{LEFT} {TOP + PLOT_HEIGHT}H{right}"/>'
    for value in axes.decades():
        y = axes.y(value)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{right}"/>'
        yield (f'<text class="soft" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
               f'{value:,g}</text>')
    for size in axes.sizes:
        x = axes.x(size)
        yield f'<path class="grid" d="M{x:.1f} {TOP}V{TOP + PLOT_HEIGHT}"/>'
        yield (f'<text class="soft" x="{x:.1f}" y="{TOP + PLOT_HEIGHT + 16}" '
               f'text-anchor="middle">{size_text(size)}</text>')


def line(axes, style, points):
    """One line with a dot for each figure."""
    places = [(axes.x(size), axes.y(value)) for size, value in points]
    kind = " own" if style.family in OWN else " dash" if style.family == "limit" else ""
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    yield f'<path class="{style.family}{kind}" d="M{path}"/>'
    for (x, y), (size, value) in zip(places, points):
        yield (f'<circle class="{style.family}" cx="{x:.1f}" cy="{y:.1f}" r="2.4"><title>'
               f'{escape(style.label)}, {size_text(size)}: {number(value)}</title></circle>')


def labels(axes, drawn):
    """The lines' names at their right ends."""
    right = LEFT + PLOT_WIDTH
    ends = [(axes.x(points[-1][0]), axes.y(points[-1][1])) for _, points in drawn]
    places = spread([y for _, y in ends], TOP, TOP + PLOT_HEIGHT)
    for (style, _), (x, y), place in zip(drawn, ends, places):
        yield (f'<path class="lead {style.family}" d="M{x:.1f} {y:.1f}L{right:.1f} {y:.1f}'
               f'L{right + LABEL_GAP - 3} {place:.1f}"/>')
        weight = ' font-weight="600"' if style.family in OWN else ""
        yield (f'<text class="{style.family}"{weight} x="{right + LABEL_GAP}" '
               f'y="{place + 4:.1f}">{escape(style.label)}</text>')


def panel_svg(panel, results):
    """One panel at the origin."""
    drawn = [(style, points) for style in panel.series if style.drawn
             if (points := series.points(panel, style, results))]
    yield f'<text class="title ink" x="{LEFT}" y="20">{escape(panel.title)}</text>'
    yield f'<text class="soft" x="{LEFT}" y="36">{escape(panel.unit)} over message size</text>'
    if not drawn:
        yield f'<text class="soft" x="{LEFT}" y="{TOP + 20}">not measured</text>'
        return
    axes = Axes(panel.sizes, [value for _, points in drawn for _, value in points])
    yield from grid(axes)
    for style, points in drawn:
        yield from line(axes, style, points)
    yield from labels(axes, drawn)


def svg(panels, results, circumstances):
    """The whole figure: panels in two columns, the circumstances below."""
    rows = (len(panels) + 1) // 2
    width, height = 2 * PANEL_WIDTH + GAP, rows * (PANEL_HEIGHT + GAP) + FOOT
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
           f'width="{width}" height="{height}" role="img">',
           "<title>Latency and bandwidth of Causeway over size, beside the limits of the machine "
           "and other transports</title>", f"<style>{style_sheet()}</style>",
           f'<rect class="paper" width="{width}" height="{height}"/>']
    for i, panel in enumerate(panels):
        x, y = i % 2 * (PANEL_WIDTH + GAP), i // 2 * (PANEL_HEIGHT + GAP)
        out += [f'<g transform="translate({x} {y})">', *panel_svg(panel, results), "</g>"]
    for i, part in enumerate(textwrap.wrap(circumstances, FOOT_COLUMNS)):
        y = height - FOOT + FOOT_LINE * (i + 1)
        out.append(f'<text class="soft" x="{LEFT}" y="{y}">{escape(part)}</text>')
    out += ["</svg>", ""]
    return "\n".join(out)
