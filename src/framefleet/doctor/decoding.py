"""What can be decoded here: FFmpeg's codecs as PyAV brings them, and each backend tried on a clip of ours."""

from __future__ import annotations

import shutil

from framefleet.decode.backends import BACKENDS
from framefleet.decode.decoder import DecodeBackend
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import plan_decode
from framefleet.decode.targets import choose_targets, output_size
from framefleet.doctor.finding import Finding, Level
from framefleet.doctor.gstreamer import gstreamer_finding
from framefleet.errors import FramefleetError
from framefleet.media.clip import ScannedClip
from framefleet.media.scan import scan
from framefleet.media.source import VideoSource

_CODECS = ("h264", "hevc", "av1", "vp9", "vp8", "mpeg4", "mpeg2video", "mjpeg", "prores")
_OPTIONS = DecodeOptions(num_frames=2, timeout_s=20.0)


def decoding_findings(sample: str) -> list[Finding]:
    """Codecs, then every backend, tried on the clip at `sample`."""
    clip = scan(VideoSource.of(sample))
    return [*_codecs(), _tools(), gstreamer_finding(), *(_backend(name, clip) for name in BACKENDS if name != "fake")]


def _codecs() -> list[Finding]:
    import av

    major, minor, _ = av.library_versions["libavcodec"]
    missing = [name for name in _CODECS if not _has_decoder(name)]
    able = ", ".join(name for name in _CODECS if name not in missing)
    found = f"libavcodec {major}.{minor} in PyAV {av.__version__} decodes {able}"
    if missing:
        remedy = "pip install --force-reinstall av (its wheel brings a full FFmpeg)"
        return [
            Finding(
                area="decoding",
                name="codecs",
                level="warning",
                found=f"{found}; not {', '.join(missing)}",
                remedy=remedy,
            )
        ]
    return [Finding(area="decoding", name="codecs", level="ok", found=found)]


def _has_decoder(name: str) -> bool:
    import av

    try:
        av.Codec(name, "r")
    except ValueError:
        return False
    return True


def _tools() -> Finding:
    place = shutil.which("ffmpeg")
    remedy = "" if place else "only torchcodec needs the system's FFmpeg libraries (Debian, Ubuntu: apt install ffmpeg)"
    level: Level = "ok" if place else "info"
    return Finding(area="decoding", name="system FFmpeg", level=level, found=place or "not installed", remedy=remedy)


def _backend(name: str, clip: ScannedClip) -> Finding:
    what = f"backend {name}"
    try:
        backend: DecodeBackend = BACKENDS.load(name)()
        if reason := backend.refuse(clip.info, clip.index):
            found, _, remedy = f"refuses: {reason}".partition("; try: ")
            return Finding(area="decoding", name=what, level="info", found=found, remedy=remedy)
        num_frames = _num_decoded(backend, clip)
    except FramefleetError as error:
        return Finding(area="decoding", name=what, level="info", found=error.what, remedy=error.remedy)
    return Finding(area="decoding", name=what, level="ok", found=f"gave {num_frames} frames of a sample clip")


def _num_decoded(backend: DecodeBackend, clip: ScannedClip) -> int:
    targets = choose_targets(clip.index, _OPTIONS)
    width, height = output_size(clip.info, len(targets.rows), _OPTIONS)
    return len(backend.decode(clip, plan_decode(clip.index, targets, width, height), _OPTIONS))
