"""`framefleet diagnose`: what limits a running server or fleet, and whether NVDEC would help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from framefleet.cli.exits import ExitCode
from framefleet.cli.options import Json, only_told, parse_json
from framefleet.cli.render import note, show, show_json, show_table
from framefleet.units import parse_duration_s

if TYPE_CHECKING:
    from framefleet.bench.diagnosis import Diagnosis

Inputs = Annotated[
    list[str], typer.Argument(metavar="INPUT...", help="Your own clips: files, folders, patterns.", show_default=False)
]
Endpoint = Annotated[str, typer.Option("--endpoint", metavar="URL", help="The server, or the proxy in front of many.")]
Engines = Annotated[
    list[str] | None,
    typer.Option("--engine-url", metavar="URL", help="Engines behind a proxy that is not ours.", show_default=False),
]
Model = Annotated[str, typer.Option(help="Its name on the server.", show_default="the first it lists")]
ModelFiles = Annotated[
    str, typer.Option(metavar="DIR", help="The model, for its rule of choosing frames.", show_default="as served")
]
Frames = Annotated[
    str,
    typer.Option(metavar="JSON", help='What the server changes in it: {"max_frames": 16}.', show_default=False),
]
ExtraBody = Annotated[str, typer.Option(metavar="JSON", help="Further fields of each request.", show_default=False)]
Prompt = Annotated[str, typer.Option(help="A prompt's name or its text.")]
Send = Annotated[str, typer.Option(metavar="url|bytes", help="The clip's address, or the clip inside the request.")]
MaxTokens = Annotated[int, typer.Option(min=2, help="Of every answer, exactly.")]
Concurrency = Annotated[int, typer.Option(min=2, help="Requests in flight.")]
Time = Annotated[str, typer.Option("--time", metavar="DURATION", help="Of load, in all.")]
MaxClips = Annotated[int, typer.Option(min=1, help="Of the inputs, the first so many.")]
Lanes = Annotated[
    float | None,
    typer.Option(min=0.1, help="Clips that the engines decode at a time.", show_default="found out, or 8 per engine"),
]
Gpu = Annotated[list[int] | None, typer.Option("--gpu", help="Whose gauges count.", show_default="all")]
ApiKey = Annotated[str, typer.Option(envvar="FRAMEFLEET_API_KEY", help="Sent as a bearer token.", show_default=False)]
ReportDir = Annotated[Path, typer.Option("--report", metavar="DIR", help="Where report.html and the trials go.")]


def diagnose(
    context: typer.Context,
    inputs: Inputs,
    endpoint: Endpoint = "http://127.0.0.1:8080",
    engine_url: Engines = None,
    model: Model = "",
    model_files: ModelFiles = "",
    frames: Frames = "{}",
    extra_body: ExtraBody = "{}",
    prompt: Prompt = "general",
    send: Send = "url",
    max_tokens: MaxTokens = 64,
    concurrency: Concurrency = 16,
    time: Time = "90s",
    max_clips: MaxClips = 16,
    decode_lanes: Lanes = None,
    gpu: Gpu = None,
    api_key: ApiKey = "",
    report: ReportDir = Path("diagnosis"),
    as_json: Json = False,
) -> ExitCode:
    """Find what limits a server or fleet on your own clips, and what NVDEC would gain at most.

    Loads it for a while as it is, with frames decoded before, one output token, half the frames, and twice the load.
    """
    from framefleet.bench.diagnosis import DiagnoseSettings, run_diagnosis
    from framefleet.bench.diagnosis_report import diagnosis_report
    from framefleet.bench.report import write_report
    from framefleet.bench.trial_log import read_log
    from framefleet.config import resolve

    flags = {
        "endpoint": endpoint, "inputs": inputs, "engines": engine_url or (), "model": model, "model_files": model_files,
        "frames": parse_json(frames), "extra_body": parse_json(extra_body),
        "api_key": api_key, "prompt": prompt, "send": send, "max_tokens": max_tokens, "concurrency": concurrency,
        "time_limit_s": parse_duration_s(time), "max_clips": max_clips, "decode_lanes": decode_lanes, "gpus": gpu,
    }  # fmt: skip
    told = only_told(context, flags, engines="engine_url", time_limit_s="time", gpus="gpu")
    settings = resolve(DiagnoseSettings, "diagnose", flags=told).value
    found = run_diagnosis(settings, report, on_step=note)
    paths = write_report(diagnosis_report(found, read_log(Path(found.log))[1]), report, found)
    if as_json:
        show_json(found)
    else:
        _show(found, paths["html"])
    return ExitCode.OK


def _show(found: Diagnosis, page: Path) -> None:
    from framefleet.bench.charts import change
    from framefleet.bench.diagnosis_report import advice, sentence

    shared = [(lanes.name, f"{lanes.utilisation:.0%}", "") for lanes in found.evidence.shared]
    stages = [
        (stage, "not read" if reading.utilisation is None else f"{reading.utilisation:.0%}", f"{reading.wait_s:.3f}")
        for stage, reading in found.evidence.stages.items()
        if reading.utilisation is not None or stage in found.verdict.unread
    ]
    show_table(("where", "busy", "wait s"), [*stages, *shared])
    gains = found.evidence.ablations.items()
    show_table(
        ("taken away", "gain", "95 % interval"),
        [(name, change(gain.estimate), f"{change(gain.low)} to {change(gain.high)}") for name, gain in gains],
    )
    show(sentence(found.verdict))
    for line in advice(found):
        show(f"- {line}")
    show(f"report: {page}")
