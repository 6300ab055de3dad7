"""`framefleet bench ...`: run an experiment over servers, compare two recordings, plan a collection."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from framefleet.cli.diagnose import ApiKey, Inputs, MaxClips, MaxTokens, Prompt, Send
from framefleet.cli.exits import ExitCode
from framefleet.cli.options import Json, only_told, parse_counts, parse_rates
from framefleet.cli.render import note, show, show_facts, show_json
from framefleet.errors import ConfigError
from framefleet.units import format_bytes, parse_bytes, parse_duration_s, parse_share

bench = typer.Typer(name="bench", help="Compare servers on your own clips, and plan with what was measured.",
                    no_args_is_help=True)  # fmt: skip
Arms = Annotated[
    list[str],
    typer.Option("--arm", metavar="NAME=URL", help="A server; the first is what others are compared with."),
]
InFlight = Annotated[str, typer.Option("--concurrency", metavar="N[,N...]", help="Requests in flight.")]
Trial = Annotated[str, typer.Option("--trial", metavar="DURATION", help="Of one trial.")]
Time = Annotated[str, typer.Option("--time", metavar="DURATION", help="Of trials, in all, at most.")]
MetricName = Annotated[
    str,
    typer.Option("--metric", help="requests_per_s, tokens_per_s, total_p50_s, total_p95_s or total_p99_s."),
]
Effect = Annotated[str, typer.Option("--smallest-effect", metavar="SHARE", help="The least change that matters.")]
MayDiffer = Annotated[bool, typer.Option("--captions-may-differ", help="Compare speed all the same.")]
Slower = Annotated[
    str | None,
    typer.Option("--fail-if-slower", metavar="SHARE", help="Exit code 6 if clearly so, like 5%.", show_default=False),
]
ReportDir = Annotated[Path, typer.Option("--report", metavar="DIR", help="Where report.html and the trials go.")]
Log = Annotated[str, typer.Argument(metavar="LOG[:ARM]", help="A recording of trials (.jsonl).", show_default=False)]


@bench.command()
def run(
    context: typer.Context,
    inputs: Inputs,
    arm: Arms,
    prompt: Prompt = "general",
    send: Send = "url",
    max_tokens: MaxTokens = 64,
    concurrency: InFlight = "16",
    trial: Trial = "20s",
    time: Time = "10m",
    metric: MetricName = "requests_per_s",
    smallest_effect: Effect = "5%",
    max_clips: MaxClips = 32,
    captions_may_differ: MayDiffer = False,
    fail_if_slower: Slower = None,
    api_key: ApiKey = "",
    report: ReportDir = Path("experiment"),
    as_json: Json = False,
) -> ExitCode:
    """Run servers against each other, in turns, until the difference is known or the time is spent. Goes on where an
    interrupted run was."""
    from framefleet.bench.compare import sentence
    from framefleet.bench.contest import ContestSettings, contest_report, run_contest
    from framefleet.bench.report import write_report
    from framefleet.config import resolve

    arms = dict(_arm(one) for one in arm)
    if len(arms) < 2:
        raise ConfigError("nothing to compare with", given=", ".join(arm), allowed="--arm NAME=URL, twice or more")
    flags = {
        "inputs": inputs, "arms": arms, "prompt": prompt, "send": send, "max_tokens": max_tokens, "metric": metric,
        "concurrency": parse_counts(concurrency), "trial_s": parse_duration_s(trial),
        "time_limit_s": parse_duration_s(time),
        "smallest_effect": parse_share(smallest_effect), "max_clips": max_clips, "api_key": api_key,
        "captions_may_differ": captions_may_differ,
    }  # fmt: skip
    told = only_told(context, flags, arms="arm", trial_s="trial", time_limit_s="time")
    settings = resolve(ContestSettings, "bench", flags=told).value
    found = asyncio.run(run_contest(settings, report, on_step=note))
    paths = write_report(contest_report(found), report, found)
    _tell(found, [sentence(one) for one in found.compared], as_json=as_json, page=paths["html"])
    return _exit(found.compared, fail_if_slower)


@bench.command()
def compare(
    first: Log,
    second: Log,
    metric: MetricName = "requests_per_s",
    smallest_effect: Effect = "5%",
    captions_may_differ: MayDiffer = False,
    fail_if_slower: Slower = None,
    as_json: Json = False,
) -> ExitCode:
    """Compare two recorded arms: their answers first, then their speed. The second is held against the first."""
    from framefleet.bench import compare as comparing

    found = comparing.compare(
        comparing.recorded(first), comparing.recorded(second), metric=comparing.metric_named(metric),
        smallest_effect=parse_share(fail_if_slower or smallest_effect), may_differ=captions_may_differ,
    )  # fmt: skip
    _tell(found, [comparing.sentence(found)], as_json=as_json)
    return _exit([found], fail_if_slower)


@bench.command()
def plan(
    context: typer.Context,
    clips: Annotated[int, typer.Option(min=1, help="In the collection.")],
    rate: Annotated[str, typer.Option(metavar="R[,LOW,HIGH]", help="Requests/s of one GPU, and its interval.")],
    windows: Annotated[float, typer.Option(min=0.001, help="Requests for each clip.")] = 1.0,
    tokens: Annotated[float, typer.Option(min=1, help="Of an answer.")] = 128,
    measured_tokens: Annotated[
        float | None, typer.Option(help="Of the answers that were measured.", show_default="as planned")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="In a machine.")] = 8,
    machines: Annotated[int, typer.Option(min=1, help="Beside the figures for one.")] = 1,
    cores_per_gpu: Annotated[float | None, typer.Option(help="As measured.", show_default=False)] = None,
    clip_size: Annotated[str, typer.Option(metavar="SIZE", help="Mean, of a clip.")] = "0",
    price: Annotated[float | None, typer.Option(help="Of a GPU-hour.", show_default=False)] = None,
    unlike: Annotated[str, typer.Option(metavar="SHARE", help="By how much other clips may differ in cost.")] = "15%",
    as_json: Json = False,
) -> ExitCode:
    """What a whole collection takes: hours, disk, cores, money, with what these figures may be off by."""
    from framefleet.bench.plan import PlanSettings, plan_collection
    from framefleet.config import resolve

    estimate, low, high = parse_rates(rate)
    flags = {
        "clips": clips, "windows_per_clip": windows, "tokens": tokens, "rate_per_s": estimate, "rate_low_per_s": low,
        "rate_high_per_s": high, "measured_tokens": measured_tokens, "gpus_per_machine": gpus, "machines": machines,
        "cores_per_gpu": cores_per_gpu, "clip_bytes": float(parse_bytes(clip_size)), "price_per_gpu_hour": price,
        "unlike": parse_share(unlike),
    }  # fmt: skip
    names = {"windows_per_clip": "windows", "gpus_per_machine": "gpus", "clip_bytes": "clip_size"}
    names |= {"price_per_gpu_hour": "price"} | dict.fromkeys(
        ("rate_per_s", "rate_low_per_s", "rate_high_per_s"), "rate"
    )
    found = plan_collection(resolve(PlanSettings, "plan", flags=only_told(context, flags, **names)).value)
    show_json(found) if as_json else _show_plan(found)
    return ExitCode.OK


def _show_plan(found: Any) -> None:
    facts = {
        "requests": f"{found.requests:,.0f}",
        "one GPU": f"{_range(found.rate_per_gpu, ',.2f')} requests/s",
        "store": format_bytes(int(found.store_bytes)),
    }
    if found.read_bytes:
        facts["to read"] = format_bytes(int(found.read_bytes))
    if found.cores_per_machine is not None:
        facts["cores"] = f"{found.cores_per_machine:.0f} in each machine"
    for one in found.plans:
        name = f"{one.machines} machine{'s' * (one.machines > 1)} ({one.gpus} GPUs)"
        cost = f", cost {_range(one.cost, ',.0f')}" if one.cost else ""
        facts[name] = f"{_range(one.wall_hours, ',.1f')} h, {_range(one.gpu_hours, ',.0f')} GPU-hours{cost}"
    show_facts(facts)
    for line in found.assumptions:
        show(f"- {line}")


def _range(interval: Any, form: str) -> str:
    return f"{interval.estimate:{form}} ({interval.low:{form}} to {interval.high:{form}})"


def _arm(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if not (name and equals and url):
        raise ConfigError("not an arm", given=repr(text), allowed="NAME=URL")
    return name, url


def _tell(found: Any, sentences: list[str], *, as_json: bool, page: Path | None = None) -> None:
    if as_json:
        show_json(found)
        return
    for line in sentences:
        show(line)
    if page is not None:
        show(f"report: {page}")


def _exit(compared: Any, fail_if_slower: str | None) -> ExitCode:
    """Slower by an interval that leaves out zero, and by the given share or more; answers that differ fail as well."""
    if fail_if_slower is None:
        return ExitCode.OK
    least = parse_share(fail_if_slower)
    for one in compared:
        found = one.comparison
        if found is None or (found.gain.high < 0 and found.gain.estimate <= -least):
            return ExitCode.CHECK_FAILED
    return ExitCode.OK
