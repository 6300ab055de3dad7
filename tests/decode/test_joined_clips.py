"""Open groups of pictures cut and joined packet by packet: what is given is right, and the same in any company."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
from barcode_clips import write_clip
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from odd_clips import cut_and_joined, group_starts, mux, packets_of

import framefleet
from framefleet.decode.backends.pyav import PyAvBackend
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import plan_decode
from framefleet.errors import DecodeError, SourceUnsupported
from framefleet.media.scan import scan
from framefleet.media.source import VideoSource
from framefleet.sampling.sampler import FrameTargets

FRAMES, GOP = 120, 12
OPEN = "open-gop=1:scenecut=0:keyint=12:min-keyint=12:b-adapt=0"
KINDS = {
    "h264": ("libx264", 2, {"x264-params": f"{OPEN}:bframes=2:b-pyramid=none"}),
    "h264_pyramid": ("libx264", 3, {"x264-params": f"{OPEN}:bframes=3:b-pyramid=normal:ref=4"}),
    "hevc": ("libx265", 2, {"x265-params": f"log-level=none:{OPEN}:bframes=2:b-pyramid=0"}),
    "hevc_pyramid": ("libx265", 4, {"x265-params": f"log-level=none:{OPEN}:bframes=4:b-pyramid=1"}),
    "mpeg1": ("mpeg1video", 2, {"b": "4M"}),
    "mpeg2": ("mpeg2video", 2, {"b": "4M"}),
    "mpeg4": ("mpeg4", 2, {"b": "4M"}),
    "refresh": ("libx264", 0, {"x264-params": "intra-refresh=1:keyint=24:bframes=0:scenecut=0"}),
    "refresh_b": (
        "libx264",
        2,
        {"x264-params": "intra-refresh=1:keyint=24:bframes=2:scenecut=0:b-adapt=0:b-pyramid=none"},
    ),
}
OPEN_KINDS = [kind for kind in KINDS if "refresh" not in kind]
COUNTED_BY_COURTESY = ("mpeg1", "mpeg2", "mpeg4")
PARTS = {
    "a hole": [(0, 3), (5, 8)],
    "two cuts": [(1, 4), (7, 9)],
    "twice the same": [(2, 4), (2, 4)],
    "backward": [(5, 7), (1, 3)],
    "three": [(1, 3), (4, 6), (7, 9)],
    "single groups": [(1, 2), (4, 5), (2, 3), (6, 7)],
}
CONTAINERS = {
    "h264": ("ts", "mp4", "mkv", "h264"), "h264_pyramid": ("ts", "mp4", "h264"), "hevc": ("ts", "mkv", "hevc"),
    "hevc_pyramid": ("ts", "mp4"), "mpeg1": ("ts",), "mpeg2": ("ts", "mpg", "m2v"), "mpeg4": ("ts", "mkv", "mp4"),
}  # fmt: skip


@pytest.fixture(scope="module")
def wholes(tmp_path_factory):
    """kind -> (path, picture by pts) of a whole stream, each made once."""
    folder, made = tmp_path_factory.mktemp("wholes"), {}

    def whole(kind):
        if kind not in made:
            codec, b_frames, options = KINDS[kind]
            time_base = Fraction(1, 30) if codec.startswith("mpeg") else Fraction(1, 90_000)
            path = write_clip(
                folder / f"{kind}.ts", FRAMES, codec=codec, gop=GOP, b_frames=b_frames, options=options,
                size=(176, 64), time_base=time_base,
            )  # fmt: skip
            clip = scan(VideoSource.of(path))
            pictures = decoded(clip, range(FRAMES))
            pts = clip.index.packet_pts[clip.index.packet_of_row]
            made[kind] = path, {int(t): pictures[row] for row, t in enumerate(pts)}
        return made[kind]

    return whole


def decoded(clip, rows):
    """row -> picture of those that are given."""
    plan = plan_decode(clip.index, FrameTargets(np.array(sorted(rows))), clip.info.width, clip.info.height)
    try:
        frames = PyAvBackend().decode(clip, plan, DecodeOptions(backend="pyav"))
    except DecodeError:
        return {}
    return dict(zip(frames.indices.tolist(), frames.data, strict=True))


def assert_in_any_company(clip, full, subsets):
    for rows in subsets:
        given = decoded(clip, rows)
        assert set(given) == set(full) & set(rows)
        assert all(np.array_equal(picture, full[row]) for row, picture in given.items()), rows


def joined_clip(wholes, kind, parts, path):
    whole, pictures = wholes(kind)
    if "refresh" not in kind:
        starts = group_starts(whole)
        parts = [(starts[first], starts[last]) for first, last in parts]
    origins = cut_and_joined(path, whole, parts)
    clip = scan(VideoSource.of(path))
    assert len(clip.index.packet_pts) == len(origins)
    return clip, [pictures[origins[packet]] for packet in clip.index.packet_of_row]


def case(kind, container, name, *, marks=()):
    return pytest.param(kind, container, PARTS[name], id=f"{kind}-{container}-{name}", marks=marks)


CASES = [case(kind, CONTAINERS[kind][0], name) for kind in OPEN_KINDS for name in ("a hole", "twice the same")]
CASES += [
    case(kind, container, name, marks=pytest.mark.slow)
    for kind in OPEN_KINDS
    for container in CONTAINERS[kind]
    for name in PARTS
    if kind not in COUNTED_BY_COURTESY or name != "single groups"  # counts that never go on tell nothing
]


@pytest.mark.parametrize(("kind", "container", "parts"), CASES)
def test_every_frame_given_is_right_alone_as_in_company(wholes, tmp_path, kind, container, parts):
    clip, expected = joined_clip(wholes, kind, parts, tmp_path / f"joined.{container}")
    full = decoded(clip, range(len(expected)))
    assert sorted(full) == list(range(len(expected)))
    assert all(np.array_equal(picture, expected[row]) for row, picture in full.items())
    num_leading = KINDS[kind][1] if kind != "hevc_pyramid" else 1
    assert len(full) >= len(clip.index.packet_pts) - num_leading * len(parts)
    assert 0 < clip.index.num_lost <= num_leading * len(parts)
    rng = np.random.default_rng(len(full))
    few = [rng.choice(len(full), size, replace=False).tolist() for size in (2, 3, 5, 8) for _ in range(2)]
    assert_in_any_company(clip, full, [[row] for row in range(0, len(full), 3)] + few)


CUTS = st.lists(st.tuples(st.integers(0, 8), st.integers(2, 40)), min_size=2, max_size=4)
"""(group to begin at, packets to take) of each part."""
COUNTED_FAR = ("hevc", "hevc_pyramid")
"""Their counters wrap after more frames than there are; x264's go round once in four of these groups."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPEN_KINDS)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=CUTS, seed=st.integers(0, 99))
def test_any_cuts_joined(wholes, tmp_path, kind, cuts, seed):
    whole, pictures = wholes(kind)
    starts = group_starts(whole)
    parts = [(starts[first], starts[first] + length) for first, length in cuts]
    path = tmp_path / "any.ts"
    origins = cut_and_joined(path, whole, parts)
    clip = scan(VideoSource.of(path))
    rows = clip.index.num_frames
    full = decoded(clip, range(rows))
    rng = np.random.default_rng(seed)
    few = [rng.choice(rows, min(rows, size), replace=False).tolist() for size in (1, 1, 1, 2, 3, 5)]
    assert_in_any_company(clip, full, few)
    if kind in COUNTED_FAR:
        shown = {row: pictures[origins[packet]] for row, packet in enumerate(clip.index.packet_of_row)}
        assert all(np.array_equal(picture, shown[row]) for row, picture in full.items())


