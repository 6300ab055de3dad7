"""DecodeOptions: everything a caller may ask of decoding, in one value. Named as vLLM names them where it has them."""

from __future__ import annotations

from typing import Literal

import msgspec

from framefleet.units import GIB, Span


class DecodeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to decode and how. Every field has a working default."""

    num_frames: int | None = None
    """Uniform sampling: rows `round(linspace(0, n-1, min(num_frames, n)))`; 16 when `fps` and `rule` are unset."""
    fps: float | None = None
    """Frames per second of presentation time; excludes `num_frames`."""
    min_frames: int | None = None
    """Lower bound on the frames chosen by `fps` or `rule` (at most as many as exist)."""
    max_frames: int | None = None
    """Upper bound on the frames chosen by `fps` or `rule`."""
    max_duration_s: float | None = None
    """Only this much from the start is sampled."""
    rule: str | None = None
    """A model's own rule instead, for example `qwen3_vl` (see sampling.model_rules)."""
    span: Span | None = None
    """Only frames whose pts lies in this half-open span."""
    size: tuple[int, int] | None = None
    """Exact output (width, height)."""
    max_pixels: int | None = None
    """Pixel budget of one frame; the aspect ratio is kept, sides are multiples of `size_factor`."""
    min_pixels: int | None = None
    """Frames smaller than this are enlarged (as smart_resize does)."""
    total_pixels: int | None = None
    """Pixel budget of all frames together (Qwen3-VL's `longest_edge`: frames x height x width)."""
    min_total_pixels: int | None = None
    """Lower bound on the same product (Qwen3-VL's `shortest_edge`)."""
    size_factor: int = 1
    """Output sides are multiples of this (32 for Qwen3-VL: patch 16 x merge 2)."""
    keeps_size: bool = False
    """Only sizes that the budgets' rule would choose again for frames of that size (see sampling.size)."""
    backend: str = "auto"
    """`auto`, or the name of one backend."""
    num_ffmpeg_threads: int = 1
    """Threads of one decode. 1 suits throughput (one clip a core), more suits one latency-bound clip."""
    seek_mode: str = "exact"
    """torchcodec's: `exact` or `approximate`. Only `exact` is promised to be right."""
    frame_recovery: bool = False
    """After a damaged frame give the nearest decodable one, marked in stats, instead of leaving it out."""
    deinterlace: bool = False
    """Deinterlace interlaced video (it is flagged in any case)."""
    prefer: Literal["auto", "latency", "throughput"] = "auto"
    """On NVDEC: `auto` and `latency` spread a clip's runs over the decoders that are free, `throughput` keeps to one
    decoder a clip. `latency` also never sends a clip to a CPU core that would end later."""
    hw_decoders: int | None = None
    """NVDEC decoders to keep; None: from the number of engines. Start-up only."""
    pool_size: int = 4
    """DeepStream's worker count, 1-16. Start-up only."""
    device: str = "cpu"
    """Where the frames end: `cpu` (ndarray) or `cuda` (tensor)."""
    timeout_s: float = 60.0
    """Deadline of one clip, from open to last frame."""
    allowed_hosts: tuple[str, ...] | None = None
    """URLs may lead to these hosts only (`.example.org` for all below it), over http(s) and to no private address.
    None: anywhere. Set it when decoding for others."""
    max_source_bytes: int = 16 * GIB
    """Larger sources are refused."""
    max_source_pixels: int = 8192 * 8192
    """Larger pictures (coded width x height) are refused from the header."""
    max_source_frames: int = 10_000_000
    """Clips with more packets are refused."""
    max_output_bytes: int = 4 * GIB
    """Output frames x height x width x 3 above this are refused before memory is taken."""
