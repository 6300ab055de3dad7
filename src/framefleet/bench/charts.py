"""Charts as SVG text, drawn without a library so that a report is one small file that works offline. Pure."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

import msgspec

WIDTH, HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 14, 46
_ROW, _BAR = 30, 18
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8f98", "#b8a800", "#5e4fa2", "#7a4b2a")
"""Told apart also by those who see colours otherwise (after Okabe and Ito)."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """Points of one arm, in the order of x; `low` and `high` are the ends of their intervals, where there are some."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    is_dashed: bool = False


class _Scale:
    """Values to pixels."""

    def __init__(self, low: float, high: float, start: float, end: float, *, is_log: bool = False) -> None:
        self._is_log = is_log
        self.low, self.high = low, high if high > low else low + 1
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        low, high = self._of(self.low), self._of(self.high)
        return self._start + (self._of(value) - low) / (high - low) * (self._end - self._start)

    def _of(self, value: float) -> float:
        return math.log2(max(value, 1e-9)) if self._is_log else value


def line_chart(
    lines: Sequence[Line], *, x: str, y: str, is_log: bool = False, has_dots: bool = True, most: float | None = None
) -> str:
    """Lines with error bars, from 0 up. `is_log`: x in powers of two, ticks where points are. `most`: top of y."""
    xs = [value for line in lines for value in line.x]
    ys = [value for line in lines for value in (*line.y, *line.high) if math.isfinite(value)]
    if not xs or not ys:
        return ""
    across = _Scale(min(xs), max(xs), _LEFT + 8, WIDTH - _RIGHT - 8, is_log=is_log)
    up = _Scale(0.0, most or max(max(ys) * 1.08, 1e-9), HEIGHT - _BOTTOM, _TOP)
    x_ticks = sorted(set(xs)) if is_log else nice_ticks(min(xs), max(xs))
    parts = [_grid(across, up, x_ticks, nice_ticks(0, up.high, count=4)), _titles(x, y)]
    for number, line in enumerate(lines):
        parts.append(_drawn(line, PALETTE[number % len(PALETTE)], across, up, has_dots=has_dots))
    return _svg(HEIGHT, parts, f"{y} against {x}") + legend([line.name for line in lines])


def stacked_bars(rows: Mapping[str, Mapping[str, float]], *, unit: str) -> str:
    """One bar per row, its parts side by side; parts keep their colour over all rows."""
    names = list(dict.fromkeys(name for parts in rows.values() for name in parts))
    longest = max((sum(parts.values()) for parts in rows.values()), default=0.0)
    if longest <= 0:
        return ""
    label = _label_width(rows)
    across = _Scale(0, longest, label, WIDTH - 84)
    drawn = []
    for row, (title, parts) in enumerate(rows.items()):
        top, at = 6 + row * _ROW, 0.0
        drawn.append(_text(label - 8, top + 13, title, anchor="end"))
        for name, value in parts.items():
            colour = PALETTE[names.index(name) % len(PALETTE)]
            width = max(across(at + value) - across(at), 0)
            drawn.append(
                f'<rect x="{across(at):.1f}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="{colour}">'
                f"<title>{html.escape(name)}: {short(value)} {unit}</title></rect>"
            )
            at += value
        drawn.append(_text(across(at) + 6, top + 13, f"{short(at)} {unit}", anchor="start"))
    return _svg(len(rows) * _ROW + 10, drawn, f"{unit} by part") + legend(names)


def share_bars(rows: Mapping[str, float | None], *, mark: float | None = None, marked: Sequence[str] = ()) -> str:
    """Shares of 0 to 1 as bars; None is drawn as not read. `mark` is a line across; `marked` rows stand out."""
    if not rows:
        return ""
    label = _label_width(rows)
    across = _Scale(0, 1, label, WIDTH - 84)
    drawn = []
    for row, (title, value) in enumerate(rows.items()):
        top = 6 + row * _ROW
        drawn.append(_text(label - 8, top + 13, title, anchor="end", is_strong=title in marked))
        track = f'width="{across(1) - label:.1f}" height="{_BAR}" class="track"'
        drawn.append(f'<rect x="{label}" y="{top}" {track}/>')
        if value is None:
            drawn.append(_text(label + 6, top + 13, "not read", anchor="start"))
            continue
        colour = PALETTE[5] if title in marked else PALETTE[0]
        width = max(across(min(value, 1)) - label, 0)
        drawn.append(f'<rect x="{label}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>')
        drawn.append(_text(across(1) + 6, top + 13, f"{value:.0%}", anchor="start"))
    if mark is not None:
        end = len(rows) * _ROW + 4
        drawn.append(f'<line x1="{across(mark):.1f}" x2="{across(mark):.1f}" y1="2" y2="{end}" class="mark"/>')
    return _svg(len(rows) * _ROW + 10, drawn, "shares of use")


