"""Which stamps NVDEC's parser hands on with the pictures of VP8 and VP9, and what our backend makes of them.

    python benchmarks/nvdec/stamps.py CLIPS > superframes.jsonl

Every packet is fed whole, stamped with its number; each picture that comes out is looked up among the CPU's by its
luma. `rows`, `stamps` and `fed_at` (the packet behind which it came) are runs of consecutive numbers. Then our backend
decodes 3 to 120 frames: refusal, rows equal to PyAV's, largest mean difference of a frame.

The clips of raw/893ab2c/stamps: two passes of FFmpeg's libvpx over testsrc2 (640x360, 4 s, `-b:v 600k -lag-in-frames
25 -cpu-used 3 -g 60`) with `-auto-alt-ref 1` (a hidden picture beside a shown one: superframes; in VP8 a packet of its
own) and `-auto-alt-ref 6` (pictures shown later by packets of one byte), and a corpus file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import av
import numpy as np
import PyNvVideoCodec as nvc  # noqa: N813
import torch
import torch.utils.dlpack

from framefleet.decode.backends.pyav import PyAvBackend
from framefleet.decode.backends.pynvvideocodec import PyNvVideoCodecBackend
from framefleet.decode.options import DecodeOptions
from framefleet.decode.session import make_plan, scan_timed
from framefleet.errors import FramefleetError
from framefleet.media.source import VideoSource

ASKED = ((3, "throughput"), (8, "throughput"), (16, "latency"), (120, "throughput"))


def runs(numbers: list[int]) -> list[list[int]]:
    """[first, last] of consecutive numbers."""
    out: list[list[int]] = []
    for number in numbers:
        if out and number == out[-1][1] + 1:
            out[-1][1] = number
        else:
            out.append([number, number])
    return out


def small_luma(planes: np.ndarray, height: int, width: int, levels: int) -> np.ndarray:
    return planes[:height, :width][::8, ::8].astype(np.float32) / levels


def whole(path: str) -> dict:
    """All packets of a clip through one decoder."""
    with av.open(path) as container:
        video = container.streams.video[0]
        packets, codec = [bytes(p) for p in container.demux(video) if p.size], video.codec_context.codec.canonical_name
    truth = []
    with av.open(path) as container:
        for frame in container.decode(video=0):
            planes = frame.to_ndarray()
            truth.append(small_luma(planes, frame.height, frame.width, 4 if planes.itemsize == 2 else 1))
            height, width = frame.height, frame.width
    stream = torch.cuda.Stream()
    decoder = nvc.CreateDecoder(
        gpuid=0, codec=getattr(nvc.cudaVideoCodec, codec.upper()), cudastream=stream.cuda_stream, usedevicememory=True
    )
    rows, stamps, fed_at, worst = [], [], [], 0.0
    for number, payload in enumerate([*packets, b""]):
        packet, content = nvc.PacketData(), np.frombuffer(payload, np.uint8)
        packet.bsl = content.nbytes
        if payload:
            packet.bsl_data, packet.pts = content.ctypes.data, number
        for surface in decoder.Decode(packet):
            stream.synchronize()
            planes = torch.utils.dlpack.from_dlpack(surface).cpu().numpy()
            off = np.abs(np.stack(truth) - small_luma(planes, height, width, 256 if planes.itemsize == 2 else 1))
            rows.append(int(off.mean((1, 2)).argmin()))
            worst = max(worst, float(off.mean((1, 2)).min()))
            stamps.append(surface.getPTS())
            fed_at.append(number)
    facts = {"packets": len(packets), "truth": len(truth), "n": len(rows), "worst": round(worst, 2)}
    return facts | {"rows": runs(rows), "stamps": runs(stamps), "fed_at": runs(fed_at)}


def ours(backend: PyNvVideoCodecBackend, path: str, num_frames: int, prefer: str) -> list:
    options = DecodeOptions(num_frames=num_frames, prefer=prefer)
    clip, _ = scan_timed(VideoSource.of(path), options)
    refusal = backend.refuse(clip.info, clip.index)
    try:
        plan = make_plan(clip, options)
        gpu, cpu = backend.decode(clip, plan, options), PyAvBackend().decode(clip, plan, options)
    except FramefleetError as error:
        return [refusal, str(error)]
    off = np.abs(gpu.data.astype(int) - cpu.data).mean((1, 2, 3))
    return [refusal, bool(np.array_equal(gpu.indices, cpu.indices)), round(float(off.max()), 3)]


def main() -> None:
    torch.cuda.init()
    backend = PyNvVideoCodecBackend()
    for path in sorted(Path(sys.argv[1]).iterdir()):
        facts = {f"{n} {prefer}": ours(backend, str(path), n, prefer) for n, prefer in ASKED}
        print(json.dumps({"clip": path.name, "whole": whole(str(path))} | facts), flush=True)


if __name__ == "__main__":
    main()
