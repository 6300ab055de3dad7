"""The NVDEC backend on a real card: equal frames, nothing kept from clip to clip, nothing leaked, the budget held.

The decode contract runs on the card too (tests/contract), and so does the conversion kernel (tests/decode/gpu).
"""

import asyncio
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from framefleet.decode.backends.pyav import PyAvBackend
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import plan_decode
from framefleet.decode.pool import DecodePool
from framefleet.decode.session import scan_timed
from framefleet.decode.silicon import SiliconReader, leftover_pool
from framefleet.decode.targets import choose_targets, output_size
from framefleet.errors import BudgetTooLarge
from framefleet.media.source import VideoSource
from framefleet.units import MIB
from framefleet.vram.budget import MemoryBudget

pytestmark = pytest.mark.gpu
FIXED_MIB = 1024
"""CUDA context, kernels and what the driver keeps for NVDEC: stated in docs/guides/nvdec.md, outside the budget."""
CLIPS = [
    "base.mp4", "vfr_phone.mp4", "long_gop.mp4", "editlist_cut.mp4", "neg_pts_editlist.mp4", "open_gop.mp4",
    "hevc_open_gop.mp4", "hevc_gop3_161.mp4", "hevc_main10.mp4", "intra_refresh.mp4", "rot90.mp4", "hflip_matrix.mp4",
    "start_at_5s.mkv", "fragmented.mp4", "slowmo_240fps.mp4", "cover_art_first.mp4", "bt709_full.mp4",
    "same_coded_1280x532.mp4", "same_coded_1280x530.mp4", "no_nbframes.webm", "no_duration.webm", "fps_1000.webm",
]  # fmt: skip


@pytest.fixture(scope="module")
def card():
    """MiB in use on the card."""
    pynvml = pytest.importorskip("pynvml")
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    return lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used // MIB


