"""The DeepStream backend on its software pool: right frames from fewer packets, and its faults cost their clip only."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from framefleet.decode.backends.deepstream import DeepStreamBackend
from framefleet.decode.backends.pyav import PyAvBackend
from framefleet.decode.deepstream import host_process
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import plan_decode
from framefleet.decode.pool import DecodePool
from framefleet.decode.session import scan_timed
from framefleet.decode.silicon import SiliconReader
from framefleet.decode.targets import choose_targets, output_size
from framefleet.errors import ConfigError, DecodeError, DecoderLost, DecodeTimeout, DeviceError
from framefleet.media.source import VideoSource

FAKE = "framefleet.decode.deepstream.fake"
TAKEN = [
    "base.mp4", "vfr_phone.mp4", "long_gop.mp4", "editlist_cut.mp4", "neg_pts_editlist.mp4", "open_gop.mp4",
    "hevc_open_gop.mp4", "hevc_gop3_161.mp4", "intra_refresh.mp4", "rot90.mp4", "hflip_matrix.mp4",
    "start_at_5s.mkv", "fragmented.mp4", "slowmo_240fps.mp4", "cover_art_first.mp4", "same_coded_1280x532.mp4",
    "same_coded_1280x530.mp4",
]  # fmt: skip
REFUSED = {
    "h264_hi10.mp4": "H.264", "prores_422_10.mov": "prores", "hdr_pq_bt2020.mp4": "HDR", "av1.mp4": "codec av1",
    "missing_pts_bframes.avi": "decoded", "raw_elementary.h264": "packets", "interlaced_tff.mp4": "interlaced",
    "hevc_main10.mp4": "10-bit", "vp9_alpha.webm": "alpha", "no_nbframes.webm": "not vp9",
    "h264_gray.mp4": "without chroma",
}  # fmt: skip


def opened(pool):
    made = DeepStreamBackend(f"{FAKE}:{pool}")
    yield made
    made.close()


@pytest.fixture(scope="module")
def backend():
    yield from opened("FakePool")


def planned(path, **asked):
    options = DecodeOptions(**{"num_frames": 8, "pool_size": 2, **asked})
    clip, _ = scan_timed(VideoSource.of(path), options)
    targets = choose_targets(clip.index, options)
    width, height = output_size(clip.info, len(targets.rows), options)
    return clip, plan_decode(clip.index, targets, width, height), options


@pytest.mark.parametrize("num_frames", [3, 8])
@pytest.mark.parametrize("name", TAKEN)
def test_same_frames_as_pyav(corpus, backend, name, num_frames):
    clip, plan, options = planned(corpus / name, num_frames=num_frames)
    assert backend.refuse(clip.info, clip.index) is None
    ours, theirs = backend.decode(clip, plan, options), PyAvBackend().decode(clip, plan, options)
    np.testing.assert_array_equal(ours.indices, theirs.indices)
    np.testing.assert_array_equal(ours.pts_s, theirs.pts_s)
    assert ours.data.shape == theirs.data.shape
    assert np.abs(ours.data.astype(int) - theirs.data).mean() < 1
    assert ours.stats.num_missing == 0
    assert ours.stats.frames_walked <= len(clip.index.packet_pts)


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_with_the_reason(corpus, backend, name):
    clip, _, _ = planned(corpus / name)
    assert REFUSED[name] in (backend.refuse(clip.info, clip.index) or "")


def test_small_frames_are_resized_and_turned(corpus, backend):
    clip, plan, options = planned(corpus / "rot90.mp4", size=(72, 88))
    ours, theirs = backend.decode(clip, plan, options), PyAvBackend().decode(clip, plan, options)
    assert ours.data.shape == (8, 88, 72, 3)
    assert np.abs(ours.data.astype(int) - theirs.data).mean() < 2


def test_only_what_is_wanted_is_fed(corpus, backend):
    clip, plan, options = planned(corpus / "base.mp4", num_frames=2)
    assert backend.decode(clip, plan, options).stats.frames_walked == plan.frames_walked < clip.index.num_frames


def test_a_feed_cut_in_a_worker_is_the_same(corpus, backend):
    clip, plan, options = planned(corpus / "hevc_open_gop.mp4")
    with DecodePool(workers=1) as pool:
        feed = pool.run("cut", corpus / "hevc_open_gop.mp4", options)
    here, there = backend.decode(clip, plan, options), backend.decode_parcel(feed, options)
    np.testing.assert_array_equal(here.data, there.data)
    np.testing.assert_array_equal(here.indices, there.indices)


def test_one_process_serves_all_workers(corpus, backend):
    """In a caption run: workers cut, the owner's one process decodes; what it refuses goes to the CPU under `auto`."""

    async def read(reader, name, **asked):
        return await reader.decode(corpus / name, DecodeOptions(num_frames=4, pool_size=2, **asked))

    async def both():
        with DecodePool(workers=2) as pool:
            reader = SiliconReader(pool, backend)
            try:
                return await read(reader, "base.mp4", backend="deepstream"), await read(reader, "av1.mp4")
            finally:
                reader.close()

    ours, other = asyncio.run(both())
    assert ours.stats.backend == "deepstream"
    assert other.stats.backend == "pyav"
    assert "av1" in other.stats.refusals["deepstream"]


