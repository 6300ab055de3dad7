"""What a diagnosis has to say, as a Report. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from framefleet.bench.charts import Line, change, interval_bars, line_chart, share_bars, short, stacked_bars
from framefleet.bench.diagnose import SATURATED, Evidence, NvdecAdvice, Stage, Verdict
from framefleet.bench.diagnosis import ALONE, PLAIN, Diagnosis
from framefleet.bench.evidence import batch_rates
from framefleet.bench.experiment import WARM_UP, Trial
from framefleet.bench.report import Block, Report, Section, chart, facts, table, text
from framefleet.bench.stats import Interval, mean_interval

WORDS: dict[Stage, str] = {
    "client": "too few requests in flight, or the client", "proxy": "the proxy", "fetch": "fetching clips",
    "cpu_decode": "decoding on the CPU", "nvdec": "NVDEC", "preprocess": "preprocessing in the API server",
    "transfer": "transfer to the engine", "kv_cache": "the KV cache", "vision_prefill": "vision encoder and prefill",
    "generation": "token generation",
}  # fmt: skip
REMEDY: dict[Stage, str] = {
    "client": "more requests in flight (or more clients)",
    "proxy": "fewer bytes through it (--send url), or a second proxy",
    "fetch": "clips nearer to the servers, or more fetches at a time",
    "cpu_decode": "NVDEC, more decode workers or cores, or fewer and smaller frames",
    "nvdec": "more hardware decoders in use (hw_decoders), or the CPU beside them",
    "preprocess": "more API servers (vllm.api_server_count) or renderer workers",
    "transfer": "--mm-tensor-ipc torch_shm, or smaller frames",
    "kv_cache": "more GPU memory for it, shorter prompts, or a smaller VRAM budget for decoding",
    "vision_prefill": "fewer or smaller frames, or more GPUs",
    "generation": "shorter answers, or more GPUs",
}
LEAST_SHOWN = 0.01
PHASES = ("fetch", "probe", "decode", "resize", "preprocess", "waiting", "queue", "prefill", "generation", "other")
ARMS = (PLAIN, "decoded_before", "one_token", "half_frames", "more_in_flight")


def diagnosis_report(found: Diagnosis, trials: Sequence[Trial]) -> Report:
    """`trials`: of the diagnosis's log."""
    trials = [trial for trial in trials if trial.block != WARM_UP]
    return Report(
        title=f"What limits {found.settings.endpoint}",
        verdict=sentence(found.verdict),
        tone="clear" if found.verdict.clear else "unclear",
        advice=tuple(advice(found)),
        sections=(
            _shares(found.evidence, found.verdict),
            _gains(found),
            _times(trials),
            _throughput(found, trials),
            _over_time(trials),
            Section(title="Trials", blocks=(trials_table(trials),)),
            _about(found),
        ),
        raw_files=(Path(found.log).name, "report.json"),
    )


def sentence(verdict: Verdict) -> str:
    """The verdict in one sentence."""
    if not verdict.clear:
        return f"It is {verdict.reason}." if verdict.reason.startswith("not clear") else verdict.reason
    names = " and ".join(WORDS[stage] for stage in verdict.bottlenecks)
    return f"What limits here: {names}."


def advice(found: Diagnosis) -> list[str]:
    """What to do about it, and what to know before believing it."""
    verdict = found.verdict
    lines = [f"Against it: {REMEDY[stage]}." for stage in verdict.bottlenecks]
    if verdict.clear and verdict.next_stage is not None and verdict.gain_at_most is not None:
        lines.append(f"With it gone, {WORDS[verdict.next_stage]} would be next, {verdict.gain_at_most:.0%} further.")
    if found.advice is not None:
        lines.append(nvdec_sentence(found.advice))
    lines += [f"The ablation {name} says nothing here: {reason}." for name, reason in found.invalid.items()]
    return [*lines, *(f"Note: {note}." for note in found.notes)]


def nvdec_sentence(found: NvdecAdvice) -> str:
    """Before anyone switches."""
    gain = found.at_most
    bound = f"{change(gain.estimate)} ({change(gain.low)} to {change(gain.high)})"
    does = {
        "try it": "so it is worth a try",
        "leave it": "so leave decoding as it is",
        "not clear": "which is not clear enough to act on: give it more time",
    }
    return f"Decoding that costs nothing would gain {bound}, and NVDEC can gain no more: {does[found.advice]}."


