"""`framefleet caption`: clips in, records in a store; resumable, with progress."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from framefleet.cli.exits import ExitCode
from framefleet.cli.options import Backend, Fps, Json, MaxPixels, NumFrames
from framefleet.cli.own_fleet import with_fleet
from framefleet.cli.progress import ProgressLine
from framefleet.cli.render import builtins_of, show, show_facts, show_json
from framefleet.errors import ConfigError
from framefleet.units import format_bytes

if TYPE_CHECKING:
    from framefleet.caption.plan import JobPlan
    from framefleet.caption.progress import Summary
    from framefleet.caption.settings import CaptionSettings

_ENGINE, _WINDOWS, _FRAMES, _RUN = "Engine", "Windows", "Frames", "Run"


def _option(*names: str, panel: str, help: str, **more: Any) -> Any:  # noqa: A002  # typer's own word
    return typer.Option(*names, rich_help_panel=panel, help=help, show_default=False, **more)


Inputs = Annotated[
    list[str], typer.Argument(metavar="INPUT...", help="Files, folders, patterns, URLs, manifests.", show_default=False)
]
Store = Annotated[
    str, typer.Option("--output", metavar="STORE", help="Where records go: NAME.lance, .parquet or .jsonl.")
]


def caption(
    inputs: Inputs,
    output: Store = "captions.lance",
    engine: Annotated[str | None, _option(panel=_ENGINE, help="embedded, openai_http, fleet, or a plugin's.")] = None,
    endpoint: Annotated[str | None, _option(panel=_ENGINE, metavar="URL", help="An OpenAI-compatible server.")] = None,
    model: Annotated[str | None, _option(panel=_ENGINE, help="Folder, hub id, or the server's name for it.")] = None,
    engine_option: Annotated[
        list[str] | None, _option(panel=_ENGINE, metavar="NAME=VALUE", help="A setting of the engine; repeatable.")
    ] = None,
    prompt: Annotated[str | None, _option(panel=_ENGINE, help="general, av, short ..., or the prompt itself.")] = None,
    schema: Annotated[
        Path | None, _option(panel=_ENGINE, metavar="FILE.json", help="JSON schema that answers must meet.")
    ] = None,
    max_tokens: Annotated[int | None, _option(panel=_ENGINE, min=1, help="Longest answer.")] = None,
    temperature: Annotated[float | None, _option(panel=_ENGINE, min=0, help="0: always the likeliest word.")] = None,
    window: Annotated[str | None, _option(panel=_WINDOWS, metavar="30s", help="Cut clips into pieces.")] = None,
    overlap: Annotated[str | None, _option(panel=_WINDOWS, metavar="5s", help="Pieces share this much.")] = None,
    shots: Annotated[bool, _option("--shots", panel=_WINDOWS, help="Cut clips where shots change.")] = False,
    num_frames: NumFrames = None,
    fps: Fps = None,
    max_pixels: MaxPixels = None,
    backend: Backend = "auto",
    concurrency: Annotated[int | None, _option(panel=_RUN, min=1, help="Requests at the engine at once.")] = None,
    decode_workers: Annotated[int | None, _option(panel=_RUN, min=1, help="Decode processes.")] = None,
    plan: Annotated[bool, _option("--plan", panel=_RUN, help="Only say what it would take.")] = False,
    retry_failed: Annotated[bool, _option("--retry-failed", panel=_RUN, help="Take up what failed earlier.")] = False,
    column: Annotated[str | None, _option(panel=_RUN, help="The manifest's column of paths.")] = None,
    config: Annotated[Path | None, _option(panel=_RUN, metavar="FILE.toml", help="Settings; flags win.")] = None,
    quiet: Annotated[bool, _option("--quiet", "-q", panel=_RUN, help="No progress.")] = False,
    as_json: Json = False,
) -> ExitCode:
    """Caption every clip of the inputs and keep the records in a store.

    The same command again does only what is left: interrupt it at will. Failed clips are recorded with their reason.
    """
    from framefleet.caption.job import CaptionJob, run_caption_job

    flags = {
        "engine": engine,
        "endpoint": endpoint,
        "model": model,
        "engine_options": _pairs(engine_option),
        "prompt": prompt,
        "schema": _schema(schema),
        "generation": {"max_tokens": max_tokens, "temperature": temperature},
        "window": window,
        "overlap": overlap,
        "shots": shots or None,
        "frames": {
            "num_frames": num_frames,
            "fps": fps,
            "max_pixels": max_pixels,
            "backend": None if backend == "auto" else backend,
        },
        "concurrency": concurrency,
        "decode_workers": decode_workers,
        "retry_failed": retry_failed or None,
        "column": column,
    }
    job = CaptionJob(inputs, output, with_fleet(_settings(config, flags), config))
    if plan:
        return _plan(job, as_json=as_json)
    with ProgressLine(is_quiet=quiet) as line:
        summary = run_caption_job(job, on_progress=line.update, on_commit=line.tell_failures)
    if as_json:
        show_json({"store": output, **builtins_of(summary)})
    else:
        show(summary_text(summary, output))
    return exit_code_of_run(summary)


def exit_code_of_run(summary: Summary) -> ExitCode:
    """The run's own code; 4 where nothing at all has a caption."""
    captioned = summary.ok + summary.truncated + summary.skipped - summary.skipped_failed
    code = ExitCode(summary.exit_code)
    return ExitCode.INPUT if code is ExitCode.PARTIAL and not captioned else code


