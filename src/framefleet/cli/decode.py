"""`framefleet decode`: sampled frames of one clip, as numbers, a contact sheet or a folder of PNG files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from framefleet.cli.exits import ExitCode
from framefleet.cli.options import Backend, Fps, Json, MaxPixels, NumFrames, Sheet, Timeout, parse_size, parse_span
from framefleet.cli.render import show, show_facts, show_json, show_table
from framefleet.errors import ConfigError
from framefleet.units import format_bytes

if TYPE_CHECKING:
    from framefleet.decode.decoder import DecodedFrames

Clip = Annotated[str, typer.Argument(help="A file or URL.", show_default=False)]
Size = Annotated[
    str | None, typer.Option(metavar="WxH", help="Exact size of the frames, for example 640x360.", show_default=False)
]
InSpan = Annotated[
    str | None, typer.Option("--span", metavar="START-END", help="Only this stretch, for example 10s-20s.")
]
Output = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Write each frame as PNG here, with frames.json.", show_default=False)
]
Recovery = Annotated[
    bool, typer.Option("--frame-recovery", help="After a damaged frame give the nearest good one, marked.")
]


def decode(
    clip: Clip,
    num_frames: NumFrames = None,
    fps: Fps = None,
    rule: Annotated[
        str | None, typer.Option(help="A model's own rule, for example qwen3_vl.", show_default=False)
    ] = None,
    span: InSpan = None,
    backend: Backend = "auto",
    max_pixels: MaxPixels = None,
    size: Size = None,
    frame_recovery: Recovery = False,
    sheet: Sheet = None,
    output: Output = None,
    timeout_s: Timeout = 60.0,
    as_json: Json = False,
) -> ExitCode:
    """Decode evenly spread frames of one clip: upright, in the right colours, with their true times."""
    from framefleet.decode.pool import decode_isolated
    from framefleet.decode.session import parse_options

    if size and max_pixels:
        raise ConfigError("two sizes", given="--size and --max-pixels", allowed="one of them")
    asked = {
        "num_frames": num_frames,
        "fps": fps,
        "rule": rule,
        "span": parse_span(span),
        "backend": backend,
        "max_pixels": max_pixels,
        "size": parse_size(size),
        "frame_recovery": frame_recovery,
        "timeout_s": timeout_s,
    }
    frames = decode_isolated(clip, parse_options(None, asked))  # a clip that crashes its decoder becomes an error
    facts = _facts(clip, frames)
    facts["sheet"] = _draw(sheet, clip, frames)
    facts["files"] = _write(output, frames, facts)
    if as_json:
        show_json(facts)
    else:
        _show(facts)
    return ExitCode.OK


def _facts(clip: str, frames: DecodedFrames) -> dict[str, Any]:
    num_frames, height, width, _ = frames.data.shape
    return {
        "clip": clip,
        "num_frames": num_frames,
        "width": width,
        "height": height,
        "indices": frames.indices.tolist(),
        "pts_s": frames.pts_s.tolist(),
        "duration_s": frames.duration_s,
        "fps": frames.fps,
        "total_num_frames": frames.total_num_frames,
        "stats": msgspec.to_builtins(frames.stats),
    }


def _draw(sheet: Path | None, clip: str, frames: DecodedFrames) -> str | None:
    if sheet is None:
        return None
    from framefleet.cli.sheet import frame_tiles, write_sheet

    title = f"{clip}: {len(frames)} of {frames.total_num_frames} frames, {frames.duration_s:.3f} s"
    write_sheet(sheet, frame_tiles(frames), title=title)
    return str(sheet)


def _write(folder: Path | None, frames: DecodedFrames, facts: dict[str, Any]) -> list[str]:
    """One PNG per frame, named by its place and row, and frames.json with their times."""
    if folder is None:
        return []
    from PIL import Image

    paths = [folder / f"frame_{n:04}_row_{row:06}.png" for n, row in enumerate(frames.indices.tolist())]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, picture in zip(paths, frames.data, strict=True):
            Image.fromarray(picture).save(path)
        (folder / "frames.json").write_bytes(msgspec.json.encode(facts | {"files": [p.name for p in paths]}))
    except OSError as error:
        raise ConfigError("cannot write the frames", given=f"{str(folder)!r} ({error.strerror})") from error
    return [str(path) for path in paths]


def _show(facts: dict[str, Any]) -> None:
    stats = facts["stats"]
    lines = {
        "frames": f"{facts['num_frames']} of {facts['total_num_frames']}, {facts['width']}x{facts['height']} RGB, "
        f"{format_bytes(facts['num_frames'] * facts['width'] * facts['height'] * 3)}",
        "backend": stats["backend"],
        "decoded": f"{stats['frames_walked']} pictures walked",
        "seconds": ", ".join(f"{phase} {s:.3f}" for phase, s in stats["seconds"].items()),
    }
    if stats["num_missing"] or stats["num_corrupt"]:
        lines["partial"] = f"{stats['num_missing']} frames missing, {stats['num_corrupt']} pictures damaged"
    if stats["refusals"]:
        lines["passed over"] = "; ".join(f"{name} ({reason})" for name, reason in stats["refusals"].items())
    if stats["notes"]:
        lines["notes"] = "; ".join(stats["notes"])
    show(facts["clip"])
    show_facts(lines)
    show_table(
        ["frame", "pts (s)"],
        [[str(row), f"{pts_s:.6f}"] for row, pts_s in zip(facts["indices"], facts["pts_s"], strict=True)],
    )
    if facts["sheet"]:
        show(f"sheet: {facts['sheet']}")
    if facts["files"]:
        show(f"files: {len(facts['files'])} in {Path(facts['files'][0]).parent}")
