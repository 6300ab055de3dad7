"""Peers of the NVDEC benchmark: DeepStream's pool and TorchCodec on CUDA, as vLLM uses them, and DALI.

`PEERS[arm]` is (open, count): `open(count)` is called once per trial and gives what makes one worker, a function from
a path to the number of frames it got.

The first two look for shared libraries by names that the machine may not have. `library_path` makes a folder of
links to them; a trial process must be started with LD_LIBRARY_PATH naming it (`with_libraries` starts this process
anew so).
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

NUM_FRAMES = 16
Worker = Callable[[str], int]
_MARK = "FRAMEFLEET_PEER_LIBRARIES"


def rows_of(num_frames: int) -> list[int]:
    return np.linspace(0, num_frames - 1, min(NUM_FRAMES, num_frames)).round().astype(int).tolist()


def library_path(folder: Path) -> Path:
    """Links in `folder` to PyAV's FFmpeg (which serves TorchCodec) and to CUDA's libraries (for DeepStream)."""
    from framefleet.decode.deepstream import cuda
    from framefleet.errors import MissingLibrary

    for package in find_spec("av").submodule_search_locations:
        for library in Path(package).parent.joinpath("av.libs").glob("*.so*"):
            names = [library.name]
            if plain := re.match(r"(lib(?:av|sw)\w+)-[0-9a-f]{8}\.so\.(\d+)\.", library.name):
                names.append(f"{plain[1]}.so.{plain[2]}")
            for name in names:
                (folder / name).symlink_to(library)
    try:
        cuda.link_libraries(folder)
        nvrtc = cuda.find_library("libnvrtc.so.13")  # TorchCodec's
        (folder / nvrtc.name).symlink_to(nvrtc)
    except MissingLibrary as error:
        print(error, file=sys.stderr)
    return folder


def with_libraries() -> None:
    """Start this process anew with the libraries on its path, once."""
    if os.environ.get(_MARK):
        return
    folder = library_path(Path(tempfile.mkdtemp(prefix="peers-")))
    os.environ |= {
        _MARK: str(folder),
        "LD_LIBRARY_PATH": os.pathsep.join([str(folder), os.environ.get("LD_LIBRARY_PATH", "")]),
        "GST_REGISTRY": str(folder / "registry.bin"),
    }
    os.execv(sys.executable, [sys.executable, *sys.argv])


def to_pinned(frames) -> int:
    import torch

    host = torch.empty(frames.shape, dtype=frames.dtype, pin_memory=torch.cuda.is_available())
    host.copy_(frames)
    return len(host)


def deepstream_pool(count: int) -> Callable[[], Worker]:
    """As vLLM's deepstream loader: one pool for all, whole files, counted by its own probe; full size, pinned memory.

    A file that the pool refuses raises with its reason.
    """
    with_libraries()
    from framefleet.decode.deepstream.gstreamer import find_gstreamer
    from framefleet.decode.deepstream.preload import load_gstreamer

    found = find_gstreamer()
    load_gstreamer(found.bundle, found.python_path)
    from nvidia.deepstream_videodecode import DecodePool, probe_metadata

    pool = DecodePool(num_workers=count)

    def clip(path: str) -> int:
        content = Path(path).read_bytes()
        num_frames, *_, codec = probe_metadata(content)
        rows = rows_of(num_frames)
        result = pool.decode(content, target_indices=rows, codec=codec, max_frames=len(rows))
        if result.error or result.frames is None:
            raise RuntimeError(result.error or "no frames")
        return to_pinned(result.frames)

    return lambda: clip


def deepstream_ours(count: int) -> Callable[[], Worker]:
    """framefleet's backend over the same pool: our index and plan, small frames, a process that can be killed.

    Scanning and cutting in 8 worker processes, as the `ours` arms pack in theirs.
    """
    from framefleet.decode.backends.deepstream import DeepStreamBackend
    from framefleet.decode.options import DecodeOptions
    from framefleet.decode.pool import DecodePool

    options = DecodeOptions(num_frames=NUM_FRAMES, size=(1024, 576), pool_size=count)
    backend, pool = DeepStreamBackend(), DecodePool(workers=8, threads=1)
    pool.open()
    return lambda: lambda path: len(backend.decode_parcel(pool.run("cut", path, options), options))


def torchcodec_cuda(count: int) -> Callable[[], Worker]:
    """TorchCodec's CUDA decoder, one per clip: exact seeking, full size, pinned memory."""
    del count
    with_libraries()
    import torch
    from torchcodec.decoders import VideoDecoder

    def clip(path: str) -> int:
        with torch.cuda.stream(torch.cuda.Stream()):
            decoder = VideoDecoder(path, device="cuda", dimension_order="NHWC", seek_mode="exact")
            if getattr(decoder, "cpu_fallback", None):
                raise RuntimeError(f"on the CPU: {decoder.cpu_fallback}")
            return to_pinned(decoder.get_frames_at(rows_of(len(decoder))).data)

    return lambda: clip


def torchcodec_cpu(count: int) -> Callable[[], Worker]:
    """TorchCodec on the CPU with one thread, one decoder per clip, whole size."""
    del count
    with_libraries()
    from torchcodec.decoders import VideoDecoder

    def clip(path: str) -> int:
        decoder = VideoDecoder(path, dimension_order="NHWC", seek_mode="exact", num_ffmpeg_threads=1)
        return len(decoder.get_frames_at(rows_of(len(decoder))).data)

    return lambda: clip


def dali(batch: int) -> Callable[[int], Callable[[], Worker]]:
    """DALI's video decoder: one pipeline for all, `batch` whole files at once, full size, pinned memory.

    It takes frame numbers, so the clip's length is asked before, outside what is timed. Without a GPU it decodes on
    the CPU (VP9 only), to try the arm.
    """

    def open_(_count: int) -> Callable[[], Worker]:
        import torch
        from nvidia.dali import fn, pipeline_def, types

        is_gpu = torch.cuda.is_available()

        @pipeline_def(batch_size=batch, num_threads=batch, device_id=0 if is_gpu else None, prefetch_queue_depth=2)
        def frames_of(path: str, rows: list[int]):
            files = lambda: [np.fromfile(path, np.uint8) for _ in range(batch)]  # noqa: E731
            encoded = fn.external_source(source=files, dtype=types.UINT8, ndim=1)
            return fn.decoders.video(encoded, device="mixed" if is_gpu else "cpu", frames=rows)

        @cache
        def pipeline(path: str):
            built = frames_of(path, rows_of(length(path)))
            built.build()
            return built

        def clip(path: str) -> int:
            (videos,) = pipeline(path).run()
            return sum(to_pinned(torch.from_dlpack(videos[i])) for i in range(batch))

        return lambda: clip

    return open_


def length(path: str) -> int:
    """Frames in a file, by its header."""
    import av

    with av.open(path) as container:
        return container.streams.video[0].frames or sum(packet.size > 0 for packet in container.demux(video=0))


PEERS: dict[str, tuple[Callable[[int], Callable[[], Worker]], int]] = {
    **{f"deepstream_pool_{count}": (deepstream_pool, count) for count in (1, 8, 16)},
    **{f"deepstream_ours_{count}": (deepstream_ours, count) for count in (8, 16)},
    **{f"torchcodec_cuda_{count}": (torchcodec_cuda, count) for count in (4, 8, 16)},
    **{f"dali_{batch}": (dali(batch), 1) for batch in (8, 16)},
}