def trials_table(trials: Sequence[Trial]) -> Block:
    """One row per trial."""
    columns = (
        "trial", "requests/s", "tokens/s", "total p50 / p95 / p99 s", "first token p50 / p95 / p99 s", "errors", "KV",
        "preempted", "memory", "waiting for the VRAM budget",
    )  # fmt: skip
    return table(columns, [_row(trial) for trial in trials])


def _row(trial: Trial) -> list[str]:
    good = [one for one in trial.measurements if not one.error]
    rates = batch_rates(trial)
    rate = sum(rates) / len(rates) if rates else len(good) / max(trial.wall_s, 1e-9)
    tokens = sum(one.output_tokens for one in good) / max(len(good), 1)
    errors: dict[str, int] = {}
    for one in trial.measurements:
        if one.error:
            errors[one.error] = errors.get(one.error, 0) + 1
    used, preempted = trial.gauges.get("engine/kv_use_peak"), trial.gauges.get("engine/preemptions")
    memory = trial.gauges.get("gpu/memory_bytes_peak")
    waiting = trial.gauges.get("decode/budget_waited")  # seconds per second: so many at a time
    return [
        trial.arm, short(rate), short(rate * tokens),
        _quantiles(trial, "total"), _quantiles(trial, "ttft"),
        ", ".join(f"{count} {name}" for name, count in errors.items()) or "none",
        "" if used is None else f"{used:.0%}", "" if preempted is None else f"{preempted:.0f}",
        "" if memory is None else f"{memory / 2**30:.1f} GiB",
        "" if waiting is None else f"{waiting:.2f} clips",
    ]  # fmt: skip


def _quantiles(trial: Trial, phase: str) -> str:
    values = trial.phases_s.get(phase, {})
    return " / ".join(short(values[share]) for share in ("p50", "p95", "p99") if share in values)


def _shares(evidence: Evidence, verdict: Verdict) -> Section:
    rows: dict[str, float | None] = {}
    marked: list[str] = []
    in_shared = {stage for lanes in evidence.shared for stage in lanes.busy}
    for stage, reading in evidence.stages.items():
        if reading.utilisation is not None or stage not in in_shared:
            rows[stage] = reading.utilisation
            marked += [stage] if stage in verdict.bottlenecks and (reading.utilisation or 0) >= SATURATED else []
    for lanes in evidence.shared:
        parts = ", ".join(f"{stage} {part:.0%}" for stage, part in lanes.busy.items() if part >= LEAST_SHOWN)
        rows[f"{lanes.name} ({parts})"] = lanes.utilisation
        if lanes.utilisation >= SATURATED and set(lanes.large_parts()) & set(verdict.bottlenecks):
            marked.append(f"{lanes.name} ({parts})")
    short_rows = {name.split(" (")[0]: value for name, value in rows.items()}
    drawn = share_bars(short_rows, mark=SATURATED, marked=[name.split(" (")[0] for name in marked])
    about = f"Share of the time that each is busy; from {SATURATED:.0%} (dashed) it can be what limits."
    lanes_rows = [
        [one.name, stage, f"{part:.0%}"]
        for one in evidence.shared
        for stage, part in one.busy.items()
        if part >= LEAST_SHOWN
    ]
    blocks: list[Block] = [chart(drawn, about)]
    if lanes_rows:
        blocks.append(table(("shared by several stages", "stage", "its part of the time"), lanes_rows))
    return Section(title="How busy everything is", blocks=(*blocks, text(verdict.reason)))


def _gains(found: Diagnosis) -> Section:
    rows: dict[str, tuple[float, float, float]] = {
        name: (gain.estimate, gain.low, gain.high) for name, gain in found.evidence.ablations.items()
    }
    about = "What the same requests gain with that work taken away, with 95 % intervals."
    return Section(title="What taking work away gains", blocks=(chart(interval_bars(rows), about),))


def _times(trials: Sequence[Trial]) -> Section:
    rows = {arm: parts for arm in (ALONE, *ARMS) if (parts := phase_parts([t for t in trials if t.arm == arm]))}
    about = (
        "Mean seconds of a request. Waiting stands for all before the engine that is no work: for a decoder, for "
        "preprocessing, for the proxy."
    )
    blocks = [chart(stacked_bars(rows, unit="s"), about)]
    if plain := [trial for trial in trials if trial.arm == PLAIN]:
        blocks.append(phases_table(plain[-1]))
    return Section(title="Where a request's time goes", blocks=tuple(blocks))


