"""The `torchcodec` backend: TorchCodec by frame number, every time checked against the index.

What TorchCodec is known to get wrong is refused before anything opens; a wrong time, a different count or an error in
its FFmpeg's log raises before a frame is given. On the CPU its pictures are within 3 levels of the `pyav` backend's at
native size. On a GPU (`device="cuda"`) it takes only what NVDEC is known to do right, and gives a CUDA tensor.
"""

from __future__ import annotations

import importlib.util
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from framefleet.decode.backends.ffmpeg_log import hear_errors
from framefleet.decode.backends.plain_path import plain_path
from framefleet.decode.backends.rgb_size import resize_rgb
from framefleet.decode.decoder import DecodedFrames, DecodeStats
from framefleet.decode.deliver import deliver
from framefleet.decode.gpu.resize import resize_tensor
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import DecodePlan
from framefleet.errors import DecodeError, DeviceError, SeekFailed
from framefleet.media.clip import ScannedClip
from framefleet.media.index import FrameIndex, Int64
from framefleet.media.info import StreamInfo
from framefleet.media.limits import Deadline
from framefleet.units import NS_PER_S

if TYPE_CHECKING:
    from torch import Tensor

CONTAINERS = ("mov,mp4", "matroska")
CODECS = ("h264", "hevc", "vp8", "vp9", "av1")
"""ProRes is not among them: it gives damaged pictures without a word."""
CODECS_ON_CUDA = ("h264", "hevc", "vp9", "av1")
_CHUNK_BYTES = 64 << 20
_TIME_SLACK_NS = 1000  # its times are float seconds


class TorchCodecBackend:
    """Frames through torchcodec.decoders.VideoDecoder."""

    name = "torchcodec"
    devices = ("cpu", "cuda")

    def refuse(self, info: StreamInfo, index: FrameIndex) -> str | None:
        """The first thing that TorchCodec would get wrong, or cannot."""
        if importlib.util.find_spec("torchcodec") is None:
            return "TorchCodec is not installed; try: pip install 'framefleet[torchcodec]'"
        return _refuse_clip(info, index)

    def decode(self, clip: ScannedClip, plan: DecodePlan, options: DecodeOptions) -> DecodedFrames:
        """The plan's frames, all of them.

        Raises DeviceError where `device="cuda"` cannot be had, DecodeError for a clip damaged where it looked.
        """
        started_s = time.monotonic()
        if options.deinterlace:
            raise DecodeError("torchcodec does not deinterlace", remedy="the pyav backend")
        if options.device == "cuda":
            _check_cuda(clip.info)
        rows = np.unique(plan.targets.rows)
        with plain_path(clip.source) as path:
            pictures = _read(path, clip, rows, plan, options)
        stats = DecodeStats(
            backend=self.name,
            frames_walked=sum(group.last_packet - group.first_packet + 1 for group in plan.groups),  # it skips none
            peak_bytes=plan.peak_bytes(clip.info, options.num_ffmpeg_threads) + _CHUNK_BYTES,
            is_interlaced=clip.info.is_interlaced_from_header,
            seconds={"decode": time.monotonic() - started_s},
        )
        return deliver(clip, plan.targets.rows, rows, pictures, stats)