def test_many_clips_at_once(corpus, backend):
    names = [*TAKEN[:6], *TAKEN[:6]]
    jobs = [planned(corpus / name) for name in names]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda job: backend.decode(*job).data, jobs))
    for first, again in zip(together[:6], together[6:], strict=True):
        np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("pool", ["HangingPool", "DyingPool"])
def test_a_fault_costs_its_clip_only(corpus, pool):
    backend = DeepStreamBackend(f"{FAKE}:{pool}")
    bad, good = planned(corpus / "base.mp4", num_frames=1, timeout_s=3), planned(corpus / "rot90.mp4")
    try:
        backend.decode(*good)  # warm
        with ThreadPoolExecutor(2) as threads:
            lost, fine = threads.submit(backend.decode, *bad), threads.submit(backend.decode, *good)
            error = lost.exception()
            assert isinstance(error, DecodeTimeout if pool == "HangingPool" else DecoderLost)
            assert clip_name(bad) in str(error) or "died" in str(error)
            assert len(fine.result()) == 8
        assert len(backend.decode(*good)) == 8  # in a new process
    finally:
        backend.close()


def clip_name(job):
    return job[0].source.name


def test_starting_the_process_is_no_clips_time(corpus, monkeypatch):
    """A start that takes longer than the clip's deadline."""
    start = host_process.HostProcess.__init__

    def slow_start(self, setting):
        time.sleep(1.5)
        start(self, setting)

    monkeypatch.setattr(host_process.HostProcess, "__init__", slow_start)
    backend = DeepStreamBackend(f"{FAKE}:FakePool")
    assert len(backend.decode(*planned(corpus / "base.mp4", timeout_s=1.4))) == 8
    backend.close()


def test_a_wrong_count_gives_no_frames(corpus):
    backend = DeepStreamBackend(f"{FAKE}:MiscountingPool")
    with pytest.raises(DecodeError, match="other pictures"):
        backend.decode(*planned(corpus / "base.mp4"))
    backend.close()


def test_a_pool_that_does_not_load_says_why(corpus):
    with pytest.raises(DeviceError, match="no_such_module"):
        DeepStreamBackend("no_such_module:Pool").decode(*planned(corpus / "base.mp4"))


def test_pool_size_has_a_range(corpus):
    with pytest.raises(ConfigError, match="1 to 16"):
        DeepStreamBackend(f"{FAKE}:FakePool").decode(*planned(corpus / "base.mp4", pool_size=17))


def test_without_the_wheel_it_says_what_to_install(corpus):
    clip, _, _ = planned(corpus / "base.mp4")
    assert "framefleet[deepstream]" in (DeepStreamBackend().refuse(clip.info, clip.index) or "")


def test_no_process_is_left(corpus):
    backend = DeepStreamBackend(f"{FAKE}:FakePool")
    backend.decode(*planned(corpus / "base.mp4"))
    host = backend._hosts["shared"]
    backend.close()
    with pytest.raises(DecoderLost):
        host.decode(replace_ask(), limits(), "any")


def replace_ask():
    from framefleet.decode.deepstream.messages import Ask

    none = np.zeros(0, np.uint8)
    return Ask(0, none, "h264", none.astype(np.int64), 0, 8, 8, 1.0)


def limits():
    from framefleet.media.limits import Deadline

    return Deadline(1.0)
