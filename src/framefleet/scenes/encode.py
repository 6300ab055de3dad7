"""Writes scenes as video files through PyAV, in the many forms that real files have."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

import av
import numpy as np
from numpy.typing import NDArray

from framefleet.errors import ConfigError
from framefleet.scenes.drawing import frame_times_s, render_at
from framefleet.scenes.truth import Scene

TIME_BASE = Fraction(1, 60_000)  # MPEG-4 part 2 allows at most 65535

_MATRIX_CODE = {"bt709": 1, "bt601": 6}  # ISO/IEC 23091-2 matrix coefficients; 6 = SMPTE 170M
_SWS_COLORSPACE = {"bt709": "ITU709", "bt601": "ITU601"}
# a, b, c, d of the track header's matrix: how a player must turn the stored picture, clockwise
_TRACK_MATRIX = {0: (1, 0, 0, 1), 90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}

Image = NDArray[np.uint8]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ClipFormat:
    """How a clip is written; the container follows from the file's name.

    `rotation_deg`: frames are stored turned, and the track header says to turn them back clockwise (mp4, mov).
    `jitter`: share of a frame interval by which stamps are moved, for a variable rate; frames are drawn at those times.
    """

    codec: str = "libx264"
    pix_fmt: str = "yuv420p"
    crf: int = 24
    preset: str = "veryfast"
    gop: int = 60
    b_frames: int = 2
    matrix: str = "bt709"
    full_range: bool = False
    rotation_deg: int = 0
    jitter: float = 0.0
    audio: bool = False
    options: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rotation_deg not in _TRACK_MATRIX:
            raise ConfigError("rotation not a quarter turn", given=str(self.rotation_deg), allowed="0, 90, 180, 270")
        if self.matrix not in _MATRIX_CODE:
            raise ConfigError("unknown colour matrix", given=self.matrix, allowed=", ".join(_MATRIX_CODE))
        if not 0.0 <= self.jitter < 0.5:
            raise ConfigError("jitter out of range", given=str(self.jitter), allowed="0 to below 0.5")


def write_clip(
    scene: Scene, path: str | Path, *, width: int, height: int, fps: float = 10.0, form: ClipFormat | None = None
) -> None:
    """Draws `scene` and writes it to `path`; an existing file is replaced."""
    form = form or ClipFormat()
    times_s = clip_times_s(scene, fps, form)
    encode_frames(render_at(scene, times_s, width=width, height=height), times_s, path, fps=fps, form=form)


def clip_times_s(scene: Scene, fps: float, form: ClipFormat) -> Floats:
    """Presentation times `[N]`, increasing from 0; jittered where the format asks for a variable rate."""
    times_s = frame_times_s(scene, fps)
    if form.jitter:
        rng = np.random.default_rng([scene.seed, 0xF2])
        times_s[1:] += rng.uniform(-form.jitter, form.jitter, len(times_s) - 1) / fps
    return times_s


def encode_frames(
    frames: Iterable[Image],
    times_s: Floats,
    target: str | Path | IO[bytes],
    *,
    fps: float,
    form: ClipFormat,
    container: str | None = None,
) -> None:
    """Writes upright RGB frames with their stamps to a file, or to a file object with `container` named.

    Raises ConfigError for a rotation in a container that has no track matrix.
    """
    name = str(target) if isinstance(target, str | Path) else f"object.{container}"
    if form.rotation_deg and not name.endswith((".mp4", ".mov")):
        raise ConfigError("this container stores no rotation", given=name, allowed=".mp4, .mov")
    opened: Any = str(target) if isinstance(target, str | Path) else target
    with av.open(opened, "w", format=container) as output:
        turned = (np.rot90(frame, form.rotation_deg // 90) for frame in frames)
        _mux(output, turned, times_s, fps, form)
    if form.rotation_deg and isinstance(target, str | Path):
        _set_track_rotation(Path(target), form.rotation_deg)


def _mux(output: Any, frames: Iterator[Image], times_s: Floats, fps: float, form: ClipFormat) -> None:
    stream: Any = None
    audio = (
        output.add_stream(
            "aac" if "mp4" in output.format.name or "mov" in output.format.name else "libopus", rate=48_000
        )
        if form.audio
        else None
    )
    reformatter = av.video.reformatter.VideoReformatter()
    for frame, time_s in zip(frames, times_s, strict=True):
        if stream is None:
            stream = _video_stream(output, frame.shape, fps, form)
        picture = _picture(frame, form, reformatter)
        picture.pts, picture.time_base = round(time_s / TIME_BASE), TIME_BASE
        output.mux(stream.encode(picture))
    if stream is not None:
        output.mux(stream.encode(None))
    if audio is not None:
        _tone(output, audio, float(times_s[-1]) + 1 / fps)


def _video_stream(output: Any, shape: tuple[int, ...], fps: float, form: ClipFormat) -> Any:
    stream = output.add_stream(form.codec, rate=Fraction(fps).limit_denominator(1001), options=_encoder_options(form))
    stream.height, stream.width = shape[:2]
    stream.pix_fmt = form.pix_fmt
    stream.time_base = TIME_BASE
    context = stream.codec_context
    context.time_base = TIME_BASE
    context.gop_size, context.max_b_frames = form.gop, form.b_frames
    context.colorspace = context.color_primaries = context.color_trc = _MATRIX_CODE[form.matrix]
    context.color_range = 2 if form.full_range else 1
    context.thread_count = 1
    return stream


def _encoder_options(form: ClipFormat) -> dict[str, str]:
    options = {"crf": str(form.crf), **form.options}
    if form.codec in ("libx264", "libx265"):
        options = {"preset": form.preset, **options}
    if form.codec == "libx265":
        options.setdefault("x265-params", "log-level=error:pools=1:frame-threads=1")
    if form.codec == "libvpx-vp9":
        options = {"b": "0", "deadline": "realtime", "cpu-used": "8", **options}
    return options


def _picture(frame: Image, form: ClipFormat, reformatter: Any) -> Any:
    """The frame in the encoder's pixel format; one thread, since a pool of threads a frame costs more than the work."""
    picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
    if form.pix_fmt.startswith(("rgb", "gbr")):
        return reformatter.reformat(picture, format=form.pix_fmt, threads=1)
    return reformatter.reformat(
        picture,
        format=form.pix_fmt,
        dst_colorspace=_SWS_COLORSPACE[form.matrix],
        dst_color_range="JPEG" if form.full_range else "MPEG",
        threads=1,
    )


