"""Bar charts as SVG: readable in a browser and in a diff, and the same bytes for the same data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from benchmarks.harness.stats import Spread

_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 110, 100, 46, 34
_BAR, _GAP, _GROUP_GAP = 20, 4, 16
_COLOURS = {"attnroute": "#0b6e4f"}
_OTHER_COLOUR = "#9aa5b1"
_INK, _GRID = "#1f2933", "#e4e7eb"


@dataclass(frozen=True)
class Bar:
    """One bar with its whisker from the lowest to the highest round."""

    label: str
    spread: Spread


def bar_chart(title: str, unit: str, groups: Sequence[tuple[str, Sequence[Bar]]]) -> str:
    """Horizontal bars in named groups, one common axis from zero.

    Raises ValueError without bars. Values below zero (added latency within noise) are drawn as 0.
    """
    bars = [bar for _, members in groups for bar in members]
    if not bars:
        raise ValueError(f"chart `{title}` has no bars")
    step = _axis_step(max(bar.spread.high for bar in bars))
    top = step * math.ceil(max(bar.spread.high for bar in bars) / step)
    scale = (_WIDTH - _LEFT - _RIGHT) / top
    marks: list[str] = []
    y = _TOP
    for name, members in groups:
        if name:
            marks.append(_text(12, y + 11, name, weight="bold"))
            y += 20
        for bar in members:
            marks.extend(_bar(bar, y, scale))
            y += _BAR + _GAP
        y += _GROUP_GAP
    bottom = y - _GROUP_GAP
    size = f'width="{_WIDTH}" height="{bottom + _BOTTOM}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect {size} fill="#ffffff"/>',
            _text(12, 24, f"{title} ({unit})", size=15, weight="bold"),
            *_axis(step, top, scale, bottom),
            *marks,
            "</svg>",
            "",
        ]
    )


def _axis_step(highest: float) -> float:
    """1, 2 or 5 times a power of ten, for four to ten lines."""
    if highest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(highest / 4))
    return power * next(factor for factor in (1, 2, 5, 10) if highest / (power * factor) <= 8)


def _axis(step: float, top: float, scale: float, bottom: int) -> list[str]:
    lines = []
    for index in range(round(top / step) + 1):
        x = _LEFT + index * step * scale
        lines.append(f'<path d="M{x:.1f} {_TOP - 8}V{bottom}" stroke="{_GRID}"/>')
        lines.append(_text(x, bottom + 18, f"{index * step:g}", anchor="middle"))
    return lines


def _bar(bar: Bar, y: int, scale: float) -> list[str]:
    def at(value: float) -> float:
        return _LEFT + max(0.0, value) * scale

    colour = _COLOURS.get(bar.label, _OTHER_COLOUR)
    middle = y + _BAR / 2
    low, high = at(bar.spread.low), at(bar.spread.high)
    whisker = f"M{low:.1f} {middle}H{high:.1f}M{low:.1f} {y + 5}v10M{high:.1f} {y + 5}v10"
    width = at(bar.spread.median) - _LEFT
    weight = "bold" if bar.label in _COLOURS else "normal"
    return [
        _text(_LEFT - 8, y + 14, bar.label, anchor="end", weight=weight),
        f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>',
        f'<path d="{whisker}" stroke="{_INK}" fill="none"/>',
        _text(max(high, _LEFT + width) + 6, y + 14, f"{bar.spread.median:.1f}", weight=weight),
    ]


def _text(
    x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'font-weight="{weight}" fill="{_INK}">{escape(text)}</text>'
    )