def _refuse_clip(info: StreamInfo, index: FrameIndex) -> str | None:
    reasons = {
        f"only MP4 and Matroska, not {info.container}": not info.container.startswith(CONTAINERS),
        f"only {', '.join(CODECS)}, not {info.codec}": info.codec not in CODECS,
        "turns mirrored video instead of mirroring it": info.hflip,
        "leaves transparency out": info.has_alpha,
        "does not crop on the left": info.is_cropped_at_left,
        f"no tone mapping for {info.transfer}": info.transfer != "sdr",
        "takes full range for limited unless the pixel format tells": _is_untold_full_range(info),
        "takes limited grey for full range": info.chroma == "4:0:0" and not info.is_full_range,
        "takes untagged colours for BT.601": not info.is_matrix_tagged and info.colour_matrix != "bt601",
        f"needs an index from packets, not one that was {index.method}": index.method != "packets",
        f"the clip is irregular: {', '.join(index.notes)}": bool(index.notes),
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def _is_untold_full_range(info: StreamInfo) -> bool:
    return info.is_full_range and not info.pix_fmt.startswith("yuvj") and info.chroma not in ("rgb", "4:0:0")


def _check_cuda(info: StreamInfo) -> None:
    """Raise DeviceError unless the clip is of the plainest kind: the list of what TorchCodec's NVDEC path was reported
    to get wrong. These refusals and the resize are tested; decoding itself on a GPU has not been run yet.
    """
    import torch

    if not torch.cuda.is_available():
        raise DeviceError("no CUDA device for torchcodec", remedy="device='cpu'")
    reasons = {
        f"codec {info.codec}": info.codec not in CODECS_ON_CUDA,
        f"{info.bit_depth}-bit {info.chroma}": (info.bit_depth, info.chroma) != (8, "4:2:0"),
        "full range": info.is_full_range,
        "a turned picture": bool(info.rotation_deg),
        "odd sides": bool(info.coded_width % 2 or info.coded_height % 2),
    }
    if refused := [reason for reason, applies in reasons.items() if applies]:
        raise DeviceError("torchcodec on CUDA is not right for this clip", given=", ".join(refused))


def _read(path: str, clip: ScannedClip, rows: Int64, plan: DecodePlan, options: DecodeOptions) -> Any:
    """[R, H, W, 3] of the unique rows: an ndarray, or a CUDA tensor."""
    decoder_class = _import_decoder()
    deadline = Deadline(options.timeout_s)
    per_chunk = max(1, _CHUNK_BYTES // (3 * clip.info.coded_width * clip.info.coded_height))
    chunks = []
    with hear_errors("torchcodec") as heard:
        try:
            decoder = decoder_class(
                path,
                stream_index=clip.info.stream_index,
                dimension_order="NHWC",
                num_ffmpeg_threads=options.num_ffmpeg_threads,
                device=options.device,
                seek_mode=options.seek_mode,
            )
            _check_count(len(decoder), clip)
            _check_turn(decoder.metadata, clip.info)
            for first in range(0, len(rows), per_chunk):
                deadline.check("decoding", clip.source.name)
                wanted = rows[first : first + per_chunk]
                batch = decoder.get_frames_at(wanted.tolist())
                _check_times(batch.pts_seconds, clip.index.pts_ns[wanted])
                chunks.append(_resized(batch.data, plan.width, plan.height))
            _check_device(decoder, options.device)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise DecodeError("torchcodec failed", given=f"{clip.source.name!r}: {_last_line(error)}") from error
    if heard:
        raise DecodeError("the clip is damaged, and torchcodec does not say where", given=str(heard))
    return _joined(chunks)


def _import_decoder() -> Any:
    try:
        from torchcodec.decoders import VideoDecoder
    except (ImportError, RuntimeError, OSError) as error:
        raise DecodeError(
            "torchcodec does not load", given=_last_line(error), remedy="FFmpeg 4 to 8 installed"
        ) from error
    return VideoDecoder


def _check_count(num_frames: int, clip: ScannedClip) -> None:
    if num_frames != clip.index.num_frames:
        raise DecodeError(
            "torchcodec counts other frames", given=str(num_frames), allowed=f"{clip.index.num_frames} as in the index"
        )


def _check_turn(metadata: Any, info: StreamInfo) -> None:
    """It turns as the container says, and does not know of turns that the stream itself asks for."""
    turn_deg = round((getattr(metadata, "rotation", None) or 0) / -90) * 90 % 360
    if turn_deg != info.rotation_deg:
        raise DecodeError("torchcodec turns otherwise", given=f"{turn_deg}°", allowed=f"{info.rotation_deg}°")


def _check_times(pts_seconds: Tensor, pts_ns: Int64) -> None:
    off_ns = np.abs(np.rint(pts_seconds.cpu().numpy() * NS_PER_S).astype(np.int64) - pts_ns)
    if np.any(off_ns > _TIME_SLACK_NS):
        raise SeekFailed("torchcodec gave other frames", given=f"times off by up to {off_ns.max() / 1e6:.3f} ms")


def _check_device(decoder: Any, device: str) -> None:
    if device == "cuda" and getattr(decoder, "cpu_fallback", False):
        raise DecodeError("torchcodec fell back to the CPU", given=str(decoder.cpu_fallback))


def _resized(batch: Tensor, width: int, height: int) -> Any:
    """uint8 [T, h, w, 3] to [T, height, width, 3], where it is: an ndarray from the CPU, a tensor from a GPU."""
    if batch.device.type == "cpu":
        return np.stack([resize_rgb(picture, width, height) for picture in batch.numpy()])
    return resize_tensor(batch, width, height)


def _joined(chunks: list[Any]) -> Any:
    if len(chunks) == 1:
        return chunks[0]
    if isinstance(chunks[0], np.ndarray):
        return np.concatenate(chunks)
    import torch

    return torch.cat(chunks)


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
