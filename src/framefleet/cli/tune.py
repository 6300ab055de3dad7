"""`framefleet tune`: the fastest settings of a running fleet, and the smallest that are as fast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from framefleet.cli.diagnose import ApiKey, Inputs, MaxClips, Prompt, Send
from framefleet.cli.exits import ExitCode
from framefleet.cli.options import Folder, Json, only_told
from framefleet.cli.render import note, show, show_json
from framefleet.errors import ConfigError
from framefleet.units import parse_duration_s, parse_share

if TYPE_CHECKING:
    from framefleet.bench.ladder import Ladder, Value
    from framefleet.bench.tune import TuneResult

Ladders = Annotated[
    list[str] | None,
    typer.Option(
        "--ladder", metavar="NAME=V1,V2,...", help="A setting and its values, cheapest first; repeat for more.",
        show_default="those of the engine",
    ),
]  # fmt: skip
MaxTokens = Annotated[int, typer.Option(min=1, help="Of every answer, exactly.")]
MostInFlight = Annotated[int, typer.Option(min=1, help="Where the search for the knee ends.")]
Trial = Annotated[str, typer.Option("--trial", metavar="DURATION", help="Of one trial.")]
Time = Annotated[str, typer.Option("--time", metavar="DURATION", help="Of load, in all; restarts come on top.")]
Effect = Annotated[str, typer.Option("--smallest-effect", metavar="SHARE", help="The least gain worth a switch.")]
Apply = Annotated[bool, typer.Option("--apply", help="Put it into effect, watch it, and keep it or roll it back.")]
ReportDir = Annotated[Path, typer.Option("--report", metavar="DIR", help="Where report.html and fleet.toml go.")]


def tune(
    context: typer.Context,
    inputs: Inputs,
    folder: Folder = None,
    ladder: Ladders = None,
    prompt: Prompt = "general",
    send: Send = "url",
    max_tokens: MaxTokens = 64,
    most_in_flight: MostInFlight = 128,
    trial: Trial = "20s",
    time: Time = "1h",
    max_clips: MaxClips = 32,
    smallest_effect: Effect = "5%",
    apply: Apply = False,
    api_key: ApiKey = "",
    report: ReportDir = Path("tuning"),
    as_json: Json = False,
) -> ExitCode:
    """Try settings on the fleet that `framefleet serve` runs, with your own clips, and print those to use.

    Replicas restart for most settings. Afterwards the fleet is as before, or with --apply has the new settings.
    """
    from framefleet.bench.report import write_report
    from framefleet.bench.tune import TuneSettings, run_tune
    from framefleet.bench.tune_report import tune_report
    from framefleet.config import resolve
    from framefleet.serve.fleet_client import FleetClient

    flags = {
        "inputs": inputs, "prompt": prompt, "send": send,
        "max_tokens": max_tokens, "most_in_flight": most_in_flight, "trial_s": parse_duration_s(trial),
        "time_limit_s": parse_duration_s(time), "max_clips": max_clips, "api_key": api_key,
        "smallest_effect": parse_share(smallest_effect),
    }  # fmt: skip
    told = only_told(context, flags, trial_s="trial", time_limit_s="time")
    settings = resolve(TuneSettings, "tune", flags=told).value
    ladders = [parse_ladder(one) for one in ladder or []]
    found = run_tune(settings, FleetClient(folder), report, ladders=ladders, apply=apply, on_step=note)
    paths = write_report(tune_report(found), report, found)
    (report / "fleet.toml").write_text(found.fleet_toml, encoding="utf-8")
    if as_json:
        show_json(found)
    else:
        _show(found, paths["html"])
    was_rolled_back = found.applied is not None and not found.applied.kept
    return ExitCode.CHECK_FAILED if was_rolled_back else ExitCode.OK


def parse_ladder(text: str) -> Ladder:
    """`vllm.api_server_count=1,2,4` to a Ladder. Raises ConfigError."""
    from framefleet.bench.fleet_values import CONCURRENCY
    from framefleet.bench.ladder import Ladder

    name, equals, values = text.partition("=")
    if not (name and equals and values):
        raise ConfigError("not a ladder", given=repr(text), allowed="NAME=V1,V2, cheapest first")
    rungs = tuple(_value(word) for word in values.split(","))
    costs = all(isinstance(rung, int | float) for rung in rungs) or name.startswith("decode_args.")
    return Ladder(name=name, rungs=rungs, costs=costs, restarts=name != CONCURRENCY)


def _value(word: str) -> Value:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(word.lower(), word)


def _show(found: TuneResult, page: Path) -> None:
    from framefleet.bench.tune_report import advice, points_table, sentence

    show(sentence(found))
    for line in advice(found):
        show(f"- {line}")
    fastest = points_table(found).rows[:5]
    show("\n".join(f"  {row[1] or '-':>8} requests/s  {row[0]}  {row[-1]}".rstrip() for row in fastest))
    show(f"\nfleet.toml:\n{found.fleet_toml}")
    show(f"one replica:\n{found.engine_line}\n")
    show(f"report: {page}")