def _of(count: int, what: str) -> str:
    return f"{count} {what}" + "s" * (count != 1)


def summary_text(summary: Summary, output: str) -> str:
    """What became of the run, in a few lines."""
    counts = {"ok": summary.ok, "truncated": summary.truncated, "rejected": summary.rejected, "failed": summary.failed}
    nothing = "nothing done" if summary.interrupted else "nothing to do"
    said = ", ".join(f"{n} {name}" for name, n in counts.items() if n) or nothing
    lines = [f"{_of(summary.clips, 'clip')}, {_of(summary.windows, 'window')} in {summary.seconds:.1f} s: {said}"]
    if summary.skipped:
        without = f"{summary.skipped_failed} of them without a caption"
        lines.append(f"done before: {_of(summary.skipped, 'window')} ({without})")
    if summary.failed_by_reason:
        lines.append("reasons: " + ", ".join(f"{kind} {n}" for kind, n in summary.failed_by_reason.items()))
    if left := {kind: n for kind, n in summary.passed_over.items() if n}:
        lines.append("passed over: " + ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in left.items()))
    if summary.interrupted:
        lines.append("interrupted; the same command goes on from here")
    lines.append(f"store: {output}")
    return "\n".join(lines)


def _settings(file: Path | None, flags: dict[str, Any]) -> CaptionSettings:
    from framefleet.caption.settings import CaptionSettings
    from framefleet.config import resolve

    return resolve(CaptionSettings, "caption", file=file, flags=flags).value


def _schema(path: Path | None) -> dict[str, Any] | None:
    import msgspec

    if path is None:
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError("cannot read the schema", given=f"{str(path)!r} ({error.strerror})") from error
    except msgspec.DecodeError as error:
        raise ConfigError("the schema is no JSON object", given=f"{str(path)!r}: {error}") from error


def _pairs(texts: list[str] | None) -> dict[str, Any] | None:
    """`NAME=VALUE` settings; a value that is JSON (a number, true ...) is taken as such."""
    import msgspec

    pairs: dict[str, Any] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError("not a setting", given=repr(text), allowed="NAME=VALUE")
        try:
            pairs[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            pairs[name] = value
    return pairs or None


def _plan(job: Any, *, as_json: bool) -> ExitCode:
    from framefleet.caption.plan import plan_job

    plan = asyncio.run(plan_job(job))
    if as_json:
        show_json(builtins_of(plan))
    else:
        show_facts(_plan_lines(plan))
    return ExitCode.OK


def _plan_lines(plan: JobPlan) -> dict[str, str]:
    tokens = "unknown" if plan.prompt_tokens is None else f"{plan.prompt_tokens} in, {plan.completion_tokens} out"
    lines = {
        "clips": f"{plan.clips}, {format_bytes(plan.clip_bytes)}",
        "windows": f"{plan.windows}, {plan.windows_done} done ({plan.windows_basis})",
        "tokens": f"{tokens} ({plan.tokens_basis})",
        "time": f"{'unknown' if plan.seconds is None else f'{plan.seconds:.0f} s'} ({plan.seconds_basis})",
        "disk": f"{format_bytes(plan.disk_bytes)} ({plan.disk_basis})",
    }
    if plan.sample_failed:
        lines["will fail"] = (
            ", ".join(f"{kind} {n}" for kind, n in plan.sample_failed.items()) + f" of {plan.sampled} sampled"
        )
    return lines
