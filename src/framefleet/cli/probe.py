"""`framefleet probe`: what the header claims, what a scan finds, which backends take the clip."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from framefleet.cli.exits import ExitCode, exit_code_for
from framefleet.cli.options import Json, Timeout
from framefleet.cli.render import note, show, show_facts, show_json, show_table
from framefleet.errors import DecodeError, SourceError
from framefleet.units import NS_PER_S, format_bytes

if TYPE_CHECKING:
    from framefleet.media.clip import ScannedClip

Clips = Annotated[list[str], typer.Argument(help="Files or URLs.", show_default=False)]


def probe(clips: Clips, timeout_s: Timeout = 60.0, as_json: Json = False) -> ExitCode:
    """Say what the header claims, what a scan of the packets finds, and which backends take the clip.

    With --json one object per clip, one a line.
    """
    num_ok = 0
    for number, name in enumerate(clips):
        facts = _facts(name, timeout_s)
        num_ok += facts["error"] is None
        if as_json:
            show_json(facts)
        else:
            _show(facts, blank_line_first=number > 0)
    return exit_code_for(num_ok, len(clips) - num_ok)


def _facts(name: str, timeout_s: float) -> dict[str, Any]:
    from framefleet.media.limits import Deadline, ScanLimits
    from framefleet.media.scan import scan
    from framefleet.media.source import VideoSource

    facts: dict[str, Any] = {"clip": name, "error": None, "header": None, "scan": None, "backends": None}
    try:
        clip = scan(VideoSource.of(name), ScanLimits(deadline=Deadline(timeout_s)))
    except (SourceError, DecodeError) as error:
        return facts | {"error": {"kind": type(error).__name__, "message": str(error)}}
    return facts | {"header": dataclasses.asdict(clip.info), "scan": _scan_facts(clip), "backends": _refusals(clip)}


def _scan_facts(clip: ScannedClip) -> dict[str, Any]:
    import numpy as np

    index = clip.index
    keyframes = np.flatnonzero(index.is_keyframe)
    return {
        "num_frames": index.num_frames,
        "num_packets": len(index.packet_pts),
        "duration_s": index.duration_s,
        "fps": index.fps,
        "first_pts_s": int(index.pts_ns[0]) / NS_PER_S,
        "end_s": index.end_ns / NS_PER_S,
        "num_keyframes": len(keyframes),
        "longest_gop_frames": int(np.diff([*keyframes, index.num_frames]).max()) if len(keyframes) else None,
        "num_nonreference_packets": int((~index.packet_is_reference).sum()),
        "method": index.method,
        "notes": list(index.notes),
    }


def _refusals(clip: ScannedClip) -> dict[str, str | None]:
    """Backend -> why it refuses the clip, or None."""
    from framefleet.decode.backends import BACKENDS

    return {name: BACKENDS.load(name)().refuse(clip.info, clip.index) for name in BACKENDS if name != "fake"}


def _show(facts: dict[str, Any], *, blank_line_first: bool) -> None:
    if blank_line_first:
        show()
    if facts["error"]:
        note(f"{facts['clip']}: {facts['error']['kind']}: {facts['error']['message']}")
        return
    header, scan = facts["header"], facts["scan"]
    show(facts["clip"])
    show_facts(_header_lines(header) | _scan_lines(scan))
    show_table(["backend", "takes it"], [[name, reason or "yes"] for name, reason in facts["backends"].items()])


def _header_lines(header: dict[str, Any]) -> dict[str, str]:
    coded = f"{header['coded_width']}x{header['coded_height']}"
    turned = f", turned {header['rotation_deg']} degrees" if header["rotation_deg"] else ""
    turned += ", mirrored" if header["hflip"] else ""
    shape = header["sample_aspect_ratio"]
    colours = [
        header["colour_matrix"],
        "full range" if header["is_full_range"] else "limited range",
        header["transfer"],
    ]
    return {
        "container": header["container"] + (f", {format_bytes(header['size_bytes'])}" if header["size_bytes"] else ""),
        "codec": f"{header['codec']} {header['profile']}".strip(),
        "picture": f"{header['width']}x{header['height']} upright (coded {coded}, pixels {shape}{turned})",
        "pixels": f"{header['pix_fmt']}, {header['bit_depth']} bit, {header['chroma']}; {', '.join(colours)}",
        "header says": _claims(header),
    }


def _claims(header: dict[str, Any]) -> str:
    claims = {
        "frames": header["num_frames_from_header"],
        "s": header["duration_s_from_header"],
        "fps": header["fps_from_header"],
    }
    known = [f"{value:.6g} {unit}" for unit, value in claims.items() if value is not None]
    return ", ".join(known) or "nothing about length or rate"


def _scan_lines(scan: dict[str, Any]) -> dict[str, str]:
    length = f"{scan['num_frames']} frames, {scan['duration_s']:.6g} s, {scan['fps']:.6g} fps"
    lines = {
        "scan finds": f"{length} ({scan['method']})",
        "times": f"{scan['first_pts_s']:.6f} s to {scan['end_s']:.6f} s",
        "keyframes": f"{scan['num_keyframes']}, longest run {scan['longest_gop_frames']} frames",
    }
    if scan["notes"]:
        lines["notes"] = "; ".join(scan["notes"])
    return lines