@pytest.fixture(scope="module")
def own(card):
    """MiB that this process has on the card; of all where the driver does not tell (it may be in another namespace)."""
    import pynvml
    import torch

    torch.zeros(1, device="cuda")
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def by_process():
        return {one.pid: one.usedGpuMemory for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}

    is_told = bool(by_process().get(os.getpid()))
    return (lambda: by_process()[os.getpid()] // MIB) if is_told else card


@pytest.fixture(scope="module")
def backend():
    made = backend_of()
    yield made
    made.close()


def backend_of(**settings):
    from framefleet.decode.backends.pynvvideocodec import PyNvVideoCodecBackend

    return PyNvVideoCodecBackend(**settings)


def planned(path, **asked):
    options = DecodeOptions(**{"num_frames": 8, **asked})
    clip, _ = scan_timed(VideoSource.of(str(path)), options)
    targets = choose_targets(clip.index, options)
    width, height = output_size(clip.info, len(targets.rows), options)
    return clip, plan_decode(clip.index, targets, width, height), options


def assert_same(ours, theirs):
    np.testing.assert_array_equal(ours.indices, theirs.indices)
    np.testing.assert_array_equal(ours.pts_s, theirs.pts_s)
    assert ours.data.shape == theirs.data.shape
    assert np.abs(ours.data.astype(int) - theirs.data).mean() < 2


@pytest.mark.parametrize("prefer", ["auto", "throughput"])
@pytest.mark.parametrize("name", CLIPS)
def test_same_frames_as_the_cpu(corpus, backend, name, prefer):
    clip, plan, options = planned(corpus / name, prefer=prefer)
    assert backend.refuse(clip.info, clip.index) is None
    assert_same(backend.decode(clip, plan, options), PyAvBackend().decode(clip, plan, options))


@pytest.fixture(scope="module")
def made_clips(tmp_path_factory):
    """HEVC as the corpus lacks it: 4:4:4, 10 bit, and both, of a size that NVDEC takes."""
    folder, made = tmp_path_factory.mktemp("made"), {}
    for pixels in ("yuv444p", "yuv420p10le", "yuv444p10le"):
        made[pixels] = folder / f"{pixels}.mp4"
        with av.open(str(made[pixels]), "w") as container:
            stream = container.add_stream("libx265", rate=25, options={"x265-params": "log-level=none:keyint=20"})
            stream.width, stream.height, stream.pix_fmt = 320, 240, pixels
            y, x = np.mgrid[:240, :320]
            for n in range(40):
                rgb = np.stack([(x + 4 * n) % 256, (y * 2) % 256, (x + y) % 256], -1).astype(np.uint8)
                frame = av.VideoFrame.from_ndarray(rgb, "rgb24")
                frame.pts, frame.time_base = n, Fraction(1, 25)
                container.mux(stream.encode(frame.reformat(format=pixels)))
            container.mux(stream.encode(None))
    return made


@pytest.mark.parametrize("pixels", ["yuv444p", "yuv420p10le", "yuv444p10le"])
def test_more_depth_and_more_chroma(made_clips, backend, pixels):
    clip, plan, options = planned(made_clips[pixels])
    if reason := backend.refuse(clip.info, clip.index):
        pytest.fail(reason)
    assert_same(backend.decode(clip, plan, options), PyAvBackend().decode(clip, plan, options))


def test_nothing_passes_from_one_size_to_the_next(corpus):
    backend = backend_of(lanes=1)
    names = ["same_coded_1280x532.mp4", "same_coded_1280x530.mp4", "base.mp4"]
    for name in [*names, *reversed(names)] * 3:
        clip, plan, options = planned(corpus / name)
        assert_same(backend.decode(clip, plan, options), PyAvBackend().decode(clip, plan, options))
    backend.close()


def test_frames_can_stay_on_the_card(corpus, backend):
    clip, plan, options = planned(corpus / "base.mp4", device="cuda")
    there = backend.decode(clip, plan, options)
    assert there.data.is_cuda
    here = backend.decode(*planned(corpus / "base.mp4"))
    np.testing.assert_array_equal(there.data.cpu().numpy(), here.data)


@pytest.mark.timeout(400)
def test_two_thousand_opens_leak_nothing(corpus, own):
    """Every clip on a decoder of its own, closed behind it; two sizes and two codecs in turn."""
    backend = backend_of(lanes=7)
    works = [planned(corpus / name) for name in ("same_coded_1280x532.mp4", "hevc_open_gop.mp4", "base.mp4")]
    works = [work for work in works if backend.refuse(work[0].info, work[0].index) is None]
    backend.decode(*works[0])
    backend._pool._clips_per_lane = 1
    seen = []
    with ThreadPoolExecutor(7) as threads:
        for part in range(10):
            list(threads.map(lambda n: backend.decode(*works[n % len(works)]), range(200 * part, 200 * (part + 1))))
            backend.close()
            gc.collect()
            seen.append((own(), sum(1 for _ in Path("/proc/self/fd").iterdir()), threading.active_count()))
    print("MiB, descriptors, threads after each 200 opens:", seen)  # noqa: T201 - for the log that is kept
    assert seen[-1][0] - seen[1][0] <= 32
    assert seen[-1][1] - seen[1][1] <= 4
    assert seen[-1][2] == seen[1][2]


@pytest.mark.parametrize("budget_mib", [256, 512, 1024])
def test_a_small_budget_makes_clips_wait_and_is_never_passed(tmp_path, corpus, card, budget_mib):
    path = Path(os.environ.get("FRAMEFLEET_GPU_CLIP", corpus / "same_coded_1280x532.mp4"))
    before = card()
    backend = backend_of(lanes=16, budget=MemoryBudget(budget_mib * MIB, name="NVDEC memory"))
    work, peak, over = planned(path), [0], threading.Event()
    watching = threading.Thread(target=lambda: [peak.append(card()) for _ in iter(lambda: over.wait(0.02), True)])
    watching.start()
    with ThreadPoolExecutor(16) as threads:
        frames = list(threads.map(lambda _: backend.decode(*work), range(64)))
    over.set()
    watching.join()
    backend.close()
    assert all(len(f) == 8 for f in frames)
    assert backend.budget_stats.peak_held_bytes <= budget_mib * MIB
    assert max(peak) - before <= budget_mib + FIXED_MIB
    print(f"budget {budget_mib} MiB: peak {max(peak) - before} MiB, waited {backend.budget_stats.waited_s:.2f} s")  # noqa: T201 - for the log that is kept


def test_a_budget_below_one_decoder_is_refused_at_once(corpus):
    backend = backend_of(budget=MemoryBudget(8 * MIB, name="NVDEC memory"))
    with pytest.raises(BudgetTooLarge):
        backend.decode(*planned(corpus / "same_coded_1280x532.mp4"))
    backend.close()


def test_both_kinds_of_silicon(corpus, backend):
    async def read():
        with DecodePool(workers=4) as pool, leftover_pool(pool) as cpu_pool:
            reader = SiliconReader(pool, backend, cpu_pool)
            names = ["base.mp4", "hevc_open_gop.mp4", "h264_hi10.mp4", "rot90.mp4"] * 8
            frames = await asyncio.gather(*(reader.decode(str(corpus / n), DecodeOptions(num_frames=8)) for n in names))
            reader.close()
            return names, frames, reader.load

    names, frames, load = asyncio.run(read())
    assert load.done.get("pynvvideocodec", 0) > 0
    assert load.hung == 0
    for name, got in zip(names, frames, strict=True):
        assert_same(got, PyAvBackend().decode(*planned(corpus / name)))
