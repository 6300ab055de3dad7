"""What this GPU's NVDEC takes, asked from the driver before anything opens: codec x chroma x bit depth x size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from framefleet.media.info import StreamInfo

CODECS = {"h264": "H264", "hevc": "HEVC", "vp8": "VP8", "vp9": "VP9"}
"""FFmpeg's codec name -> the driver's: those whose frames were seen to be the CPU's on a card (tests/gpu). An H200 has
no AV1. MPEG-2 comes mostly interlaced; MPEG-4 part 2 and VC-1 packets carry no unambiguous picture boundaries once
demuxed."""

_CHROMA = {"4:2:0": "420", "4:4:4": "444"}
_H264_PROFILES_8_BIT_420 = {"Baseline", "Constrained Baseline", "Main", "High", "Progressive High", "Constrained High"}


@dataclass(frozen=True, slots=True)
class NvdecCaps:
    """One answer of `cuvidGetDecoderCaps`."""

    is_supported: bool
    num_engines: int = 0
    min_width: int = 0
    min_height: int = 0
    max_width: int = 0
    max_height: int = 0
    max_macroblocks: int = 0

    def refuse_size(self, width: int, height: int) -> str | None:
        """Why a coded picture of this size is not taken, or None."""
        if width < self.min_width or height < self.min_height:
            return f"{width}x{height} is below NVDEC's minimum of {self.min_width}x{self.min_height}"
        if width > self.max_width or height > self.max_height:
            return f"{width}x{height} is above NVDEC's maximum of {self.max_width}x{self.max_height}"
        if width * height // 256 > self.max_macroblocks:
            return f"{width}x{height} has more macroblocks than NVDEC's {self.max_macroblocks}"
        return None


def query_caps(nvc: Any, gpu: int, codec: str, chroma: str, bit_depth: int) -> NvdecCaps:
    """Ask the driver through PyNvVideoCodec. `codec` and `chroma` as in StreamInfo."""
    if codec not in CODECS or chroma not in _CHROMA:
        return NvdecCaps(is_supported=False)
    chroma_format = next(v for k, v in nvc.cudaVideoChromaFormat.__members__.items() if k.endswith(_CHROMA[chroma]))
    answer = nvc.GetDecoderCaps(gpu, getattr(nvc.cudaVideoCodec, CODECS[codec]), chroma_format, bit_depth)
    if not answer.get("supported"):
        return NvdecCaps(is_supported=False)
    return NvdecCaps(
        is_supported=True,
        num_engines=int(answer.get("num_decoder_engines", 1)),
        min_width=answer["width_min"],
        min_height=answer["height_min"],
        max_width=answer["width_max"],
        max_height=answer["height_max"],
        max_macroblocks=answer["mb_num_max"],
    )


def refuse_stream(info: StreamInfo) -> str | None:
    """Why this stream is not for NVDEC whatever the card, or None."""
    reasons = {
        f"codec {info.codec} is decoded on the CPU: only {' and '.join(CODECS)} were seen right on NVDEC": info.codec
        not in CODECS,
        f"chroma {info.chroma} is not output by NVDEC as planes we convert": info.chroma not in _CHROMA,
        f"H.264 {info.profile} is not decoded by NVDEC": info.codec == "h264"
        and (info.bit_depth > 8 or info.chroma != "4:2:0" or info.profile not in _H264_PROFILES_8_BIT_420),
        "HDR is tone-mapped on the CPU": info.transfer != "sdr",
        "alpha is decoded on the CPU": info.has_alpha,
        "H.264 without chroma is decoded on the CPU": info.is_coded_grey,
        "pictures with odd sides lose their last line of chroma": info.chroma == "4:2:0"
        and bool(info.coded_width % 2 or info.coded_height % 2),
        "interlaced pictures are decoded on the CPU": info.is_interlaced_from_header,
        "pictures cropped on the left are decoded on the CPU": info.is_cropped_at_left,
        f"colour matrix {info.colour_matrix} is converted on the CPU": info.colour_matrix
        not in ("bt601", "bt709", "bt2020"),
    }
    return next((reason for reason, applies in reasons.items() if applies), None)
