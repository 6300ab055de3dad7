"""Who takes the clip and why not the others; and that no false or lacking result passes for a whole one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.decode.backends import AUTO_ORDER
from framefleet.decode.backends.fake import FakeBackend, FakeClip
from framefleet.decode.choose import candidates, choose, disbelieve, load_backends, scanner, shortfall, verify
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import plan_decode
from framefleet.errors import ConfigError
from framefleet.media.scan import scan
from framefleet.sampling.sampler import FrameTargets

CLIP = FakeBackend().scan(FakeClip(num_frames=100).source)
ROWS = np.array([0, 14, 14, 50, 99])
PLAN = plan_decode(CLIP.index, FrameTargets(ROWS), 64, 36)


def whole():
    return FakeBackend().decode(CLIP, PLAN, DecodeOptions())


class Refuser:
    name = "refuser"

    def refuse(self, info, index):
        return "does not like it"


class GpuFake(FakeBackend):
    name = "gpu"
    devices = ("cuda",)


def test_candidates():
    assert candidates(DecodeOptions(), {}) == AUTO_ORDER
    assert candidates(DecodeOptions(backend="opencv"), {"FRAMEFLEET_BACKEND": "pyav"}) == ("opencv",)
    assert candidates(DecodeOptions(), {"FRAMEFLEET_BACKEND": "pyav"}) == ("pyav",)
    assert candidates(DecodeOptions(), {"FRAMEFLEET_BACKEND": ""}) == AUTO_ORDER
    assert "fake" not in AUTO_ORDER


@pytest.mark.parametrize(
    ("options", "environ"),
    [(DecodeOptions(backend="opencb"), {}), (DecodeOptions(), {"FRAMEFLEET_BACKEND": "opencb"})],
)
def test_an_unknown_backend_names_the_nearest(options, environ):
    with pytest.raises(ConfigError, match="did you mean 'opencv'"):
        load_backends(candidates(options, environ))


def test_the_order_is_kept_and_every_refusal_told():
    backends = {"first": FakeBackend(), "refuser": Refuser(), "gpu": GpuFake(), "last": FakeBackend()}
    choice = choose(CLIP.info, CLIP.index, DecodeOptions(), backends)
    assert choice.order == ("first", "last")
    assert choice.refusals == {"refuser": "does not like it", "gpu": "cannot leave frames on cpu"}
    on_gpu = choose(CLIP.info, CLIP.index, DecodeOptions(device="cuda"), backends)
    assert on_gpu.order == ("gpu",)
    with pytest.raises(ConfigError, match="device"):
        choose(CLIP.info, CLIP.index, DecodeOptions(device="tpu"), backends)


def test_real_backends_refuse_a_fake_clip():
    names = ("pyav", "opencv", "torchcodec")
    refusals = choose(CLIP.info, CLIP.index, DecodeOptions(), load_backends(names)).refusals
    assert {"opencv", "torchcodec"} <= refusals.keys()


def test_the_fake_brings_its_own_scan():
    assert scanner(DecodeOptions(backend="fake"), {})(CLIP.source, None).info.codec == "fake"
    assert scanner(DecodeOptions(backend="opencv"), {}) is scan
    assert scanner(DecodeOptions(), {}) is scan


def test_a_whole_result_is_believed():
    assert verify(whole(), PLAN, CLIP.index) is None


def altered(**changes):
    return replace(whole(), **changes)


LIES = {
    "another size": lambda: altered(data=whole().data[:, :, :-1]),
    "another type": lambda: altered(data=whole().data.astype(np.int16)),
    "one frame fewer": lambda: altered(data=whole().data[1:], pts_s=whole().pts_s[1:], indices=whole().indices[1:]),
    "another time": lambda: altered(pts_s=whole().pts_s + 0.01),
    "a row not asked for": lambda: at_rows([0, 14, 14, 50, 98]),
    "a row too often": lambda: at_rows([0, 14, 14, 14, 99]),
    "rows out of order": lambda: at_rows([14, 0, 14, 50, 99]),
}


def at_rows(rows):
    return altered(indices=np.array(rows), pts_s=CLIP.index.pts_ns[rows] / 1e9)


@pytest.mark.parametrize("lie", LIES)
def test_a_false_result_is_not_believed(lie):
    assert disbelieve(LIES[lie](), PLAN, CLIP.index)
    assert verify(LIES[lie](), PLAN, CLIP.index)


def decode_fake(**fault):
    clip = FakeBackend().scan(FakeClip(num_frames=100, **fault).source)
    return FakeBackend().decode(clip, PLAN, DecodeOptions())


def test_what_is_missing_and_told_is_believed_but_not_whole():
    frames = decode_fake(fault="corrupt", bad_rows=(14,))
    assert disbelieve(frames, PLAN, CLIP.index) is None
    assert shortfall(frames) == verify(frames, PLAN, CLIP.index) == "2 of 5 frames missing"


def test_a_stand_in_is_believed_when_it_is_told():
    frames = at_rows([0, 14, 15, 50, 99])
    assert disbelieve(frames, PLAN, CLIP.index)
    frames.stats.recovered_rows = (14,)
    assert disbelieve(frames, PLAN, CLIP.index) is None
    assert "replaced" in shortfall(frames)


def test_damage_that_is_told_is_no_whole_result():
    frames = whole()
    frames.stats.num_corrupt = 3
    assert "damaged" in verify(frames, PLAN, CLIP.index)


@pytest.mark.parametrize("fault", ["short", "liar"])
def test_a_lying_backend_is_found_out(fault):
    assert disbelieve(decode_fake(fault=fault), PLAN, CLIP.index)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=12).map(sorted), st.data())
def test_only_the_rows_asked_for_are_believed(wanted, data):
    """Whatever part of the rows comes back is believed exactly when the count of missing ones is told right."""
    clip = FakeBackend().scan(FakeClip(num_frames=100, width=16, height=16).source)
    plan = plan_decode(clip.index, FrameTargets(np.array(wanted)), 16, 16)
    frames = FakeBackend().decode(clip, plan, DecodeOptions())
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(wanted), max_size=len(wanted))))
    if not kept.any():
        return
    part = replace(frames, data=frames.data[kept], pts_s=frames.pts_s[kept], indices=frames.indices[kept])
    part.stats.num_missing = int((~kept).sum())
    assert disbelieve(part, plan, clip.index) is None
    part.stats.num_missing += 1
    assert disbelieve(part, plan, clip.index)