def _tone(output: Any, stream: Any, duration_s: float) -> None:
    """A quiet hum, so that the file has a sound track."""
    rate, block = 48_000, 960
    resampler = av.AudioResampler(format=stream.codec_context.format, layout="mono", rate=rate)
    for start in range(0, int(duration_s * rate), block):
        wave = 0.05 * np.sin(2 * np.pi * 110 * np.arange(start, start + block) / rate)
        frame = av.AudioFrame.from_ndarray((wave * 32767).astype(np.int16)[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
        for converted in resampler.resample(frame):
            output.mux(stream.encode(converted))
    output.mux(stream.encode(None))


def _set_track_rotation(path: Path, rotation_deg: int) -> None:
    """Writes the turn into the video track's header (ISO/IEC 14496-12, tkhd), the first track with a size."""
    content = bytearray(path.read_bytes())
    at = content.find(b"tkhd")
    while at >= 0:
        version = content[at + 4]
        matrix = at + 4 + (52 if version == 1 else 40)
        width, height = struct.unpack_from(">II", content, matrix + 36)
        if width:
            a, b, c, d = _TRACK_MATRIX[rotation_deg]
            x = {90: height, 180: width, 270: 0}[rotation_deg]
            y = {90: 0, 180: height, 270: width}[rotation_deg]
            one = 1 << 16
            struct.pack_into(">9i", content, matrix, a * one, b * one, 0, c * one, d * one, 0, x, y, 1 << 30)
            path.write_bytes(content)
            return
        at = content.find(b"tkhd", at + 4)
    raise ConfigError("no video track header to turn", given=str(path), allowed="mp4 and mov files")


TWELVE_WAYS: dict[str, tuple[str, ClipFormat]] = {
    "h264_mp4": ("mp4", ClipFormat()),
    "h264_mkv_audio": ("mkv", ClipFormat(audio=True)),
    "h264_mov_full_range": ("mov", ClipFormat(full_range=True)),
    "h264_bt601": ("mp4", ClipFormat(matrix="bt601")),
    "h264_long_gop": ("mp4", ClipFormat(gop=600, b_frames=4)),
    "h264_444": ("mkv", ClipFormat(pix_fmt="yuv444p")),
    "h264_10bit": ("mkv", ClipFormat(pix_fmt="yuv420p10le")),
    "h264_turned_90": ("mp4", ClipFormat(rotation_deg=90)),
    "h264_turned_180": ("mov", ClipFormat(rotation_deg=180)),
    "h264_variable_rate": ("mp4", ClipFormat(jitter=0.4)),
    "hevc_mp4": ("mp4", ClipFormat(codec="libx265", options={"tag": "hvc1"})),
    "vp9_webm": ("webm", ClipFormat(codec="libvpx-vp9", crf=30, b_frames=0)),
}
"""One scene, written twelve ways: a right decoder gives the same pictures for all of them."""
