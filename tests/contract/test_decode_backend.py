"""The decode contract, over every backend: the frames asked for, at their times, in any order of calls, or an error.

A backend that needs a GPU is in NEEDS_GPU and runs where there is one; its software double runs everywhere. Everything
must take every clip here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from barcode_clips import BT709, HEIGHT, WIDTH, flip_bits, write_clip

from framefleet.decode.backends import BACKENDS
from framefleet.decode.backends.deepstream import DeepStreamBackend
from framefleet.decode.backends.fake import FakeClip, read_barcode
from framefleet.decode.backends.pynvvideocodec import PyNvVideoCodecBackend
from framefleet.decode.choose import load_backends, verify
from framefleet.decode.nvdec.fake import FakeNvdecDevice
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import plan_decode
from framefleet.errors import DecodeError, DecodeTimeout, SourceError, SourceNotFound
from framefleet.media.scan import scan
from framefleet.media.source import VideoSource
from framefleet.sampling.sampler import FrameTargets

NEEDS_GPU = {"pynvvideocodec", "deepstream"}
DOUBLES = {
    "pynvvideocodec on FakeNvdecDevice": partial(PyNvVideoCodecBackend, FakeNvdecDevice),
    "deepstream on FakePool": partial(DeepStreamBackend, "framefleet.decode.deepstream.fake:FakePool"),
}
COUNTS = {"plain": 60, "other": 40, "uneven": 40, "one": 1, "long_gop": 60, "hevc": 48}
UNEVEN_S = np.cumsum([0.0, *[0.04, 0.2, 0.02, 0.1] * 10])[:40].tolist()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clips")
    return {
        "plain": write_clip(folder / "plain.mp4", 60, gop=12, b_frames=3),
        "other": write_clip(folder / "other.mkv", 40, gop=7, b_frames=0, size=(WIDTH + 64, HEIGHT + 32)),
        "uneven": write_clip(folder / "uneven.mp4", 40, times=UNEVEN_S, b_frames=0),
        "one": write_clip(folder / "one.mp4", 1),
        "long_gop": write_clip(folder / "long_gop.mp4", 60, gop=250, b_frames=3),
        "hevc": write_clip(folder / "hevc.mp4", 48, codec="libx265", gop=16, b_frames=3),
        "hd": write_clip(folder / "hd.mp4", 6, size=(1280, 720), matrix=BT709),
    }


def one_of(names):
    return [pytest.param(name, marks=pytest.mark.gpu) if name in NEEDS_GPU else name for name in names]


REAL = [name for name in [*BACKENDS, *DOUBLES] if name != "fake"]


@pytest.fixture(scope="module")
def doubles():
    made = {name: make() for name, make in DOUBLES.items()}
    yield made
    for double in made.values():
        double.close()


@pytest.fixture(params=one_of([*BACKENDS, *DOUBLES]))
def backend(request, doubles):
    return doubles.get(request.param) or load_backends([request.param])[request.param]


@pytest.fixture(params=one_of(REAL))
def real_backend(request, doubles):
    """One that decodes files."""
    return doubles.get(request.param) or load_backends([request.param])[request.param]


@pytest.fixture(params=one_of(name for name in REAL if name not in {*DOUBLES, *NEEDS_GPU}))
def backend_that_hears_of_damage(request):
    """NVDEC does not tell damaged pictures from sound ones: clips whose scan shows damage are not given to it."""
    return load_backends([request.param])[request.param]


@pytest.fixture
def clip_of(backend, files):
    """A scanned clip of one of the kinds, as this backend takes it."""

    def scanned(kind):
        if backend.name == "fake":
            return backend.scan(FakeClip(num_frames=COUNTS[kind], width=WIDTH, height=HEIGHT, seed=len(kind)).source)
        return scan(VideoSource.of(files[kind]))

    return scanned


def plan_for(clip, rows, size=None):
    width, height = size or (clip.info.width, clip.info.height)
    return plan_decode(clip.index, FrameTargets(np.array(rows, np.int64)), width, height)


def decode(backend, clip, rows, size=None, **options):
    """Decode and check everything that must hold for whole clips."""
    plan = plan_for(clip, rows, size)
    frames = backend.decode(clip, plan, DecodeOptions(**options))
    assert verify(frames, plan, clip.index) is None
    assert isinstance(frames.data, np.ndarray)
    assert frames.data.flags.c_contiguous
    return frames


def barcodes(frames):
    native = frames.info.width
    return [read_barcode(frame, native) for frame in frames.data]


@pytest.mark.parametrize("kind", COUNTS)
def test_every_clip_here_is_taken(backend, clip_of, kind):
    clip = clip_of(kind)
    assert clip.index.num_frames == COUNTS[kind]
    assert backend.refuse(clip.info, clip.index) is None


@pytest.mark.parametrize("kind", COUNTS)
def test_every_frame_is_the_one_its_row_names(backend, clip_of, kind):
    clip = clip_of(kind)
    rows = list(range(COUNTS[kind]))
    frames = decode(backend, clip, rows)
    assert barcodes(frames) == rows
    assert frames.indices.tolist() == rows
    assert np.array_equal(frames.pts_ns, clip.index.pts_ns)


@pytest.mark.parametrize("kind", ["plain", "long_gop", "hevc", "uneven"])
@pytest.mark.parametrize("rows", [[0], [-1], [1, -2], [13, 14, 35], [0, 11, 12, 13, 24, 36], [7, 20, 21, -1]])
def test_sparse_rows_are_the_ones_asked_for(backend, clip_of, kind, rows):
    clip = clip_of(kind)
    rows = sorted(row % COUNTS[kind] for row in rows)
    assert barcodes(decode(backend, clip, rows)) == rows


def test_a_row_asked_for_twice_comes_twice(backend, clip_of):
    assert barcodes(decode(backend, clip_of("one"), [0, 0])) == [0, 0]
    assert barcodes(decode(backend, clip_of("plain"), [3, 3, 9])) == [3, 3, 9]


@pytest.mark.parametrize("size", [(160, 88), (WIDTH * 2, HEIGHT * 2), (WIDTH, 200)])
def test_frames_come_in_the_size_of_the_plan(backend, clip_of, size):
    rows = [5, 30, 59]
    frames = decode(backend, clip_of("plain"), rows, size)
    assert frames.data.shape == (3, size[1], size[0], 3)
    assert barcodes(frames) == rows


def test_nothing_is_left_from_the_clip_before(backend, clip_of):
    plain, other = clip_of("plain"), clip_of("other")
    first = decode(backend, plain, [2, 40])
    between = decode(backend, other, [39])
    again = decode(backend, plain, [2, 40])
    assert np.array_equal(first.data, again.data)
    assert barcodes(between) == [39]


def test_bytes_give_what_the_file_gives(real_backend, files):
    clip = scan(VideoSource.of(files["plain"]))
    in_memory = scan(VideoSource.of(files["plain"].read_bytes()))
    assert np.array_equal(decode(real_backend, clip, [8, 50]).data, decode(real_backend, in_memory, [8, 50]).data)


def test_stats_say_what_happened(backend, clip_of):
    clip = clip_of("plain")
    plan = plan_for(clip, [10, 50])
    stats = decode(backend, clip, [10, 50]).stats
    assert stats.backend == backend.name
    assert plan.frames_walked <= stats.frames_walked <= clip.index.num_frames
    assert stats.output_bytes == 2 * clip.info.width * clip.info.height * 3
    assert stats.index_method == clip.index.method
    assert stats.seconds["decode"] >= 0
    assert stats.num_missing == stats.num_corrupt == 0


def test_refusing_opens_nothing(backend, clip_of):
    clip = clip_of("plain")
    gone = replace(clip, source=VideoSource("file", "/no/such/clip.mp4"))
    assert backend.refuse(gone.info, gone.index) is None


def test_a_clip_that_is_gone_is_not_found(backend, clip_of):
    clip = clip_of("plain")
    gone = replace(clip, source=VideoSource("file", "/no/such/clip.mp4"))
    with pytest.raises(SourceNotFound):
        backend.decode(gone, plan_for(clip, [0]), DecodeOptions())


def test_the_deadline_holds(backend, clip_of):
    clip = clip_of("plain")
    with pytest.raises(DecodeTimeout):
        backend.decode(clip, plan_for(clip, range(60)), DecodeOptions(timeout_s=1e-9))


def open_descriptors():
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def test_no_descriptor_is_left_open(backend, clip_of):
    clip = clip_of("plain")
    decode(backend, clip, [1])
    before = open_descriptors()
    for _ in range(5):
        decode(backend, clip, [1, 30])
    assert open_descriptors() == before


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_change_nothing(backend, clip_of, threads):
    clip = clip_of("long_gop")
    frames = decode(backend, clip, [17, 59], num_ffmpeg_threads=threads)
    assert barcodes(frames) == [17, 59]


@pytest.mark.parametrize("kind", ["plain", "hd", "hevc"])
def test_pictures_are_within_three_levels_of_each_other(real_backend, files, kind):
    clip = scan(VideoSource.of(files[kind]))
    if real_backend.refuse(clip.info, clip.index):
        pytest.fail(f"refused: {real_backend.refuse(clip.info, clip.index)}")
    pyav = load_backends(["pyav"])["pyav"]
    ours, theirs = decode(real_backend, clip, [2, 5]).data, decode(pyav, clip, [2, 5]).data
    flat = (slice(None), slice(clip.info.height // 2 + 16, -16), slice(16, -16))
    assert np.abs(ours[flat].astype(int) - theirs[flat]).max() <= 3
    assert np.abs(ours.astype(int) - theirs).mean() <= 1.5


@pytest.mark.parametrize("kind", ["plain", "hevc"])
def test_resized_pictures_are_close_to_each_other(real_backend, files, kind):
    clip = scan(VideoSource.of(files[kind]))
    pyav = load_backends(["pyav"])["pyav"]
    size = (192, 96)
    ours, theirs = decode(real_backend, clip, [2, 5], size).data, decode(pyav, clip, [2, 5], size).data
    assert np.abs(ours.astype(int) - theirs).mean() <= 2


def test_damage_never_passes_for_a_whole_picture(backend_that_hears_of_damage, files, tmp_path):
    """H.264 with flipped bits: what is given without a flag must be the undamaged picture (FFmpeg notices these)."""
    real_backend = backend_that_hears_of_damage
    whole = scan(VideoSource.of(files["plain"]))
    rows = list(range(60))
    truth = decode(real_backend, whole, rows).data.astype(int)
    outcomes = {"raised": 0, "flagged": 0}
    for seed in range(12):
        damaged = flip_bits(files["plain"], tmp_path / f"{seed}.mp4", seed=seed)
        try:
            clip = scan(VideoSource.of(damaged))
            if real_backend.refuse(clip.info, clip.index):
                outcomes["raised"] += 1
                continue
            frames = real_backend.decode(clip, plan_for(clip, range(clip.index.num_frames)), DecodeOptions())
        except (DecodeError, SourceError):
            outcomes["raised"] += 1
            continue
        is_flagged = frames.stats.num_missing or frames.stats.num_corrupt or clip.index.num_frames < 60
        outcomes["flagged"] += bool(is_flagged)
        if not is_flagged:
            assert np.abs(frames.data - truth).mean(axis=(1, 2, 3)).max() < 1
    assert sum(outcomes.values()) > 6, outcomes


def test_the_names_are_those_of_the_registry(backend):
    assert backend.name in BACKENDS.names()


def test_groups_are_walked_in_order_whatever_their_number(backend, clip_of):
    clip = clip_of("plain")
    rows = [0, 13, 26, 39, 52]
    assert all(a.last_packet < b.first_packet for a, b in pairwise(plan_for(clip, rows).groups))
    assert barcodes(decode(backend, clip, rows)) == rows
