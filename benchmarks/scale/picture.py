"""The picture of the figures: the cost of each operation over the number of threads, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import chain, cycle
from math import ceil, floor, log10

from benchmarks.report import figure

WIDTH, HEIGHT = 940, 460
LEFT, RIGHT, TOP, BOTTOM = 70, 330, 20, 50
"""The room beside the lines: that on the right is for their names."""
APART = 17
"""From the base of a name to that of the next one."""
COLOURS = (
    "#4269d0",
    "#d97706",
    "#c2366b",
    "#2a9d8f",
    "#7b5ea7",
    "#8c6d46",
    "#3f8f3a",
    "#c0392b",
    "#64748b",
    "#111",
)

_STYLE = "text{font:12px sans-serif;fill:#333}line{stroke:#ddd}polyline{fill:none;stroke-width:2}"


def picture(sizes: Sequence[int], lines: Mapping[str, Sequence[float]]) -> str:
    """Lines of seconds, by name, over these sizes. Both axes have steps of a factor of ten."""
    bottom = floor(log10(min(chain.from_iterable(lines.values()))))
    top = ceil(log10(max(chain.from_iterable(lines.values()))))
    first, last = log10(sizes[0]), log10(sizes[-1])

    def x(size: float) -> float:
        return LEFT + (log10(size) - first) / ((last - first) or 1) * (WIDTH - LEFT - RIGHT)

    def y(seconds: float) -> float:
        return HEIGHT - BOTTOM - (log10(seconds) - bottom) / ((top - bottom) or 1) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>']
    for power in range(bottom, top + 1):
        height = y(10.0**power)
        parts.append(f'<line x1="{LEFT}" y1="{height:.1f}" x2="{WIDTH - RIGHT}" y2="{height:.1f}"/>')
        parts.append(_text(LEFT - 8, height + 4, figure(10.0**power, "seconds"), "end"))
    for size in sizes:
        parts.append(f'<line x1="{x(size):.1f}" y1="{TOP}" x2="{x(size):.1f}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(_text(x(size), HEIGHT - BOTTOM + 18, f"{size:,}", "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "threads in the store", "middle"))
    ends = {name: y(values[-1]) for name, values in lines.items()}
    for (name, height), colour in zip(_spread(ends), cycle(COLOURS)):
        points = " ".join(
            f"{x(size):.1f},{y(value):.1f}" for size, value in zip(sizes, lines[name], strict=True)
        )
        parts.append(f'<polyline points="{points}" stroke="{colour}"/>')
        parts.append(_text(WIDTH - RIGHT + 10, height + 4, name.replace("`", ""), "start", colour))
    box = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
    return "\n".join([f"<svg {box}>", f"<style>{_STYLE}</style>", *parts, "</svg>", ""])


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#333") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" style="fill:{colour}"'
    return f"<text {place}>{escape(text)}</text>"


def _spread(ends: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """The names from the top down, each with a height near the end of its line that leaves room for it."""
    least = TOP + 0.0
    left = len(ends)
    for name, height in sorted(ends.items(), key=lambda end: end[1]):
        most = HEIGHT - BOTTOM - APART * (left := left - 1)
        least = min(max(least, height), max(most, least))
        yield name, least
        least += APART