def phases_table(trial: Trial) -> Block:
    """Seconds of each phase of one trial, as client, engine and decoder counted them."""
    shares = ("mean", "p50", "p95", "p99")
    rows = [[name, *(short(v[s]) if s in v else "" for s in shares)] for name, v in trial.phases_s.items()]
    return table((f"phase ({trial.arm}), s", *shares), rows)


def phase_parts(trials: Sequence[Trial]) -> dict[str, float]:
    """Mean seconds by phase, together the mean total."""
    if not trials:
        return {}

    def mean(phase: str) -> float:
        values = [trial.phases_s[phase]["mean"] for trial in trials if phase in trial.phases_s]
        return sum(values) / len(values) if values else 0.0

    parts = {name: mean(name) for name in ("fetch", "probe", "decode", "resize", "preprocess")}
    parts["waiting"] = max(0.0, mean("before_engine") - sum(parts.values()))
    parts |= {name: mean(name) for name in ("queue", "prefill", "generation")}
    parts["other"] = max(0.0, mean("total") - sum(parts.values()))
    return {name: parts[name] for name in PHASES if parts[name] > 0}


def _throughput(found: Diagnosis, trials: Sequence[Trial]) -> Section:
    counts = {ALONE: 1, PLAIN: found.settings.concurrency, "more_in_flight": 2 * found.settings.concurrency}
    points = []
    for arm, count in counts.items():
        rates = [rate for trial in trials if trial.arm == arm for rate in batch_rates(trial)]
        if rates:
            points.append((count, interval_of(rates)))
    line = Line(
        name="as it is", x=[count for count, _ in points], y=[i.estimate for _, i in points],
        low=[i.low for _, i in points], high=[i.high for _, i in points],
    )  # fmt: skip
    drawn = line_chart([line], x="requests in flight", y="requests/s", is_log=True)
    return Section(title="Throughput against concurrency", blocks=(chart(drawn, "With 95 % intervals."),))


def interval_of(rates: Sequence[float]) -> Interval:
    """Of their mean; as wide as nothing for one value, which says nothing of its spread."""
    found = mean_interval(rates)
    return found if math.isfinite(found.low) else Interval(found.estimate, math.nan, math.nan)


def _over_time(trials: Sequence[Trial]) -> Section:
    trial = next((one for one in trials if one.arm == PLAIN and one.series is not None), None)
    if trial is None or trial.series is None:
        return Section(title="Over time", blocks=(text("No gauge could be read."),))
    return over_time(trial)


def over_time(trial: Trial) -> Section:
    """Cores by role, and shares of the GPU, of one trial."""
    assert trial.series is not None
    times_s, values = trial.series.times_s, trial.series.values
    cores = [Line(name=n.removeprefix("cpu/"), x=times_s, y=v) for n, v in values.items() if n.startswith("cpu/")]
    names = {"gpu/busy": "GPU", "gpu/nvdec": "NVDEC", "gpu/pcie": "PCIe", "engine/kv_use": "KV cache"}
    shares = [Line(name=title, x=times_s, y=values[name]) for name, title in names.items() if name in values]
    counts = {"engine/running": "running", "engine/waiting": "waiting", "engine/reading": "clip being read"}
    standing = [Line(name=title, x=times_s, y=values[name]) for name, title in counts.items() if name in values]
    drawings = [
        (cores, "cores in use", "CPU by role of process (all: the whole machine, other programs too).", None),
        (shares, "share", "The GPU and its parts.", 1.0),
        (standing, "requests", "Requests in the engines.", None),
    ]
    blocks = [
        chart(line_chart(lines, x="seconds", y=y, has_dots=False, most=most), about)
        for lines, y, about, most in drawings
        if lines and len(times_s) > 1
    ]
    return Section(title=f"Over time ({trial.arm})", blocks=tuple(blocks) or (text("Too short to draw."),))


def _about(found: Diagnosis) -> Section:
    asked = found.settings
    pairs: dict[str, object] = {
        "endpoint": asked.endpoint, "engines": ", ".join(found.site.engine_urls), "clips": ", ".join(asked.inputs),
        "in flight": asked.concurrency, "tokens per answer": asked.max_tokens, "sent as": asked.send,
        "prompt": asked.prompt, "time": f"{asked.time_limit_s:g} s of load",
        "smallest effect": f"{asked.smallest_effect:.0%}", **found.versions,
    }  # fmt: skip
    unread = [text("Could not be read: " + "; ".join(found.unread) + ".")] if found.unread else []
    return Section(title="What was run", blocks=(facts(pairs), *unread))