def interval_bars(rows: Mapping[str, tuple[float, float, float]]) -> str:
    """Estimates with their intervals around zero, as (estimate, low, high) of relative changes."""
    if not rows:
        return ""
    label = _label_width(rows)
    ends = [max(min(value, 3.0), -1.0) for row in rows.values() for value in row]
    across = _Scale(min([*ends, -0.05]), max([*ends, 0.05]), label + 8, WIDTH - 100)
    drawn = [f'<line x1="{across(0):.1f}" x2="{across(0):.1f}" y1="2" y2="{len(rows) * _ROW + 4}" class="axis"/>']
    for row, (title, (estimate, low, high)) in enumerate(rows.items()):
        middle = 6 + row * _ROW + _BAR / 2
        left, right = across(max(low, across.low)), across(min(high, across.high))
        drawn.append(_text(label - 8, middle + 4, title, anchor="end"))
        drawn.append(f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{middle}" y2="{middle}" class="whisker"/>')
        drawn.append(f'<circle cx="{across(estimate):.1f}" cy="{middle}" r="5" fill="{PALETTE[0]}"/>')
        drawn.append(_text(WIDTH - 92, middle + 4, change(estimate), anchor="start"))
    return _svg(len(rows) * _ROW + 10, drawn, "gains")


def legend(names: Sequence[str]) -> str:
    """Names beside their colours, for more than one."""
    if len(names) < 2:
        return ""
    keys = "".join(
        f'<span><i style="background:{PALETTE[number % len(PALETTE)]}"></i>{html.escape(name)}</span>'
        for number, name in enumerate(names)
    )
    return f'<p class="legend">{keys}</p>'


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values from `low` to `high`, about so many."""
    if high <= low:
        return [low]
    raw = (high - low) / max(count, 1)
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def change(value: float, digits: int = 0) -> str:
    """A relative change for people: +12%; beyond ten times as much, only that."""
    return f"{value:+.{digits}%}" if value < 10 else "over +1000%"


def short(value: float) -> str:
    """Three digits: 0.0123, 4.57, 1,230."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _drawn(line: Line, colour: str, across: _Scale, up: _Scale, *, has_dots: bool) -> str:
    points = [(across(x), up(min(y, up.high))) for x, y in zip(line.x, line.y, strict=True)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = ' stroke-dasharray="5 4"' if line.is_dashed else ""
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>']
    for (x, _), low, high in zip(points, line.low, line.high, strict=False):
        if math.isfinite(low) and math.isfinite(high):
            top, bottom = up(min(high, up.high)), up(max(low, 0))
            parts.append(
                f'<path d="M{x - 4:.1f} {top:.1f}h8m-4 0V{bottom:.1f}m-4 0h8" stroke="{colour}" stroke-width="1.5"'
                ' fill="none"/>'
            )
    if has_dots:
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in points]
    return "".join(parts)


def _grid(across: _Scale, up: _Scale, x_ticks: Sequence[float], y_ticks: Sequence[float]) -> str:
    parts = []
    for value in y_ticks:
        y = up(value)
        parts.append(f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(_text(_LEFT - 8, y + 4, short(value), anchor="end"))
    parts += [_text(across(value), HEIGHT - _BOTTOM + 18, short(value), anchor="middle") for value in x_ticks]
    base = HEIGHT - _BOTTOM
    parts.append(f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{base}" y2="{base}" class="axis"/>')
    return "".join(parts)


def _titles(x: str, y: str) -> str:
    middle = (HEIGHT - _BOTTOM + _TOP) / 2
    across = _text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 6, x, anchor="middle", style="name")
    up = f'<g transform="rotate(-90 14 {middle})">{_text(14, middle, y, anchor="middle", style="name")}</g>'
    return across + up


def _text(x: float, y: float, text: str, *, anchor: str, style: str = "", is_strong: bool = False) -> str:
    names = " ".join(name for name in (style, "strong" if is_strong else "") if name)
    marks = f' class="{names}"' if names else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{marks}>{html.escape(text)}</text>'


def _label_width(rows: Mapping[str, object]) -> int:
    return min(300, 24 + int(6.8 * max(map(len, rows), default=0)))


def _svg(height: float, parts: Sequence[str], about: str) -> str:
    size = f'viewBox="0 0 {WIDTH} {height:.0f}"'
    return f'<svg {size} role="img" aria-label="{html.escape(about)}">{"".join(parts)}</svg>'