def test_broken_links_say_themselves_what_is_lost(wholes, tmp_path):
    """H.265 splicers rename the first picture (BLA): what leads it is never shown, however well the count goes on."""
    whole, pictures = wholes("hevc")
    clip = scan(VideoSource.of(whole))
    third = np.flatnonzero(clip.index.packet_is_keyframe)[2]
    packets = [
        (re.sub(rb"\x2a(?=\x01)", b"\x20", content, count=1) if number == third else content, pts, dts, is_key)
        for number, (content, pts, dts, is_key) in enumerate(packets_of(whole))
    ]
    spliced = scan(VideoSource.of(mux(tmp_path / "spliced.ts", whole, packets, rate=90_000)))
    missing = np.setdiff1d(np.arange(FRAMES), spliced.index.packet_of_row)
    assert missing.tolist() == [third + 1, third + 2]
    full = decoded(spliced, range(FRAMES - 2))
    pts = [packets[packet][1] for packet in spliced.index.packet_of_row]
    assert all(np.array_equal(full[row], pictures[pts[row]]) for row in range(FRAMES - 2))
    assert_in_any_company(spliced, full, [[row] for row in range(0, FRAMES - 2, 7)])


REFRESHED = [
    ("refresh", [(0, 48), (72, 120)]), ("refresh", [(24, 72), (48, 96)]), ("refresh", [(0, 30), (70, 110)]),
    ("refresh_b", [(0, 46), (70, 120)]), ("refresh_b", [(22, 70), (46, 94)]), ("refresh_b", [(0, 30), (70, 120)]),
]  # fmt: skip
ALMOST = 8
"""Levels: x264's refreshed pictures are nearly those of the whole stream, which is all that its recovery points say."""


@pytest.mark.parametrize(("kind", "parts"), REFRESHED)
def test_gradual_refresh_cut_and_joined(wholes, tmp_path, kind, parts):
    """At refreshes, from one to the next, and between them: nothing is shown that has not been refreshed whole."""
    clip, expected = joined_clip(wholes, kind, parts, tmp_path / "joined.ts")
    full = decoded(clip, range(len(expected)))
    assert max(np.abs(picture - expected[row].astype(int)).max() for row, picture in full.items()) <= ALMOST
    assert len(full) >= 25
    assert_in_any_company(clip, full, [[row] for row in range(0, len(expected), 5)])


@pytest.mark.parametrize("kind", OPEN_KINDS)
def test_a_stream_put_together_again_as_it_was_loses_nothing(wholes, tmp_path, kind):
    clip, expected = joined_clip(wholes, kind, [(0, 3), (3, 7), (7, 10)], tmp_path / "again.ts")
    assert clip.index.num_lost == 0
    assert len(clip.index.fresh_starts) == 0
    assert len(decoded(clip, range(len(expected)))) == len(expected) == len(clip.index.packet_pts)


@pytest.mark.parametrize("backend", ["opencv", "torchcodec"])
def test_backends_that_go_on_over_joins_refuse(wholes, tmp_path, backend):
    joined_clip(wholes, "h264", PARTS["backward"], tmp_path / "joined.mkv")
    with pytest.raises(SourceUnsupported, match="decoding begins anew at row"):
        framefleet.decode(tmp_path / "joined.mkv", backend=backend)


def test_stand_ins_are_right_behind_a_join(wholes, tmp_path):
    clip, expected = joined_clip(wholes, "h264", PARTS["backward"], tmp_path / "joined.ts")
    frames = framefleet.decode(tmp_path / "joined.ts", num_frames=1000, frame_recovery=True)
    assert frames.stats.num_missing == clip.index.num_lost > 0
    assert all(np.array_equal(data, expected[row]) for row, data in zip(frames.indices, frames.data, strict=True))
    assert len(frames.data) == len(expected)
