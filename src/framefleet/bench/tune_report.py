"""What a search of settings has to say, as a Report. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from framefleet.bench.charts import Line, change, line_chart, short
from framefleet.bench.fleet_values import BUDGET
from framefleet.bench.ladder import Settings, Value
from framefleet.bench.report import Block, Report, Section, Tone, chart, code, facts, table, text
from framefleet.bench.tune import Point, TuneResult
from framefleet.errors import ConfigError
from framefleet.units import GIB, parse_bytes

MOST_ROWS = 40


def tune_report(found: TuneResult) -> Report:
    """All of it."""
    return Report(
        title="Which settings suit this fleet",
        verdict=sentence(found),
        tone=_tone(found),
        advice=tuple(advice(found)),
        sections=(
            Section(
                title="What to run",
                blocks=(code(found.fleet_toml), text("One replica of it:"), code(found.engine_line)),
            ),
            _knee(found),
            *_ladders(found),
            Section(title="Everything that was tried", blocks=(points_table(found),)),
            _about(found),
        ),
        raw_files=(Path(found.log).name, "report.json"),
    )


def sentence(found: TuneResult) -> str:
    """The verdict in one sentence."""
    chosen = ", ".join(f"{name} {value}" for name, value in found.chosen.items())
    if found.applied is not None and not found.applied.kept:
        return f"Rolled back: {'; '.join(found.applied.reasons)}."
    done = "Applied and kept" if found.applied is not None else "Best"
    if found.gain is None:
        return f"{done}: {chosen}; too few trials to say what it gains."
    gain = found.gain.gain
    bound = f"{change(gain.estimate)} ({change(gain.low)} to {change(gain.high)})"
    says = {
        "better": f"{bound} over today's settings",
        "same": "as fast as today's settings",
        "worse": f"{bound}: slower than today's settings, so leave them",
        "not clear": f"{bound} over today's settings, which is not clear",
    }
    return f"{done}: {chosen}; {says[found.gain.claim]}."


def advice(found: TuneResult) -> list[str]:
    """Beside the verdict."""
    ends = {
        "no more gain": "more in flight gained less than the smallest effect",
        "end of the ladder": "the ladder ended there",
        "errors": "beyond it requests failed",
        "too slow": "beyond it answers took too long",
    }
    knee = found.knee
    lines = [f"With today's settings {knee.concurrency} requests in flight are enough: {ends[knee.reason]}."]
    if found.fastest != found.chosen:
        fastest = ", ".join(f"{n} {v}" for n, v in found.fastest.items() if found.chosen[n] != v)
        effect = found.settings.smallest_effect
        lines.append(f"The fastest had {fastest}; what was chosen is smaller and within {effect:.0%} of it.")
    if found.starved is not None:
        words = {"waits": "clips wait, as they must", "has room": "there was room enough", "errors": "REQUESTS FAIL"}
        starved = found.starved
        lines.append(f"The smallest VRAM budget, {starved.budget}: {words[starved.verdict]} ({starved.detail}).")
    failed = [point for point in found.points if point.failure]
    if failed:
        lines.append(f"{len(failed)} settings could not be used; the table says why.")
    return lines


def points_table(found: TuneResult) -> Block:
    """Fastest first."""
    ordered = sorted(found.points, key=lambda point: -point.rate_per_s)[:MOST_ROWS]
    columns = ("settings", "requests/s", "95 % interval", "trials", "p95 s", "errors", "KV headroom", "remark")
    strong = [number for number, point in enumerate(ordered) if point.settings == found.chosen]
    return table(columns, [_row(point) for point in ordered], strong)


def _row(point: Point) -> list[str]:
    interval = point.interval
    return [
        ", ".join(f"{name} {value}" for name, value in point.settings.items()),
        short(point.rate_per_s) if point.rate_per_s else "",
        f"{short(max(interval.low, 0))} to {short(interval.high)}" if interval else "",
        str(point.num_trials),
        short(point.p95_s) if point.p95_s else "",
        f"{point.error_share:.1%}" if point.error_share else "none",
        "" if point.kv_headroom is None else f"{point.kv_headroom:.0%}",
        point.failure,
    ]


def _tone(found: TuneResult) -> Tone:
    if found.applied is not None and not found.applied.kept:
        return "bad"
    return "clear" if found.gain is not None and found.gain.claim in ("better", "same") else "unclear"


def _knee(found: TuneResult) -> Section:
    measured = sorted(found.knee.measured.items())
    today = Line(name="today's settings", x=[c for c, _ in measured], y=[o.score for _, o in measured])
    beside = _beside(found, "concurrency")
    lines = [today, *([_line("chosen settings", beside)] if len(beside) > 1 else [])]
    drawn = line_chart(lines, x="requests in flight", y="requests/s", is_log=True)
    about = f"The knee is at {found.knee.concurrency}. Bars are 95 % intervals."
    return Section(title="Throughput against concurrency", blocks=(chart(drawn, about),))


def _ladders(found: TuneResult) -> list[Section]:
    """Each ladder with the others as chosen."""
    sections = []
    for name in found.chosen:
        beside = _beside(found, name)
        if name == "concurrency" or len(beside) < 2:
            continue
        rows = [
            [str(value), short(point.rate_per_s), short(point.p95_s), _percent(point.kv_headroom), point.failure]
            for value, point in beside
        ]
        strong = [number for number, (value, _) in enumerate(beside) if value == found.chosen[name]]
        blocks = [table((name, "requests/s", "p95 s", "KV headroom", "remark"), rows, strong)]
        if name == BUDGET:
            blocks = [*_vram(beside), *blocks]
        elif all(isinstance(value, int | float) for value, _ in beside):
            blocks.insert(0, chart(line_chart([_line(name, beside)], x=name, y="requests/s"), "Others as chosen."))
        sections.append(Section(title=f"Ladder: {name}", blocks=tuple(blocks)))
    return sections


def _vram(beside: Sequence[tuple[Value, Point]]) -> list[Block]:
    """The VRAM ladder, and what it leaves the KV cache."""
    in_gib = [(_gib(value), point) for value, point in beside]
    rate = line_chart([_line("rate", in_gib)], x="VRAM budget, GiB", y="requests/s")
    rooms = [(x, point.kv_headroom) for x, point in in_gib if point.kv_headroom is not None]
    blocks = [chart(rate, "Throughput on the VRAM ladder, all else as chosen.")]
    if rooms:
        room = Line(name="headroom", x=[x for x, _ in rooms], y=[y for _, y in rooms])
        drawn = line_chart([room], x="VRAM budget, GiB", y="KV cache never used", most=1.0)
        blocks.append(chart(drawn, "What the KV cache still had to spare."))
    return blocks


def _beside(found: TuneResult, name: str) -> list[tuple[Value, Point]]:
    """Points that differ from the chosen one in this setting alone, in the order of their values."""
    others = _without(found.chosen, name)
    points = [(p.settings[name], p) for p in found.points if _without(p.settings, name) == others]
    return sorted(points, key=lambda pair: _order(pair[0]))


def _line(name: str, beside: Sequence[tuple[Value, Point]]) -> Line:
    good = [(float(value), point) for value, point in beside if point.rate_per_s]
    ends = [(p.interval.low, p.interval.high) if p.interval else (math.nan, math.nan) for _, p in good]
    return Line(
        name=name, x=[x for x, _ in good], y=[p.rate_per_s for _, p in good],
        low=[low for low, _ in ends], high=[high for _, high in ends],
    )  # fmt: skip


def _order(value: Value) -> tuple[float, str]:
    return (float(value), "") if isinstance(value, int | float) else (_gib(value), value)


def _gib(value: Value) -> float:
    try:
        return parse_bytes(str(value)) / GIB
    except ConfigError:
        return 0.0


def _without(settings: Settings, name: str) -> Settings:
    return {key: value for key, value in settings.items() if key != name}


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _about(found: TuneResult) -> Section:
    asked = found.settings
    pairs = {
        "clips": ", ".join(asked.inputs), "tokens per answer": asked.max_tokens, "sent as": asked.send,
        "trials": f"{found.num_trials} of {asked.trial_s:g} s; the full grid has {found.grid_size} settings",
        "smallest effect": f"{asked.smallest_effect:.0%}",
        "today": ", ".join(f"{n} {v}" for n, v in found.today.items()), **found.versions,
    }  # fmt: skip
    return Section(title="What was run", blocks=(facts(pairs),))
